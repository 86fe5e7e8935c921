"""Findings about a server, a file or a store: of the pre-flight before the first row, and of `sluice check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.errors import PreflightError, SluiceError


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a report.

    Attributes:
        severity: ok, warning or error.
        setting: what was looked at, such as a variable of the server, with its ``value`` there.
        why: it matters; fix: the statement or the step that corrects it.
        kind: the error that an error becomes where it stops the work.
        part: pipeline, channel, zookeeper, source, rules, store or a target; "" where a report is about one part only.
    """

    severity: str
    setting: str
    value: str
    why: str
    fix: str = ""
    kind: type[SluiceError] = PreflightError
    part: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the finding as commands print it."""
        return {
            "severity": self.severity,
            "part": self.part,
            "setting": self.setting,
            "value": self.value,
            "why": self.why,
            "fix": self.fix,
        }
