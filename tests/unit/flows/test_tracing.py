"""One trace per batch, whatever processes and attempts it takes; received by the protocol of OpenTelemetry."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import structlog

from sluice import telemetry
from sluice.errors import SluiceError
from sluice.flows.capture.drain import drain
from sluice.flows.job import run_microbatches
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from sluice.flows.transform.stages import apply_rule
from tests.support.pipelines.case import Case, case
from tests.support.servers.otlp import Receiver, Span, flush, forget, otlp_receiver, unset
from tests.support.twins.pipes import Pipe, pipe

RULES = """\
rules:
  - {name: hide, builtin: hash, order: 1, params: {columns: [v], length: 12}}
  - {name: own, builtin: filter, order: 2, task: own, params: {where: id > 0}}
  - {name: after, builtin: truncate, order: 3, params: {columns: {v: 8}}}
"""


@pytest.fixture
def received() -> Iterator[Receiver]:
    with otlp_receiver() as found:
        yield found


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Pipe]:
    yield from pipe(tmp_path, "copy", "other")


@pytest.fixture
def ruled(tmp_path: Path, twin_source, twin_target, twin_zookeeper, fresh_schema) -> Iterator[Case]:
    schema = fresh_schema(twin_source, twin_target)
    for server in (twin_source, twin_target):
        server.execute(f"CREATE TABLE `{schema}`.a (id INT PRIMARY KEY, v VARCHAR(80))")
    with case(
        tmp_path, twin_source, twin_target, twin_zookeeper, schema, extra="rules: engine.yaml", session_s=20
    ) as made:
        (made.folder / "rules/engine.yaml").write_text(RULES, encoding="utf-8")
        made.run_until_head()
        yield made


def write(one: Pipe, key: int = 1) -> None:
    one.commit(("insert", "a", (key, "x")), ("insert", "a", (key + 1, "y")))


def named(spans: list[Span]) -> dict[str, Span]:
    assert len({span.name for span in spans}) == len(spans), [span.name for span in spans]
    return {span.name: span for span in spans}


def test_a_batch_is_one_trace_of_drain_merge_rules_load_and_ack(ruled: Case, received: Receiver) -> None:
    ruled.source.execute(f"INSERT INTO `{ruled.schema}`.a VALUES (1, 'x'), (2, 'y')")
    ruled.run_until_head()
    flush()
    [target] = [one.name for one in ruled.runtime().pipeline.targets]
    [number] = {span.attributes["sluice.batch"] for span in received.spans}
    spans = named(received.of_batch(number))
    stages = {"drain", "merge", "rule.own", f"load.{target}", f"ack.{target}"}
    assert spans.keys() == {*stages, "rule.hide", "rule.after"}
    assert len({span.trace for span in spans.values()}) == 1
    root = spans["drain"]
    assert root.parent == b""
    assert {spans[name].parent for name in stages - {"drain"}} == {root.id}
    assert spans["rule.hide"].parent == spans["merge"].id
    assert spans["rule.after"].parent == spans["rule.own"].id
    for span in spans.values():
        assert span.begin_ns <= span.end_ns
        assert span.failed == ""
        assert span.attributes["sluice.pipeline"] == ruled.runtime().name
        assert span.resource["service.name"] == "sluice"
    assert spans["drain"].attributes["sluice.changes"] == 2
    assert spans["rule.hide"].attributes["sluice.rows_in"] == 2
    assert spans["rule.own"].attributes["sluice.rows_out"] == 2
    assert spans[f"load.{target}"].attributes["sluice.upserted"] == 2
    assert spans[f"load.{target}"].attributes["sluice.target"] == target
    assert spans[f"ack.{target}"].attributes["sluice.lag_seconds"] >= 0
    for name in stages:
        assert spans[name].attributes["sluice.zookeeper.calls"] > 0, name
        assert spans[name].attributes["sluice.zookeeper.seconds"] > 0, name
    for name in ("drain", "merge", f"load.{target}"):
        assert spans[name].attributes["sluice.store.calls"] > 0, name


def test_stages_of_other_processes_join_in_the_trace_of_the_batch(one: Pipe, received: Receiver) -> None:
    def process() -> None:
        """What a stage knows of another one is in ZooKeeper only."""
        flush()
        forget()

    write(one)
    batch = drain(one.made.runtime(), claim="test:1", idle_wait_s=5).batch
    assert batch is not None
    process()
    merge(one.made.runtime(), batch)
    process()
    for target in ("copy", "other"):
        load(one.made.runtime(), target, batch)
        process()
        ack(one.made.runtime(), target, batch)
        process()
    spans = named(received.spans)
    assert spans.keys() == {"drain", "merge", "load.copy", "load.other", "ack.copy", "ack.other"}
    assert len({span.trace for span in spans.values()}) == 1
    assert {span.parent for name, span in spans.items() if name != "drain"} == {spans["drain"].id}


def test_each_batch_of_a_run_in_airflow_has_a_trace_of_its_own(one: Pipe, received: Receiver) -> None:
    config = one.made.case.config
    limits = config.capture.batch.model_copy(update={"max_changes": 2})
    capture = config.capture.model_copy(update={"batch": limits})
    one.made.case.config = config.model_copy(update={"capture": capture})
    for key in (1, 3, 5):
        write(one, key)
    outcome = run_microbatches(one.made.runtime(), claim="test:1", idle_wait_s=0.2)
    assert len(outcome.delivered) == 3
    flush()
    assert len({span.trace for span in received.spans}) == 3
    for batch in (1, 2, 3):
        assert len({span.trace for span in received.of_batch(batch)}) == 1
        assert named(received.of_batch(batch)).keys() == {
            "drain", "merge", "load.copy", "load.other", "ack.copy", "ack.other",
        }  # fmt: skip


def test_a_retry_is_a_further_span_of_the_same_trace(tmp_path: Path, received: Receiver) -> None:
    for one in pipe(tmp_path, "copy"):
        one.refuse("no such value")
        one.commit(("insert", "a", (1, "bad")))
        with pytest.raises(SluiceError):
            one.deliver()
        one.refuse("")
        one.deliver()
        flush()
        failed, done = (span for span in received.of_batch(1) if span.name == "load.copy")
        assert failed.trace == done.trace == named([s for s in received.spans if s.name == "drain"])["drain"].trace
        assert failed.id != done.id
        assert (failed.attributes["error.type"], done.failed) == ("LoadError", "")
        assert failed.failed
        assert failed.attributes["sluice.fault"] == "yours"
        assert [span.name for span in received.spans if span.name in {"drain", "merge"}] == ["drain", "merge"]


def test_a_capture_that_fails_is_a_span_without_a_batch(one: Pipe, received: Receiver) -> None:
    runtime = one.made.runtime()

    def broken(*_: object) -> None:
        raise ValueError("a bug")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.flows.capture.drain.STEPS", (broken,))
        with pytest.raises(ValueError, match="a bug"):
            drain(runtime, claim="test:1", idle_wait_s=0.1)
    flush()
    [span] = received.spans
    assert (span.name, span.attributes["error.type"]) == ("drain", "ValueError")
    assert "sluice.batch" not in span.attributes


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({"OTEL_SERVICE_NAME": "cdc"}, {"cdc"}),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=cdc,team=data"}, {"cdc"}),
        ({"OTEL_SDK_DISABLED": "true"}, set()),
        ({"OTEL_TRACES_EXPORTER": "none"}, set()),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, set()),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, set()),
    ],
)
def test_the_standard_variables_count(tmp_path: Path, variables: dict[str, str], names: set[str]) -> None:
    with otlp_receiver(**variables) as received:
        for one in pipe(tmp_path, "copy"):
            write(one)
            one.deliver()
        flush()
    assert {span.resource["service.name"] for span in received.spans} == names


def test_a_ratio_takes_whole_traces(one: Pipe) -> None:
    with otlp_receiver(OTEL_TRACES_SAMPLER="parentbased_traceidratio", OTEL_TRACES_SAMPLER_ARG="0.5") as received:
        for number in range(1, 13):
            write(one, number * 2)
            one.deliver()
        flush()
        sizes = [len(received.of_batch(number)) for number in range(1, 13)]
    assert set(sizes) <= {0, 6}


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_dead_endpoint_fails_no_batch_and_is_logged_once(one: Pipe, protocol: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    with unset() as patch, structlog.testing.capture_logs() as logs:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://anna:secret@127.0.0.1:{port}")
        patch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        patch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
        for number in (1, 2):
            write(one, number * 2)
            one.deliver()
            flush()
    assert (one.acknowledged("copy"), one.acknowledged("other")) == (2, 2)
    [entry] = [entry for entry in logs if entry["event"] == "telemetry_export_failed"]
    assert "secret" not in str(entry)


def test_an_endpoint_that_never_answers_holds_up_neither_a_batch_nor_the_end(one: Pipe) -> None:
    over = threading.Event()
    with unset() as patch, socket.create_server(("127.0.0.1", 0)) as silent:
        held: list[socket.socket] = []

        def accept() -> None:
            with suppress(OSError):  # closed at the end
                while not over.is_set():
                    held.append(silent.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        patch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "120")
        write(one)
        one.deliver()
        telemetry.flush()  # returns although the request is not answered
        write(one, 3)
        one.deliver()
        assert one.acknowledged() == 2
        over.set()
        for connection in held:
            connection.close()


def test_nothing_of_opentelemetry_is_imported_while_it_is_not_configured(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.support.twins.pipes import pipe; from sluice import telemetry\n"
        f"for one in pipe(Path({str(tmp_path)!r}), 'copy'):\n"
        "    one.commit(('insert', 'a', (1, 'x'))); one.deliver(); assert one.acknowledged() == 1\n"
        "telemetry.flush()\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'sluice.telemetry.export'))])"
    )
    with unset():
        found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.splitlines()[-1] == "[]"


def test_a_missing_package_is_named_with_the_command_that_installs_it(one: Pipe) -> None:
    with otlp_receiver() as received, pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
        with structlog.testing.capture_logs() as logs:
            write(one)
            one.deliver()
            flush()
    [entry] = [entry for entry in logs if entry["event"] == "telemetry_unavailable"]
    assert "opentelemetry-sdk" in entry["hint"] or "[otel]" in entry["hint"]
    assert (one.acknowledged(), received.spans) == (1, [])


def test_the_rule_of_a_task_traces_its_own_stage(ruled: Case, received: Receiver) -> None:
    ruled.source.execute(f"INSERT INTO `{ruled.schema}`.a VALUES (1, 'x')")
    batch = drain(ruled.runtime(), claim="test:1", idle_wait_s=5).batch
    assert batch is not None
    apply_rule(ruled.runtime(), batch, "own")
    apply_rule(ruled.runtime(), batch, "own")  # it is done already: no span
    flush()
    assert sorted(span.name for span in received.spans) == ["drain", "merge", "rule.after", "rule.hide", "rule.own"]
