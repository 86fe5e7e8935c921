"""Target tables as Airflow assets: one event for each table that a run brought changes to.

The tables of a pipeline are known when changes arrive, not when its DAG is built. So the task that acknowledges a
target has an asset alias as its outlet, and adds the tables' assets to it. A DAG of anybody waits for one with
``schedule=[Asset("mysql://host:3306/shop/orders")]``.

Decision: the acknowledgement emits, not the load. Then the rows are there, ZooKeeper knows it, and a batch that the
target got outside of a run (a quarantined target that caught up, ``sluice run``) is announced by the next one.
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
MOST_LATER = 1_000
"""Batches of earlier runs that are announced at once, at most: the newest ones."""


def outlet(pipeline: str, target: str) -> AssetAlias:
    """Return the alias under which the tables of a target are found: ``sluice:PIPELINE.TARGET``."""
    return AssetAlias(f"sluice:{pipeline}.{target}", group=GROUP)


def announce(context: Any, runtime: Runtime, target: str, claim: str) -> list[TableEvent]:
    """Add an event for each table that got rows in batches that were not announced yet, and in those of this run.

    What cannot be read is logged, and announced by the next run: delivery does not depend on it.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError

    try:
        found = _events(runtime, target, claim)
        accessor = context["outlet_events"][outlet(runtime.name, target)]
        for event in found:
            accessor.add(Asset(uri=event.uri, group=GROUP), extra=event.extra)
    except (SluiceError, AirflowRuntimeError) as error:
        _log.warning("assets_announce_failed", pipeline=runtime.name, target=target, error=str(error))
        return []
    return found


def _events(runtime: Runtime, target: str, claim: str) -> list[TableEvent]:
    from functools import partial

    from sluice.operations.asset_events import table_events, uri_of
    from sluice.sources import executed

    opened = runtime.open_target(target)
    with runtime.state(connect_timeout_s=_ANSWER_S) as state:
        held, last = state.acks.get(target), state.announcements.last(target)
        if held is None:
            return []
        mine = state.batches.claimed_numbers(claim)
        later = [number for number in state.batches.numbers() if last is not None and number > last][-MOST_LATER:]
        numbers = sorted({number for number in (*mine, *later) if number <= held.batch})
        batches = [batch for batch in map(state.batches.get, numbers) if batch is not None]
        endpoint = runtime.resolver(opened.config.connection)
        found = table_events(
            batches,
            runtime.store,
            partial(uri_of, opened.config.type, endpoint, opened),
            pipeline=runtime.name,
            target=target,
            transactions=partial(executed, runtime.pipeline.source.type),
        )
        state.announcements.move(target, int(held.batch))
    return found
