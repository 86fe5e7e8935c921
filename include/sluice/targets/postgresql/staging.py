"""Rows staged at the server, from where one statement writes them: few as parameters, many by a binary COPY into a
temporary table.

Decision: a temporary table costs the catalogs some twenty rows and the session two round trips, and a batch may have
ten thousand small tables; parameters are unpacked by the server one array per column, which takes it longer than
reading a table. A server that created temporary tables for free would make this wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.errors import LoadError
from sluice.model.column_types import ColumnKind
from sluice.model.fields import is_masked, neutral_type, true_name
from sluice.model.sizes import cuts, row_bytes
from sluice.postgresql.names import quoted, quoted_table
from sluice.postgresql.type_names import LABEL, PgType, pg_type
from sluice.targets.postgresql import wire
from sluice.targets.postgresql.connection import Binary
from sluice.targets.sql.rows import row_text, target_type
from sluice.targets.sql.tables import TargetTable

PARAMETER_ROWS = 1_000
PARAMETER_BYTES = 1 << 20
SLICE_ROWS = 50_000
SLICE_BYTES = 8 << 20
VALUE_REFUSED = "22000"
"""The class of errors that are a value's fault."""

_ADDRESSES = frozenset({ColumnKind.INET4, ColumnKind.INET6})
_READ_TEXT = frozenset({"", "text", "character varying", "character", "json", "jsonb", "uuid"})
"""The types that texts are sent as; the server casts a text to every other one."""

ROWS = "\0"
"""The placeholder for the staged rows in a statement, which calls them ``s``. No identifier has this character."""

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class StagedColumn:
    """A column of the staged rows: ``s.name``; ``field``: of the rows."""

    name: str
    field: pa.Field
    target: PgType

    @classmethod
    def of(cls, number: int, field: pa.Field) -> StagedColumn:
        """Return the staged column ``number`` of a field."""
        return cls(f"c{number}", field, _sent_type(field))

    @property
    def cast(self) -> bool:
        """True if the server has to cast what is sent, as its type does not read it in a COPY."""
        return self.target.label and not target_type(self.field).startswith(LABEL)

    @property
    def value(self) -> str:
        """The SQL of the value for an INSERT or UPDATE; the server refuses what does not fit."""
        cast = self.target.label or self.target.word == "geometry"
        return f"CAST(s.{self.name} AS {self.target.declared})" if cast else f"s.{self.name}"

    @property
    def compared(self) -> str:
        """The SQL of the value for a comparison with the column itself."""
        if self.target.label or self.target.word in {"character", "bit", "geometry"}:
            return f"CAST(s.{self.name} AS {self.target.declared})"
        return f"s.{self.name}"


def _sent_type(field: pa.Field) -> PgType:
    """Return the type of a field's column, with how its values are sent: a text, but for types that read its bytes."""
    target, column_type = pg_type(target_type(field)), neutral_type(field)
    if not pa.types.is_string(field.type) or column_type is None or column_type.kind in _ADDRESSES:
        return target
    return target if target.label or target.word in _READ_TEXT else replace(target, label=True)


