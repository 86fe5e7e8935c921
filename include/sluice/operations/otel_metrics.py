"""The metrics of :mod:`sluice.operations.metrics` by OpenTelemetry, under the names that Prometheus gets.

A process that lives on gives its looks (:func:`sending`); one that works for a while reports what it sees
(:func:`report`). Each value is sent once, so that a process that sees nothing new repeats nothing that is old.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sluice import __version__
from sluice.operations.metrics import METRICS, VERSION, Looks, Metric, Sample
from sluice.telemetry.settings import is_wanted

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation

_UNITS = {"seconds": "s", "bytes": "By"}
"""Units by OpenTelemetry's code. Other units stay out: a collector that writes for Prometheus adds them to the name."""
LAST_S = 10.0
"""Seconds that the end of a process waits for the last look and for what it sends, at most."""
_MOST_KEPT = 100_000
"""Values that wait to be sent; further ones are dropped."""


class _Values:
    """The values that wait: each round of a reader asks once for every metric, and takes what is there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reported: dict[tuple[str, tuple[tuple[str, str], ...]], Sample] = {}
        self._round: dict[str, list[Sample]] = {}
        self.looks: Looks | None = None

    def add(self, samples: Iterable[Sample]) -> None:
        """Keep these values until they are sent; a newer value of the same series replaces one that waits."""
        with self._lock:
            for sample in samples:
                if len(self._reported) < _MOST_KEPT:
                    self._reported[sample.metric.name, tuple(sorted(sample.labels.items()))] = sample

    def take(self, metric: Metric) -> list[Sample]:
        """Return the values of a metric in this round; the first metric that is asked for again begins a new one."""
        with self._lock:
            if metric.name not in self._round:
                self._round = self._begin()
            return self._round.pop(metric.name)

    def _begin(self) -> dict[str, list[Sample]]:
        samples, self._reported = list(self._reported.values()), {}
        if self.looks is not None:
            samples += [sample for pipeline in self.looks.newest() for sample in pipeline.samples()]
        if samples:
            samples.append(Sample(VERSION, {"version": __version__}, 1.0))
        by_metric: dict[str, list[Sample]] = {metric.name: [] for metric in (*METRICS, VERSION)}
        for sample in samples:
            by_metric[sample.metric.name].append(sample)
        return by_metric


_values = _Values()


def forget() -> None:
    """Leave a parent's values to the parent."""
    global _values
    _values = _Values()


os.register_at_fork(after_in_child=forget)


def report(samples: Iterable[Sample]) -> None:
    """Send these values with the next round; does nothing unless metrics are wanted."""
    if is_wanted("metrics"):
        _values.add(samples)
        _provider()


@contextmanager
def sending(looks: Callable[[], Looks]) -> Iterator[None]:
    """Send what the looks see in each round while the block runs, and once at its end; only if metrics are wanted."""
    if not is_wanted("metrics") or _provider() is None:
        yield
        return
    from sluice.telemetry.export import flush

    _values.looks = current_looks = looks()
    try:
        yield
    finally:
        flush(LAST_S)
        _values.looks = None
        current_looks.close()


def _provider() -> Any:
    from sluice.telemetry import export

    return export.provider("metrics", _make)


def _make() -> tuple[Any, Callable[[], Any]]:
    from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter
    from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader

    from sluice.telemetry import export

    # The counters stand in ZooKeeper: their whole value would be the first difference of each process.
    cumulative = {ObservableCounter: AggregationTemporality.CUMULATIVE}
    reader = PeriodicExportingMetricReader(export.exporter("metrics", preferred_temporality=cumulative))
    provider = MeterProvider([reader], resource=export.resource(), shutdown_on_exit=False)
    meter = provider.get_meter("sluice", __version__)
    for metric in (*METRICS, VERSION):
        make = meter.create_observable_gauge if metric.kind == "gauge" else meter.create_observable_counter
        make(metric.name, [_callback(metric)], _UNITS.get(metric.unit, ""), metric.meaning)
    return provider, provider.force_flush


def _callback(metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation

    def observed(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(sample.value, dict(sample.labels)) for sample in _values.take(metric)]

    return observed


__all__ = ["LAST_S", "report", "sending"]
