"""The alert rules, by name."""

from __future__ import annotations

from enum import StrEnum


class AlertRule(StrEnum):
    """A matter that people are alerted of."""

    STOPPED = "stopped"
    LAG = "lag"
    DEAD_LETTERS = "dead_letters"
    DIFFERENCES = "differences"
    AT_RISK = "at_risk"
    SUBSCRIPTION = "subscription"
