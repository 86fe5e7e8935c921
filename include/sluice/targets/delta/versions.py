"""A table as of a batch: which version of it that is, by what its commits say of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError, TargetUnavailable
from sluice.model.fields import true_name
from sluice.model.tables import TableId
from sluice.targets.base import TableVersion
from sluice.targets.delta.client import errors
from sluice.targets.delta.comparing import read
from sluice.targets.delta.notes import said_by
from sluice.targets.delta.site import Site
from sluice.targets.lake.column_types import arrow_of
from sluice.targets.lake.values import SentColumn, sent_columns, stored

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_LOOK = 32
"""Commits: the newest ones answer most questions, and a log may have a million."""

_LOOKS = 100
"""At a log that grows: a look takes milliseconds, a commit more."""


@dataclass(frozen=True, slots=True)
class _Commit:
    """``batch`` 0: it is of none (the table was made, extended or compacted)."""

    version: int
    batch: int
    commit_time: str
    first: int = 0
    """The first batch of several (``commit_every``), else ``batch``."""

    def has_within(self, batch: int) -> bool:
        """It has ``batch`` and later ones."""
        return 0 < self.first <= batch < self.batch

    def ended_by(self, time_us: int) -> bool:
        """True if its batch ended at the source at ``time_us`` or before."""
        if not self.batch or not self.commit_time:
            return False
        return (datetime.fromisoformat(self.commit_time) - _EPOCH) // timedelta(microseconds=1) <= time_us


@dataclass(frozen=True)
class DeltaVersions:
    """See :class:`sluice.targets.base.VersionReader`."""

    site: Site

    def as_of(self, table: TableId, batch: int) -> TableVersion | None:
        """See :meth:`sluice.targets.base.VersionReader.as_of`."""
        found = self.site.open(table)
        if found is None:
            return None
        newest = None  # compactions and the like that follow the wanted batch hold the same rows
        version = -1
        for commit in self._commits(found, table):
            version = commit.version
            if commit.has_within(batch):
                raise LoadError(
                    f"{table} cannot be read as of batch {batch}: batches {commit.first} to {commit.batch} were written together",
                    where=self.site.uri(table),
                    hint=f"as of batch {commit.first - 1} or {commit.batch} it can be read",
                )
            if commit.batch > batch:
                newest = None
            elif newest is None:
                newest = version
            if 0 < commit.batch <= batch:
                assert newest is not None
                return self._version(found, table, newest, commit)
        if version > 0:
            raise self._gone(table, f"batch {batch}", version)
        return None if newest is None else self._version(found, table, newest, _Commit(newest, 0, ""))

    def whole(self, table: TableId, batch: int) -> int:
        """See :meth:`sluice.targets.base.VersionReader.whole`."""
        found = self.site.open(table)
        for commit in self._commits(found, table) if found is not None else ():
            if commit.has_within(batch):
                return commit.first - 1
            if 0 < commit.batch <= batch:
                break
        return batch

    def rows(self, version: TableVersion, fields: Sequence[pa.Field]) -> Iterator[pa.Table]:
        """See :meth:`sluice.targets.base.VersionReader.rows`."""
        found = self.site.required(version.table)
        with errors(self.site.place, f"reading version {version.version} of {version.table}", version.place):
            found.load_as_version(version.version)
        info = self.site.info(found)
        sent = sent_columns(fields, info, version.table, list(map(true_name, fields)))
        for piece in read(self.site, version.table, found, [one.column.name for one in sent]):
            columns = [_stored(piece[one.column.name], one) for one in sent]
            yield pa.table(columns, names=[true_name(one.field) for one in sent])

    def batch_at(self, table: TableId, time_us: int) -> int:
        """See :meth:`sluice.targets.base.VersionReader.batch_at`."""
        found = self.site.open(table)
        if found is None:
            return 0
        version = -1
        for commit in self._commits(found, table):
            version = commit.version
            if commit.ended_by(time_us):
                return commit.batch
        if version > 0:
            raise self._gone(table, (_EPOCH + timedelta(microseconds=time_us)).isoformat(), version)
        return 0

    def _commits(self, found: Any, table: TableId) -> Iterator[_Commit]:
        """The newest first, of a table that was just opened."""
        below, limit = None, _FIRST_LOOK
        while True:
            history = self._history(found, table, limit)
            for entry in history:
                version = int(entry["version"])
                if below is not None and version >= below:
                    continue
                below = version
                said = said_by(entry)
                batch = int(said.get("sluice.batch", 0))
                first = int(said.get("sluice.first_batch", batch))
                yield _Commit(version, batch, said.get("sluice.commit_time", ""), first)
            if len(history) < limit:
                return
            limit *= 8

    def _history(self, found: Any, table: TableId, limit: int) -> list[dict[str, Any]]:
        """The newest ``limit`` commits, each with its version.

        The library lists the commits of now, and numbers them down from the version that it has read. With one that came in between each would be
        taken for the one before it. So the answer counts if the table has no newer version after it.
        """
        for _ in range(_LOOKS):
            with errors(self.site.place, f"reading the history of {table}", self.site.path(table)):
                seen = found.version()
                history: list[dict[str, Any]] = found.history(limit)
                found.update_incremental()
                if found.version() == seen:
                    return history
        raise TargetUnavailable(
            f"the history of {table} cannot be read: it grew {_LOOKS} times in a row meanwhile",
            where=self.site.uri(table),
        )

    def _version(self, found: Any, table: TableId, version: int, commit: _Commit) -> TableVersion:
        with errors(self.site.place, f"reading version {version} of {table}", self.site.path(table)):
            if found.version() != version:
                found.load_as_version(version)
            files = pa.table(found.get_add_actions(flatten=True))
        rows, size = (int(pc.sum(files[name]).as_py() or 0) for name in ("num_records", "size_bytes"))
        place = self.site.uri(table)
        return TableVersion(table, place, version, commit.batch, commit.commit_time, rows, files.num_rows, size)

    def _gone(self, table: TableId, what: str, oldest: int) -> LoadError:
        return LoadError(
            f"{table} cannot be read as of {what}: the log of the table begins with version {oldest}, which is newer",
            where=self.site.uri(table),
            hint="ask for a later batch or time; a table's log is kept for its delta.logRetentionDuration (30 days)",
        )


def _stored(values: pa.Array, sent: SentColumn) -> pa.Array:
    assert isinstance(sent.column.kind, str), "sent_columns refuses structs"
    return stored(pc.cast(values, arrow_of(sent.column.kind)), sent.field.type)
