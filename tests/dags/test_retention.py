"""The retention DAG and the removal of Airflow's own old runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowSkipException

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, RetryableError
from sluice.orchestration.history import AirflowApi, remove_runs, sync_dags
from sluice.orchestration.retention import API_CONNECTION, PruneRunsOperator
from tests.dags.conftest import WritePipeline

REPOSITORY = Path(__file__).resolve().parents[2]
BEFORE = datetime(2026, 1, 1, tzinfo=UTC)


def test_one_task_a_pipeline_and_one_for_runs(write_pipeline: WritePipeline) -> None:
    write_pipeline("shop")
    write_pipeline("stock")
    bag = DagBag(dag_folder=str(REPOSITORY / "dags" / "retention.py"))
    assert bag.import_errors == {}
    assert set(bag.dags["retention"].task_ids) == {"segments.shop", "segments.stock", "runs"}


def test_without_a_login_runs_are_kept_and_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(f"AIRFLOW_CONN_{API_CONNECTION.upper()}", raising=False)
    with pytest.raises(AirflowSkipException, match=API_CONNECTION):
        PruneRunsOperator(task_id="runs").execute({})


class Api(BaseHTTPRequestHandler):
    """A web server with the three calls' shapes."""

    runs: ClassVar[list[str]] = []
    idle: ClassVar[list[str]] = []
    asked: ClassVar[list[str]] = []

    def _answer(self, body: Any, code: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def do_POST(self) -> None:
        if self._body()["password"] == "right":
            self._answer({"access_token": "t"})
        else:
            self._answer({}, 401)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path.startswith("/api/v2/dags?"):
            self._answer({"dags": [{"dag_id": "sync__shop"}]})
        elif "/taskInstances?task_id=drain&state=skipped&" in self.path:
            found = [run for run in self.runs if run in self.idle]
            self._answer({"task_instances": [{"dag_run_id": run} for run in found[:100]]})
        else:
            self._answer({"dag_runs": [{"dag_run_id": run} for run in self.runs[:100]]})

    def do_PATCH(self) -> None:
        (action,) = self._body()["actions"]
        gone = [run for run in action["entities"] if run != "stuck"]
        Api.runs = [run for run in self.runs if run not in gone]
        self._answer({"delete": {"success": gone}})

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[int]:
    Api.runs, Api.idle, Api.asked = [], [], []
    web = HTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    yield web.server_port
    web.shutdown()
    web.server_close()


def api(port: int, password: str = "right") -> AirflowApi:
    return AirflowApi(Endpoint("c", "http", "127.0.0.1", port, "admin", password), timeout_s=5)


def test_ended_runs_go_in_pages(server: int) -> None:
    Api.runs = [f"r{n}" for n in range(250)]
    assert sync_dags(api(server)) == ["sync__shop"]
    assert remove_runs(api(server), "sync__shop", before=BEFORE) == 250
    assert Api.runs == []
    assert "state=success&state=failed&end_date_lte=2026-01-01" in Api.asked[-1]


def test_runs_that_found_nothing_go_sooner(server: int) -> None:
    Api.runs = [f"r{n}" for n in range(250)]
    Api.idle = [f"r{n}" for n in range(0, 250, 2)]
    ticks = iter([0, 1, 100, 200])
    removed = remove_runs(
        api(server), "sync__shop", before=BEFORE, idle_before=BEFORE, seconds=50, clock=lambda: next(ticks)
    )
    assert removed == 125
    assert Api.runs == [f"r{n}" for n in range(1, 250, 2)]


def test_a_run_that_cannot_be_removed_does_not_go_round_in_circles(server: int) -> None:
    Api.runs = ["a", "stuck"]
    assert remove_runs(api(server), "sync__shop", before=BEFORE) == 1


def test_it_stops_in_time(server: int) -> None:
    Api.runs = [f"r{n}" for n in range(250)]
    ticks = iter(range(0, 1000, 10))
    assert remove_runs(api(server), "sync__shop", before=BEFORE, seconds=5, clock=lambda: next(ticks)) == 100


def test_a_refused_login_and_no_answer_are_clear(server: int) -> None:
    with pytest.raises(ConfigError, match="refused the login"):
        sync_dags(api(server, "wrong"))
    with pytest.raises(RetryableError, match="does not answer"):
        sync_dags(api(1))
