"""Delta tables by delta-rs: see :class:`sluice.targets.lake.format.LakeFormat`.

A change of columns that is there already is left alone, so that a repeat does nothing. What a repeat would do twice (a
table emptied or written anew, values for the rows that are there when a column comes) is noted in its own commit, see
:mod:`sluice.targets.delta.commit_notes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError, TargetUnavailable
from sluice.model.row_effects import Step
from sluice.model.tables import TableId
from sluice.targets.delta.client import Place, errors, library
from sluice.targets.delta.commit_notes import noted, noting, said_by
from sluice.targets.delta.literals import query_name, sql_literal
from sluice.targets.delta.maintain import Maintenance
from sluice.targets.delta.merge import merge_parts
from sluice.targets.delta.options import RESERVED, DeltaOptions
from sluice.targets.delta.recast import Recast, converts, require_small
from sluice.targets.delta.types import field_of, info_of, odd_name, refusal, schema_of
from sluice.targets.lake.format import Commit, CommitNote, Edits, Following, Names, Raced
from sluice.targets.lake.rows import Part
from sluice.targets.lake.statements import quoted
from sluice.targets.lake.types import LakeColumn, TableInfo, partitionable, wanting
from sluice.targets.port import TableFinding, Upkeep

_FIRST_LOOK = 32
"""Commits to read first: the newest ones answer most questions, and a log may have a million."""
_LOOKS = 100
"""Attempts to read a log that grows: a read takes milliseconds, a commit more."""
_CHECKPOINT = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.enableExpiredLogCleanup": "true",
}
"""The properties of the small table."""


@dataclass(frozen=True)
class DeltaFormat:
    """The Delta tables of a target. Its methods are described by :class:`sluice.targets.lake.format.LakeFormat`."""

    FORMAT: ClassVar[str] = "delta"
    NAME: ClassVar[str] = "Delta"
    BY_HAND: ClassVar[str] = "rewrite the table with Spark"
    KEPT: ClassVar[str] = "a table's log is kept for its delta.logRetentionDuration (30 days)"
    KEEPS_PARTITIONS: ClassVar[bool] = False
    EMPTY_VERSION: ClassVar[int | None] = None

    place: Place
    options: DeltaOptions
    pipeline: str
    target: str

    # -- tables ----------------------------------------------------------------------------------------------------
    def path(self, table: TableId) -> str:
        """Return the path of a table."""
        return self.options.path_of(table, self.pipeline, self.target)

    def uri(self, table: TableId) -> str:
        return self.place.uri(self.path(table))

    def names(self, table: TableId) -> Names:
        return (self.uri(table),)

    def sql_name(self, table: TableId) -> str:
        return f"delta.{quoted(self.uri(table))}"

    def odd_name(self, name: str) -> bool:
        return odd_name(name)

    def open(self, names: Names, doing: str) -> Any:
        self._require_inside(names)
        return self.place.open(names[-1], doing)

    def _require_inside(self, names: Names) -> None:
        if not names or self.place.path(names[-1]) is None:
            raise LoadError(f"{''.join(names[-1:])} is not in the target's location {self.place.root}")

    def refusal(self, table: TableId, lake_table: Any, *, every: bool) -> TableFinding | None:
        why = refusal(lake_table, appends=every)
        hint = "switch it off (ALTER TABLE … DROP FEATURE) and rewrite the table with Spark, or make it anew"
        return TableFinding("error", table, "", why, hint=hint) if why else None

    def info(self, lake_table: Any) -> TableInfo:
        return info_of(lake_table)

    def arrow_schema(self, lake_table: Any) -> pa.Schema:
        return pa.schema(lake_table.schema().to_arrow())

    def is_empty(self, lake_table: Any) -> bool:
        return not lake_table.file_uris()

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    # -- schema ----------------------------------------------------------------------------------------------------
    def create(self, names: Names, columns: Sequence[LakeColumn], partitions: Sequence[str]) -> None:
        self._require_inside(names)
        self._create(names[-1], f"making the table {names[-1]}", schema_of(columns), partition_by=list(partitions))

    def _create(self, uri: str, doing: str, schema: Any, **more: Any) -> None:
        with errors(self.place, doing, uri):
            storage = dict(self.place.storage) or None
            library().DeltaTable.create(uri, schema, mode="ignore", storage_options=storage, **more)

    def add_columns(self, names: Names, lake_table: Any, columns: Sequence[LakeColumn]) -> None:
        with errors(self.place, f"adding {', '.join(column.name for column in columns)} to {names[-1]}", names[-1]):
            lake_table.alter.add_columns([field_of(column) for column in columns])

    def set_properties(self, names: Names, lake_table: Any, properties: Mapping[str, str]) -> None:
        with errors(self.place, "setting a property", names[-1]):
            lake_table.alter.set_table_properties(dict(properties), raise_if_not_exists=False)

    def edit_schema(self, edits: Edits, lake_table: Any, following: Following) -> None:
        lake_table = self._rewritten(edits, lake_table, following)
        if edits.every:
            self._add(edits.table, lake_table, edits.all_changes, following)
        elif edits.adds:
            self._fill_new(edits, lake_table, following)

    def _rewritten(self, edits: Edits, lake_table: Any, following: Following) -> Any:
        """Drop, rename and widen columns in one commit that writes the table anew, if that is needed.

        Return the table after it.
        """
        note = following.note(edits.source, "rewrite", lake_table)
        if note is None:
            return lake_table
        following.refuse_clash(edits)
        info, wider, uri = self.info(lake_table), edits.wider, self.uri(edits.table)
        odd = [
            column.name
            for column in info.columns
            if column.partition and not partitionable(wider.get(column.name, column.kind))
        ]
        if odd:
            raise following.by_hand(f"the table is partitioned by {odd[0]}, whose new type no table is partitioned by")
        recast = Recast.of(info, dropped=edits.gone, names=edits.names, kinds=wider)
        if recast is None:
            return lake_table
        require_small(lake_table, uri, self.options.rewrite_up_to)
        changed = sorted({*edits.gone, *edits.names, *wider})
        following.say(f"ALTER TABLE {edits.table}: {', '.join(changed)}, written anew")
        recast.run(self.place, uri, lake_table, noting(lake_table, note, alone=True))
        return self._reopened(edits.table, note.doing)

    def _reopened(self, table: TableId, doing: str) -> Any:
        lake_table = self.open(self.names(table), doing)
        if lake_table is None:
            raise TargetUnavailable(f"{doing}: the table {table} is gone", where=self.uri(table))
        return lake_table

    def _add(self, table: TableId, lake_table: Any, columns: Sequence[LakeColumn], following: Following) -> None:
        missing = wanting(columns, self.info(lake_table))
        if missing:
            following.say(f"ALTER TABLE {table} ADD COLUMNS {', '.join(column.name for column in missing)}")
            self.add_columns(self.names(table), lake_table, missing)

    def _fill_new(self, edits: Edits, lake_table: Any, following: Following) -> None:
        note, table = following.note(edits.source, "ddl", lake_table), edits.table
        if note is None:
            return
        new = [] if self.is_empty(lake_table) else edits.new
        values = {quoted(lake_column.name): following.fill(column, lake_column, table) for column, lake_column in new}
        self._add(table, lake_table, [lake_column for _, lake_column in edits.new], following)
        settings = {name: sql_literal(value) for name, value in values.items() if value is not None}
        if settings:
            lake_table = self._reopened(table, note.doing)
            with errors(self.place, note.doing, self.uri(table)):
                lake_table.update(updates=settings, commit_properties=noting(lake_table, note))

    def convert(
        self,
        table: TableId,
        lake_table: Any,
        note: CommitNote,
        steps: Mapping[str, Sequence[Step]],
        say: Callable[[str], None],
    ) -> None:
        uri, info = self.uri(table), self.info(lake_table)
        with errors(self.place, f"reading {uri}", uri):
            changed = converts(lake_table, steps, info.partitions)
        if changed:
            require_small(lake_table, uri, self.options.rewrite_up_to)
            say(f"UPDATE {table}: {', '.join(sorted(steps))}, converted and written anew")
            recast = Recast(tuple((column, column) for column in info.columns))
            recast.run(self.place, uri, lake_table, noting(lake_table, note, alone=True), steps)

    def empty(self, table: TableId, lake_table: Any, note: CommitNote) -> None:
        with errors(self.place, note.doing, self.uri(table)):
            lake_table.delete(commit_properties=noting(lake_table, note))

    # -- rows ------------------------------------------------------------------------------------------------------
    def noted(self, lake_table: Any, owner: str, scope: str, delivery: int) -> int | None:
        return noted(lake_table, owner, scope, delivery)

    def append(self, table: TableId, lake_table: Any, note: CommitNote, rows: pa.Table) -> None:
        with errors(self.place, note.doing, self.uri(table)):
            library().write_deltalake(lake_table, rows, mode="append", commit_properties=noting(lake_table, note))

    def merge(
        self,
        table: TableId,
        lake_table: Any,
        note: CommitNote,
        parts: Sequence[Part],
        info: TableInfo,
        key: Sequence[str],
    ) -> None:
        if any(len(part.gone) for part in parts):
            with errors(self.place, note.doing, self.uri(table)):
                merge_parts(lake_table, noting(lake_table, note), parts, info, key)

    def read(
        self, table: TableId, at: Any, names: Sequence[str], bounds: Mapping[str, tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        where = " AND ".join(f"{query_name(name)} BETWEEN {low} AND {high}" for name, (low, high) in bounds.items())
        sql = f"SELECT {', '.join(map(query_name, names))} FROM t WHERE {where or 'TRUE'}"  # noqa: S608 - quoted names, numbers
        with errors(self.place, f"reading rows of {table}", self.uri(table)):
            reader = library().QueryBuilder().register("t", at).execute(sql)
            yield from pa.RecordBatchReader.from_stream(reader)

    # -- versions --------------------------------------------------------------------------------------------------
    def newest(self, lake_table: Any) -> Commit | None:
        with errors(self.place, "reading the history of a table", lake_table.table_uri):
            entries = lake_table.history(1)
        return next((Commit.of(int(entry["version"]), said_by(entry), begins=False) for entry in entries), None)

    def history(self, table: TableId, lake_table: Any) -> Iterator[Commit]:
        below, limit, restored = None, _FIRST_LOOK, None
        while True:
            history = self._newest(table, lake_table, limit)
            for entry in history:
                version = int(entry["version"])
                if below is not None and version >= below:
                    continue
                below, undone = version, restored is not None and version > restored
                yield Commit.of(version, said_by(entry), begins=version == 0, undone=undone)
                if entry.get("operation") == "RESTORE" and not undone:
                    restored = self._restored(table, entry)
            if len(history) < limit:
                return
            limit *= 8

    def _restored(self, table: TableId, entry: Mapping[str, Any]) -> int:
        """Return the version to which a restore (an entry of the history) set a table back.

        A restore by time does not name it: then it is the newest older one with the same files, or the version itself.
        """
        version, names = int(entry["version"]), entry.get("operationParameters") or {}
        version_text = str(names.get("version") or "")
        if version_text.isdigit():
            return int(version_text)
        now, files = self.open(self.names(table), f"reading a restored version of {table}"), None
        for older in range(version, -1, -1):
            try:
                self.as_of(table, now, older)
            except LoadError:  # the log no longer goes back to it
                return version
            uris = set(now.file_uris())
            if files is not None and uris == files:
                return older
            files = uris if files is None else files
        return version

    def _newest(self, table: TableId, lake_table: Any, limit: int) -> list[dict[str, Any]]:
        """Return the newest ``limit`` commits, each with its version.

        The library lists the current commits, and numbers them down from the version that it has read. If one was added
        in between, each would be taken for the one before it. So the answer is valid only if the table has no newer
        version after it.
        """
        for _ in range(_LOOKS):
            with errors(self.place, f"reading the history of {table}", self.uri(table)):
                version = lake_table.version()
                history: list[dict[str, Any]] = lake_table.history(limit)
                lake_table.update_incremental()
                if lake_table.version() == version:
                    return history
        raise TargetUnavailable(
            f"the history of {table} cannot be read: it grew {_LOOKS} times in a row meanwhile",
            where=self.uri(table),
        )

    def as_of(self, table: TableId, lake_table: Any, version: int) -> tuple[Any, TableInfo]:
        with errors(self.place, f"reading version {version} of {table}", self.uri(table)):
            if lake_table.version() != version:
                lake_table.load_as_version(version)
            return lake_table, self.info(lake_table)

    def totals(self, table: TableId, lake_table: Any, version: int) -> tuple[int, int, int]:
        at, _ = self.as_of(table, lake_table, version)
        with errors(self.place, f"reading the files of {table}", self.uri(table)):
            files = pa.table(at.get_add_actions(flatten=True))
        rows, size = (int(pc.sum(files[name]).as_py() or 0) for name in ("num_records", "size_bytes"))
        return rows, files.num_rows, size

    # -- the table of the checkpoint -------------------------------------------------------------------------------
    def checkpoint_uri(self, owner: str) -> str:
        return self.place.uri(f"{RESERVED}/{owner}")

    def open_checkpoint(self, owner: str) -> Any:
        return self.place.open(self.checkpoint_uri(owner), "reading the target's checkpoint")

    def create_checkpoint(self, owner: str) -> None:
        schema, doing = pa.schema([pa.field("unused", pa.string())]), "making the table of the target's checkpoint"
        try:
            self._create(
                self.checkpoint_uri(owner), doing, schema, name=f"checkpoint of {owner}", configuration=_CHECKPOINT
            )
        except Raced:
            return

    def property_of(self, lake_table: Any, name: str) -> str:
        return str(lake_table.metadata().configuration.get(name, ""))

    def move_checkpoint(self, owner: str, lake_table: Any, name: str, text: str, epoch: int, doing: str) -> None:
        delta = library()
        # all commits carry the same application, so that of two that read the same version one is refused
        properties = delta.CommitProperties(
            custom_metadata={"sluice.doing": doing},
            max_commit_retries=0,
            app_transactions=[delta.Transaction(f"sluice/{owner}", epoch)],
        )
        with errors(self.place, doing, self.checkpoint_uri(owner)):
            lake_table.alter.set_table_properties({name: text}, raise_if_not_exists=False, commit_properties=properties)

    # -- maintenance -----------------------------------------------------------------------------------------------
    def compact(self, table: TableId, lake_table: Any, owner: str, *, dry_run: bool) -> Upkeep:
        return Maintenance(self.place, self.uri(table), table, self.options, dry_run).compact(lake_table, owner)

    def expire(self, upkeep: Upkeep, *, dry_run: bool) -> Upkeep:
        return Maintenance(self.place, self.uri(upkeep.table), upkeep.table, self.options, dry_run).vacuum(upkeep)
