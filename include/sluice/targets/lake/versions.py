"""A table as of a batch: find the version by the notes in its commits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.model.fields import true_name
from sluice.model.tables import TableId
from sluice.targets.lake.column_types import arrow_of
from sluice.targets.lake.columns import TableInfo
from sluice.targets.lake.site import LakeSite
from sluice.targets.lake.values import SentColumn, sent_columns, stored
from sluice.targets.port import TableVersion

HOLDS = "sluice.holds"
"""The word of a commit that changes no row: the batch that the table held before it, and holds after it."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a table. ``batch`` 0: it belongs to no batch and does not name the one that the table held (create, extend, compact)."""

    version: int
    batch: int = 0
    commit_time: str = ""
    first: int = 0
    """The first batch of several (``commit_every``), else ``batch``."""
    begins: bool = False
    """True if it is the table's first commit."""

    @classmethod
    def of(cls, version: int, said: Mapping[str, str], *, begins: bool) -> Commit:
        """Build it from the commit's words."""
        batch = int(said.get("sluice.batch") or said.get(HOLDS) or 0)
        first = int(said.get("sluice.first_batch", batch))
        return cls(version, batch, said.get("sluice.commit_time", ""), first, begins)

    def has_within(self, batch: int) -> bool:
        """Return True if the commit contains ``batch`` and later ones."""
        return 0 < self.first <= batch < self.batch

    def ended_by(self, time_us: int) -> bool:
        """Return True if its batch ended at the source at ``time_us`` or before."""
        if not self.batch or not self.commit_time:
            return False
        return (datetime.fromisoformat(self.commit_time) - _EPOCH) // timedelta(microseconds=1) <= time_us


@dataclass(frozen=True)
class LakeVersions(ABC):
    """See :class:`sluice.targets.port.VersionReader`."""

    KEPT: ClassVar[str]
    """The time that versions are kept, for messages."""

    site: LakeSite

    # -- of the format ---------------------------------------------------------------------------------------------
    @abstractmethod
    def _commits(self, found: Any, table: TableId) -> Iterator[Commit]:
        """Yield the commits of an opened table, newest first, as far as they are retained. Raises LoadError, TargetUnavailable."""

    @abstractmethod
    def _version(self, found: Any, table: TableId, version: int, commit: Commit) -> TableVersion:
        """Return an opened table at a version. ``commit``: what is known of its batch. Raises LoadError, TargetUnavailable."""

    def _empty(self, table: TableId) -> TableVersion | None:
        """Return an existing table as it was before its first commit; None if the format has no such version."""
        return None

    @abstractmethod
    def _at(self, version: TableVersion) -> tuple[Any, TableInfo]:
        """Return the table at a version, for :meth:`_read`, and its columns then. Raises MappingError, LoadError, TargetUnavailable."""

    @abstractmethod
    def _read(self, at: Any, table: TableId, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield columns of all rows. Raises LoadError, TargetUnavailable."""

    # -- of all ----------------------------------------------------------------------------------------------------
    def as_of(self, table: TableId, batch: int) -> TableVersion | None:
        """See :meth:`sluice.targets.port.VersionReader.as_of`."""
        found = self.site.open(table)
        if found is None:
            return None
        newest = oldest = None  # commits without a batch (e.g. compactions) after the wanted one hold the same rows
        for commit in self._commits(found, table):
            oldest = commit
            if commit.has_within(batch):
                raise LoadError(
                    f"{table} cannot be read as of batch {batch}: batches {commit.first} to {commit.batch} were written together",
                    where=self.site.uri(table),
                    hint=f"as of batch {commit.first - 1} or {commit.batch} it can be read",
                )
            if commit.batch > batch:
                newest = None
            elif newest is None:
                newest = commit.version
            if 0 < commit.batch <= batch:
                assert newest is not None
                return self._version(found, table, newest, commit)
        if oldest is not None and not oldest.begins:
            raise self._gone(table, f"batch {batch}", oldest)
        return self._empty(table) if newest is None else self._version(found, table, newest, Commit(newest))

    def whole(self, table: TableId, batch: int) -> int:
        """See :meth:`sluice.targets.port.VersionReader.whole`."""
        found = self.site.open(table)
        for commit in self._commits(found, table) if found is not None else ():
            if commit.has_within(batch):
                return commit.first - 1
            if 0 < commit.batch <= batch:
                break
        return batch

    def rows(self, version: TableVersion, fields: Sequence[pa.Field]) -> Iterator[pa.Table]:
        """See :meth:`sluice.targets.port.VersionReader.rows`."""
        at, info = self._at(version)
        sent = sent_columns(fields, info, version.table, list(map(true_name, fields)))
        for piece in self._read(at, version.table, [one.column.name for one in sent]):
            columns = [_stored(piece[one.column.name], one) for one in sent]
            yield pa.table(columns, names=[true_name(one.field) for one in sent])

    def columns(self, version: TableVersion) -> pa.Schema:
        """See :meth:`sluice.targets.port.VersionReader.columns`; structs are left out."""
        _, info = self._at(version)
        return pa.schema([(one.name, arrow_of(one.kind)) for one in info.columns if isinstance(one.kind, str)])

    def batch_at(self, table: TableId, time_us: int) -> int:
        """See :meth:`sluice.targets.port.VersionReader.batch_at`."""
        found = self.site.open(table)
        oldest = None
        for commit in self._commits(found, table) if found is not None else ():
            oldest = commit
            if commit.ended_by(time_us):
                return commit.batch
        if oldest is not None and not oldest.begins:
            raise self._gone(table, (_EPOCH + timedelta(microseconds=time_us)).isoformat(), oldest)
        return 0

    def _gone(self, table: TableId, what: str, oldest: Commit) -> LoadError:
        return LoadError(
            f"{table} cannot be read as of {what}: what is kept of the table's versions begins with {oldest.version}, which is newer",
            where=self.site.uri(table),
            hint=f"ask for a later batch or time; {self.KEPT}",
        )


def _stored(values: pa.Array, sent: SentColumn) -> pa.Array:
    assert isinstance(sent.column.kind, str), "sent_columns refuses structs"
    return stored(pc.cast(values, arrow_of(sent.column.kind)), sent.field.type)
