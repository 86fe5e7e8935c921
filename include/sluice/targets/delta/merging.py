"""Merged rows into a table: one MERGE, one commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.targets.base import Fence, RejectedRows, RowReader, TableInput, WriteResult
from sluice.targets.delta.client import errors, library
from sluice.targets.delta.site import Site
from sluice.targets.lake.column_types import arrow_of
from sluice.targets.lake.columns import TableInfo
from sluice.targets.lake.committing import committed
from sluice.targets.lake.rows import MergedRows, Part, names_of, together
from sluice.targets.lake.site import Note
from sluice.targets.lake.statements import quoted
from sluice.targets.lake.values import aligned

_GONE = "sluice_gone"
_EXACT_DIGITS = 15
"""That a floating-point number keeps."""


@dataclass
class Merging:
    """Rows of one source table on their way."""

    site: Site
    fence: Fence
    reader: RowReader
    table: TableInput
    scope: str
    replay: str = ""

    def run(self, rejected: RejectedRows | None) -> WriteResult:
        """Raises Fenced, LoadError, MappingError, TargetUnavailable."""
        rows = MergedRows(self.reader, self.table, self.fence.batch, self.site.options.zero_dates)

        def write(table: Any, note: Note) -> WriteResult:
            return self._write(rows, table, self.site.noting(note), rejected)

        return committed(self.site, self.fence, self.table.target, self.scope, self.replay, write)

    def _write(self, rows: MergedRows, table: Any, noted: Any, rejected: RejectedRows | None) -> WriteResult:
        info, target = self.site.info(table), self.table.target
        parts, refused = rows.parts(info, rejected, f"delta-{self.scope}")
        gone = np.concatenate([part.gone for part in parts]) if parts else np.zeros(0, bool)
        if len(gone):
            key = [column.name for name in self.table.plan.key if (column := info.find(name)) is not None]
            with errors(self.site.place, f"merging batch {self.fence.batch} into {target}", self.site.path(target)):
                merge_parts(table, noted, parts, info, key)
        deletes = int(gone.sum())
        return WriteResult(len(gone) - deletes, deletes, rejected=refused, statements=int(len(gone) > 0))


def merge_parts(table: Any, noted: Any, parts: Sequence[Part], info: TableInfo, key: Sequence[str]) -> None:
    """In the library's contexts. Rows of an empty table are appended: what comes is new."""
    names = names_of(parts)
    columns = {name: together(parts, info, name) for name in names}
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
