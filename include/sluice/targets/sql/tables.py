"""Tables and rows as SQL targets write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from sluice.model.tables import TableId
from sluice.targets.port import KeyRange


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key at the target: ``columns`` of ``child`` name a row of ``parent``."""

    name: str
    child: TableId
    columns: tuple[str, ...]
    parent: TableId
    parent_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table as the target has it. Picklable: planned once, used by every work unit.

    Attributes:
        columns: names the target accepts a value for, in its own spelling, without generated columns.
        unique_keys: the columns of each unique key except the one rows are identified by.
        key: the planned key, in the target's spelling; empty for a table without a key.
        being_copied: a dump fills it: a row that is not there yet arrives whole with its chunk.
        generation: foreign-key level: rows of lower levels are written first; None: not checked, or part of a cycle.
        types: what each of ``columns`` is declared as at the target; empty: not known.
        named: what the target itself calls the table, None for ``table``.
        references: foreign keys from this table and to it that have to hold after the batch. Those from it the target
            checks as rows are written, if the table has a generation.
        padded: columns of unique keys in which the target does not see spaces at the end, and the source does.
        clocks: columns to which the target gives the time of an UPDATE that does not name them.
        computed: columns that the target computes, and the source, too: their values were stored once, in whatever
            mode.
    """

    table: TableId
    columns: tuple[str, ...]
    key: tuple[str, ...]
    unique_keys: tuple[tuple[str, ...], ...] = ()
    being_copied: bool = False
    generation: int | None = None
    references: tuple[Reference, ...] = ()
    padded: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    named: TableId | None = None
    clocks: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()

    @property
    def place(self) -> TableId:
        """The table's name in statements."""
        return self.named or self.table


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Merged rows of one table (changeset columns, target names) to be written, deletes before upserts.

    Attributes:
        rows: CHANGESET_ROWS of one set of columns; if only keys are written, without ``_seq`` and ``_commit_ts`` and
            with only the first column of ``_before``. They may have no columns if ``replaces`` is all there is.
        deletes, upserts: which half is wanted; both, unless the table is spread over several units in two phases.
        scope: the name under which a table without a key, or with partial rows, remembers that these rows are written;
            the table itself, unless there are several such parts, or they are not a batch's.
        replaces: ranges to clear first, in the same transaction.
        in_order: the rows are in log order and stay in it, as the server may compare keys of several of them as equal.
        verify: nothing is written; the table's ``references`` are checked, as the rows are there.
        read: yields the rows piece by piece, anew at each call, if they are too many for the memory; ``rows`` then has
            only their columns.
        part: a name that is the same in every attempt to write these rows.
    """

    table: TargetTable
    rows: pa.Table
    deletes: bool = True
    upserts: bool = True
    scope: str = ""
    replaces: tuple[KeyRange, ...] = ()
    in_order: bool = False
    verify: bool = False
    read: Callable[[], Iterator[pa.Table]] | None = None
    part: str = ""

    def pieces(self) -> Iterator[pa.Table]:
        """Yield all rows (CHANGESET_ROWS), never more at a time than fit into memory."""
        yield from self.read() if self.read is not None else (self.rows,)

    def each(self) -> Iterator[TableChanges]:
        """Yield the same changes for the rows of each piece."""
        if self.read is None:
            yield self
            return
        for rows in self.read():
            yield replace(self, rows=rows, read=None)

    def whole(self) -> TableChanges:
        """Return the same changes with all rows in memory."""
        return self if self.read is None else replace(self, rows=pa.concat_tables([self.rows, *self.read()]), read=None)
