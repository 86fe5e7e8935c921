"""The retention DAG and the removal of Airflow's own old runs."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowSkipException

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, RetryableError
from sluice.orchestration.airflow_api import AirflowApi, count_runs, remove_runs, tagged_dags
from sluice.orchestration.dags.retention import (
    API_CONNECTION,
    PruneLogsOperator,
    PruneRunsOperator,
    age,
    db_clean,
    loaded,
    own_dags,
)
from sluice.orchestration.logfiles import processor_logs, task_logs
from tests.dags.conftest import WritePipeline

REPOSITORY = Path(__file__).resolve().parents[2]
BEFORE = datetime(2026, 1, 1, tzinfo=UTC)


def test_one_task_a_pipeline_and_one_for_runs(write_pipeline: WritePipeline) -> None:
    write_pipeline("shop")
    write_pipeline("stock")
    bag = DagBag(dag_folder=str(REPOSITORY / "dags" / "retention.py"))
    assert bag.import_errors == {}
    assert set(bag.dags["retention"].task_ids) == {"segments.shop", "segments.stock", "runs", "logs"}


def test_a_target_that_keeps_files_has_a_task_that_maintains_them(write_pipeline: WritePipeline) -> None:
    write_pipeline("shop")
    lake = write_pipeline("lake")
    lake.write_text(lake.read_text().replace("type: mysql", "type: delta"))
    dag = DagBag(dag_folder=str(REPOSITORY / "dags" / "retention.py")).dags["retention"]
    assert set(dag.task_ids) == {"segments.shop", "segments.lake", "targets.lake", "runs", "logs"}


def test_without_a_login_runs_are_kept_and_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(f"AIRFLOW_CONN_{API_CONNECTION.upper()}", raising=False)
    with pytest.raises(AirflowSkipException, match=API_CONNECTION):
        PruneRunsOperator(task_id="runs").execute({})


class Api(BaseHTTPRequestHandler):
    """A web server with the three calls' shapes."""

    dags: ClassVar[int] = 0
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
            asked = parse_qs(urlsplit(self.path).query)
            dags = [{"dag_id": f"{asked['tags'][-1]}__{n}"} for n in range(self.dags)] or [{"dag_id": "sync__shop"}]
            at = int(asked["offset"][0])
            self._answer({"dags": dags[at : at + int(asked["limit"][0])]})
        elif "/taskInstances?task_id=drain&state=skipped&" in self.path:
            found = [run for run in self.runs if run in self.idle]
            self._answer({"task_instances": [{"dag_run_id": run} for run in found[:100]], "total_entries": len(found)})
        else:
            self._answer({
                "dag_runs": [{"dag_run_id": run} for run in self.runs[:100]],
                "total_entries": len(self.runs),
            })

    def do_PATCH(self) -> None:
        (action,) = self._body()["actions"]
        gone = [run for run in action["entities"] if run != "stuck"]
        Api.runs = [run for run in self.runs if run not in gone]
        self._answer({"delete": {"success": gone}})

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[int]:
    Api.runs, Api.idle, Api.asked, Api.dags = [], [], [], 0
    web = HTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    yield web.server_port
    web.shutdown()
    web.server_close()


def api(port: int, password: str = "right") -> AirflowApi:
    return AirflowApi(Endpoint("c", "http", "127.0.0.1", port, "admin", password), timeout_s=5)


def test_ended_runs_go_in_pages(server: int) -> None:
    Api.runs = [f"r{n}" for n in range(250)]
    assert tagged_dags(api(server), "sync") == ["sync__shop"]
    assert remove_runs(api(server), "sync__shop", before=BEFORE) == 250
    assert Api.runs == []
    assert "state=success&state=failed&end_date_lte=2026-01-01" in Api.asked[-1]


def test_every_dag_is_looked_at_however_many_there_are(server: int) -> None:
    Api.dags = 250
    assert tagged_dags(api(server), "verify") == [f"verify__{n}" for n in range(250)]


