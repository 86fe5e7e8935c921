"""The metrics of pipelines: one list of names with unit and meaning, and their values from a status.

Prometheus gets them by the names of :data:`METRICS` (:func:`exposition`), and so does Sluice's own OpenTelemetry
(:mod:`sluice.operations.otel_metrics`); Airflow's StatsD or OpenTelemetry by the older names in ``statsd``
(:func:`gauges`). docs/monitor.md has the list as a table, which a test compares.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import structlog

from sluice import __version__
from sluice.errors import Fault, SluiceError

if TYPE_CHECKING:
    from sluice.operations.status import Status

_log = structlog.get_logger()

STATES = (
    "new", "idle", "running", "behind", "copying", "paused", "failing", "not_configured", "unreachable", "no_answer",
    "stopped",
)  # fmt: skip
"""The states of a pipeline (:class:`sluice.operations.status.Status`)."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    Attributes:
        name: as Prometheus has it; unit: of the value, "" for a number of things.
        kind: gauge, or counter (its name ends with ``_total``).
        labels: besides ``pipeline``.
        meaning: a phrase for the page and for Prometheus' HELP line.
        statsd: the name below ``sluice.`` that Airflow's StatsD and OpenTelemetry get, with the labels in braces; "":
            they do not get it.
    """

    name: str
    kind: Literal["gauge", "counter"]
    unit: str
    labels: tuple[str, ...]
    meaning: str
    statsd: str = ""


def _gauge(name: str, unit: str, labels: Iterable[str], meaning: str, statsd: str = "") -> Metric:
    return Metric(f"sluice_{name}", "gauge", unit, tuple(labels), meaning, statsd)


def _counter(name: str, unit: str, labels: Iterable[str], meaning: str, statsd: str = "") -> Metric:
    return Metric(f"sluice_{name}_total", "counter", unit, tuple(labels), meaning, statsd)


_RULE = "in the newest merged batch"
_STAGE = "in the run under way, or in the last one"

METRICS: tuple[Metric, ...] = (
    _gauge("up", "", (), "1: source and ZooKeeper answer", "{pipeline}.up"),
    _gauge("state", "", ("state",), "1 for the state that the pipeline is in, 0 for the others"),
    _gauge("paused", "", (), "1: the pipeline is paused", "{pipeline}.paused"),
    _gauge("status_age_seconds", "seconds", (), "age of the answer that these values are from"),
    _gauge("no_answer", "", ("part",), "1: this server does not answer"),
    _gauge("warnings", "", (), "warnings that `sluice status` shows"),
    _gauge("in_flight_batches", "", (), "batches that some target has not acknowledged", "{pipeline}.in_flight"),
    _gauge("captured_batch", "", (), "the last batch that was captured", "{pipeline}.captured_batch"),
    _counter("captured_changes", "", (), "row changes in captured batches"),
    _counter("captured_bytes", "bytes", (), "Parquet bytes of captured batches"),
    _gauge(
        "delivered_batch", "", ("target",), "the last batch that the target acknowledged",
        "{pipeline}.{target}.delivered_batch",
    ),
    _counter("delivered_changes", "", ("target",), "row changes of batches that the target acknowledged"),
    _counter("delivered_bytes", "bytes", ("target",), "Parquet bytes of batches that the target acknowledged"),
    _gauge(
        "lag_seconds", "seconds", ("target",), "age of the oldest change that the target lacks",
        "{pipeline}.{target}.lag_seconds",
    ),
    _gauge(
        "lag_bytes", "bytes", ("target",), "bytes of log between the target and the source's head",
        "{pipeline}.{target}.lag_bytes",
    ),
    _gauge("lag_alert", "", ("target",), "1: the lag is above `alert_lag`", "{pipeline}.{target}.alert"),
    _gauge(
        "quarantined", "", ("target",), "1: the target fails, and the others go on without it",
        "{pipeline}.{target}.quarantined",
    ),
    _counter("errors", "", ("part", "fault"), "failed attempts of a part, by who has to act: passing, yours, bug"),
    _gauge(
        "failing_attempts", "", ("part", "fault"), "failed attempts since the part last worked; absent while it works"
    ),
    _gauge("dead_letters", "", (), "rows and skipped batches that wait in the dead-letter store"),
    _gauge("differing_rows", "", (), "rows that differed when the pipeline was verified last"),
    _gauge("verified_timestamp_seconds", "seconds", (), "when the last verification ended (Unix time)"),
    _gauge("incomplete_tables", "", (), "tables that may lack rows or values at a target"),
    _counter("conflicts", "", (), "rows that both sites of a channel changed at the same time", "{pipeline}.conflicts"),
    _gauge("source_retention_seconds", "seconds", (), "for how long the source keeps its log; absent: until removed"),
    _gauge(
        "purge_horizon_seconds", "seconds", (), "how long the source keeps the log that is not captured yet, at least"
    ),
    _gauge(
        "retention_at_risk", "", (), "1: more than half of the source's retention has passed for log that is not "
        "captured yet",
    ),
    _gauge("source_retained_bytes", "bytes", (), "log that the source keeps for the pipeline's slot"),
    _gauge("source_retained_budget_bytes", "bytes", (), "`source.slot_budget`; absent without one"),
    _gauge("source_retained_left_bytes", "bytes", (), "log until the source may give up the slot; absent: never"),
    _gauge("stage_seconds", "seconds", ("stage",), f"seconds that the stage worked {_STAGE}"),
    _gauge("stage_batches", "", ("stage",), f"batches that passed the stage {_STAGE}"),
    _gauge("stage_rows", "", ("stage",), f"rows that the stage passed on or wrote {_STAGE}"),
    _gauge("stage_errors", "", ("stage",), f"rows that the stage did not take {_STAGE}"),
    *(
        _gauge(f"rule_{name}", unit, ("rule",), f"{meaning} {_RULE}", f"{{pipeline}}.rules.{{rule}}.{name}")
        for name, unit, meaning in (
            ("rows_in", "", "rows that the rule saw"),
            ("rows_out", "", "rows that it passed on"),
            ("changed", "", "rows that it changed"),
            ("errors", "", "rows on which it failed"),
            ("dead_letters", "", "rows that it sent to the dead-letter store"),
            ("seconds", "seconds", "seconds that it worked"),
        )
    ),
    *(
        _gauge(f"files_{name}", unit, (), meaning, f"{{pipeline}}.files.{name}")
        for name, unit, meaning in (
            ("copied", "", f"files that rows name and that were copied {_RULE} that names any"),
            ("unchanged", "", f"files that were there already {_RULE} that names any"),
            ("missing", "", f"files that were not found {_RULE} that names any"),
            ("bytes", "bytes", f"bytes of files that were copied {_RULE} that names any"),
            ("bytes_per_s", "bytes per second", f"speed of the copies {_RULE} that names any"),
            ("in_progress", "", "files that were copied so far of batches that are being merged"),
        )
    ),
    _gauge(
        "subscription_lag_batches", "", ("subscription",), "stored batches that it has not acknowledged",
        "{pipeline}.subscriptions.{subscription}.lag_batches",
    ),
    _gauge(
        "subscription_lag_seconds", "seconds", ("subscription",), "age of the oldest change in these batches",
        "{pipeline}.subscriptions.{subscription}.lag_seconds",
    ),
    _gauge(
        "subscription_alert", "", ("subscription",), "1: it has expired, or half of the time until then has passed",
        "{pipeline}.subscriptions.{subscription}.alert",
    ),
    _gauge("dumps", "", (), "copies of tables that run or are paused"),
)  # fmt: skip
"""All metrics, in the order of the page."""

_BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}
VERSION_METRIC = "sluice_version"
"""1, with the version as a label."""
VERSION = Metric(VERSION_METRIC, "gauge", "", ("version",), "1, with the version of Sluice as a label")


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric."""

    metric: Metric
    labels: Mapping[str, str]
    value: float


