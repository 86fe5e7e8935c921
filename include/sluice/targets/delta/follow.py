"""Schema changes of the source at a Delta target: tables and columns that come, columns that change or go, tables that are emptied.

A change that is there already is left alone, so that a repeat does nothing. What a repeat would do twice (a table emptied or written anew, values
for the rows that are there when a column comes) is noted in its own commit, see :mod:`sluice.targets.delta.notes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from sluice.model.definitions import TableDefinition
from sluice.model.row_effects import Step
from sluice.model.schema_changes import TableChange
from sluice.model.tables import TableId
from sluice.targets.delta.client import errors
from sluice.targets.delta.literals import sql_literal
from sluice.targets.delta.rewriting import Recast, read_columns, require_small
from sluice.targets.delta.site import Site
from sluice.targets.lake.changelog import columns_of
from sluice.targets.lake.columns import LakeColumn, TableInfo, partitionable
from sluice.targets.lake.follow import Edits, LakeFollower, converted_rows
from sluice.targets.lake.schema import wanting
from sluice.targets.lake.statements import quoted


@dataclass(frozen=True)
class Follower(LakeFollower):
    """See :class:`sluice.targets.lake.follow.LakeFollower`."""

    BY_HAND: ClassVar[str] = "rewrite the table with Spark"

    site: Site

    def _alter(self, edits: Edits, table: Any) -> None:
        table = self._rewritten(edits, table)
        if self.site.every:
            self._add(edits.table, table, self.site.info(table), columns_of([made for _, made in edits.wanted]))
        elif edits.adds:
            self._fill_new(edits, table)

    def _create(self, one: TableChange, after: TableDefinition, target: TableId) -> None:
        columns = self._columns_of(one, after)
        names = {column.name for column in columns}
        by = [name for name in self.site.partitions(target) if name in names]
        unfit = [column.name for column in columns if column.name in by and not partitionable(column.kind)]
        if unfit:
            raise self._by_hand(f"a table cannot be partitioned by {unfit[0]}, see `sluice check`")
        self._say(f"CREATE TABLE {target}")
        self.site.create(self.site.uri(target), columns, by)

    def _fill_new(self, edits: Edits, table: Any) -> None:
        note = self._note(edits.source, "ddl", table)
        if note is None:
            return
        filled, target = table.file_uris() != [], edits.table
        values = {made.name: self._fill(column, made, target) for column, made in edits.new} if filled else {}
        self._add(target, table, self.site.info(table), [made for _, made in edits.new])
        settings = {quoted(name): sql_literal(value) for name, value in values.items() if value is not None}
        if settings:
            path = self.site.path(target)
            table = self.site.required(target)
            with errors(self.site.place, f"following {self.change.where}", path):
                table.update(updates=settings, commit_properties=self.site.noting(table, note))

    def _add(self, target: TableId, table: Any, info: TableInfo, columns: Sequence[LakeColumn]) -> None:
        missing = wanting(columns, info)
        if missing:
            self._say(f"ALTER TABLE {target} ADD COLUMNS {', '.join(one.name for one in missing)}")
            self.site.add(table, self.site.path(target), missing)

    def _rewritten(self, edits: Edits, table: Any) -> Any:
        """Drop, rename and widen columns in one commit that writes the table anew, if that is needed. Return the ``DeltaTable`` after it."""
        note = self._note(edits.source, "rewrite", table)
        if note is None:
            return table
        self._refuse_clash(edits)
        info, target, wider = self.site.info(table), edits.table, edits.wider
        odd = [one.name for one in info.columns if one.partition and not partitionable(wider.get(one.name, one.kind))]
        if odd:
            raise self._by_hand(f"the table is partitioned by {odd[0]}, whose new type no table is partitioned by")
        made = Recast.of(info, gone=edits.gone, names=edits.names, kinds=wider)
        if made is None:
            return table
        require_small(table, self.site.uri(target), self.site.options.rewrite_up_to)
        changed = sorted({*edits.gone, *edits.names, *wider})
        self._say(f"ALTER TABLE {target}: {', '.join(changed)}, written anew")
        made.run(self.site.place, self.site.path(target), table, self.site.noting(table, note, alone=True))
        return self.site.required(target)

    def _convert(self, source: TableId, target: TableId, table: Any, steps: Mapping[str, Sequence[Step]]) -> None:
        note = self._note(source, "convert", table)
        if note is None or not table.file_uris():
            return
        path = self.site.path(target)
        with errors(self.site.place, f"reading {path}", path):
            rows = read_columns(table, list(steps))
            by = self.site.info(table).partitions
            changed = [converted_rows(pa.Table.from_batches([batch]), steps, by) is not None for batch in rows]
        if not any(changed):
            return
        require_small(table, self.site.uri(target), self.site.options.rewrite_up_to)
        self._say(f"UPDATE {target}: {', '.join(sorted(steps))}, converted and written anew")
        made = Recast(tuple((column, column) for column in self.site.info(table).columns))
        made.run(self.site.place, path, table, self.site.noting(table, note, alone=True), steps)

    def _empty(self, source: TableId, target: TableId, what: str = "ddl") -> None:
        table = self.site.open(target)
        if table is None:
            return
        note = self._note(source, what, table)
        if note is None or not table.file_uris():
            return
        self._say(f"TRUNCATE TABLE {target}")
        with errors(self.site.place, f"following {self.change.where}", self.site.path(target)):
            table.delete(commit_properties=self.site.noting(table, note))
