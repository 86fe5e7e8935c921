"""The lists of variables and connections are what the code reads, and doctor sees what is wrong with both."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sluice.config import rights
from sluice.config.connections import Endpoint, parse_connection
from sluice.config.engine import EngineConfig
from sluice.config.pipeline import PipelineConfig
from sluice.config.surroundings import CONNECTIONS, VARIABLES
from sluice.errors import MissingConnection, TargetUnavailable
from sluice.operations import connection_probe
from sluice.operations.doctor import doctor, packages, scheduler, variables
from sluice.orchestration.api_service import ServeVariables
from sluice.orchestration.dags.retention import DEFAULTS
from sluice.orchestration.provider import connection_types
from tests.support.documents import surroundings_tables
from tests.support.running.packages import install

ROOT = Path(__file__).resolve().parents[2]
NAMES = {one.name for one in VARIABLES}


def test_every_variable_that_the_code_reads_is_in_the_list_and_no_other() -> None:
    read = set()
    for path in (ROOT / "include" / "sluice").rglob("*.py"):
        if path.name != "surroundings.py":
            read |= set(re.findall(r"\bSLUICE_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")))
    read |= {f"SLUICE_SERVE_{name.upper()}" for name in ServeVariables.model_json_schema()["properties"]}
    read |= {f"SLUICE_{name.upper()}" for name in DEFAULTS}
    others = {"SLUICE_HASH_SALT", "SLUICE_ACK"}
    """An example of a variable that a rule names; a table of the Oracle target."""
    assert read - others == NAMES


def test_every_key_that_names_a_connection_is_in_the_list() -> None:
    listed = {one.key.replace(".NAME.", ".") for one in CONNECTIONS} - {"(none)"}
    keys = {**rights.table(PipelineConfig), **rights.table(EngineConfig)}
    assert {key for key, said in keys.items() if said is rights.Refers.CONNECTION} == listed


def test_the_tables_of_the_page_are_the_lists() -> None:
    text = surroundings_tables.PAGE.read_text(encoding="utf-8")
    assert surroundings_tables.renewed(text) == text, f"run `{surroundings_tables.COMMAND}`"


def test_a_variable_that_nothing_reads_is_named_with_the_one_that_was_meant() -> None:
    [known, odd] = variables({"SLUICE_RULES": "/rules", "SLUICE_PIPELINE": "/p", "OTHER": "x"})
    assert (known.severity, known.value) == ("ok", "/rules")
    assert odd.severity == "warning"
    assert "SLUICE_PIPELINES" in odd.why


def test_a_token_is_not_shown() -> None:
    assert [one.value for one in variables({"SLUICE_METRICS_TOKEN": "s3cret"})] == ["set"]


def test_own_connection_types_stand_for_their_kinds() -> None:
    for one in connection_types():
        kind = one["connection-type"]
        made = parse_connection("c", json.dumps({"conn_type": kind, "host": "h"}))
        assert made.kind == kind.removeprefix("sluice_")
        assert connection_probe.testable(made), kind
    assert parse_connection("c", "sluice-mysql://u:p@h:1/s").kind == "mysql"


def test_doctor_tries_every_connection_and_goes_on_after_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good.yaml").write_text(
        "version: 1\npipeline: good\nsource: {connection: src}\ntargets:\n"
        "  - {name: a, type: mysql, connection: away}\n  - {name: b, type: delta, connection: lake}\n"
    )
    (tmp_path / "broken.yaml").write_text("version: 1\npipeline: 7\n")
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    monkeypatch.setenv("SLUICE_CHANNELS", str(tmp_path / "none"))

    def resolver(name: str) -> Endpoint:
        if name == "zookeeper_default":
            raise MissingConnection("there is no connection 'zookeeper_default'", hint="set AIRFLOW_CONN_…")
        return Endpoint(name, {"lake": "aws"}.get(name, "mysql"), name)

    def tried(endpoint: Endpoint) -> str:
        if endpoint.host == "away":
            raise TargetUnavailable("connecting: refused")
        return "MySQL 9"

    monkeypatch.setattr("sluice.operations.doctor.probe", tried)
    found = {(one.part, one.setting): one for one in doctor(resolver, {})}
    assert found["connections", "src"].why == "MySQL 9"
    assert found["connections", "away"].severity == "error"
    assert "refused" in found["connections", "away"].why
    assert found["connections", "lake"].severity == "ok"
    assert found["connections", "zookeeper_default"].fix == "set AIRFLOW_CONN_…"
    assert found["pipelines", "broken.yaml"].severity == "error"
    assert found["folders", "SLUICE_PIPELINES"].value == str(tmp_path)
    assert found["packages", "target delta"].severity == "ok"


def test_two_versions_of_spark_in_one_environment_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [one for one in packages() if one.severity == "error"]
    install(monkeypatch, tmp_path, "pyspark-client", version="4.1.0")
    [wrong] = [one for one in packages() if one.severity == "error"]
    assert (wrong.setting, wrong.value) == ("pyspark-client", "4.1.0")
    assert wrong.fix.endswith("pyspark==4.1.0 pyspark-client==4.1.0")


def test_more_open_runs_than_the_scheduler_looks_at_are_named(tmp_path: Path) -> None:
    pipeline = PipelineConfig.model_validate(
        {"version": 1, "pipeline": "p", "source": {"connection": "s"},
         "targets": [{"name": "t", "type": "mysql", "connection": "t"}]}
    )  # fmt: skip
    timed = pipeline.model_copy(update={"schedule": "30s"})
    environment = {"AIRFLOW_HOME": str(tmp_path)}
    assert scheduler([pipeline] * 19 + [timed] * 9, environment) == []
    [warning] = scheduler([pipeline] * 20, environment)
    assert warning.value == "20"
    assert warning.fix.startswith("set AIRFLOW__SCHEDULER__MAX_DAGRUNS_PER_LOOP_TO_SCHEDULE=40")
    (tmp_path / "airflow.cfg").write_text("[scheduler]\nmax_dagruns_per_loop_to_schedule = 200\n")
    assert scheduler([pipeline] * 20, environment) == []
    variable = {"AIRFLOW__SCHEDULER__MAX_DAGRUNS_PER_LOOP_TO_SCHEDULE": "5"}
    assert [one.value for one in scheduler([pipeline] * 6, environment | variable)] == ["5"]