@dataclass(frozen=True)
class Stage:
    """Sends rows over a session's cursor, in its transaction.

    Attributes:
        table: the rows' table, for errors.
        zero_dates: how dates are treated that no calendar has.
    """

    cursor: Any
    table: TargetTable
    zero_dates: str = "refuse"

    @contextmanager
    def rows(self, rows: pa.Table, columns: Sequence[StagedColumn]) -> Iterator[Staged]:
        """Yield ``rows`` (at least one) at the server.

        Raises LoadError for a value that the target cannot hold, and what the driver raises.
        """
        if self.is_few(rows, columns):
            encoded = self._encoded(rows, columns)
            values = ", ".join(f"%b::{column.target.sent}[]" for column in columns)
            names = ", ".join(column.name for column in columns)
            arrays = [wire.array_value(raw, column.target.sent) for raw, column in zip(encoded, columns, strict=True)]
            yield Staged(self.cursor, f"unnest({values}) AS s({names})", tuple(map(Binary, arrays)))
            return
        name = f"_sluice_{next(_numbers)}"
        lines = ", ".join(f"{column.name} {column.target.sent}" for column in columns)
        self.cursor.execute(f"CREATE TEMPORARY TABLE {name} ({lines}) ON COMMIT DROP")
        self._copy(f"pg_temp.{name}", rows, columns)
        yield Staged(self.cursor, f"pg_temp.{name} AS s", None)
        self.cursor.execute(f"DROP TABLE pg_temp.{name}")

    @contextmanager
    def unordered(self) -> Iterator[None]:
        """Let staged rows be joined with a table in other ways than by its key, inside the context.

        Decision: elsewhere the key's index is asked row by row. 40,000 rows spread over a table of 2,000,000, processor
        time of the server for a million rows: MERGE 4 s; 22 s with the planner's own choice, which scans the whole
        index for them. For neighbouring rows both take 10 s. So the cost follows the changes, not the table. Statistics
        of the staged rows that the planner knows would make it wrong.
        """
        self.cursor.execute("SET LOCAL enable_hashjoin = on")
        yield
        self.cursor.execute(
            "SET LOCAL enable_hashjoin = off"
        )  # after an error the transaction, or its savepoint, is rolled back

    @staticmethod
    def is_few(rows: pa.Table, columns: Sequence[StagedColumn]) -> bool:
        """Return True for rows that are sent as parameters."""
        if rows.num_rows > PARAMETER_ROWS:
            return False
        return not rows.num_rows or sum(rows[column.field.name].nbytes for column in columns) <= PARAMETER_BYTES

    def storable(self, rows: pa.Table, columns: Sequence[StagedColumn]) -> pa.Table:
        """Return the rows whose values of these columns the target can hold."""
        for column in columns:
            while refused := self._refusal(rows, column):
                rows = rows.filter(pa.array(~refused.mask))
        return rows

    def _refusal(self, rows: pa.Table, column: StagedColumn) -> wire.Refusal | None:
        try:
            self._encode(rows, column)
        except wire.Refusal as refusal:
            return refusal
        return None

    def copy(self, rows: pa.Table, columns: Sequence[StagedColumn], names: Sequence[str]) -> None:
        """Copy rows into the table itself. Its types read the same bytes as those in which values are sent; rows with
        others are staged first.

        Raises as :meth:`rows` does.
        """
        if any(column.cast for column in columns):
            if rows.num_rows:
                values = ", ".join(column.value for column in columns)
                place = f"{quoted_table(self.table.place)} ({', '.join(map(quoted, names))})"
                with self.rows(rows, columns) as staged:
                    staged.run(f"INSERT INTO {place} SELECT {values} FROM {ROWS}")  # noqa: S608 - quoted
            return
        self._copy(f"{quoted_table(self.table.place)} ({', '.join(map(quoted, names))})", rows, columns)

    def _copy(self, place: str, rows: pa.Table, columns: Sequence[StagedColumn]) -> None:
        with self.cursor.copy(f"COPY {place} FROM STDIN (FORMAT binary)") as copy:
            copy.write(wire.copy_head())
            sizes = row_bytes(rows.select([column.field.name for column in columns]))
            for start, stop in cuts(sizes, SLICE_BYTES, SLICE_ROWS):
                copy.write(wire.copy_rows(self._encoded(rows.slice(start, stop - start), columns)))
            copy.write(wire.copy_end())

    def _encoded(self, rows: pa.Table, columns: Sequence[StagedColumn]) -> list[wire.Column]:
        encoded = []
        for column in columns:
            try:
                encoded.append(self._encode(rows, column))
            except wire.Refusal as refusal:
                raise self._refused(rows, column, refusal) from None
        return encoded

    def _encode(self, rows: pa.Table, column: StagedColumn) -> wire.Column:
        values = rows[column.field.name].combine_chunks()
        return wire.encode(column.field, values, column.target, zero_dates=self.zero_dates)

    def _refused(self, rows: pa.Table, column: StagedColumn, refusal: wire.Refusal) -> LoadError:
        number = int(np.flatnonzero(refusal.mask)[0])
        hidden = any(map(is_masked, rows.schema))
        error = LoadError(
            f"a value of column {true_name(column.field)} {refusal.why}: the row "
            f"{row_text(rows, number, self.table, hidden=hidden)}",
            where=f"{self.table.table}.{true_name(column.field)}",
            hint="change the column at the target, change the value at the source, or leave such rows out: on_error: "
            "dead_letter",
        )
        error.code = VALUE_REFUSED
        return error


@dataclass(frozen=True, slots=True)
class Staged:
    """Rows that are at the server."""

    cursor: Any
    source: str
    parameters: tuple[Binary, ...] | None

    @property
    def few(self) -> bool:
        """True if they are parameters."""
        return self.parameters is not None

    def run(self, statement: str) -> int:
        """Run a statement about them; ``ROWS`` in it stands for them. Returns how many rows it changed."""
        if self.parameters is None:
            self.cursor.execute(statement.replace(ROWS, self.source))
        else:
            self.cursor.execute(statement.replace("%", "%%").replace(ROWS, self.source), self.parameters)
        return int(self.cursor.rowcount)
