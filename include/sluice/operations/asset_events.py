"""What a target got, table by table: the events that Airflow's assets show, and other DAGs wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sluice.config.connections import Endpoint
from sluice.model.batches import Batch
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.segments.changeset import read_changeset
from sluice.segments.store import SegmentStore
from sluice.targets.port import Located

READERS = 8
"""Changesets that are read at the same time."""


@dataclass
class TableEvent:
    """The rows that came into one table in a run: its URI, its name at the target, and the ``extra`` of the event."""

    uri: str
    table: TableId
    extra: dict[str, Any] = field(default_factory=dict)


def uri_of(kind: str, endpoint: Endpoint, target: object, table: TableId) -> str:
    """Return the address of a table at a target, or of one at a source: its own, else server, schema and table."""
    if isinstance(target, Located) and (where := target.location_of(table)):
        return where
    return endpoint.uri(kind, None, table.schema, table.table)


def table_events(
    batches: Iterable[Batch],
    store: SegmentStore,
    address: Callable[[TableId], str],
    *,
    pipeline: str,
    target: str,
    transactions: Callable[[Offset], str] = lambda at: "",
) -> list[TableEvent]:
    """Return an event for each table of which the batches have rows, or definitions; by table.

    ``address``: table -> URI. ``transactions``: position -> the transactions up to it, "" if they have no names.

    Raises SegmentError, StorageUnavailable.
    """
    wanted_batches = [batch for batch in batches if batch.is_for(target) and batch.changeset]
    with ThreadPoolExecutor(READERS, thread_name_prefix="assets") as pool:
        read = list(pool.map(lambda batch: read_changeset(store, batch.changeset or ""), wanted_batches))
    events: dict[TableId, TableEvent] = {}
    for batch, changeset in zip(wanted_batches, read, strict=True):
        for table in changeset.manifest.tables:
            if not table.rows:
                continue
            event = events.setdefault(table.target, TableEvent(address(table.target), table.target))
            sources = event.extra.setdefault("sources", [])
            source = f"{table.source_schema}.{table.source_table}"
            if source not in sources:
                sources.append(source)
            event.extra |= {
                "pipeline": pipeline,
                "target": target,
                "first_batch": event.extra.get("first_batch", int(batch.number)),
                "last_batch": int(batch.number),
                "rows": event.extra.get("rows", 0) + table.rows,
                "position": batch.last.place,
                "committed_at": _time(batch.last.commit_time_us),
                "transactions": transactions(batch.last),
            }
    return [events[table] for table in sorted(events)]


def _time(us: int) -> str | None:
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat() if us else None
