"""Copies of rows while the log is read: keys, chunks, watermarks, and the readers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from sluice.model.column_types import ColumnType
from sluice.model.dumps import Chunk, TablePlanned, TableRequest
from sluice.model.tables import Column, TableId, TableSchema

Key = tuple[str, ...]
"""A key as literals of the source, one a column."""


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """The key that cuts a table into chunks: ``columns`` of the primary key, or of the index the request names."""

    columns: tuple[Column, ...]
    index: str

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the key's columns, in the key's order."""
        return tuple(c.name for c in self.columns)


class KeyText(Protocol):
    """Keys as literals of the source's dialect: what chunks, lists of keys and ranges are stored as. Picklable."""

    def literals(self, columns: Sequence[Column], keys: pa.Table) -> list[Key]:
        """Return a literal per column for each row of ``keys``, which may be what :meth:`values` returned."""

    def values(self, types: Mapping[str, ColumnType], keys: Sequence[Key]) -> pa.Table:
        """Return keys as columns named and typed as ``types`` says, in its order; as many as the keys have.

        A column has another type if its own does not hold every value exactly, see :mod:`sluice.model.exact_values`.
        Raises UnsupportedType for a text that is no literal.
        """

    def typed(self, column: Column, text: str) -> str:
        """Return the literal of a value that a person typed. Raises ConfigError."""

    def shown(self, key: Key) -> list[str]:
        """Return the values of a key as readable text."""


class ChunkTable(Protocol):
    """A table as the source has it now, and what it says of a request for some of its rows.

    Raises ConfigError, DumpRefused.
    """

    @property
    def schema(self) -> TableSchema:
        """Its definition."""

    @property
    def whole_rows_logged(self) -> bool:
        """True if the log contains every column of a changed row."""

    def key(self, request: TableRequest) -> ChunkKey:
        """Return the key that cuts the table into chunks; without columns the table is one chunk."""

    def has_prefix_key(self, key: ChunkKey) -> bool:
        """Return True if the key holds only the beginning of a column."""

    def condition(self, text: str) -> str:
        """Check a person's condition and return it in the source's dialect."""

    def is_reversed(self, lower: Key, upper: Key) -> bool:
        """Return True if ``lower`` is certainly more than ``upper``."""

    def estimate(self, request: TableRequest, key: ChunkKey) -> int:
        """Return the server's estimate of the rows."""

    def require_taken(self, request: TableRequest, key: ChunkKey, keys: Sequence[Key]) -> None:
        """Raise ConfigError if the server does not accept one of the keys as a value."""


class SourceLoad(Protocol):
    """The load of a server, and how far it follows its own source."""

    def running(self) -> int:
        """Return the number of statements that run now."""

    def replica_lag_s(self) -> float | None:
        """Return the seconds that it lags; None if it follows no server, infinite for a replica that has stopped."""


class Watermarker(Protocol):
    """Marks the window of a chunk: what the log changed in it is newer than the rows of the chunk, or the same."""

    def low(self, chunk: Chunk) -> str:
        """Mark the beginning of the window, before the select. Return what the chunk has to remember."""

    def reading(self, chunk: Chunk) -> AbstractContextManager[str | None]:
        """Wrap the select. Yields what replaces :meth:`low`'s answer, or None."""

    def high(self, chunk: Chunk) -> None:
        """Mark the end of the window, after the rows are durable."""


class ChunkReader(SourceLoad, Protocol):
    """Connections of one thread that copies rows while the log is read."""

    @property
    def watermarks(self) -> Watermarker:
        """The marks of its chunks."""

    def end_of_log(self) -> str:
        """Return the present end of the log, as :attr:`Offset.place` says it."""

    def schema(self, table: TableId) -> TableSchema:
        """Return the present definition."""

    def next_border(self, request: TableRequest, planned: TablePlanned, rows: int) -> tuple[Key, bool]:
        """Return the last key of the next chunk of about ``rows`` (empty: open), and True if it is the last chunk."""

    def rows(self, request: TableRequest, chunk: Chunk, keys: Iterable[Sequence[Key]] = ()) -> Iterator[pa.Table]:
        """Yield the rows of a chunk (SELECTED_ROWS): the columns of :meth:`schema` in order, whatever their names.

        ``keys``: the keys of the chunk, in pieces, for a request with a list of keys.

        Raises DumpRefused: the source cannot read rows under the request's condition.
        """


@runtime_checkable
class ReadsInParts(Protocol):
    """Optional, of a :class:`ChunkReader`: several connections read a table that no key cuts, all at the snapshot that
    the watermarker has opened.
    """

    def rows_in_parts(self, request: TableRequest, chunk: Chunk, readers: int) -> Iterator[pa.Table]:
        """Yield all rows of the table as :meth:`ChunkReader.rows` does, in any order, read by at most ``readers``
        connections at the same time.
        """
