"""A stage through spark-submit, started by the files of spark_jobs/: a rule on frames, and an error's exit code.

Merge, a rule on rows and load, each as a job: test_airflow_pipelines.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from devstack.spark import spark_environment
from sluice.flows.capture.drain import drain
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from tests.support.pipelines.case import REPOSITORY, Case, case


def submit(made: Case, stage: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **made.environment,
        **{k: v for k, v in spark_environment(made.folder).items() if k != "SLUICE_RULES"},
    }
    environment |= {k: v for k, v in made.environment.items() if k.startswith(("AIRFLOW_CONN_", "SLUICE_"))}
    program = Path(sys.executable).parent / "spark-submit"
    return subprocess.run(
        [
            str(program), "--master", "local[2]", "--conf", "spark.ui.enabled=false",
            str(REPOSITORY / "spark_jobs" / f"{stage}.py"),
            "--pipeline", str(made.path), *arguments,
        ],
        env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_rule_on_frames_and_a_load_that_is_refused(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    db = fresh_schema(mysql_source, mysql_target)
    for server in (mysql_source, mysql_target):
        server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v VARCHAR(20))")
    with case(tmp_path, mysql_source, mysql_target, zookeeper, db) as made:
        made.run_until_head()
        (made.folder / "rules/frame.py").write_text(
            "from pyspark.sql import functions as F\n\n\ndef transform(frame, context):\n    return "
            "frame.withColumn('v', F.upper('v'))\n"
        )
        (made.folder / "rules/engine.yaml").write_text("rules: [{name: frame, path: frame.py, type: spark}]\n")
        made.path.write_text(made.yaml + "rules: engine.yaml\n")
        mysql_source.execute(f"INSERT INTO {db}.t VALUES (1, 'a'), (2, 'b')", f"UPDATE {db}.t SET v = 'c' WHERE id = 2")
        outcome = drain(made.runtime(), claim="test:1", idle_wait_s=5)
        assert outcome.batch is not None
        batch = str(outcome.batch)
        assert merge(made.runtime(), outcome.batch).rows == 2
        ruled = submit(made, "rule", "--batch", batch, "--rule", "frame")
        assert ruled.returncode == 0, ruled.stdout + ruled.stderr
        assert json.loads(ruled.stdout.splitlines()[-1])["rows_out"] == 2

        mysql_target.execute(f"ALTER TABLE {db}.t DROP COLUMN v")
        refused = submit(made, "load", "--batch", batch, "--target", "copy")
        assert refused.returncode == 65
        said = refused.stdout + refused.stderr  # spark-submit merges the two
        assert "MappingError: table" in said
        assert "Traceback" not in said

        mysql_target.execute(f"ALTER TABLE {db}.t ADD COLUMN v VARCHAR(20)")
        load(made.runtime(), "copy", outcome.batch)
        ack(made.runtime(), "copy", outcome.batch)
        assert mysql_target.execute(f"SELECT v FROM {db}.t ORDER BY id") == [("A",), ("C",)]
