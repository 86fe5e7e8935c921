"""The former name of :mod:`sluice.testing.targets`, for tests of users' targets that import it."""

from __future__ import annotations

import importlib
import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    """Return a name of the suite, and warn."""
    value = getattr(importlib.import_module("sluice.testing.targets"), name)
    warnings.warn(
        "sluice.targets.contract is sluice.testing.targets now: import it from there", DeprecationWarning, stacklevel=2
    )
    return value
