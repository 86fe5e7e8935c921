"""Lag and positions as Airflow metrics: StatsD or OpenTelemetry, whatever Airflow is set up for.

Sent by every acknowledgement, and by the triggerer every ten seconds while a pipeline waits or holds, so that an alarm
on them also
works when nothing moves. Names (below Airflow's prefix; all gauges)::

    sluice.{pipeline}.up                          1: source and ZooKeeper answer, 0: they don't
    sluice.{pipeline}.paused                      1: a person paused it
    sluice.{pipeline}.in_flight                   batches that some target has not acknowledged
    sluice.{pipeline}.conflicts                   rows that both sites of its channel changed at the same time, of the pipeline that meets them
    sluice.{pipeline}.captured_batch              last batch that was made
    sluice.{pipeline}.{target}.delivered_batch    last batch that the target has acknowledged
    sluice.{pipeline}.{target}.lag_seconds        age of the oldest change that the target lacks
    sluice.{pipeline}.{target}.lag_bytes          log between the target and the source's head
    sluice.{pipeline}.{target}.alert              1: the lag is above alert_lag
    sluice.{pipeline}.{target}.quarantined        1: it fails, and the other targets go on without it
    sluice.{pipeline}.rules.{rule}.rows_in        of the newest merged batch; so are rows_out, changed, errors, dead_letters and seconds
    sluice.{pipeline}.files.copied                of the newest merged batch that names files; so are unchanged, missing, bytes ...
    sluice.{pipeline}.files.in_progress           files that work units have copied of batches that are being merged
    sluice.{pipeline}.subscriptions.{name}.lag_batches     batches that the subscription has not acknowledged
    sluice.{pipeline}.subscriptions.{name}.lag_seconds     age of the oldest change of them
    sluice.{pipeline}.subscriptions.{name}.alert           1: it has expired, or will soon
"""  # noqa: E501

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from sluice.errors import SluiceError

if TYPE_CHECKING:
    from sluice.flows.runtime import Runtime
    from sluice.operations.status import Status

log = structlog.get_logger()

EVERY_S = 10.0
REFRESH_S = 1800.0
"""Seconds after which a waiting pipeline's servers are asked for its gauges, which are otherwise known without
asking.
"""

_sent: dict[str, float] = {}
_asked: dict[str, float] = {}
"""Pipeline -> when its servers were last asked."""

_behind: set[str] = set()
"""Pipelines with a subscription that lacked something when they were last asked."""


def gauges(now: Status) -> dict[str, float]:
    """Return the gauges of a pipeline by name."""
    base = f"sluice.{now.pipeline}"
    found: dict[str, float] = {
        f"{base}.up": 0.0 if now.errors else 1.0,
        f"{base}.paused": 1.0 if now.paused else 0.0,
        f"{base}.in_flight": float(len(now.in_flight)),
    }
    if now.next_batch is not None:
        found[f"{base}.captured_batch"] = float(now.next_batch - 1)
    if now.conflicts is not None:
        found[f"{base}.conflicts"] = float(now.conflicts)
    for target in now.targets:
        each = f"{base}.{target.name}"
        found[f"{each}.alert"] = 1.0 if target.alert_since else 0.0
        found[f"{each}.quarantined"] = 1.0 if target.quarantined else 0.0
        if target.batch is not None:
            found[f"{each}.delivered_batch"] = float(target.batch)
        if target.lag_ms is not None:
            found[f"{each}.lag_seconds"] = target.lag_ms / 1000
        if target.lag_bytes is not None:
            found[f"{each}.lag_bytes"] = float(target.lag_bytes)
    for rule in now.rules:
        found |= {
            f"{base}.rules.{rule['name']}.{name}": float(rule[name])
            for name in ("rows_in", "rows_out", "changed", "errors", "dead_letters", "seconds")
            if rule.get(name) is not None
        }
    names = ("copied", "unchanged", "missing", "bytes", "bytes_per_s", "in_progress")
    found |= {f"{base}.files.{name}": float(now.files[name]) for name in names if name in now.files}
    for reader in now.subscriptions:
        each = f"{base}.subscriptions.{reader.name}"
        found[f"{each}.lag_batches"] = float(reader.lag_batches)
        found[f"{each}.alert"] = 1.0 if reader.warning else 0.0
        if reader.lag_ms is not None:
            found[f"{each}.lag_seconds"] = reader.lag_ms / 1000
    return found


def report(runtime: Runtime, *, every_s: float = EVERY_S) -> None:
    """Send the gauges and look at the lag, at most once in ``every_s`` for each pipeline of this process.

    Never raises SluiceError.
    """
    if not is_due(runtime.name, every_s):
        return
    _sent[runtime.name] = _asked[runtime.name] = time.monotonic()
    from airflow.sdk.observability import stats

    from sluice.operations.alerts import check_lag
    from sluice.operations.status import status

    try:
        now = status(runtime)
        if check_lag(runtime, now):
            now = status(runtime)
        (_behind.add if any(one.lag_batches for one in now.subscriptions) else _behind.discard)(runtime.name)
        for name, value in gauges(now).items():
            stats.gauge(name, value)
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
    from airflow.sdk.observability import stats

    _sent[pipeline] = now_s
    base = f"sluice.{pipeline}"
    found = {"up": 1.0, "paused": 0.0, "in_flight": 0.0, "captured_batch": float(captured_batch)}
    for target, batch in delivered.items():
        each = {"alert": 0.0, "quarantined": 0.0, "delivered_batch": float(batch), "lag_seconds": 0.0, "lag_bytes": 0.0}
        found |= {f"{target}.{name}": value for name, value in each.items()}
    for name, value in found.items():
        stats.gauge(f"{base}.{name}", value)
    return True


def say_down(pipeline: str) -> None:
    """Send ``up`` as 0, because the source or ZooKeeper does not answer."""
    if is_due(pipeline):
        from airflow.sdk.observability import stats

        _sent[pipeline] = time.monotonic()
        stats.gauge(f"sluice.{pipeline}.up", 0.0)
