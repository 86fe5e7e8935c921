"""The notes in a table's snapshots about the batches that it holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sluice.targets.lake.format import HOLDS

_REPEATED = ("sluice.commit_time", "sluice.owner")


def said_by(snapshot: Any) -> dict[str, str]:
    """Return the summary properties of a snapshot (``Snapshot``)."""
    return dict(snapshot.summary.additional_properties) if snapshot.summary is not None else {}


def lineage(table: Any) -> Iterator[Any]:
    """Yield the snapshots that led to the current state of a table (``Table``), newest first, as far as they are
    retained.
    """
    from pyiceberg.table.snapshots import ancestors_of

    yield from ancestors_of(table.current_snapshot(), table.metadata)


def is_first(snapshot: Any) -> bool:
    """Return True for the first snapshot that a table ever had: an expired parent is no longer named.

    False if the format (1) does not tell.
    """
    return snapshot.parent_snapshot_id is None and snapshot.sequence_number == 1


def names_batch(snapshot: Any) -> bool:
    """Return True if the snapshot names the batch that the table holds. That of a dead letter is an earlier one."""
    summary = said_by(snapshot)
    return ("sluice.batch" in summary or HOLDS in summary) and "sluice.replay" not in summary


def still_holding(table: Any) -> dict[str, str]:
    """Return the summary of a snapshot that changes no row, and is refused if another was committed since ``table``
    (``Table``) was read.

    The summary repeats the batch, so that the batch of a table stays known when the snapshot that wrote it expires.
    """
    summary = next((said_by(snapshot) for snapshot in lineage(table) if names_batch(snapshot)), None)
    if summary is None:
        return {}
    repeated = {HOLDS: summary.get("sluice.batch") or summary[HOLDS]}
    return repeated | {name: summary[name] for name in _REPEATED if name in summary}
