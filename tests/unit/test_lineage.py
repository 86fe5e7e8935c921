"""Lineage: names of data sets, origins of columns, and the events that ``sluice run`` sends."""

from __future__ import annotations

import json
import os
import sys
import threading
import uuid
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import structlog

from sluice.config.engine import RuleConfig
from sluice.errors import LoadError, SluiceError
from sluice.flows.transform.merge import merge
from sluice.mapping.tables import TableRoute
from sluice.model.tables import TableId
from sluice.operations.lineage import ColumnOrigin, DataSet, TableLineage, column_origins, data_set, table_lineage
from sluice.operations.lineage_events import LineageReporter, data_sets
from sluice.orchestration.operators import StageOperator
from sluice.orchestration.runtime import claim
from sluice.rules import builtin
from sluice.rules.script import Rule
from tests.support.running.waiting import wait_until
from tests.support.twins.pipes import Pipe

ORDERS = TableId("shop", "orders")


@pytest.fixture(autouse=True)
def unconfigured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No configuration of this machine, and none of another test: the client writes to the environment itself."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE") and name not in before]:
        del os.environ[name]


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("mysql://db:3306/shop/orders", "mysql://db:3306", "shop.orders"),
        ("mysql://db:3306/shop/a%2Fb", "mysql://db:3306", "shop.a/b"),
        ("postgres://db:5432/dw/public/orders", "postgres://db:5432", "dw.public.orders"),
        ("kafka://broker:9092/shop.orders", "kafka://broker:9092", "shop.orders"),
        ("s3://lake/tables/orders", "s3://lake", "tables/orders"),
        ("file:///data/orders", "file", "/data/orders"),
    ],
)
def test_a_data_set_is_named_as_openlineage_names_it(uri: str, namespace: str, name: str) -> None:
    assert data_set(uri) == DataSet(namespace, name)


def rule(kind: str, **params: Any) -> Rule:
    config = RuleConfig.model_validate({"name": f"r_{kind}", "builtin": kind, "params": params})
    return Rule(config, *builtin.source(kind, "engine.yaml:1"))


def test_a_column_is_followed_through_rules_and_mapping_to_its_source() -> None:
    rules = [
        rule("mask", columns=["mail"]),
        rule("rename", columns={"mail": "email"}),
        rule("cast", columns={"n": "bigint"}),
        rule("add", constants={"made": "x"}),
    ]
    route = TableRoute(ORDERS, ORDERS, rename=(("email", "contact"),))
    assert column_origins(["id", "contact", "n", "made"], ORDERS, rules, route) == {
        "id": ColumnOrigin("id"),
        "contact": ColumnOrigin("mail", ("MASK",), masked=True),
        "n": ColumnOrigin("n", ("CAST",)),
        "made": None,
    }


def test_columns_are_not_guessed_behind_a_rule_of_a_users_own() -> None:
    config = RuleConfig.model_validate({"name": "mine", "type": "sql", "path": "mine.sql"})
    own = Rule(config, "mine.sql", "select * from rows")
    assert column_origins(["id"], ORDERS, [own], TableRoute(ORDERS, ORDERS)) is None


def write(one: Pipe) -> None:
    one.commit(("insert", "a", (1, "x")), ("insert", "a", (2, "y")))


