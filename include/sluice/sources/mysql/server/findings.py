"""What the pre-flight has to say: values only."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.errors import PreflightError, TerminalError


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the pre-flight: ``severity`` is warning or error; ``kind`` the error it becomes.

    ``setting`` and ``value`` as the server has them; ``why`` it matters; ``fix``: the statement that mends it.
    """

    severity: str
    setting: str
    value: str
    why: str
    fix: str = ""
    kind: type[TerminalError] = PreflightError
