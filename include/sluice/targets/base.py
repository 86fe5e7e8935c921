"""The former name of :mod:`sluice.targets.port`, kept for targets of users that import it."""

from __future__ import annotations

from sluice.targets.port import *  # noqa: F403
from sluice.targets.port import __all__ as __all__
