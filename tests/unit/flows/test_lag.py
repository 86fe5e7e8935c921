"""Lag that people learn of: the status, the alert with a real webhook, and what retention keeps and warns of."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from sluice.coordination.failures import StageFailure
from sluice.errors import SluiceError
from sluice.flows.capture.drain import drain
from sluice.model.alert_rule import AlertRule
from sluice.operations import alert_watch
from sluice.operations.alert_rules import switch
from sluice.operations.alerts import check_lag, held
from sluice.operations.retention import prune, rate_warning
from sluice.operations.status import Silence, status
from tests.support.pipelines.case import Case, case
from tests.support.running.waiting import wait_until
from tests.support.twins.servers import TwinTarget

TWO_TARGETS = """\
  - name: broken
    type: memory
    connection: broken_target
"""


@pytest.fixture
def orders(
    tmp_path: Path, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any
) -> Iterator[Case]:
    schema = fresh_schema(twin_source, twin_target)
    for server in (twin_source, twin_target):
        server.execute(f"CREATE TABLE `{schema}`.orders (id INT PRIMARY KEY)")
    extra = "alert_lag: 1s\nalert_connection: pager"
    with case(
        tmp_path, twin_source, twin_target, twin_zookeeper, schema, target_extra=TWO_TARGETS, extra=extra
    ) as made:
        text = made.yaml.replace("segments: {uri:", "segments: {retain: 0s, uri:")
        made.path.write_text(text)
        nowhere = TwinTarget()
        nowhere.store.away = True
        made.connections["broken_target"] = nowhere.connection_json()
        yield made
        nowhere.forget()


@pytest.fixture
def pager(orders: Case) -> Iterator[list[dict[str, Any]]]:
    """What a webhook was told."""
    told: list[dict[str, Any]] = []

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.append({**json.loads(body), "path": self.path, "auth": self.headers["Authorization"]})
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Webhook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        orders.connections["pager"] = json.dumps({
            "conn_type": "http", "host": "127.0.0.1", "port": server.server_port, "password": "t0ken",
            "extra": {"path": "/hooks/1"},
        })  # fmt: skip
        yield told
        server.shutdown()


def deliver_to_copy(made: Case) -> None:
    """One more change, delivered to the good target only."""
    from sluice.flows.load.ack import ack
    from sluice.flows.load.load import load

    runtime = made.runtime()
    batch = drain(runtime, claim=f"test:a:{time.time_ns()}", idle_wait_s=5).batch
    assert batch is not None
    load(runtime, "copy", batch)
    ack(runtime, "copy", batch)


def insert(made: Case, number: int) -> None:
    made.source.execute(f"INSERT INTO `{made.schema}`.orders VALUES ({number})")


def begin(made: Case) -> None:
    drain(made.runtime(), claim="test:a:begin", idle_wait_s=0.1)


def test_positions_in_the_json_of_a_status_are_those_that_are_stored(orders: Case) -> None:
    begin(orders)
    insert(orders, 1)
    deliver_to_copy(orders)
    found = status(orders.runtime())
    shown = json.loads(json.dumps(found.to_json()))
    assert found.captured is not None
    assert shown["captured"] == shown["targets"][0]["position"] == found.captured.to_json()
    assert {"server_uuid", "file", "offset", "commit_time_us"} <= shown["captured"].keys() & shown["head"].keys()


@pytest.mark.promise("E4")
def test_a_failing_target_holds_only_itself_and_its_backlog_stays(orders: Case, pager: list[dict[str, Any]]) -> None:
    begin(orders)
    for number in range(3):
        insert(orders, number)
        deliver_to_copy(orders)
    with pytest.raises(SluiceError):
        orders.run_until_head()  # the other target does not answer
    seen = {target.name: target for target in status(orders.runtime()).targets}
    assert (seen["copy"].enqueued_batch, seen["copy"].batch, seen["copy"].lag_ms) == (3, 3, 0)
    assert (seen["broken"].enqueued_batch, seen["broken"].batch) == (3, 0)
    assert seen["copy"].enqueued == seen["copy"].position
    assert seen["broken"].lag_bytes > seen["copy"].lag_bytes == 0
    assert status(orders.runtime()).reread_from == seen["broken"].position
    time.sleep(0.05)
    assert prune(orders.runtime()).removed == ()  # whatever its age, while a target needs it
    orders.connections["broken_target"] = orders.connections["case_target"]
    orders.run_until_head()
    orders.assert_equal("orders")
    time.sleep(0.05)
    assert prune(orders.runtime()).removed == (1, 2, 3)
    after = status(orders.runtime())
    assert after.reread_from == after.captured


def test_an_alert_is_told_once_and_its_end_too(orders: Case, pager: list[dict[str, Any]]) -> None:
    begin(orders)
    runtime = orders.runtime()
    assert check_lag(runtime, status(runtime)) == []
    insert(orders, 1)
    deliver_to_copy(orders)
    raised: list[Any] = []
    wait_until(lambda: raised.extend(check_lag(runtime, status(runtime))) or raised, "the lag of a second")
    assert [(alert.consumer, alert.raised) for alert in raised] == [("broken", True)]
    assert check_lag(runtime, status(runtime)) == []
    assert [(t["target"], t["state"], t["path"], t["auth"]) for t in pager] == [
        ("broken", "raised", "/hooks/1", "Bearer t0ken")
    ]
    assert "s behind its source" in pager[0]["text"]
    assert pager[0]["name"] == "SLUICE-ALERT-LAG"
    seen = {target.name: target for target in status(runtime).targets}
    assert seen["broken"].alert_since is not None
    assert seen["copy"].alert_since is None
    shown = orders.cli("status", str(orders.path))
    assert "broken has lagged too far behind since" in " ".join(shown.stdout.split())
    orders.connections["broken_target"] = orders.connections["case_target"]
    orders.run_until_head()
    runtime = orders.runtime()
    assert [alert.raised for alert in check_lag(runtime, status(runtime))] == [False]
    assert pager[-1]["state"] == "cleared"
    assert status(runtime).targets[1].alert_since is None


def test_a_run_without_airflow_tells_people_at_its_end(orders: Case, pager: list[dict[str, Any]]) -> None:
    begin(orders)
    insert(orders, 1)
    deliver_to_copy(orders)
    wait_until(lambda: (status(orders.runtime()).targets[1].lag_ms or 0) > 1000, "the lag of a second")
    assert orders.cli("run", str(orders.path), "--until-head").returncode != 0  # the other target does not answer
    assert [(told["target"], told["state"]) for told in pager] == [("broken", "raised")]
    orders.connections["broken_target"] = orders.connections["case_target"]
    assert orders.cli("run", str(orders.path), "--until-head").returncode == 0
    assert [told["state"] for told in pager] == ["raised", "cleared"]


def test_a_run_without_airflow_looks_at_its_lag_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_watch, "EVERY_S", 0.001)
    looked = threading.Event()
    with alert_watch.alerting("case", looked.set):
        assert looked.wait(60)


def test_a_webhook_that_is_away_stops_nothing(orders: Case) -> None:
    orders.connections["pager"] = json.dumps({"conn_type": "http", "host": "127.0.0.1", "port": 1})
    begin(orders)
    insert(orders, 1)
    deliver_to_copy(orders)
    runtime, raised = orders.runtime(), []
    wait_until(lambda: raised.extend(check_lag(runtime, status(runtime))) or raised, "the lag of a second")
    assert len(raised) == 1


def test_the_disk_is_warned_of_before_it_is_full() -> None:
    now = 1_000_000.0
    hourly = [(now - age, 10 * 2**20) for age in range(0, 3600, 60)]  # 600 MiB an hour
    assert rate_warning(100 * 2**30, hourly, now) is None
    assert (
        rate_warning(2 * 2**30, hourly, now)
        == "at the rate of the last hour the disk of the segment store is full in 3.4 hours"
    )
    assert rate_warning(2 * 2**30, [], now) is None
    assert rate_warning(2 * 2**30, [(now - timedelta(hours=5).total_seconds(), 2**40)], now) is None


def test_a_nearly_full_disk_is_in_the_status(orders: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice.segments.store import SegmentStore

    begin(orders)
    assert os.statvfs(orders.folder).f_bavail > 0
    monkeypatch.setattr(SegmentStore, "space", lambda self: (5 * 2**30, 100 * 2**30))
    assert "5.0 GiB free, 5 % of it" in status(orders.runtime()).warnings[0]
    assert prune(orders.runtime()).warnings


def test_rules_tell_people_once_and_can_be_switched_off(orders: Case, pager: list[dict[str, Any]]) -> None:
    """A dead letter and a stopped load are told of once each, and so is their end; a rule that is off tells nobody."""
    begin(orders)
    runtime = orders.runtime()
    calm = status(runtime)
    letters = replace(calm, dead_letters=2)
    assert [(one.consumer, one.raised) for one in check_lag(runtime, letters)] == [("rule:dead_letters", True)]
    assert pager[-1]["text"].startswith(f"{runtime.name}: dead letters wait: 2; `sluice dead-letters list")
    assert (pager[-1]["rule"], pager[-1]["state"], pager[-1]["name"]) == (
        "dead_letters",
        "raised",
        "SLUICE-ALERT-DEAD-LETTERS",
    )
    seen = status(runtime).alerts
    assert set(seen) == {"dead_letters"}
    assert check_lag(runtime, replace(letters, alerts=seen)) == []
    silent = replace(calm, alerts=seen, no_answer=[Silence("store", "now", "no answer")])
    assert check_lag(runtime, silent) == []  # whether letters wait is not known
    assert [one.raised for one in check_lag(runtime, replace(calm, alerts=seen))] == [False]
    assert pager[-1]["state"] == "cleared"
    told = len(pager)
    with runtime.state() as state:
        assert switch(state, AlertRule.DEAD_LETTERS, on=False, by="anna") == ["alert dead_letters is off"]
    off = status(runtime).alerts_off
    assert set(off) == {"dead_letters"}
    assert check_lag(runtime, replace(letters, alerts_off=off)) == []
    with runtime.state() as state:
        switch(state, AlertRule.DEAD_LETTERS, on=True, by="anna")
    assert status(runtime).alerts_off == {}
    assert len(pager) == told
    with runtime.state() as state:
        assert [one["what"] for one in state.audit.entries()[-2:]] == ["alert off", "alert on"]


@pytest.mark.parametrize(
    ("changes", "rule", "words"),
    [
        ({"failures": [StageFailure("load-copy", "no such table", "now", fault="yours")]}, "stopped", "no such table"),
        ({"failures": [StageFailure("load-copy", "gone", "now", 3, fault="passing")]}, "stopped", "gone"),
        ({"failures": [StageFailure("load-copy", "gone", "now", 2, fault="passing")]}, "", ""),
        ({"verification": {"outcome": "different"}, "verified": "2 rows differ"}, "differences", "2 rows differ"),
        ({"retention_s": 7200.0, "purge_horizon_s": 1800.0}, "at_risk", "in 0.5 hours"),
        ({"retention_s": 7200.0, "purge_horizon_s": 5400.0}, "", ""),
        (
            {"retained_bytes": 3 * 2**30, "retained_left_bytes": 2**30, "retained_at_risk": True},
            "at_risk",
            "keeps 3.0 GiB of log for the slot, and gives it up in 1.0 GiB",
        ),
        ({"retained_bytes": 2**30, "retained_left_bytes": 3 * 2**30}, "", ""),
        ({"warnings": ["the disk of the segment store has 1.0 GiB free, 3 % of it"]}, "at_risk", "1.0 GiB"),
        ({"dead_letters": 1, "errors": ["the store cannot be read"]}, "", ""),
    ],
)
def test_what_each_rule_watches(orders: Case, changes: dict[str, Any], rule: str, words: str) -> None:
    begin(orders)
    found = {one.value: why for one, why in held(replace(status(orders.runtime()), **changes)).items() if why}
    assert set(found) == ({rule} if rule else set())
    assert words in found.get(rule, "")


def test_nobody_is_told_unless_the_file_asks_for_alerts(orders: Case) -> None:
    orders.path.write_text(orders.path.read_text().replace("alert_lag: 1s\nalert_connection: pager", ""))
    begin(orders)
    runtime = orders.runtime()
    assert check_lag(runtime, replace(status(runtime), dead_letters=2)) == []