def facets_of(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in (event["run"], event["job"], *event["inputs"], *event["outputs"]):
        for key in ("facets", "inputFacets", "outputFacets"):
            yield from part.get(key, {}).values()


def follow_the_specification(*events: dict[str, Any]) -> None:
    """A run has one START and one end, and events have what OpenLineage's specification requires of them."""
    for run in {event["run"]["runId"] for event in events}:
        uuid.UUID(run)
        kinds = [event["eventType"] for event in events if event["run"]["runId"] == run]
        assert kinds[0] == "START"
        assert len(kinds) == 2
        assert kinds[1] in {"COMPLETE", "FAIL", "ABORT"}
    for event in events:
        assert datetime.fromisoformat(event["eventTime"]).tzinfo
        assert {"run", "job", "eventTime", "producer", "schemaURL"} <= event.keys()
        assert event["job"]["namespace"]
        addresses = [event["producer"], event["schemaURL"]]
        for facet in facets_of(event):
            addresses += [facet["_producer"], facet["_schemaURL"]]
        assert all(urlsplit(address).scheme in {"urn", "https"} for address in addresses)
        assert all(one["namespace"] and one["name"] for one in (*event["inputs"], *event["outputs"]))


def check(*events: dict[str, Any]) -> None:
    follow_the_specification(*events)
    start, sent = events
    assert (start["eventType"], sent["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == sent["run"]["runId"]
    assert start["job"]["name"] == sent["job"]["name"]
    assert start["eventTime"] <= sent["eventTime"]
    assert sent["job"]["name"].endswith(".copy")
    [given], [output] = sent["inputs"], sent["outputs"]
    assert given["name"].endswith(".a")
    assert "schema" not in given["facets"], "a source in memory has no schema history"
    assert [one["name"] for one in output["facets"]["schema"]["fields"]] == ["id", "v"]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert output["outputFacets"]["outputStatistics"]["size"] > 0
    [origin] = output["facets"]["columnLineage"]["fields"]["v"]["inputFields"]
    assert (origin["namespace"], origin["name"], origin["field"]) == (given["namespace"], given["name"], "v")
    assert origin["transformations"][0]["subtype"] == "IDENTITY"


def test_sluice_run_appends_an_event_to_the_clients_file(
    one: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "events.json"
    config = tmp_path / "openlineage.yml"
    config.write_text(f"transport:\n  type: file\n  log_file_path: {log}\n  append: true\n", encoding="utf-8")
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(config))
    write(one)
    one.sluice("run", "p", "--until-head")
    check(*map(json.loads, log.read_text(encoding="utf-8").splitlines()))


def test_sluice_run_posts_an_event_to_the_clients_url(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{server.server_port}")
        write(one)
        one.sluice("run", "p", "--until-head")
    finally:
        server.shutdown()
        server.server_close()
    check(*posted)


class Sent:
    """Events of a reporter, as JSON."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def __call__(self, event: Any) -> None:
        from openlineage.client.serde import Serde

        self.events.append(json.loads(Serde.to_json(event)))

    @property
    def kinds(self) -> list[str]:
        return [event["eventType"] for event in self.events]


def test_a_source_table_has_the_columns_of_its_definition() -> None:
    given = DataSet("mysql://db:3306", "shop.orders")
    table = TableLineage(DataSet("mysql://dw:3306", "dw.orders"), [given])
    table.source_columns[given] = (("id", "int unsigned"), ("mail", "varchar(80)"))
    [read], _ = data_sets([table])
    assert [(one.name, one.type) for one in read.facets["schema"].fields] == [*table.source_columns[given]]


def test_a_run_that_fails_ends_with_the_error_and_what_was_delivered_before(one: Pipe) -> None:
    sent = Sent()
    reporter = LineageReporter("p", ["copy"], partial(table_lineage, one.made.runtime()), sent)
    reporter.begin()
    write(one)
    one.deliver()
    reporter.add(1)
    reporter.close(LoadError("the target refused a row", hint="look"), timeout_s=60)
    assert sent.kinds == ["START", "FAIL"]
    failed = sent.events[1]
    assert failed["run"]["facets"]["errorMessage"]["message"] == "the target refused a row [SLUICE-LOAD-ERROR] -> look"
    assert [output["name"].endswith(".a") for output in failed["outputs"]] == [True]
    assert failed["run"]["runId"] == sent.events[0]["run"]["runId"]


def test_sluice_run_tells_of_its_failure_before_the_first_batch(
    one: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, config = tmp_path / "events.json", tmp_path / "openlineage.yml"
    config.write_text(f"transport:\n  type: file\n  log_file_path: {log}\n  append: true\n", encoding="utf-8")
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(config))
    one.refuse("no such value")
    one.commit(("insert", "a", (1, "bad")))
    with pytest.raises(SluiceError):
        one.sluice("run", "p", "--until-head")
    start, failed = events = [*map(json.loads, log.read_text(encoding="utf-8").splitlines())]
    follow_the_specification(*events)
    assert (start["eventType"], failed["eventType"]) == ("START", "FAIL")
    assert "no such value" in failed["run"]["facets"]["errorMessage"]["message"]


def test_an_unforeseen_error_is_told_by_its_kind_and_a_persons_end_is_no_failure() -> None:
    sent = Sent()
    reporter = LineageReporter("p", ["copy"], lambda *_: [], sent)
    reporter.begin()
    reporter.close(ValueError("secret"), timeout_s=60)
    assert sent.events[1]["run"]["facets"]["errorMessage"]["message"] == "ValueError"
    aborted = Sent()
    reporter = LineageReporter("p", ["copy"], lambda *_: [], aborted)
    reporter.begin()
    reporter.close(KeyboardInterrupt(), timeout_s=60)
    assert aborted.kinds == ["START", "ABORT"]


def test_each_interval_has_a_run_of_its_own_and_a_long_batch_keeps_its_run(one: Pipe) -> None:
    sent = Sent()
    reporter = LineageReporter("p", ["copy"], partial(table_lineage, one.made.runtime()), sent, interval_s=0.01)
    reporter.begin()
    wait_until(lambda: sent.kinds == ["START"], "the first run")
    for number in (1, 2):
        one.commit(("insert", "a", (number, "x")))
        one.deliver()
        reporter.add(number)
        wait_until(lambda: len(sent.events) == 2 * number, "the end of a run")  # noqa: B023 - waited for here
    reporter.close(timeout_s=60)
    assert sent.kinds == ["START", "COMPLETE"] * 2
    assert len({event["run"]["runId"] for event in sent.events}) == 2
    follow_the_specification(*sent.events)


def test_a_dead_endpoint_fails_no_batch_and_is_logged_once(one: Pipe) -> None:
    def emit(_: Any) -> None:
        raise OSError("refused")

    with structlog.testing.capture_logs() as logs:
        look = partial(table_lineage, one.made.runtime())
        reporter = LineageReporter("p", ["copy"], look, emit, interval_s=0.01)
        for number in (1, 2):
            write(one) if number == 1 else one.commit(("insert", "a", (3, "z")))
            one.deliver()
            reporter.add(number)
        reporter.close(timeout_s=60)
    assert one.acknowledged() == 2
    assert len([entry for entry in logs if entry["event"] == "lineage_emit_failed"]) == 1


def test_an_endpoint_that_never_answers_holds_up_no_batch_and_not_the_end(one: Pipe) -> None:
    asked, answers = threading.Event(), threading.Event()

    def emit(_: Any) -> None:
        asked.set()
        answers.wait(120)

    reporter = LineageReporter("p", ["copy"], partial(table_lineage, one.made.runtime()), emit, interval_s=0.01)
    write(one)
    one.deliver()
    reporter.add(1)
    assert asked.wait(60)
    one.commit(("insert", "a", (3, "z")))
    one.deliver()
    reporter.add(2)
    reporter.close(timeout_s=0.01)
    assert not answers.is_set()
    assert one.acknowledged() == 2
    answers.set()
    reporter.close(timeout_s=60)


def test_nothing_is_sent_unless_the_client_is_configured(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LineageReporter.configured("p", ["copy"], lambda *_: []) is None
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    assert LineageReporter.configured("p", ["copy"], lambda *_: []) is None


def test_an_acknowledgement_in_airflow_gives_its_batches_to_the_provider(
    one: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = ModuleType("airflow.providers.openlineage.extractors")
    provider.OperatorLineage = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage", ModuleType("airflow.providers.openlineage"))
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.extractors", provider)
    write(one)
    number = one.made.drain(claim=claim("sync__p", "r1"), deliver=False).batch
    merge(one.made.runtime(), number)
    monkeypatch.setattr("sluice.orchestration.operators.open_runtime", lambda _: one.made.runtime())
    ack, load, other = (
        StageOperator(task_id=name, stage=name, color="#fff", pipeline="p")
        for name in ("ack.copy", "load.copy", "merge")
    )
    assert ack.get_openlineage_facets_on_complete(None) is None, "this run told of no batch"
    ack._announced = range(number, number + 1)
    found = ack.get_openlineage_facets_on_complete(None)
    assert [given.name.endswith(".a") for given in found.inputs] == [True]
    assert found.outputs[0].outputFacets["outputStatistics"].rowCount == 2
    for task in (ack, load):
        failed = task.get_openlineage_facets_on_failure(SimpleNamespace(dag_id="sync__p", run_id="r1"))
        assert [output.name.endswith(".a") for output in failed.outputs] == [True]
        others = SimpleNamespace(dag_id="sync__p", run_id="r2")
        assert task.get_openlineage_facets_on_failure(others) is None, "the run has no batch"
    assert load.get_openlineage_facets_on_complete(None) is None, "the acknowledgement tells"
    assert other.get_openlineage_facets_on_failure(None) is None