def test_runs_that_found_nothing_go_sooner(server: int) -> None:
    Api.runs = [f"r{n}" for n in range(250)]
    Api.idle = [f"r{n}" for n in range(0, 250, 2)]
    ticks = iter([0, 1, 100, 200])
    removed = remove_runs(
        api(server), "sync__shop", before=BEFORE, idle_before=BEFORE, seconds=50, clock=lambda: next(ticks)
    )
    assert removed == 125
    assert Api.runs == [f"r{n}" for n in range(1, 250, 2)]


def test_a_dry_run_counts_each_run_once_and_removes_none(server: int) -> None:
    Api.runs = [f"r{n}" for n in range(7)]
    Api.idle = Api.runs[:2]
    assert count_runs(api(server), "sync__shop", before=BEFORE, idle_before=BEFORE) == 7
    assert len(Api.runs) == 7


def test_a_run_that_cannot_be_removed_does_not_go_round_in_circles(server: int) -> None:
    Api.runs = ["a", "stuck"]
    assert remove_runs(api(server), "sync__shop", before=BEFORE) == 1


def test_it_stops_in_time(server: int) -> None:
    Api.runs = [f"r{n}" for n in range(250)]
    ticks = iter(range(0, 1000, 10))
    assert remove_runs(api(server), "sync__shop", before=BEFORE, seconds=5, clock=lambda: next(ticks)) == 100


def test_a_refused_login_and_no_answer_are_clear(server: int) -> None:
    with pytest.raises(ConfigError, match="refused the login"):
        tagged_dags(api(server, "wrong"), "sync")
    with pytest.raises(RetryableError, match="does not answer"):
        tagged_dags(api(1), "sync")


OLD, NEW = 1_700_000_000.0, 1_800_000_000.0


