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

    @property
    def public_name(self) -> str:
        """The name that people search for, beside those of errors (:func:`sluice.errors.public_name_of`)."""
        return f"SLUICE-ALERT-{self.value.upper().replace('_', '-')}"
