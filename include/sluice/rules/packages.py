"""Rules of installed packages: the entry points ``sluice.rules``, each the name of a Python module.

The module is not imported: its file is read, and travels with the work as a rule's own file does.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from sluice.config.user_kinds import package_of
from sluice.errors import ConfigError
from sluice.model.nearest import meant

GROUP = "sluice.rules"


def file_of(name: str, where: str) -> Path:
    """Return the file of a rule by the name of its entry point. ``where``: file and line that name it.

    Raises ConfigError with the names there are.
    """
    points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    point = points.get(name)
    if point is None:
        names = ", ".join(sorted(points)) or "none"
        raise ConfigError(
            f"no installed package has the rule {name!r}{meant(name, points)}",
            where=where,
            hint=f"known: {names}; a package names its rules under the entry point {GROUP}",
        )
    package = package_of(point)
    try:
        spec = importlib.util.find_spec(point.module)
    except ImportError as error:
        raise ConfigError(f"the rule {name!r} of {package} cannot be found: {error}", where=where) from error
    if spec is None or not spec.origin or not spec.has_location:
        raise ConfigError(
            f"the rule {name!r} of {package} is {point.module}, which is no module with a file",
            where=where,
            hint=f"reinstall {package}",
        )
    return Path(spec.origin)