def samples(now: Status, *, age_s: float = 0.0, stages: Sequence[Mapping[str, Any]] = ()) -> Iterator[Sample]:
    """Yield the values of a pipeline.

    ``age_s``: of the status. ``stages``: what each stage did in the newest run (``stages_claimed``).
    """
    for name, labels, value in (*_state(now, age_s), *_delivery(now), *_troubles(now), *_work(now, stages)):
        if value is not None:
            metric = _BY_NAME.get(f"sluice_{name}") or _BY_NAME[f"sluice_{name}_total"]
            yield Sample(metric, {"pipeline": now.pipeline, **labels}, float(value))


_Values = Iterator[tuple[str, Mapping[str, str], float | None]]


def _state(now: Status, age_s: float) -> _Values:
    yield "up", {}, not now.errors
    for state in STATES:
        yield "state", {"state": state}, state == now.state
    yield "paused", {}, bool(now.paused)
    yield "status_age_seconds", {}, age_s
    for silent in now.no_answer:
        yield "no_answer", {"part": silent.part}, 1
    yield "warnings", {}, len(now.warnings)


def _delivery(now: Status) -> _Values:
    yield "in_flight_batches", {}, len(now.in_flight)
    yield "captured_batch", {}, None if now.next_batch is None else now.next_batch - 1
    yield "captured_changes", {}, now.changes
    yield "captured_bytes", {}, now.size_bytes
    for target in now.targets:
        named = {"target": target.name}
        yield "delivered_batch", named, target.batch
        yield "delivered_changes", named, target.changes
        yield "delivered_bytes", named, target.size_bytes
        yield "lag_seconds", named, _seconds(target.lag_ms)
        yield "lag_bytes", named, target.lag_bytes
        yield "lag_alert", named, bool(target.alert_since)
        yield "quarantined", named, bool(target.quarantined)
    for reader in now.subscriptions:
        named = {"subscription": reader.name}
        yield "subscription_lag_batches", named, reader.lag_batches
        yield "subscription_alert", named, bool(reader.warning)
        yield "subscription_lag_seconds", named, _seconds(reader.lag_ms)