def log_file(path: Path, written_s: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a line\n")
    os.utime(path, (written_s, written_s))
    return path


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Airflow's folder: DAGs of ours and of others, runs of all ages, the DAG processor's days."""
    base = tmp_path / "logs"
    for number in range(60):
        run = base / "dag_id=sync__shop" / f"run_id=scheduled__{number:03d}" / "task_id=drain"
        log_file(run / "attempt=1.log", OLD + number)
        log_file(run / "attempt=1.log.trigger.7.log", OLD + number)
    mixed = base / "dag_id=sync__shop" / "run_id=scheduled__mixed"
    log_file(mixed / "task_id=drain/attempt=1.log", OLD - 100)
    log_file(mixed / "task_id=load.copy/map_index=3/attempt=2.log", NEW)
    for other in ("dag_id=sync__shop_of_others", "dag_id=reports", "elsewhere"):
        for number in range(60):
            log_file(base / other / f"run_id=r{number}" / "task_id=t/attempt=1.log", OLD)
    for day, at in (("2023-11-14", OLD), ("2027-01-15", NEW)):
        for name in ("sync.py", "retention.py", "others.py"):
            log_file(base / "dag_processor" / day / "dags-folder" / f"{name}.log", at)
    log_file(base / "dag_processor/2023-11-13/dags-folder/sync.py.log", OLD)
    (base / "dag_processor" / "latest").symlink_to("2027-01-15")
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(base))
    monkeypatch.setenv("AIRFLOW__LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY", str(base / "dag_processor"))
    return base


def every_file(base: Path) -> set[str]:
    return {str(one.relative_to(base)) for one in base.rglob("*") if one.is_file() and "latest" not in one.parts}


def test_old_logs_of_our_dags_go_run_by_run_and_nothing_else(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.orchestration.dags.retention.time.time", lambda: NEW + 3600)
    before = every_file(logs)
    task = PruneLogsOperator(task_id="logs", dags=["sync__shop", "retention"], files=["sync.py", "retention.py"])
    dry = task.execute({"params": {"dry_run": True, "keep_logs": "10d"}})
    assert every_file(logs) == before
    done = task.execute({"params": {"dry_run": False, "keep_logs": "10d"}})
    assert (
        done == dry == {"folders": 11 + 3, "files": 22 + 3, "size_bytes": 25 * 7}
    )  # 61 runs, of which the 50 newest stay
    gone = before - every_file(logs)
    assert {name.split("/")[1] for name in gone if name.startswith("dag_id=")} == {
        f"run_id=scheduled__{number:03d}" for number in range(11)
    }
    assert {name for name in gone if not name.startswith("dag_id=")} == {
        "dag_processor/2023-11-14/dags-folder/sync.py.log", "dag_processor/2023-11-14/dags-folder/retention.py.log",
        "dag_processor/2023-11-13/dags-folder/sync.py.log",
    }  # fmt: skip
    assert (logs / "dag_processor/2023-11-14/dags-folder/others.py.log").exists()
    assert not (logs / "dag_processor/2023-11-13").exists()
    assert (logs / "dag_processor/latest").exists()
    assert task.execute({"params": {"keep_logs": "10d"}})["folders"] == 0


def test_a_folder_that_is_not_there_or_may_not_be_written(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(task_logs(logs / "nowhere", ["sync__shop"], before_s=NEW)) == []
    assert list(processor_logs(logs / "nowhere", ["sync.py"], before_s=NEW)) == []
    monkeypatch.setattr(
        "sluice.orchestration.logfiles.shutil.rmtree", lambda path: (_ for _ in ()).throw(OSError(13, "no"))
    )
    task = PruneLogsOperator(task_id="logs", dags=["sync__shop"], files=[])
    assert task.execute({"params": {"keep_logs": "1d"}})["folders"] == 0


def test_ages_come_from_the_environment_and_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    assert age({"params": {}}, "keep_logs") == timedelta(days=14)
    monkeypatch.setenv("SLUICE_KEEP_LOGS", "36h")
    assert age({"params": {}}, "keep_logs") == timedelta(hours=36)
    bag = DagBag(dag_folder=str(REPOSITORY / "dags" / "retention.py"))
    assert bag.dags["retention"].params["keep_logs"] == "36h"
    assert age({"params": {"keep_logs": "5m"}}, "keep_logs") == timedelta(minutes=5)
    with pytest.raises(ConfigError, match="'soon' is not a duration") as refused:
        age({"params": {"keep_logs": "soon"}}, "keep_logs")
    for span in re.findall(r"\d+\w", str(refused.value.hint)):  # what it advises is taken
        assert age({"params": {"keep_logs": span}}, "keep_logs") > timedelta(0)


def test_whose_logs_they_are(write_pipeline: WritePipeline, pipelines: Path) -> None:
    write_pipeline("shop")
    (pipelines / "wrong.yaml").write_text("nothing")
    ours = {"sync__shop", "catchup__shop", "backfill__shop", "sync__wrong.invalid", "retention", "sluice_control"}
    assert ours <= set(own_dags(loaded(pipelines)))


def test_the_command_for_airflows_audit_log_removes_old_rows_of_our_dags(airflow_database: None) -> None:
    """As the task's log gives it."""
    from airflow.cli.cli_parser import get_parser
    from airflow.models.log import Log
    from airflow.utils.session import create_session
    from sqlalchemy import delete, select

    with create_session() as session:
        session.execute(delete(Log))
        for dag, year in (("sync__shop", 2025), ("sync__shop", 2026), ("reports", 2025), (None, 2025)):
            row = Log(event="trigger", owner="me", dag_id=dag)
            row.dttm = datetime(year, 6, 1, tzinfo=UTC)
            session.add(row)
    command = db_clean(["sync__shop", "retention"], BEFORE).split()
    assert command[0] == "airflow"
    arguments = get_parser().parse_args(command[1:])
    arguments.func(arguments)
    with create_session() as session:
        left = session.execute(select(Log.dag_id, Log.dttm).where(Log.event == "trigger")).all()
    assert sorted((str(dag), at.year) for dag, at in left) == [("None", 2025), ("reports", 2025), ("sync__shop", 2026)]
