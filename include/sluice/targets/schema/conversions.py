"""What a target does about rows whose values the source converted without a row event."""

from __future__ import annotations

from sluice.config.pipeline import SNAPSHOT
from sluice.errors import LoadError
from sluice.model.row_effects import ColumnEffect, StepKind
from sluice.model.tables import TableId
from sluice.targets.port import SchemaChange

_BROKEN = {
    StepKind.NO_NULL: "a NULL became another value, as the session was not strict",
    StepKind.NO_ZERO: "a row with 0 or NULL got the next number of AUTO_INCREMENT",
    StepKind.WITHIN: "a number that does not fit became another one, as the session was not strict",
    StepKind.AT_MOST: "a text that does not fit may have been cut",
}
"""Why nothing can be told of a table that has a value which a step excludes."""


def effects_on(change: SchemaChange, table: TableId) -> tuple[ColumnEffect, ...]:
    """Return the effects on a source table's rows, unless they are copied again."""
    return () if table in change.copies else tuple(one for one in change.effects if one.table == table)


def broken(kind: StepKind) -> str:
    """Return why nothing can be told of rows with a value that a step of this kind excludes."""
    return _BROKEN[kind]


def not_converted(
    change: SchemaChange, effect: ColumnEffect, target: TableId, why: str = "", *, by_hand: str = ""
) -> LoadError:
    """Return the error for rows that a target cannot convert as the source did.

    ``why``: the target's own reason, if it has one. ``by_hand``: the statement that makes the change there.
    """
    old, new = effect.old, effect.new
    name = old.name if old.name == new.name else f"{old.name} (now {new.name})"
    said = f" ({by_hand})" if by_hand else ""
    hand = (
        f"make the change at the target by hand{said}, rows included, and set change_column to ignore in the ddl of "
        f"target {change.consumer} until the batch is delivered"
    )
    return LoadError(
        f"the source converted the rows of {effect.table}, and those of {target} cannot be converted in the same way: "
        f"column {name} was "
        f"{_said(old.type, nullable=old.nullable)} and is {_said(new.type, nullable=new.nullable)}: "
        f"{why or effect.unknown}: {change.statement.text[:500]}",
        where=change.where,
        hint=f"set on_conversion: copy {'in' if change.consumer == SNAPSHOT else 'at target'} {change.consumer}, and "
        f"the table is emptied there and copied again by itself{f'; or {hand}' if by_hand else ''}"
        if change.recopies
        else f"{hand}; or set it to ignore, and copy the table anew then (`sluice dump start`)",
    )


def _said(declared: str, *, nullable: bool) -> str:
    return declared if nullable else f"{declared} not null"
