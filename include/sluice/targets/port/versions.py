"""Optional: older states of a target's tables, each as of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import pyarrow as pa

from sluice.model.tables import TableId
from sluice.targets.port.target import Target


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table as a target holds it, or held it.

    Attributes:
        place: for people. version: the target's own number of it. batch: the newest that changed the table until then,
            0: none did.
        commit_time: at the source, of the last transaction of that batch; ISO 8601, "" if it is not known.
    """

    table: TableId
    place: str
    version: int
    batch: int
    commit_time: str
    rows: int
    files: int
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "table": str(self.table), "place": self.place, "version": self.version, "batch": self.batch,
            "commit_time": self.commit_time,
            "rows": self.rows, "files": self.files, "size_bytes": self.size_bytes,
        }  # fmt: skip


class VersionReader(Protocol):
    """Reads older states of tables, each as of a batch."""

    def as_of(self, table: TableId, batch: int) -> TableVersion | None:
        """Return a table after ``batch``; None if it did not exist.

        Raises LoadError if that version is no longer kept, or the batch was written together with a later one
        (:meth:`whole`); TargetUnavailable.
        """

    def whole(self, table: TableId, batch: int) -> int:
        """Return the newest batch at or before ``batch`` as of which the table can be read.

        That is ``batch``, or the one before a commit of several batches that contains it. Raises LoadError if it is no
        longer kept, TargetUnavailable.
        """

    def rows(self, version: TableVersion, fields: Sequence[pa.Field]) -> Iterator[pa.Table]:
        """Yield all rows of a version in pieces: the columns of ``fields`` under their true names, in the source's
        stored types.

        Raises MappingError for a column that it does not have, LoadError, TargetUnavailable.
        """

    def columns(self, version: TableVersion) -> pa.Schema:
        """Return the columns of a version, as they are named and typed there.

        Raises MappingError, LoadError, TargetUnavailable.
        """

    def batch_at(self, table: TableId, time_us: int) -> int:
        """Return the newest batch that changed the table and ended at ``time_us`` (microseconds since 1970, at the
        source) or before; 0: none.

        Raises LoadError if the versions of that time are no longer kept, TargetUnavailable.
        """


class KeepsVersions(Protocol):
    """A target that keeps older states of its tables; it declares :attr:`Capabilities.keeps_versions`."""

    def versions(self) -> VersionReader:
        """Return the reader of older states."""


def versions_of(target: Target) -> VersionReader | None:
    """Return the reader of a target's older states; None if it keeps none."""
    return cast(KeepsVersions, target).versions() if target.capabilities.keeps_versions else None
