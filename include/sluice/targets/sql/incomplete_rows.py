"""Rows of which only some columns are known (the source logs ``binlog_row_image`` MINIMAL or NOBLOB), whatever the
dialect.

* A row that keeps its key: exactly the known columns are changed. Such a row has to exist, unless a dump is to copy it.
* A new row, from before its table had all of its columns, gets the target's defaults.
* A row that moved to another key, or whose unique values change, is deleted and inserted whole: what the log lacks is
  the target's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.merge.column_presence import masks
from sluice.model.tables import member
from sluice.targets.sql.rows import sent_fields, user_fields
from sluice.targets.sql.tables import TableChanges, TargetTable


def missing(rows: pa.Table, table: TargetTable) -> np.ndarray[Any, Any]:
    """Return a mask, bool[rows, sent columns], of the columns that the log lacks of each row."""
    users, sent = user_fields(rows.schema), sent_fields(rows.schema, table)
    if "_present" not in rows.schema.names or not rows.num_rows:
        return np.zeros((rows.num_rows, len(sent)), bool)
    known_mask, _ = masks(rows["_present"], len(users))
    place = {field.name: i for i, field in enumerate(users)}
    return ~known_mask[:, [place[field.name] for field, _ in sent]]


def some_lack(rows: pa.Table, lacks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a mask of the rows that exist at the end and of which some column is unknown."""
    live: np.ndarray[Any, Any] = ~pc.equal(rows["_op"], "d").to_numpy(zero_copy_only=False)
    return live & lacks.any(axis=1)


def known(item: TableChanges) -> TableChanges:
    """Return only the rows of which all sent columns are known."""

    def of(rows: pa.Table) -> pa.Table:
        return rows.filter(pa.array(~some_lack(rows, missing(rows, item.table))))

    if item.read is None:
        return replace(item, rows=of(item.rows))
    return replace(item, read=lambda: map(of, item.pieces()))


@dataclass(frozen=True, slots=True)
class IncompleteRows:
    """Rows that lack the columns in ``lacks`` (bool[rows, sent columns]); ``away``: those that change their key, see
    the module.
    """

    table: TargetTable
    rows: pa.Table
    lacks: np.ndarray[Any, Any]
    away: np.ndarray[Any, Any]

    @classmethod
    def of(cls, table: TargetTable, rows: pa.Table) -> Self:
        """Return the ``rows`` that lack something."""
        every = missing(rows, table)
        some = some_lack(rows, every)
        live, lacks = rows.filter(pa.array(some)), every[some]
        away = pc.equal(live["_op"], "i").to_numpy(zero_copy_only=False)
        names = [name for _, name in sent_fields(live.schema, table)]
        unique = {column.casefold() for key in table.unique_keys for column in key}
        for index, name in enumerate(names):
            if name.casefold() in unique:
                away = away | ~lacks[:, index]
        return cls(table, live, lacks, away)

    @property
    def leaving(self) -> pa.Table:
        """The rows that leave."""
        return self.rows.filter(pa.array(self.away))

    @property
    def origins(self) -> pa.Table:
        """The keys under which the target holds the rows that leave."""
        leaving = self.leaving
        before = leaving["_before"].combine_chunks()
        columns = {}
        for field in user_fields(leaving.schema):
            old = member(before, field.name)
            columns[field.name] = pc.coalesce(old, leaving[field.name].combine_chunks())
        return pa.table(columns, schema=pa.schema(user_fields(leaving.schema)))

    @property
    def fresh(self) -> list[bool]:
        """Flags of the rows that change their key: True if a row is new, as there was none before, or another row under
        the same key.
        """
        leaving = self.leaving
        before = leaving["_before"].combine_chunks()
        same = pc.equal(leaving["_op"].combine_chunks(), "i")
        key = {name.casefold() for name in self.table.key}
        for field, name in sent_fields(leaving.schema, self.table):
            if name.casefold() in key:
                same = pc.and_(same, pc.equal(member(before, field.name), leaving[field.name].combine_chunks()))
        fresh: list[bool] = pc.or_(pc.is_null(before), pc.fill_null(same, False)).to_pylist()
        return fresh


def patterns(flags: np.ndarray[Any, Any]) -> Iterator[tuple[list[bool], np.ndarray[Any, Any]]]:
    """Yield each distinct row of ``flags`` with the numbers of the rows that are equal to it."""
    if not len(flags):
        return
    different, which = np.unique(flags.astype(bool), axis=0, return_inverse=True)
    which = which.reshape(-1)
    for number, pattern in enumerate(different):
        yield [bool(flag) for flag in pattern], np.flatnonzero(which == number)
