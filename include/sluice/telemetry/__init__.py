"""OpenTelemetry as the environment configures it; nothing of it is imported otherwise."""

from __future__ import annotations

import sys

_EXPORT = "sluice.telemetry.export"


def flush() -> None:
    """Send what waits in this process, for a second at most; return at once if nothing was ever sent."""
    if _EXPORT in sys.modules:
        from sluice.telemetry.export import flush as send

        send()
