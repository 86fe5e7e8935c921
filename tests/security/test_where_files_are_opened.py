"""What a saved file names is opened and imported to check it in a worker: neither in Airflow's API server nor where its
DAGs are built, by the DAG processor.

The file names a target of its own kind, whose module leaves the id of each process that imports it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sluice.orchestration.page.airflow_self import AirflowSelf
from tests.dags.conftest import PIPELINE
from tests.support.running.page_editor import API, Editor, open_editor

TASK = """
import json, sys
from types import SimpleNamespace
from sluice.orchestration.dags.control import ControlOperator
params = {"pipeline": "shop", "action": "check", "reason": None, "grace_s": None, "dry_run": False}
run = SimpleNamespace(run_id="manual__1", triggering_user_name="anna", conf={"pipeline": "shop", "action": "check"})
print(json.dumps(ControlOperator(task_id="act", files={"shop": sys.argv[1]}).execute({"params": params, "dag_run": run})))
"""


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "imported-by"


@pytest.fixture
def editor(tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> Editor:
    """The page over a saved file that names the kind ``evil``; its connections are at ports where nobody listens."""
    for name in ("pipelines", "rules", "targets"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(f"SLUICE_{name.upper()}", str(tmp_path / name))
    monkeypatch.setenv("SLUICE_STORE", (tmp_path / "store").as_uri())
    for name in ("shop_mysql", "reporting_mysql", "archive_mysql"):
        monkeypatch.setenv(
            f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": "mysql", "host": "127.0.0.1", "port": 9})
        )
    monkeypatch.setenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", "zookeeper://127.0.0.1:9")
    (tmp_path / "targets/evil.py").write_text(
        f"import os\nopen({str(mark)!r}, 'a').write(f'{{os.getpid()}} ')\nclass TARGET:\n    Options = None\n"
    )
    text = PIPELINE.format(name="shop", schedule="continuous", mode="local")
    (tmp_path / "pipelines/shop.yaml").write_text(
        text.replace("type: mysql, connection: archive", "type: evil, connection: archive")
    )
    return open_editor(tmp_path / "pipelines", monkeypatch)


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Answer the page as an Airflow does that has one run under way."""
    asked = list[Any]()

    async def call(self: AirflowSelf, method: str, path: str, body: Any = None) -> Any:
        if method == "POST":
            asked.append((path, body["conf"]))
            return {"dag_run_id": "manual__1"}
        runs = [{"dag_run_id": "manual__1", "state": "running", "conf": asked[-1][1]} for _ in asked[:1]]
        return {
            "dag_runs": [
                {"dag_run_id": "other", "state": "failed", "conf": {"pipeline": "shed", "action": "check"}},
                *runs,
            ]
        }

    monkeypatch.setattr(AirflowSelf, "call", call)
    return asked


def test_a_saved_check_imports_and_connects_in_a_task_alone(
    editor: Editor, orders: list[Any], mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = list[Any]()
    real = socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", lambda own, place: (connected.append(place), real(own, place))[1])
    client, before = editor.as_role("USER"), set(sys.modules)
    ways = [f"{action}{way}" for action in ("make-missing", "check") for way in ("/plan", "")]
    answers = [client.post(f"{API}/pipelines/shop/actions/{way}", json={}) for way in ways]
    answers.append(client.get(f"{API}/pipelines/shop/check"))
    assert not mark.exists(), "the API server imported what the file names"
    assert [one.text for one in answers if one.status_code != 200] == []
    answer = answers[-1].json()
    assert [one for one in connected if isinstance(one, tuple)] == []
    clients = {"pymysql", "confluent_kafka", "psycopg", "redis", "pymongo", "pika", "pyiceberg", "deltalake"}
    assert clients & (set(sys.modules) - before) == set()
    assert [conf["action"] for _, conf in orders] == ["make-missing", "check"]
    assert (answer["last"], answer["run"]["state"]) == (None, "running")

    task = [sys.executable, "-c", TASK, str(tmp_path / "pipelines/shop.yaml")]
    with subprocess.Popen(task, stdout=subprocess.PIPE, text=True) as process:
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert {int(one) for one in mark.read_text().split()} == {process.pid}
    assert os.getpid() != process.pid
    last = client.get(f"{API}/pipelines/shop/check").json()["last"]
    assert (last["run"], last["by"]) == ("manual__1", "anna@airflow")
    assert json.loads(said.splitlines()[-1])["error"] == len([
        one for one in last["report"]["findings"] if one["severity"] == "error"
    ])
    lines = (tmp_path / "pipelines/shop.yaml").read_text().splitlines()
    assert {
        "archive" in lines[one["line"] - 1] for one in last["report"]["findings"] if one["part"] == "target archive"
    } == {True}


def test_who_may_not_check_sees_no_check_and_opens_none(editor: Editor, orders: list[Any]) -> None:
    client = editor.as_role("VIEWER")
    assert client.get(f"{API}/pipelines/shop/check").status_code == 403
    assert client.post(f"{API}/pipelines/shop/actions/check", json={}).status_code == 403
    assert orders == []


PARSE = """
import json, socket, sys
asked = []
socket.socket.connect = lambda own, place: asked.append(place)
from sluice.orchestration.dags import all_dags
print(json.dumps([sorted(dag for name in ("sync", "backfill", "verify", "control") for dag in all_dags(None, name)), asked]))
"""


def test_dags_are_built_without_opening_or_importing_what_the_file_names(
    editor: Editor, mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a source of its own kind, a rule, a notifier and the class of a catalog."""
    imports = (tmp_path / "targets/evil.py").read_text().partition("class")[0]
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources/evil_source.py").write_text(f"{imports}class SOURCE:\n    pass\n")
    (tmp_path / "rules/a.py").write_text(f"{imports}def transform(row, context):\n    return row\n")
    (tmp_path / "rules/engine.yaml").write_text("rules: [{name: a, path: a.py}]\n")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/evilmod.py").write_text(f"{imports}class f:\n    pass\n")
    monkeypatch.setenv("SLUICE_SOURCES", str(tmp_path / "sources"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "code"), os.environ.get("PYTHONPATH", "")]))
    file = tmp_path / "pipelines/shop.yaml"
    catalog = "catalog: {py-catalog-impl: evilmod.f, uri: 'sqlite://', warehouse: /w}"
    file.write_text(
        file.read_text().replace("connection: shop_mysql", "type: evil_source, connection: shop_mysql")
        + f"rules: engine.yaml\nalert_notifiers: [{{class: evilmod.f}}]\nsnapshot: {{format: iceberg, options: {{{catalog}}}}}\n"
    )
    done = subprocess.run([sys.executable, "-c", PARSE], capture_output=True, text=True, timeout=300, check=True)
    dags, connected = json.loads(done.stdout.splitlines()[-1])
    assert dags == ["backfill__shop", "catchup__shop", "sluice_control", "sync__shop", "verify__shop"]
    assert [one for one in connected if isinstance(one, list)] == []
    assert not mark.exists()
