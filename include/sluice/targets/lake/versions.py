"""A table as of a batch: find the version by the notes in its commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.model.fields import true_name
from sluice.model.tables import TableId
from sluice.targets.lake.format import Commit
from sluice.targets.lake.tables import LakeTables
from sluice.targets.lake.types import TableInfo, arrow_of
from sluice.targets.lake.values import SentColumn, sent_columns, stored
from sluice.targets.port import TableVersion

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class LakeVersions:
    """See :class:`sluice.targets.port.VersionReader`."""

    tables: LakeTables

    def as_of(self, table: TableId, batch: int) -> TableVersion | None:
        """See :meth:`sluice.targets.port.VersionReader.as_of`."""
        lake_table = self.tables.open(table)
        if lake_table is None:
            return None
        newest = oldest = None  # commits without a batch (e.g. compactions) after the wanted one hold the same rows
        for commit in self._history(table, lake_table):
            oldest = commit
            if commit.has_within(batch):
                raise LoadError(
                    f"{table} cannot be read as of batch {batch}: batches {commit.first} to {commit.batch} were "
                    "written together",
                    where=self.tables.format.uri(table),
                    hint=f"as of batch {commit.first - 1} or {commit.batch} it can be read",
                )
            if commit.batch > batch:
                newest = None
            elif newest is None:
                newest = commit.version
            if 0 < commit.batch <= batch:
                assert newest is not None
                return self._version(lake_table, table, newest, commit)
        if oldest is not None and not oldest.begins:
            raise self._gone(table, f"batch {batch}", oldest)
        newest = self.tables.format.EMPTY_VERSION if newest is None else newest
        return self._version(lake_table, table, newest, Commit(newest)) if newest is not None else None

    def whole(self, table: TableId, batch: int) -> int:
        """See :meth:`sluice.targets.port.VersionReader.whole`."""
        lake_table = self.tables.open(table)
        for commit in self._history(table, lake_table):
            if commit.has_within(batch):
                return commit.first - 1
            if 0 < commit.batch <= batch:
                break
        return batch

    def rows(self, version: TableVersion, fields: Sequence[pa.Field]) -> Iterator[pa.Table]:
        """See :meth:`sluice.targets.port.VersionReader.rows`."""
        at, info = self._at(version)
        sent = sent_columns(fields, info, version.table, list(map(true_name, fields)))
        for piece in self.tables.format.read(version.table, at, [sent_column.column.name for sent_column in sent], {}):
            columns = [_stored(piece[sent_column.column.name], sent_column) for sent_column in sent]
            yield pa.table(columns, names=[true_name(sent_column.field) for sent_column in sent])

    def columns(self, version: TableVersion) -> pa.Schema:
        """See :meth:`sluice.targets.port.VersionReader.columns`; structs are left out."""
        _, info = self._at(version)
        return pa.schema([
            (column.name, arrow_of(column.kind)) for column in info.columns if isinstance(column.kind, str)
        ])

    def batch_at(self, table: TableId, time_us: int) -> int:
        """See :meth:`sluice.targets.port.VersionReader.batch_at`."""
        lake_table = self.tables.open(table)
        oldest = None
        for commit in self._history(table, lake_table):
            oldest = commit
            if commit.ended_by(time_us):
                return commit.batch
        if oldest is not None and not oldest.begins:
            raise self._gone(table, (_EPOCH + timedelta(microseconds=time_us)).isoformat(), oldest)
        return 0

    def _history(self, table: TableId, lake_table: Any) -> Iterator[Commit]:
        """Yield the commits that led to a table as it is."""
        if lake_table is not None:
            yield from (commit for commit in self.tables.format.history(table, lake_table) if not commit.undone)

    def _version(self, lake_table: Any, table: TableId, version: int, commit: Commit) -> TableVersion:
        """Return an opened table at a version. ``commit``: the commit that names its batch."""
        place, totals = self.tables.format.uri(table), self.tables.format.totals(table, lake_table, version)
        return TableVersion(table, place, version, commit.batch, commit.commit_time, *totals)

    def _at(self, version: TableVersion) -> tuple[Any, TableInfo]:
        return self.tables.format.as_of(version.table, self.tables.existing(version.table), version.version)

    def _gone(self, table: TableId, what: str, oldest: Commit) -> LoadError:
        return LoadError(
            f"{table} cannot be read as of {what}: what is kept of the table's versions begins with {oldest.version}, "
            "which is newer",
            where=self.tables.format.uri(table),
            hint=f"ask for a later batch or time; {self.tables.format.KEPT}",
        )


def _stored(values: pa.Array, sent: SentColumn) -> pa.Array:
    assert isinstance(sent.column.kind, str), "sent_columns refuses structs"
    return stored(pc.cast(values, arrow_of(sent.column.kind)), sent.field.type)
