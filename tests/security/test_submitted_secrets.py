"""The process list as the attacker: what ``spark: {mode: submit}`` writes on the command line of spark-submit."""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
from pathlib import Path

import pytest

from sluice.orchestration.retry import TaskError
from sluice.orchestration.submit import SubmitOperator
from tests.dags.conftest import PIPELINE

PASSWORD = "Tr0ub4dor-and-3"  # no word of it is masked by the provider
FAKE = """#!{python}
import json, os, sys
json.dump({{"argv": sys.argv, "env": dict(os.environ)}}, open({record!r}, "w"))
print("submission ID spark:sluice-load-driver")
print("driver-20260101000000-0001")
print("exit code: 0")
"""
"""A spark-submit that writes down how it was called."""


@pytest.mark.parametrize(
    "master", ["yarn", "k8s://https://127.0.0.1:6443", "spark://127.0.0.1:7077", "local[2]"], ids=lambda m: m[:5]
)
@pytest.mark.parametrize("deploy", [None, "client", "cluster"])
def test_no_password_is_on_the_command_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    master: str,
    deploy: str | None,
) -> None:
    """A driver in client mode inherits the connections; the cluster gives them to one in cluster mode."""
    record, program = tmp_path / "called.json", tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text(FAKE.format(python=sys.executable, record=str(record)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    path = tmp_path / "shop.yaml"
    path.write_text(PIPELINE.format(name="shop", schedule="continuous", mode="submit"))
    for name in ("SHOP_MYSQL", "REPORTING_MYSQL", "ARCHIVE_MYSQL", "ZOOKEEPER_DEFAULT"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", f"mysql://me:{PASSWORD}@db:3306")
    extra = {"deploy-mode": deploy, "namespace": "jobs"} if deploy else {"namespace": "jobs"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": master, "extra": extra}))
    monkeypatch.setattr(  # masters k8s:// need only the import of Airflow's Kubernetes provider
        "airflow.providers.apache.spark.hooks.spark_submit.kube_client", object(), raising=False
    )
    monkeypatch.setattr(SubmitOperator, "_wait_while_paused", lambda self: None)  # there is no ZooKeeper to ask
    job = SubmitOperator(task_id="t", stage="load", pipeline=str(path), target="reporting", conn_id="spark_default")
    caplog.set_level(logging.DEBUG)

    if master.startswith(("spark:", "local")) and deploy == "cluster":  # Spark takes no Python programs there
        with pytest.raises(TaskError, match="not supported in standalone-cluster mode"):
            job.execute({})
        assert not record.exists()
        return
    before = {name: value for name, value in os.environ.items() if name.startswith("AIRFLOW_CONN_")}
    job.execute({})
    called = json.loads(record.read_text())
    assert called["argv"][-6:] == ["--pipeline", str(path), "--batch", called["argv"][-3], "--target", "reporting"]
    assert not [word for word in called["argv"] if PASSWORD in word or "AIRFLOW_CONN" in word]
    assert json.loads(called["env"]["AIRFLOW_CONN_SHOP_MYSQL"])["password"] == PASSWORD
    assert PASSWORD not in caplog.text + "".join(capfd.readouterr())
    assert PASSWORD not in json.dumps(job.env_vars)  # a template field: Airflow may store and show it
    assert before == {n: v for n, v in os.environ.items() if n.startswith("AIRFLOW_CONN_")}
