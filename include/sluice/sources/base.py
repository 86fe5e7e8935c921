"""The former name of :mod:`sluice.sources.port`, kept for sources of users that import it."""

from __future__ import annotations

from sluice.sources.port import *  # noqa: F403
from sluice.sources.port import __all__ as __all__
