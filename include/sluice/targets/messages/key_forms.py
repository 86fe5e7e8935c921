"""Find whether a changed definition changes the bytes of a table's message keys, by the code that makes them, with
sample rows.

Each format writes a key in its own way, with or without its schema: INT to BIGINT changes a key of debezium-avro and
none of debezium-json, DATETIME to DATETIME(6) changes both. So keys of the same values are made under both definitions,
and compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from sluice.errors import SluiceError
from sluice.model.column_types import ColumnType
from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.model.offset import Offset
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.schema_changes import TableChange
from sluice.model.tables import TableId, stored_name
from sluice.targets.messages.documents import MessageWriter
from sluice.targets.messages.form import MessageForm
from sluice.targets.messages.pieces import removed_piece
from sluice.targets.port import SchemaChange
from sluice.targets.schema.policy import NAMES, changed_columns

_SECOND_US = 981_173_106_000_000
"""2001-02-03 04:05:06: a timestamp without fractional digits, in every calendar and zone."""
_NOWHERE = Offset.at("", "binlog.000001", 4)


class _Numbers:
    """Numbers schemas as a registry does, equal ones equally; nothing is registered."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def number_of(self, table: TableId | str, side: str, record: str, schema: str, kind: str) -> int:
        return self._known.setdefault(schema, len(self._known))


@dataclass(frozen=True, slots=True)
class KeyForms:
    """The keys of a target's messages. ``source``: the name under which documents refer to their source."""

    form: MessageForm
    source: str

    def differ(self, change: SchemaChange, table_change: TableChange) -> str:
        """Return how message keys of the rows that are there differ after the change, "" if they do not."""
        if table_change.before is None or table_change.after is None or self.form.arrow:
            return ""
        before, after = _key(change, table_change.before), _key(change, table_change.after)
        if not after:
            return ""  # without a key the next row stops the load
        route = change.mapping.route(table_change.table)
        names = [route.target_name(column.name) or column.name for column in before]  # key columns are always sent
        now = [route.target_name(column.name) or column.name for column in after]
        if names != now:
            return f"the key was {_listed(names)} and is {_listed(now)}"
        became = _became(change, table_change)
        for name, old, new in zip(names, before, after, strict=True):
            if became.get(old.name.lower(), old.name.lower()) != new.name.lower():
                return f"column {name} of the key is another one now"
        for name, old, new in zip(names, before, after, strict=True):
            if (old.type, old.charset) == (new.type, new.charset) or route.conversion(old.name) is not None:
                continue
            if self._column_differs(change, route.target, name, old, new):
                return f"column {name} of the key was {old.type} and is {new.type}"
        return ""

    def _column_differs(
        self, change: SchemaChange, target: TableId, name: str, old: ColumnDefinition, new: ColumnDefinition
    ) -> bool:
        """Return True if a key of this column alone has other bytes for the same value."""
        was, is_now = change.meaning.types.get(old), change.meaning.types.get(new)
        if was is None or is_now is None:
            return True
        pairs = list(_samples(was.arrow_type, is_now.arrow_type))
        if not pairs:
            return True
        writer = MessageWriter(self.form, self.source, 0, _NOWHERE, _Numbers())
        keys_by_type: list[list[bytes]] = []
        for definition, made_of, values in (
            (old, was, [value for value, _ in pairs]),
            (new, is_now, [value for _, value in pairs]),
        ):
            array = pa.concat_arrays([pa.array([value.as_py()], made_of.arrow_type) for value in values])
            rows = pa.Table.from_arrays([array], schema=pa.schema([_field(name, definition, made_of)]))
            plan = PlannedTable(target, target, (PlannedColumn(name, definition.type, key=1),))
            try:
                keys_by_type.append(writer.tombstones(removed_piece(plan, rows)).keys.to_pylist())
            except (SluiceError, ValueError, TypeError, KeyError):
                return True
        return keys_by_type[0] != keys_by_type[1]


def _key(change: SchemaChange, table: TableDefinition) -> list[ColumnDefinition]:
    """Return the columns that tell rows apart, in order."""
    names = table.row_key or change.mapping.route(table.table).key
    known_columns = {column.name.lower(): column for column in table.columns}
    return [known_columns[name.lower()] for name in names if name.lower() in known_columns]


def _became(change: SchemaChange, table_change: TableChange) -> dict[str, str | None]:
    """Return what became of columns that were renamed or dropped, in lower case; None: it is gone, or that cannot be
    told.
    """
    assert table_change.before is not None
    parts = changed_columns(change, table_change)
    if parts is None:
        return {column.name.lower(): None for column in table_change.before.columns}
    return {
        part.old.name.lower(): part.new.name.lower() if part.new is not None else None
        for part in parts
        if part.old is not None and part.kind in NAMES
    }


def _field(name: str, column: ColumnDefinition, column_type: ColumnType) -> pa.Field:
    """Return the field of a key column, as batches have it."""
    properties = {"type": column.type, "name": name, "kind": column_type.to_text(), "key": "1", "required": "1"}
    if column.charset:
        properties["charset"] = column.charset
    if column.collation:
        properties["collation"] = column.collation
    metadata = {f"sluice.{word}".encode(): text.encode() for word, text in properties.items()}
    return pa.field(stored_name(name), column_type.arrow_type, metadata=metadata)


def _samples(old: pa.DataType, new: pa.DataType) -> Iterator[tuple[pa.Scalar, pa.Scalar]]:
    """Yield values of the old type, and the same ones in the new type; those that it cannot hold are left out."""
    for value in _values(old):
        try:
            sample = pa.array([value], pa.int64()).cast(old) if pa.types.is_temporal(old) else pa.array([value], old)
            yield sample[0], sample.cast(new)[0]
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            continue


def _values(kind: pa.DataType) -> Sequence[object]:
    if pa.types.is_boolean(kind):
        return (True,)
    if pa.types.is_unsigned_integer(kind):
        return (1,)
    if pa.types.is_integer(kind):
        return (1, -1)
    if pa.types.is_floating(kind):
        return (1.5, 0.1)
    if pa.types.is_decimal(kind):
        return (Decimal(1), Decimal("0.5")) if kind.scale else (Decimal(1),)
    if pa.types.is_temporal(kind):
        return (11_356,) if pa.types.is_date32(kind) else (_SECOND_US,)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return (b"a",)
    return ("a",)


def _listed(names: Sequence[str]) -> str:
    return f"({', '.join(names)})" if names else "none"
