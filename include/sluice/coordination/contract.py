"""The former name of :mod:`sluice.testing.position_stores`, for tests of users' stores that import it."""

from __future__ import annotations

import importlib
import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    """Return a name of the suite, and warn."""
    value = getattr(importlib.import_module("sluice.testing.position_stores"), name)
    warnings.warn(
        "sluice.coordination.contract is sluice.testing.position_stores now: import it from there",
        DeprecationWarning,
        stacklevel=2,
    )
    return value
