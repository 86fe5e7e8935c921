"""The problems of a target's table that ``sluice check`` reports, and that stop a load."""

from __future__ import annotations

from typing import NamedTuple

from sluice.model.losses import Loss
from sluice.model.tables import TableId
from sluice.targets.port import TableFinding


class Problem(NamedTuple):
    """A problem of a table: ``severity`` and ``column`` as in a TableFinding; ``statement`` corrects it, or ``hint``
    says what the choices are. ``loses``: values are lost, as in a TableFinding.
    """

    severity: str
    column: str
    why: str
    statement: str = ""
    hint: str = ""
    absent: bool = False
    loses: bool = False

    def finding(self, table: TableId) -> TableFinding:
        """Return the problem as a finding on a table of the target."""
        return TableFinding(
            self.severity, table, self.column, self.why, self.statement, self.hint, self.absent, self.loses
        )


def warning_of(column: str, types: str, why: str, statement: str = "") -> Problem:
    """Return a problem of a column that does not keep all of its values, or refuses some (:func:`about_values`)."""
    return Problem("warning", column, f"{types}: {why}", statement, loses=isinstance(why, Loss))


def error_of(column: str, why: str, statement: str = "", hint: str = "", *, absent: bool = False) -> Problem:
    """Return a problem that stops a load."""
    return Problem("error", column, why, statement, hint, absent)


def applied(statement: str) -> str:
    """Return the hint for DDL that the check runs: the command first, as a long statement may be cut."""
    return f"`sluice check PIPELINE --apply` runs what makes it: {statement}"
