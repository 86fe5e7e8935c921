"""Lag and positions as Airflow metrics: StatsD or OpenTelemetry, whatever Airflow is set up for; and by Sluice's own
OpenTelemetry, if the environment configures it.

Sent by every acknowledgement, and by the triggerer every ten seconds while a pipeline waits or holds, so that an alarm
on them also works when nothing moves. :mod:`sluice.operations.metrics` has the names, below ``sluice.``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog

from sluice.errors import SluiceError
from sluice.operations import otel_metrics
from sluice.operations.alert_watch import EVERY_S
from sluice.operations.metrics import Sample, down_sample, gauges, quiet_samples, samples
from sluice.telemetry.settings import is_wanted

if TYPE_CHECKING:
    from sluice.flows.runtime import Runtime
    from sluice.operations.status import Status

log = structlog.get_logger()

REFRESH_S = 1800.0
"""Seconds after which a waiting pipeline's servers are asked for its gauges, which are otherwise known without
asking.
"""

_sent: dict[str, float] = {}
_asked: dict[str, float] = {}
"""Pipeline -> when its servers were last asked."""

_behind: set[str] = set()
"""Pipelines with a subscription that lacked something when they were last asked."""


def report(runtime: Runtime, *, every_s: float = EVERY_S) -> None:
    """Send the gauges and look at the lag, at most once in ``every_s`` for each pipeline of this process.

    Never raises SluiceError.
    """
    if not is_due(runtime.name, every_s):
        return
    _sent[runtime.name] = _asked[runtime.name] = time.monotonic()
    from sluice.operations.alerts import check_lag
    from sluice.operations.status import status
    from sluice.orchestration.notifiers import notify

    try:
        now = status(runtime)
        if check_lag(runtime, now, notify):
            now = status(runtime)
        (_behind.add if any(subscription.lag_batches for subscription in now.subscriptions) else _behind.discard)(
            runtime.name
        )
        _send(samples(now, stages=_stages(runtime, now) if is_wanted("metrics") else ()))
    except SluiceError as error:
        log.warning("metrics_send_failed", pipeline=runtime.name, error=str(error))


def is_due(pipeline: str, every_s: float = EVERY_S) -> bool:
    """Return True if the pipeline's gauges were last sent at least ``every_s`` seconds ago."""
    return time.monotonic() - _sent.get(pipeline, -1e9) >= every_s


def say_quiet(pipeline: str, captured_batch: int, delivered: Mapping[str, int]) -> bool:
    """Send the gauges of a pipeline that waits for changes, and whose targets (``delivered``: their last batch) have
    everything. False: it is time to ask its servers; that it always is while a subscription lacks something."""
    now_s = time.monotonic()
    if pipeline in _behind or now_s - _asked.setdefault(pipeline, now_s - REFRESH_S * random.random()) > REFRESH_S:  # noqa: S311 - not all at once
        return False
    _sent[pipeline] = now_s
    _send(quiet_samples(pipeline, captured_batch, delivered))
    return True


def say_down(pipeline: str) -> None:
    """Send ``up`` as 0, because the source or ZooKeeper does not answer."""
    if is_due(pipeline):
        _sent[pipeline] = time.monotonic()
        _send([down_sample(pipeline)])


def _send(samples: Iterable[Sample]) -> None:
    from airflow.sdk.observability import stats

    gauge = getattr(stats, "gauge", None) or stats.Stats.gauge  # Airflow 3.2 has the class alone
    samples = list(samples)
    for name, value in gauges(samples).items():
        gauge(name, value)
    otel_metrics.report(samples)


def _stages(runtime: Runtime, now: Status) -> list[dict[str, Any]]:
    """Return what each stage did in the newest run; nothing if that is not known."""
    from sluice.operations.status import stages_claimed

    if not now.recent or now.errors:
        return []
    with suppress(SluiceError):
        return stages_claimed(runtime, now.recent[-1].claim)
    return []
