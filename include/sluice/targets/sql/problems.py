"""The problems of a target's table that ``sluice check`` reports, and that stop a load."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """A problem of a table: ``severity`` and ``column`` as in a TableFinding; ``statement`` corrects it, or ``hint``
    says what the choices are.
    """

    severity: str
    column: str
    why: str
    statement: str = ""
    hint: str = ""
    absent: bool = False


def error_of(column: str, why: str, statement: str = "", hint: str = "", *, absent: bool = False) -> Problem:
    """Return a problem that stops a load."""
    return Problem("error", column, why, statement, hint, absent)


__all__ = ["Problem", "error_of"]