def _troubles(now: Status) -> _Values:
    for part, fault, count in now.errors_counted:
        yield "errors", {"part": part, "fault": fault}, count
    for failure in now.failures:
        yield "failing_attempts", {"part": failure.part, "fault": failure.fault or Fault.YOURS}, failure.attempts
    yield "dead_letters", {}, now.dead_letters
    if now.verification is not None:
        yield "differing_rows", {}, now.verification.get("differing")
        yield "verified_timestamp_seconds", {}, now.verification["ended_ms"] / 1000
    yield "incomplete_tables", {}, len(now.incomplete)
    yield "conflicts", {}, now.conflicts
    yield "source_retention_seconds", {}, now.retention_s
    yield "purge_horizon_seconds", {}, now.purge_horizon_s
    if now.retention_s is not None and now.purge_horizon_s is not None:
        yield "retention_at_risk", {}, now.purge_horizon_s < now.retention_s / 2
    yield "source_retained_bytes", {}, now.retained_bytes
    yield "source_retained_budget_bytes", {}, now.retained_budget_bytes
    yield "source_retained_left_bytes", {}, now.retained_left_bytes


def _work(now: Status, stages: Sequence[Mapping[str, Any]]) -> _Values:
    for stage in stages:
        for name in ("seconds", "batches", "rows", "errors"):
            yield f"stage_{name}", {"stage": stage["stage"]}, stage.get(name)
    for rule in now.rules:
        for name in ("rows_in", "rows_out", "changed", "errors", "dead_letters", "seconds"):
            yield f"rule_{name}", {"rule": rule["name"]}, rule.get(name)
    for name in ("copied", "unchanged", "missing", "bytes", "bytes_per_s", "in_progress"):
        yield f"files_{name}", {}, now.files.get(name)
    yield "dumps", {}, sum(1 for dump in now.dumps if not dump.ended_ms)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def quiet_samples(pipeline: str, captured_batch: int, delivered: Mapping[str, int]) -> Iterator[Sample]:
    """Yield what is known without asking of a pipeline that waits for changes, and whose targets have everything.

    ``delivered``: target -> its last batch.
    """
    of_pipeline = {"up": 1, "paused": 0, "in_flight_batches": 0, "captured_batch": captured_batch}
    for name, value in of_pipeline.items():
        yield _sample(name, {"pipeline": pipeline}, value)
    for target, batch in delivered.items():
        each = {"lag_alert": 0, "quarantined": 0, "delivered_batch": batch, "lag_seconds": 0, "lag_bytes": 0}
        for name, value in each.items():
            yield _sample(name, {"pipeline": pipeline, "target": target}, value)


