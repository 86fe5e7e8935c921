"""Target tables as Airflow assets: one event for each table that a run brought changes to.

The tables of a pipeline are known when changes arrive, not when its DAG is built. So the task that acknowledges a
target has an asset alias as its outlet, and adds the tables' assets to it. A DAG of anybody waits for one with
``schedule=[Asset("mysql://host:3306/shop/orders")]``.

Decision: the acknowledgement emits, not the load. Then the rows are there, ZooKeeper knows it, and a batch that the
target got outside of a run (a quarantined target that caught up, ``sluice run``) is announced by the next one. Which
run announces which batches is agreed on in ZooKeeper (:mod:`sluice.coordination.announcements`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from airflow.sdk import Asset, AssetAlias

from sluice.errors import SluiceError

if TYPE_CHECKING:
    from sluice.flows.runtime import Runtime
    from sluice.operations.asset_events import TableEvent

_log = structlog.get_logger()
GROUP = "sluice"
_ANSWER_S = 5.0
"""Seconds to wait for ZooKeeper: the batch is acknowledged, and the run is not to be kept for this."""
_ATTEMPTS = 10
"""Attempts to take the batches that are left, while other runs of the pipeline take some."""
MOST_AT_ONCE = 1_000
"""Batches that a run announces at most: the newest ones."""


def outlet(pipeline: str, target: str) -> AssetAlias:
    """Return the alias under which the tables of a target are found: ``sluice:PIPELINE.TARGET``."""
    return AssetAlias(f"sluice:{pipeline}.{target}", group=GROUP)


def announce(context: Any, runtime: Runtime, target: str, claim: str) -> list[TableEvent]:
    """Add an event for each table that got rows in batches that no other run announces.

    What cannot be read is logged, and announced by the next run: delivery does not depend on it.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError

    try:
        events = _events(runtime, target, claim)
        accessor = context["outlet_events"][outlet(runtime.name, target)]
        for event in events:
            accessor.add(Asset(uri=event.uri, group=GROUP), extra=event.extra)
    except (SluiceError, AirflowRuntimeError) as error:
        _log.warning("assets_announce_failed", pipeline=runtime.name, target=target, error=str(error))
        return []
    return events


def _events(runtime: Runtime, target: str, claim: str) -> list[TableEvent]:
    from functools import partial

    from sluice.operations.asset_events import table_events, uri_of
    from sluice.sources import executed

    opened = runtime.open_target(target)
    with runtime.state(connect_timeout_s=_ANSWER_S) as state:
        endpoint = runtime.resolver(opened.config.connection)
        for _ in range(_ATTEMPTS):
            before, acknowledged = state.announcements.read(target), state.acks.get(target)
            if acknowledged is None:
                return []
            loaded_batch = int(acknowledged.batch)
            share = before.share(claim, min(state.batches.claimed_numbers(claim), default=None), loaded_batch)
            first, last = share or (loaded_batch + 1, loaded_batch)
            wanted_numbers = [number for number in state.batches.numbers() if first <= number <= last][-MOST_AT_ONCE:]
            events = table_events(
                [batch for batch in map(state.batches.get, wanted_numbers) if batch is not None],
                runtime.store,
                partial(uri_of, opened.config.type, endpoint, opened),
                pipeline=runtime.name,
                target=target,
                transactions=partial(executed, runtime.pipeline.source.type),
            )
            is_announced = before.last == loaded_batch if share is None else share == before.shares.get(claim)
            if is_announced or state.announcements.take(target, before, claim, share, loaded_batch):
                return events
    _log.warning("assets_announce_later", pipeline=runtime.name, target=target, attempts=_ATTEMPTS)
    return []
