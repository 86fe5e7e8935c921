"""Ways around a place in the log that cannot be read.

It does not go away by itself: every capture comes to it again.
"""

from __future__ import annotations

AROUND = (
    "`sluice seek PIPELINE latest` goes on after all that stands in the log by now, and "
    "`sluice dump start PIPELINE --replace` then makes both sides equal"
)
