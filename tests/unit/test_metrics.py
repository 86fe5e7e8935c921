"""Metrics and health: what is scraped is true, is all that the page lists, and is what dashboard and alerts ask for."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from sluice.errors import Fault, MappingError, SourceUnavailable
from sluice.operations.metrics import METRICS, STATES, VERSION_METRIC, Looks, Seen, exposition, gauges, samples
from sluice.operations.status import Status
from sluice.serve.monitor import MonitorServer, look
from tests.support.documents import metrics_table
from tests.support.running.every_metric import EVERYTHING, STAGES
from tests.support.twins.pipes import Pipe, pipe

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "docs" / "monitoring"


def parsed(text: bytes) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


@pytest.fixture(scope="module")
def emitted() -> dict[str, list[tuple[dict[str, str], float]]]:
    return parsed(exposition([Seen(EVERYTHING, time.monotonic(), STAGES)])[0])


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Pipe]:
    for found in pipe(tmp_path, "copy"):
        found.commit(("insert", "a", (1, "x")), ("insert", "a", (2, "y")))
        found.deliver()
        yield found


def test_every_metric_of_the_list_is_emitted_and_no_other(emitted: dict[str, Any]) -> None:
    assert emitted.keys() == {metric.name for metric in METRICS} | {VERSION_METRIC}
    for metric in METRICS:
        labels, _ = emitted[metric.name][0]
        assert set(labels) == {"pipeline", *metric.labels}, metric.name


def test_the_table_of_the_page_is_the_list() -> None:
    text = metrics_table.PAGE.read_text(encoding="utf-8")
    assert metrics_table.renewed(text) == text, f"run `{metrics_table.COMMAND}`"


def test_the_states_are_those_of_a_status() -> None:
    described = re.sub(r"\s+", " ", Status.__doc__ or "").partition("head, captured:")[0]
    assert all(re.search(rf"\b{state}\b", described) for state in STATES)


def expressions() -> list[tuple[str, str]]:
    """(where it stands, query) of the dashboard and of the alert rules."""
    panels = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    found = [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", ())]
    rules = YAML(typ="safe").load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    return found + [(rule["alert"], rule["expr"]) for rule in rules]


@pytest.mark.parametrize(("where", "query"), expressions())
def test_queries_ask_for_what_is_emitted(where: str, query: str, emitted: dict[str, Any]) -> None:
    named = re.findall(r"\b(sluice_\w+)(?:\{([^}]*)\})?", query)
    assert named, where
    for name, matchers in named:
        assert name in emitted, where
        known = {label for labels, _ in emitted[name] for label in labels}
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) <= known, where
        for grouped in re.findall(r"\b(?:by|on) \(([^)]*)\)", query):
            assert set(grouped.replace(" ", "").split(",")) <= known, where
    for fault in re.findall(r'fault="(\w+)"', query):
        assert fault in set(Fault), where
    for state in re.findall(r'state=~?"([\w|]+)"', query):
        assert set(state.split("|")) <= set(STATES), where


def test_alerts_speak_of_labels_and_commands_that_exist(emitted: dict[str, Any]) -> None:
    rules = YAML(typ="safe").load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    for rule in rules:
        labels = {
            label for name in re.findall(r"sluice_\w+", rule["expr"]) for found, _ in emitted[name] for label in found
        }
        text = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels, rule["alert"]


def test_a_scrape_says_what_was_delivered_and_what_failed(one: Pipe) -> None:
    name = one.made.runtime().name
    server = MonitorServer("127.0.0.1", 0, Looks(lambda: [name], lambda _: look(one.made.runtime())))
    try:
        answer = httpx.get(f"{server.address}/metrics", trust_env=False, timeout=20)
        assert answer.headers["content-type"].startswith("text/plain")
        found = parsed(answer.content)
        assert found["sluice_captured_changes_total"] == [({"pipeline": name}, 2.0)]
        assert found["sluice_delivered_changes_total"] == [({"pipeline": name, "target": "copy"}, 2.0)]
        assert found["sluice_delivered_bytes_total"][0][1] > 0
        assert found["sluice_lag_seconds"] == [({"pipeline": name, "target": "copy"}, 0.0)]
        assert [labels["state"] for labels, value in found["sluice_state"] if value] == ["idle"]
        assert "sluice_errors_total" not in found
        assert found["process_resident_memory_bytes"][0][1] > 1e6
        one.stores["copy"].tables[one.made.table].columns.remove("v")
        one.commit(("insert", "a", (3, "z")))
        for _ in range(2):
            with pytest.raises(MappingError):
                one.deliver()
        found = parsed(httpx.get(f"{server.address}/metrics", trust_env=False, timeout=20).content)
        failing = {"pipeline": name, "part": "load-copy", "fault": "yours"}
        assert found["sluice_errors_total"] == [(failing, 2.0)]
        assert found["sluice_failing_attempts"] == [(failing, 2.0)]
        assert httpx.get(f"{server.address}/healthz", trust_env=False).status_code == 200
    finally:
        server.stop()


def test_what_keeps_counting_is_not_reset_by_a_new_process(one: Pipe) -> None:
    one.commit(("insert", "a", (3, "z")))
    one.deliver()
    found = parsed(exposition([look(one.made.runtime())])[0])
    assert found["sluice_captured_changes_total"][0][1] == 3.0
    assert found["sluice_delivered_changes_total"][0][1] == 3.0


def test_failures_say_who_has_to_act(one: Pipe) -> None:
    assert MappingError("x").fault is Fault.YOURS
    assert SourceUnavailable("x").fault is Fault.PASSING
    one.stores["copy"].tables[one.made.table].columns.remove("v")
    one.commit(("insert", "a", (3, "z")))
    with pytest.raises(MappingError):
        one.deliver()
    assert f"({Fault.YOURS.words})" in one.sluice("status", "p")
    assert json.loads(one.sluice("status", "p", "--json"))["failures"][0]["fault"] == "yours"


def test_a_look_that_hangs_keeps_the_last_values(one: Pipe) -> None:
    asked: list[str] = []

    def seen(name: str) -> Seen:
        asked.append(name)
        if len(asked) > 1:
            time.sleep(1.0)
        return Seen(replace(EVERYTHING, next_batch=len(asked)), time.monotonic())

    looks = Looks(lambda: ["p"], seen, deadline_s=0.2)
    assert [one.status.next_batch for one in looks.newest()] == [1]
    assert [one.status.next_batch for one in looks.newest()] == [1], "the second look is still under way"
    assert len(asked) == 2
    looks.close()


def test_readiness_names_what_does_not_answer() -> None:
    server = MonitorServer("127.0.0.1", 0, Looks(list, look), not_ready=lambda: ["ZooKeeper is away"])  # type: ignore[arg-type]
    try:
        answer = httpx.get(f"{server.address}/readyz", trust_env=False)
        assert (answer.status_code, answer.text) == (503, "ZooKeeper is away\n")
    finally:
        server.stop()


def test_airflows_api_server_gives_metrics_to_who_has_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.orchestration.monitoring import create_monitor

    (tmp_path / "p.yaml").write_text(
        "version: 1\npipeline: p\nsource: {connection: a}\ntargets: [{name: t, type: mysql, connection: b}]\n"
    )
    (tmp_path / "broken.yaml").write_text("pipeline: {")
    client = TestClient(create_monitor(lambda: tmp_path, lambda path: Seen(EVERYTHING, time.monotonic(), STAGES)))
    monkeypatch.delenv("SLUICE_METRICS_TOKEN", raising=False)
    assert client.get("/metrics").status_code == 404
    monkeypatch.setenv("SLUICE_METRICS_TOKEN", "s3cret")
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 401
    answer = client.get("/metrics", headers={"Authorization": "Bearer s3cret"})
    assert parsed(answer.content)["sluice_up"] == [({"pipeline": "p"}, 1.0)]
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").status_code == 200
    gone = TestClient(create_monitor(lambda: tmp_path / "gone"))
    assert gone.get("/readyz").status_code == 503


def test_airflows_own_gauges_keep_their_names() -> None:
    found = gauges(samples(EVERYTHING))
    assert found["sluice.p.up"] == 1.0
    assert found["sluice.p.t.lag_seconds"] == 0.007
    assert found["sluice.p.rules.r.seconds"] == 0.5
    assert found["sluice.p.subscriptions.s.lag_batches"] == 3.0
    assert SimpleNamespace(**{name.rpartition(".")[2]: value for name, value in found.items()}).in_flight == 0.0
