"""Schema changes of the source at an Iceberg target, by the format's own means: columns have ids, so that no file is touched when they go or change.

All of a statement is one commit, which notes the statement: a repeat does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from sluice.model.definitions import TableDefinition
from sluice.model.row_effects import Step
from sluice.model.schema_changes import TableChange
from sluice.model.tables import TableId
from sluice.targets.iceberg.client import errors, transaction
from sluice.targets.iceberg.merging import Files
from sluice.targets.iceberg.site import Site
from sluice.targets.iceberg.tables import promotes, type_of
from sluice.targets.lake.changelog import BEFORE, columns_of
from sluice.targets.lake.columns import LakeColumn, Shape, TableInfo, partitionable
from sluice.targets.lake.follow import Edits, LakeFollower, converted_rows
from sluice.targets.lake.schema import wanting


@dataclass(frozen=True)
class Follower(LakeFollower):
    """See :class:`sluice.targets.lake.follow.LakeFollower`."""

    BY_HAND: ClassVar[str] = "make the change with another writer of Iceberg tables"

    site: Site

    def _create(self, one: TableChange, after: TableDefinition, target: TableId) -> None:
        columns = self._columns_of(one, after)
        by = [column for column in columns if column.name in self.site.partitions(target)]
        if not all(partitionable(column.kind) for column in by):
            raise self._by_hand("a table cannot be partitioned by one of its columns, see `sluice check`")
        self._say(f"CREATE TABLE {target}")
        self.site.create(self.site.identifier(target), columns, [column.name for column in by])

    def _alter(self, edits: Edits, table: Any) -> None:
        if self._note(edits.source, "ddl", table) is None:
            return
        self._refuse_clash(edits)
        info = self.site.info(table)
        new = self._new(edits, info)
        if not (edits.gone or edits.names or edits.wider or new):
            return
        fills = self._fills(edits, {column.name for _, column in new}) if table.current_snapshot() is not None else {}

        def change(made: Any) -> None:
            _unsort(made, edits.gone)
            with made.update_schema() as schema:
                for name in edits.gone:
                    schema.delete_column((name,))
                for name, kind in edits.wider.items():
                    self._widen(schema, info, name, kind)
                for old, name in edits.names.items():
                    schema.rename_column((old,), name)
                for path, column in new:
                    schema.add_column((*path, column.name), type_of(column.kind))

        changed = sorted({*edits.gone, *edits.names, *edits.wider, *(column.name for _, column in new)})
        self._say(f"ALTER TABLE {edits.table}: {', '.join(changed)}")
        self._run(edits.source, edits.table, table, change, fills)

    def _new(self, edits: Edits, info: TableInfo) -> list[tuple[tuple[str, ...], LakeColumn]]:
        """Return columns that come, each with the struct that it is in."""
        if not self.site.every:
            there = {added.name for added in edits.adds if added.there}
            return [((), made) for _, made in edits.new if made.name not in there]
        found: list[tuple[tuple[str, ...], LakeColumn]] = []
        for column in wanting(columns_of([made for _, made in edits.wanted]), info):
            inner = info.find(column.name) is not None and not isinstance(column.kind, str)
            found += (
                [((BEFORE,), part) for part in column.kind if isinstance(part, LakeColumn)] if inner else [((), column)]
            )
        return found

    def _fills(self, edits: Edits, names: Collection[str]) -> dict[str, pa.Scalar]:
        """Return the values that existing rows get in new columns, as at the source. Raises LoadError."""
        found = {}
        for column, made in edits.new:
            value = self._fill(column, made, edits.table) if made.name in names else None
            if value is not None:
                found[made.name] = value
        return found

    def _widen(self, schema: Any, info: TableInfo, name: str, kind: Shape) -> None:
        there = info.find(name)
        assert there is not None
        if isinstance(kind, str):
            self._promote(schema, (name,), there.kind, kind)
            return
        assert not isinstance(there.kind, str)
        for old, new in zip(there.kind, kind, strict=True):
            if old.kind != new.kind and isinstance(new.kind, str):
                self._promote(schema, (name, old.name), old.kind, new.kind)

    def _promote(self, schema: Any, path: tuple[str, ...], old: Shape, new: str) -> None:
        if self.change.copies and isinstance(old, str) and not promotes(old, new) and len(path) == 1:
            schema.delete_column(path)  # the table is empty
            schema.add_column(path, type_of(new))
            return
        if not isinstance(old, str) or not promotes(old, new):
            raise self._by_hand(
                f"column {path[-1]} is {old}, and Iceberg does not make that {new} without writing the table anew"
            )
        schema.update_column(path, field_type=type_of(new))

    def _convert(self, source: TableId, target: TableId, table: Any, steps: Mapping[str, Sequence[Step]]) -> None:
        note = self._note(source, "convert", table)
        if note is None or table.current_snapshot() is None:
            return
        with errors(self.site.place, f"following {self.change.where}", self.site.uri(target)):
            made = transaction(table)
            with made.replacing(note.said) as snapshot:
                files = Files(table, made, snapshot)
                for task in table.scan().plan_files():
                    if converted_rows(files.read(task, list(steps)), steps, self.site.info(table).partitions) is None:
                        continue
                    rows = converted_rows(files.read(task), steps)
                    assert rows is not None
                    snapshot.delete_data_file(task.file)
                    files.write(rows)
            if not files.written:
                return
            self._say(f"UPDATE {target}: {', '.join(sorted(steps))}, converted")
            self.site.write_note(made, note)
            made.commit_transaction()

    def _empty(self, source: TableId, target: TableId, what: str = "ddl") -> None:
        table = self.site.open(target)
        if table is None or table.current_snapshot() is None:
            return
        self._say(f"TRUNCATE TABLE {target}")
        self._run(source, target, table, lambda made: None, {}, empty=True, what=what)

    def _run(
        self, source: TableId, target: TableId, table: Any, change: Callable[[Any], None], fills: Mapping[str, pa.Scalar], *,
        empty: bool = False, what: str = "ddl",
    ) -> None:  # fmt: skip
        """Make one commit, refused if another came since ``table`` was read; do nothing if the table has noted the statement."""
        note = self._note(source, what, table)
        if note is None:
            return
        with errors(self.site.place, f"following {self.change.where}", self.site.uri(target)):
            made = transaction(table)
            change(made)
            with made.replacing(note.said) as snapshot:
                if empty or fills:
                    files = Files(table, made, snapshot)  # one for all: it gives each file that comes a name of its own
                    for task in table.scan().plan_files():
                        snapshot.delete_data_file(task.file)
                        if fills:
                            files.write(_filled(files.read(task), fills))
            self.site.write_note(made, note)
            made.commit_transaction()


def _unsort(made: Any, gone: Collection[str]) -> None:
    """Remove a sort order that names a column which is dropped."""
    schema, order = made.table_metadata.schema(), made.table_metadata.sort_order()
    if any(schema.find_column_name(field.source_id) in gone for field in order.fields):
        made.unsort()


def _filled(rows: pa.Table, fills: Mapping[str, pa.Scalar]) -> pa.Table:
    for name, value in fills.items():
        place = rows.schema.get_field_index(name)
        field = rows.schema.field(place)  # wider than the column was asked for, where the format has no such type
        rows = rows.set_column(place, field, pa.repeat(value, rows.num_rows).cast(field.type))
    return rows
