"""The rows of a read as documents, one a change: JSON as Debezium, Maxwell and canal publish it, or CloudEvents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from sluice.errors import ConfigError
from sluice.formats import columns, format_of, named
from sluice.formats.rows import changes_of
from sluice.model.fields import key_fields, true_name
from sluice.model.nearest import meant
from sluice.model.tables import TableId, user_schema
from sluice.serve.requests import ReadRequest
from sluice.serve.row_shapes import OWN, StreamShape, sent_name
from sluice.serve.transaction_records import LOG_COLUMNS, RECORD, with_records

DOCUMENT = "document"
_SCHEMA = pa.schema([(DOCUMENT, pa.large_string())])
ROWS_AT_ONCE = 4096
"""Whose documents are in memory."""

_OF_TRANSACTIONS = ("debezium-json", "cloudevents-json")
"""The formats between whose documents Debezium's events of transactions may stand, as at targets with messages."""

_BY_COLUMNS = "debezium-json"
"""The format whose documents are made of whole columns."""


@dataclass
class DocumentShape:
    """Documents of one read.

    Tables of any columns are one stream, and columns may change in it: each document has those of its row.

    Attributes:
        form: a name that :func:`sluice.formats.named` knows; source: that under which documents speak of their source.
        schema: of what is sent: ``document`` (text).
    """

    request: ReadRequest
    form: str
    source: str
    schema: pa.Schema = _SCHEMA
    _number: int = 0
    _shapes: dict[TableId, StreamShape] = field(default_factory=dict)

    @classmethod
    def of(
        cls, request: ReadRequest, tables: Iterable[tuple[TableId, pa.Schema]], form: str, source: str
    ) -> DocumentShape:
        """Return the shape for rows of all these tables.

        Raises ConfigError: the format is not known, or no table has a column that is asked for.
        """
        form = named(form)
        if request.transactions and form not in _OF_TRANSACTIONS:
            raise ConfigError(
                f"{form} has no records of transactions",
                hint=f"choose one of {', '.join(_OF_TRANSACTIONS)}, or leave out transactions",
            )
        if request.form != "changes":
            raise ConfigError("documents have every change", hint="leave out form, or read merged rows by Arrow Flight")
        shape = cls(request, form, source)
        sent_names: set[str] = set()
        for table, schema in tables:
            sent_names |= {sent_name(field.name) for field in schema}
            shape._of_table(table, schema)
        for name in request.columns or ():
            if name not in sent_names:
                raise ConfigError(f"no table has a column {name!r}{meant(name, sorted(sent_names))}")
        return shape

    def require(self, columns: pa.Schema, table: TableId, batch: int) -> None:
        """Accept any columns: documents can have different ones, as long as those of one batch and table are the
        same.
        """

    def rows(self, rows: pa.Table, table: TableId, batch: int) -> pa.Table:
        """Return those rows of a batch that are sent. Raises SchemaMoved."""
        if self._number != batch:
            self._shapes.clear()
            self._number = batch
        if table not in self._shapes:
            self._shapes[table] = self._of_table(table, user_schema(rows.schema))
        return self._shapes[table].rows(rows, table, batch)

    def sent(self, rows: pa.Table, table: TableId, batch: int) -> Iterator[pa.RecordBatch]:
        """Yield documents of rows that :meth:`rows` made. An update that changes the key may be two."""
        for documents, _, _ in self._pieces(rows, table, batch):
            yield pa.record_batch([documents], self.schema)

    def with_records(self, pieces: Iterable[tuple[pa.Table, TableId]], batch: int) -> Iterator[pa.RecordBatch]:
        """Yield the documents of a whole batch in log order, and between them the events of transactions."""
        record_batches = (
            pa.record_batch(
                [documents, *(logged.column(name).take(rows) for name in LOG_COLUMNS)], [DOCUMENT, *LOG_COLUMNS]
            )
            for rows_of, table in pieces
            for documents, rows, logged in self._pieces(rows_of, table, batch)
        )
        for piece in with_records(record_batches, DOCUMENT):
            yield pa.record_batch([piece.column(DOCUMENT)], self.schema)

    def _pieces(
        self, rows: pa.Table, table: TableId, batch: int
    ) -> Iterator[tuple[pa.Array, pa.Array, pa.RecordBatch]]:
        """Yield documents, the number of each one's row, and these rows."""
        key = tuple(map(true_name, key_fields(rows.schema)))
        for start in range(0, rows.num_rows, ROWS_AT_ONCE):
            for piece in self._shapes[table].sent(rows.slice(start, ROWS_AT_ONCE), table, batch):
                own = [name for name in (*OWN, RECORD) if name in piece.schema.names]
                plain = pa.Table.from_batches([piece]).drop_columns(own)
                yield *self._documents(plain, table, key), piece

    def _of_table(self, table: TableId, schema: pa.Schema) -> StreamShape:
        """Return the shape of one table. Raises ConfigError if the predicate names a column that this table lacks."""
        column_names = self.request.columns
        if column_names is not None:
            own_sent_names = {sent_name(field.name) for field in schema}
            column_names = tuple(name for name in column_names if name in own_sent_names)
        return StreamShape.of(self.request.model_copy(update={"columns": column_names}), [(table, schema)])

    def _documents(self, rows: pa.Table, table: TableId, key: tuple[str, ...]) -> tuple[pa.Array, pa.Array]:
        if self.form == _BY_COLUMNS and columns.can(rows) and not columns.moved(rows, key).any():
            return columns.Rows(rows, table).documents(self.source), pa.array(np.arange(rows.num_rows))
        form = format_of(self.form)
        documents = [
            (text, number)
            for number, change in enumerate(changes_of(rows, table, key))
            for text in form.row(change, self.source)
        ]
        return pa.array([text for text, _ in documents], pa.large_string()), pa.array(
            [row for _, row in documents], pa.int64()
        )