def down_sample(pipeline: str) -> Sample:
    """Return that the source or ZooKeeper of a pipeline does not answer."""
    return _sample("up", {"pipeline": pipeline}, 0)


def _sample(name: str, labels: Mapping[str, str], value: float) -> Sample:
    return Sample(_BY_NAME[f"sluice_{name}"], labels, float(value))


def gauges(samples: Iterable[Sample]) -> dict[str, float]:
    """Return the values that Airflow's StatsD and OpenTelemetry get, by name below Airflow's own prefix."""
    named = (sample for sample in samples if sample.metric.statsd)
    return {f"sluice.{sample.metric.statsd.format(**sample.labels)}": sample.value for sample in named}


@dataclass(frozen=True, slots=True)
class Seen:
    """A status, when it was asked for (monotonic), and what the stages of the newest run did."""

    status: Status
    at: float
    stages: Sequence[Mapping[str, Any]] = ()

    def samples(self) -> Iterator[Sample]:
        """Yield its values as of now."""
        return samples(self.status, age_s=time.monotonic() - self.at, stages=self.stages)


@dataclass
class Looks:
    """The last look at each pipeline: one look at a time for each, however many scrapes there are.

    Attributes:
        names: returns the pipelines as of now. look: asks one; raises SluiceError.
        deadline_s: how long a scrape waits for looks; one that takes longer is served from the last one.
    """

    names: Callable[[], Sequence[str]]
    look: Callable[[str], Seen]
    deadline_s: float = 8.0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last: dict[str, Seen] = field(default_factory=dict)
    _under_way: dict[str, Any] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8, thread_name_prefix="metrics"))

    def newest(self) -> list[Seen]:
        """Return the looks of all pipelines, as new as they come within the deadline."""
        until, names = time.monotonic() + self.deadline_s, list(self.names())
        with self._lock:
            for name in names:
                if name not in self._under_way:
                    self._under_way[name] = self._pool.submit(self._ask, name)
            futures = {name: self._under_way[name] for name in names}
            for removed_name in self._last.keys() - set(names):
                del self._last[removed_name]
        for future in futures.values():
            try:
                future.result(max(0.0, until - time.monotonic()))
            except LateError:
                continue
        with self._lock:
            return [self._last[name] for name in names if name in self._last]

    def close(self) -> None:
        """Begin no further look."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, name: str) -> None:
        try:
            newest = self.look(name)
            with self._lock:
                self._last[name] = newest
        except SluiceError as error:
            _log.warning("metrics_look_failed", pipeline=name, error=str(error))
        finally:
            with self._lock:
                self._under_way.pop(name, None)


def exposition(pipelines: Iterable[Seen], accept: str = "", *, process: bool = False) -> tuple[bytes, str]:
    """Return the metrics of pipelines in Prometheus' text format, and its content type.

    ``accept``: the header of the request, for OpenMetrics. ``process``: with memory and CPU of this process.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry()
    registry.register(_Collector(list(pipelines)))
    if process:
        ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Collector:
    """Prometheus' view of the looks."""

    def __init__(self, pipelines: Sequence[Seen]) -> None:
        self._seen = pipelines

    def collect(self) -> Iterator[Any]:
        """Yield a family for each metric that has a value."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for metric in METRICS:
            kind = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
            families[metric.name] = kind(metric.name, metric.meaning, labels=["pipeline", *metric.labels])
        for pipeline in self._seen:
            for sample in pipeline.samples():
                labels = [sample.labels[name] for name in ("pipeline", *sample.metric.labels)]
                families[sample.metric.name].add_metric(labels, sample.value)
        yield from (family for family in families.values() if family.samples)
        yield _version_family()


def _version_family() -> Any:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(VERSION.name, VERSION.meaning, labels=["version"])
    family.add_metric([__version__], 1.0)
    return family
