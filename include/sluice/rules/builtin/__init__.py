"""Rules that come with Sluice: ``builtin: NAME`` in engine.yaml.

Each is a file here, written as a user would write a rule of type arrow.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sluice.errors import ConfigError
from sluice.model.nearest import meant

_HOME = Path(__file__).parent


@cache
def names() -> tuple[str, ...]:
    """Return the names of all built-in rules."""
    return tuple(sorted(path.stem for path in _HOME.glob("*.py") if not path.stem.startswith("_")))


def source(name: str, where: str) -> tuple[str, str]:
    """Return (path, contents) of a built-in rule. Raises ConfigError that lists those there are."""
    if name not in names():
        raise ConfigError(
            f"there is no built-in rule {name!r}{meant(name, names())}",
            where=where,
            hint=f"choose one of {', '.join(names())}",
        )
    path = _HOME / f"{name}.py"
    return str(path), path.read_text(encoding="utf-8")
