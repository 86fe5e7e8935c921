"""Metrics by OpenTelemetry: the list, the names and the values are those that Prometheus scrapes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluice.operations import otel_metrics
from sluice.operations.metrics import METRICS, VERSION_METRIC, Seen, exposition
from sluice.orchestration import metrics as airflow_metrics
from tests.support.running.every_metric import EVERYTHING, STAGES
from tests.support.servers.otlp import Receiver, flush, otlp_receiver
from tests.support.twins.pipes import Pipe

SEEN = Seen(EVERYTHING, time.monotonic(), STAGES)
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def received() -> Iterator[Receiver]:
    with otlp_receiver(OTEL_METRIC_EXPORT_INTERVAL="3600000") as found:
        yield found


def series(received: Receiver) -> Series:
    return {(one.name, frozenset(one.labels.items())): one.value for one in received.points}


def scraped() -> Series:
    families = text_string_to_metric_families(exposition([SEEN])[0].decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_names_labels_and_values_are_those_of_prometheus(received: Receiver) -> None:
    otel_metrics.report(SEEN.samples())
    flush()
    found, expected = series(received), scraped()
    assert {name for name, _ in found} == {metric.name for metric in METRICS} | {VERSION_METRIC}
    assert found.keys() == expected.keys()
    differing = {key for key in found if found[key] != expected[key]}
    assert {name for name, _ in differing} <= {"sluice_status_age_seconds"}
    counters = {metric.name for metric in METRICS if metric.kind == "counter"}
    assert {point.name for point in received.points if point.counter} == counters
    units = {point.name: point.unit for point in received.points}
    assert (units["sluice_lag_seconds"], units["sluice_lag_bytes"], units["sluice_up"]) == ("s", "By", "")


def test_counters_stay_sums_of_the_pipeline_where_differences_are_preferred() -> None:
    with otlp_receiver(OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE="delta") as received:
        otel_metrics.report(SEEN.samples())
        flush()
    assert [point.counter for point in received.points if point.name == "sluice_errors_total"] == [True]


def test_a_process_repeats_nothing_that_is_old(received: Receiver) -> None:
    otel_metrics.report(SEEN.samples())
    flush()
    received.points.clear()
    flush()
    assert received.points == []
    otel_metrics.report(SEEN.samples())
    flush()
    assert {name for name, _ in series(received)} == {metric.name for metric in METRICS} | {VERSION_METRIC}


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_sluice_run_sends_metrics_and_traces_at_its_end(
    one: Pipe, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.commit(("insert", "a", (1, "x")), ("insert", "a", (2, "y")))
    monkeypatch.setattr(otel_metrics, "LAST_S", 120)
    with otlp_receiver(OTEL_METRIC_EXPORT_INTERVAL="3600000", OTEL_EXPORTER_OTLP_PROTOCOL=protocol) as received:
        one.sluice("run", "p", "--until-head")
        flush()
    found = {name: value for (name, _), value in series(received).items()}
    assert (found["sluice_up"], found["sluice_delivered_batch"], found["sluice_captured_changes_total"]) == (1, 1, 2)
    assert {"sluice_stage_seconds", "sluice_stage_rows"} <= found.keys()
    assert {span.name for span in received.spans} == {"drain", "merge", "load.copy", "ack.copy"}


def test_a_task_in_airflow_reports_all_that_a_scrape_gives(one: Pipe, received: Receiver) -> None:
    one.commit(("insert", "a", (1, "x")))
    one.deliver()
    airflow_metrics.report(one.made.runtime(), every_s=0.0)
    flush()
    found = {name: value for (name, _), value in series(received).items()}
    assert (found["sluice_up"], found["sluice_captured_batch"], found["sluice_lag_bytes"]) == (1, 1, 0)


def test_the_triggerer_reports_pipelines_that_wait_and_that_are_down(
    received: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow_metrics, "_asked", {"p": time.monotonic()})
    monkeypatch.setattr(airflow_metrics, "_sent", {})
    assert airflow_metrics.say_quiet("p", 7, {"copy": 7})
    airflow_metrics.say_down("gone")
    flush()
    found = series(received)
    assert found["sluice_up", frozenset({("pipeline", "p")})] == 1
    assert found["sluice_up", frozenset({("pipeline", "gone")})] == 0
    assert found["sluice_delivered_batch", frozenset({("pipeline", "p"), ("target", "copy")})] == 7


def test_only_traces_can_be_wanted(one: Pipe) -> None:
    with otlp_receiver(OTEL_METRICS_EXPORTER="none") as received:
        one.commit(("insert", "a", (1, "x")))
        one.sluice("run", "p", "--until-head")
        flush()
    assert received.points == []
    assert {span.name for span in received.spans} == {"drain", "merge", "load.copy", "ack.copy"}
