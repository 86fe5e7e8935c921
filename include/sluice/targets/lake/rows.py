"""Merged rows of a batch for one table, as its columns: what is upserted, deleted or refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError, MappingError
from sluice.merge.group_codes import dense, group_codes
from sluice.model.fields import true_name
from sluice.targets.lake.types import TableInfo, arrow_of
from sluice.targets.lake.values import convert, row_text, sent_columns, user_fields
from sluice.targets.port import RejectedRows, Rejection, RowFile, RowReader, TableInput


@dataclass(frozen=True)
class Part:
    """Rows with one set of columns, by their names at the target.

    ``gone``: a mask of the deleted rows. Nothing is written to columns that are not here.
    """

    columns: Mapping[str, pa.Array]
    gone: np.ndarray


@dataclass
class MergedRows:
    """Reads the merged rows of one source table in the target's types. ``batch``: for errors."""

    reader: RowReader
    table: TableInput
    batch: int
    zero_dates: str
    _read: dict[int, list[pa.Table]] = field(default_factory=dict)

    def pieces(self, info: TableInfo, *, stop: bool) -> Iterator[tuple[Part, list[Rejection]]]:
        """Yield the rows piece by piece, if they do not fit into memory. ``stop``: none may be left out."""
        for group in self.reader.groups(self.table.files, lean=stop, streamed=True):
            for rows in group.read() if group.read is not None else [group.rows]:
                if rows.num_rows:
                    yield self._part(rows, info, stop=stop)

    def parts(
        self, info: TableInfo, rejected: RejectedRows | None, name: str, last_batch: int = 0
    ) -> tuple[list[Part], int]:
        """Return the rows, one part for each set of columns, and how many were refused. Raises LoadError, MappingError.

        Args:
            name: the part's name, for ``rejected``.
            last_batch: the last that the table has, if several are written as one.
        """
        parts: list[Part] = []
        refused: list[Rejection] = []
        for rows in self._rows(last_batch, lean=rejected is None):
            part, some = self._part(rows, info, stop=rejected is None)
            parts.append(part)
            refused += some
        if rejected is not None:
            rejected(name, self.table.target, refused)
        return parts, len(refused)

    def _rows(self, last_batch: int, *, lean: bool) -> list[pa.Table]:
        """Return the rows, one table for each set of columns; they are cached for the next attempt."""
        if last_batch not in self._read:
            files, batches = self.table.files, self.table.batches
            if not batches:
                self._read[last_batch] = self._groups(files, lean=lean)
            else:
                of = {
                    number: [file for file, batch in zip(files, batches, strict=True) if batch == number]
                    for number in batches
                }
                tables = [
                    rows for number in sorted(of) if number > last_batch for rows in self._groups(of[number], lean=lean)
                ]
                self._read[last_batch] = [self._newest(tables)] if tables else []
        return self._read[last_batch]

    def _groups(self, files: Sequence[RowFile], *, lean: bool) -> list[pa.Table]:
        return [group.rows for group in self.reader.groups(files, lean=lean) if group.rows.num_rows]

    def _newest(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return the last row of each key, from rows of several batches, oldest first.

        Raises:
            LoadError: they do not have the same columns. What an older row sets and a newer one leaves unchanged would
                be lost.
        """
        names = [frozenset(map(true_name, user_fields(rows.schema))) for rows in tables]
        if len(set(names)) > 1:
            odd = min(names[0] ^ next(some for some in names if some != names[0]))
            raise LoadError(
                f"rows of {self.table.plan.source} have other columns in one batch than in another: {odd!r}; they "
                "cannot be written together",
                where=f"{self.table.target}, up to batch {self.batch}",
                hint="the batches are written one by one",
            )
        rows = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
        stored = {true_name(arrow_field): arrow_field.name for arrow_field in user_fields(rows.schema)}
        codes, count = dense(group_codes(rows, [stored[name] for name in self.table.plan.key if name in stored]))
        last = np.empty(count, np.int64)
        last[codes] = np.arange(len(codes))
        return rows if count == len(codes) else rows.take(pa.array(np.sort(last)))

    def _part(self, rows: pa.Table, info: TableInfo, *, stop: bool) -> tuple[Part, list[Rejection]]:
        """Return the rows in the table's types, and those that it cannot hold; with ``stop``, raise for such a row."""
        target, key = self.table.target, self.table.plan.key
        fields = user_fields(rows.schema)
        sent = sent_columns(fields, info, target, list(map(true_name, fields)))
        lowered = frozenset(name.casefold() for name in key)
        lacking = lowered - {sent_column.column.name.casefold() for sent_column in sent}
        if lacking:
            why = f"rows of {self.table.plan.source} lack the key column {min(lacking)!r}"
            raise MappingError(why, where=f"{target}.{min(lacking)}", hint="leave key columns in: mapping.columns")
        deleted = pc.equal(rows["_op"], "d").to_numpy(zero_copy_only=False)
        columns, refused = convert(rows, sent, zero_dates=self.zero_dates, key=lowered, live=~deleted, table=target)
        if not refused.why:
            return Part(columns, deleted), []
        if stop:
            number, reason = min(refused.why.items())
            raise LoadError(
                f"{reason}: {row_text(rows, number, key)} of {target}",
                where=f"{target}, batch {self.batch}",
                hint="on_error: dead_letter leaves such rows out; or change the value by a rule",
            )
        stay = np.ones(rows.num_rows, bool)
        stay[list(refused.why)] = False
        accepted = {name: values.filter(pa.array(stay)) for name, values in columns.items()}
        some = [Rejection(rows.slice(number, 1), why, "refused") for number, why in sorted(refused.why.items())]
        return Part(accepted, deleted[stay]), some


def names_of(parts: Sequence[Part]) -> list[str]:
    """Return all columns, in their order."""
    return list(dict.fromkeys(name for part in parts for name in part.columns))


def together(parts: Sequence[Part], info: TableInfo, name: str) -> pa.Array:
    """Return one column of all parts; NULL where a part does not have it."""
    column = info.find(name)
    assert column is not None
    assert isinstance(column.kind, str)
    kind = arrow_of(column.kind)
    if len(parts) == 1:
        return parts[0].columns[name]
    return pa.concat_arrays([part.columns.get(name, pa.nulls(len(part.gone), kind)) for part in parts])
