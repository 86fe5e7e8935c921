"""Rows put next to each other by columns, so that a file has a narrow range of their values and readers open few files.

Decision: not with each compaction. The client (delta-rs) clusters a partition by writing all of it anew (``z_order``), so it is done where it pays:
files that came since the last time have to hold a notable share of what is written. A client that clusters parts of a partition would make it wrong.

What came since is told by the times at which files were made. A clustering notes the newest of them in a ``txn`` action of a commit of its own, which
has no rows: the commit that clusters cannot know it. A clustering that was killed has not noted anything, and begins again. Of files that loads
make while it runs some count as clustered: they are few, and are with the next one that comes to their partition.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice.targets.delta.client import library

SHARE = 10
"""The share of new files, one tenth of the bytes of their partitions, from which on they are clustered.

So each new byte costs about ten that are written, and a reader that looks for a value opens files with at most a tenth of the bytes besides those
that have it.
"""
_MEMORY = 2**30
"""Bytes of memory for sorting; the rest is on disk meanwhile."""
_DOING = "sluice.doing"


@dataclass(frozen=True)
class Files:
    """The files of a table (``DeltaTable``) at a version: partition, size_bytes, modification_time (ms since 1970), as lists."""

    partitions: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    since: int
    """The time up to which they were clustered, 0: they were not."""

    @classmethod
    def of(cls, table: Any, application: str) -> Files:
        """Read the files of a table as it is. ``application``: the name under which a clustering is noted."""
        names = tuple(table.metadata().partition_columns)
        actions = pa.table(table.get_add_actions(flatten=True))
        wanted = ["size_bytes", "modification_time", *(f"partition.{name}" for name in names)]
        since = table.transaction_version(application) if application else None
        return cls(names, tuple(actions.select(wanted).to_pylist()), since or 0)

    @property
    def newest(self) -> int:
        """The time at which the newest file was written."""
        return max((one["modification_time"] for one in self.rows), default=0)

    def due(self) -> dict[tuple[Any, ...], int]:
        """Return the partitions to cluster, with the number of their files: all that got new files, if those are a notable share of them."""
        count: dict[tuple[Any, ...], int] = {}
        total: dict[tuple[Any, ...], int] = {}
        new: dict[tuple[Any, ...], int] = {}
        for one in self.rows:
            place = tuple(one[f"partition.{name}"] for name in self.partitions)
            count[place] = count.get(place, 0) + 1
            total[place] = total.get(place, 0) + one["size_bytes"]
            if one["modification_time"] > self.since:
                new[place] = new.get(place, 0) + one["size_bytes"]
        touched = [place for place in new if count[place] > 1]
        if sum(new[place] for place in touched) * SHARE < sum(total[place] for place in touched):
            return {}
        return {place: count[place] for place in sorted(touched, key=lambda place: -new[place])}

    def small(self, size_bytes: int) -> int:
        """Return the number of files that were written since and are smaller."""
        return sum(one["size_bytes"] < size_bytes and one["modification_time"] > self.since for one in self.rows)


def application(owner: str, columns: Sequence[str]) -> str:
    """Return the name under which a clustering by these columns is noted; other columns are another clustering. ``owner``: pipeline/target."""
    return f"sluice/{owner}#clustered/{','.join(columns)}" if columns else ""


def cluster(table: Any, columns: Sequence[str], place: Mapping[str, Any], size_bytes: int) -> tuple[int, int]:
    """Rewrite the files of a partition in one commit. Call it inside the library's contexts.

    Returns:
        (number of files removed, number of files added).
    """
    said = table.optimize.z_order(
        list(columns),
        partition_filters=[(name, "=", _text(value)) for name, value in place.items()] or None,
        target_size=size_bytes,
        max_spill_size=_MEMORY,
        commit_properties=library().CommitProperties(
            custom_metadata={_DOING: "clustering", "sluice.clustered_by": ", ".join(columns)}
        ),
    )
    return int(said["numFilesRemoved"]), int(said["numFilesAdded"])


def note(table: Any, name: str, newest: int) -> None:
    """Commit a note without rows. Call it inside the library's contexts."""
    delta = library()
    noted = delta.CommitProperties(
        custom_metadata={_DOING: "clustering"}, app_transactions=[delta.Transaction(name, newest)]
    )
    table.create_write_transaction(
        [],
        "append",
        table.schema(),
        partition_by=list(table.metadata().partition_columns) or None,
        commit_properties=noted,
    )


def _text(value: Any) -> str:
    """Format a partition's value as the library compares it; "" is NULL."""
    if value is None:
        return ""
    if isinstance(value, dt.datetime):
        plain = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo is not None else value
        return plain.isoformat(" ", "microseconds")
    return value.isoformat() if isinstance(value, dt.date) else str(value)


__all__ = ["SHARE", "Files", "application", "cluster", "note"]
