"""Merged rows into a table: one MERGE, one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError, MappingError
from sluice.model.fields import true_name
from sluice.targets.base import Fence, RejectedRows, Rejection, RowReader, TableInput, WriteResult
from sluice.targets.delta.client import errors, library
from sluice.targets.delta.column_types import arrow_of
from sluice.targets.delta.committing import committed
from sluice.targets.delta.site import Site
from sluice.targets.delta.tables import TableInfo, info_of, quoted
from sluice.targets.delta.values import aligned, convert, row_text, sent_columns, user_fields

_GONE = "sluice_gone"
_EXACT_DIGITS = 15
"""That a floating-point number keeps."""


@dataclass(frozen=True)
class Part:
    """Rows with one set of columns, by their names at the target; ``gone``: they are deleted; of the columns that are not here nothing is written."""

    columns: Mapping[str, pa.Array]
    gone: np.ndarray


@dataclass
class Merging:
    """Rows of one source table on their way."""

    site: Site
    fence: Fence
    reader: RowReader
    table: TableInput
    scope: str
    replay: str = ""
    _read: list[pa.Table] = field(default_factory=list)

    def run(self, rejected: RejectedRows | None) -> WriteResult:
        """Raises Fenced, LoadError, MappingError, TargetUnavailable."""

        def write(table: Any, noted: Any) -> WriteResult:
            return self._write(table, noted, rejected)

        return committed(self.site, self.fence, self.table.target, self.scope, self.replay, write)

    def _rows(self, *, lean: bool) -> list[pa.Table]:
        """Once for each set of columns; kept for the next attempt."""
        if not self._read:
            self._read = [
                group.rows for group in self.reader.groups(self.table.files, lean=lean) if group.rows.num_rows
            ]
        return self._read

    def _write(self, table: Any, noted: Any, rejected: RejectedRows | None) -> WriteResult:
        info, target = info_of(table), self.table.target
        parts: list[Part] = []
        refused: list[Rejection] = []
        for rows in self._rows(lean=rejected is None):
            part, some = self._part(rows, info, stop=rejected is None)
            parts.append(part)
            refused += some
        if rejected is not None:
            rejected(f"delta-{self.scope}", target, refused)
        gone = np.concatenate([part.gone for part in parts]) if parts else np.zeros(0, bool)
        if len(gone):
            key = [column.name for name in self.table.plan.key if (column := info.find(name)) is not None]
            with errors(self.site.place, f"merging batch {self.fence.batch} into {target}", self.site.path(target)):
                merge_parts(table, noted, parts, info, key)
        deletes = int(gone.sum())
        return WriteResult(len(gone) - deletes, deletes, rejected=len(refused), statements=int(len(gone) > 0))

    def _part(self, rows: pa.Table, info: TableInfo, *, stop: bool) -> tuple[Part, list[Rejection]]:
        """The rows as the table has them, and those that it cannot hold. ``stop``: none may be left out."""
        target, key = self.table.target, self.table.plan.key
        fields = user_fields(rows.schema)
        sent = sent_columns(fields, info, target, list(map(true_name, fields)))
        lowered = frozenset(name.casefold() for name in key)
        lacking = lowered - {one.column.name.casefold() for one in sent}
        if lacking:
            why = f"rows of {self.table.plan.source} lack the key column {min(lacking)!r}"
            raise MappingError(why, where=f"{target}.{min(lacking)}", hint="leave key columns in: mapping.columns")
        gone = pc.equal(rows["_op"], "d").to_numpy(zero_copy_only=False)
        columns, refused = convert(rows, sent, zero_dates=self.site.options.zero_dates, key=lowered, kept=~gone)
        if not refused.why:
            return Part(columns, gone), []
        if stop:
            number, reason = min(refused.why.items())
            raise LoadError(
                f"{reason}: {row_text(rows, number, key)} of {target}",
                where=f"{target}, batch {self.fence.batch}",
                hint="on_error: dead_letter leaves such rows out; or change the value by a rule",
            )
        stay = np.ones(rows.num_rows, bool)
        stay[list(refused.why)] = False
        kept = {name: values.filter(pa.array(stay)) for name, values in columns.items()}
        some = [Rejection(rows.slice(number, 1), why, "refused") for number, why in sorted(refused.why.items())]
        return Part(kept, gone[stay]), some


def merge_parts(table: Any, noted: Any, parts: Sequence[Part], info: TableInfo, key: Sequence[str]) -> None:
    """In the library's contexts. Rows of an empty table are appended: what comes is new."""
    names = list(dict.fromkeys(name for part in parts for name in part.columns))
    columns = {name: _together(parts, info, name) for name in names}
    gone = np.concatenate([part.gone for part in parts])
    if not table.file_uris():
        live = pa.array(~gone)
        if not gone.all():
            kept = {name: values.filter(live) for name, values in columns.items()}
            rows = aligned(kept, pa.schema(table.schema().to_arrow()), int((~gone).sum()))
            library().write_deltalake(table, rows, mode="append", commit_properties=noted)
        return
    # the source's columns are numbered, so that no name of the user's has to be quoted there
    source: dict[str, pa.Array] = {_GONE: pa.array(gone)}
    values: dict[str, str] = {}
    settings: dict[str, str] = {}
    for number, name in enumerate(names):
        source[f"c{number}"] = columns[name]
        values[quoted(name)] = settings[quoted(name)] = f"s.c{number}"
        if any(name not in part.columns for part in parts):
            source[f"k{number}"] = pa.array(
                np.concatenate([np.full(len(part.gone), name in part.columns) for part in parts])
            )
            settings[quoted(name)] = f"CASE WHEN s.k{number} THEN s.c{number} ELSE t.{quoted(name)} END"
    for name in key:
        del settings[quoted(name)]
    same = " AND ".join(f"t.{quoted(name)} = {values[quoted(name)]}" for name in key)
    merge = table.merge(
        pa.table(source),
        same,
        source_alias="s",
        target_alias="t",
        streamed_exec=not all(_bounded(info, name) for name in key),
        commit_properties=noted,
    )
    if gone.any():
        merge = merge.when_matched_delete(f"s.{_GONE}")
    if not gone.all():
        live_only = f"NOT s.{_GONE}" if gone.any() else None
        if settings:
            merge = merge.when_matched_update(settings, live_only)
        merge = merge.when_not_matched_insert(values, live_only)
    merge.execute()


def _bounded(info: TableInfo, name: str) -> bool:
    """True if files without any of these keys can be told by their bounds in the log.

    The library keeps bounds of decimals as floating-point numbers: of 2**63 and its neighbour they are the same, and a row would not be found.
    """
    column = info.find(name)
    kind = arrow_of(column.kind) if column is not None and isinstance(column.kind, str) else pa.null()
    return not pa.types.is_decimal(kind) or kind.precision <= _EXACT_DIGITS


def _together(parts: Sequence[Part], info: TableInfo, name: str) -> pa.Array:
    column = info.find(name)
    assert column is not None
    assert isinstance(column.kind, str)
    kind = arrow_of(column.kind)
    if len(parts) == 1:
        return parts[0].columns[name]
    return pa.concat_arrays([part.columns.get(name, pa.nulls(len(part.gone), kind)) for part in parts])
