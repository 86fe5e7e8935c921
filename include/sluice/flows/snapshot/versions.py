"""The batches as of which the tables of a pipeline's snapshot can be read."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.model.tables import TableId
from sluice.targets.port import Target, VersionReader, versions_of


def snapshot_reader(snapshot: Target) -> VersionReader:
    """Return the reader of the versions that a pipeline's snapshot keeps."""
    reader = versions_of(snapshot)
    assert reader is not None, "tables of a lake have versions"
    return reader


def whole_batch(reader: VersionReader, tables: Sequence[TableId], batch: int) -> int:
    """Return the newest batch at or before ``batch`` as of which every table can be read: no commit has it together
    with later ones.

    Raises LoadError if it is no longer kept, TargetUnavailable.
    """
    while (common := min((reader.whole(table, batch) for table in tables), default=batch)) < batch:
        batch = common
    return batch
