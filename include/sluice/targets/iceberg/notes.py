"""What snapshots of a table say of the batches that it holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sluice.targets.lake.versions import HOLDS

_TIME = "sluice.commit_time"


def said_by(snapshot: Any) -> dict[str, str]:
    """The words of a snapshot (``Snapshot``)."""
    return dict(snapshot.summary.additional_properties) if snapshot.summary is not None else {}


def lineage(table: Any) -> Iterator[Any]:
    """The snapshots that led to a table (``Table``) as it is, the newest first, as far as they are kept."""
    from pyiceberg.table.snapshots import ancestors_of

    yield from ancestors_of(table.current_snapshot(), table.metadata)


def is_first(snapshot: Any) -> bool:
    """True for the first snapshot that a table ever had; a parent that was given up is no longer named. False if the format (1) does not tell."""
    return snapshot.parent_snapshot_id is None and snapshot.sequence_number == 1


def names_batch(snapshot: Any) -> bool:
    """True if it says which batch the table holds."""
    said = said_by(snapshot)
    return "sluice.batch" in said or HOLDS in said


def still_holding(table: Any) -> dict[str, str]:
    """Words of a snapshot that changes no row, to be refused if any other comes since ``table`` (``Table``) was read: the batch is the same.

    So the batch of a table is known when the snapshot that brought it is given up.
    """
    said = next((said_by(one) for one in lineage(table) if names_batch(one)), None)
    if said is None:
        return {}
    held = {HOLDS: said.get("sluice.batch") or said[HOLDS]}
    return held | ({_TIME: said[_TIME]} if _TIME in said else {})
