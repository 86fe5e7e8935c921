"""What a target does about rows whose values the source converted without a row event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sluice.config.pipeline import SNAPSHOT
from sluice.errors import LoadError
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.definitions import ColumnDefinition
from sluice.model.row_effects import ColumnEffect, StepKind
from sluice.model.schema_changes import TableChange
from sluice.model.tables import TableId
from sluice.targets.port import Held, SchemaChange

_BROKEN = {
    StepKind.NO_NULL: "a NULL became another value, as the session was not strict",
    StepKind.NO_ZERO: "a row with 0 or NULL got the next number of AUTO_INCREMENT",
    StepKind.WITHIN: "a number that does not fit became another one, as the session was not strict",
    StepKind.AT_MOST: "a text that does not fit may have been cut",
}
"""Why nothing can be told of a table that has a value which a step excludes."""


def effects_on(change: SchemaChange, table: TableId) -> tuple[ColumnEffect, ...]:
    """Return the effects on a source table's rows, unless they are copied again."""
    return () if table in change.copies else tuple(effect for effect in change.effects if effect.table == table)


def effects_at(
    form: Held, change: SchemaChange, table_change: TableChange, effects: Sequence[ColumnEffect]
) -> list[ColumnEffect]:
    """Return those of the source's effects on a table that change what a target stores.

    A target that stores the source's values in another form has effects of its own: values that the source keeps are
    stored otherwise from now on, and existing rows have no value of a new generated column.
    """
    target_effects = []
    for effect in effects:
        why = "" if form is Held.TYPED or not effect.same else _stored_otherwise(form, change, effect)
        if why or not effect.same:
            target_effects.append(replace(effect, unknown=effect.unknown or why))
    if form is not Held.TYPED and table_change.before is not None and table_change.after is not None:
        column_names = {column.name for column in table_change.before.columns} | {effect.new.name for effect in effects}
        target_effects += [
            ColumnEffect(table_change.table, new, new, unknown="the source computes its values")
            for new in table_change.after.columns
            if new.generated is not None and new.name not in column_names
        ]
    return target_effects


def _stored_otherwise(storage_form: Held, change: SchemaChange, effect: ColumnEffect) -> str:
    old, new = effect.old, effect.new
    if new.generated is not None:
        return "" if old.generated == new.generated else "the source computes its values anew"
    was, now = (change.meaning.types.get(column) for column in (old, new))
    if was is None or now is None:
        return ""
    if {was.kind, now.kind} == {ColumnKind.FLOAT, ColumnKind.DOUBLE}:
        return "a FLOAT is stored as its shortest text, which is another DOUBLE"
    if _digits(was) != _digits(now):
        return "values are stored with as many digits as the column has"
    exact = storage_form is Held.NUMBERS and (was.precision > _DECIMAL128) != (now.precision > _DECIMAL128)
    return "so many digits are stored as a text" if exact else ""


_DECIMAL128 = 34
"""The digits of IEEE 754's decimal128."""


def _digits(column_type: ColumnType) -> int:
    """Return the fractional digits of a number or a time."""
    return column_type.scale if column_type.kind is ColumnKind.DECIMAL else column_type.digits


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
    statement = f" ({by_hand})" if by_hand else ""
    hand = (
        f"make the change at the target by hand{statement}, rows included, and set change_column to ignore in the ddl "
        f"of target {change.consumer} until the batch is delivered"
    )
    return LoadError(
        f"the source converted the rows of {effect.table}, and those of {target} cannot be converted in the same way: "
        f"column {name}{_retyped(old, new)}: {why or effect.unknown}: {change.statement.text[:500]}",
        where=change.where,
        hint=f"set on_conversion: copy {'in' if change.consumer == SNAPSHOT else 'at target'} {change.consumer}, and "
        f"the table is emptied there and copied again by itself{f'; or {hand}' if by_hand else ''}"
        if change.recopies
        else f"{hand}; or set it to ignore, and copy the table anew then (`sluice dump start`)",
    )


def _retyped(old: ColumnDefinition, new: ColumnDefinition) -> str:
    was, now = (_said(column.type, nullable=column.nullable) for column in (old, new))
    if old == new:
        return f" is new and is {now}"
    return f" was {was} and is {now}" if was != now else f" of type {now}"


def _said(declared: str, *, nullable: bool) -> str:
    return declared if nullable else f"{declared} not null"
