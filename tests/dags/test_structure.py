"""What a DAG looks like, by what its pipeline file says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, TriggerRule
from airflow.serialization.serialized_objects import DagSerialization

from sluice.config.engine import RuleConfig
from sluice.config.loading import load_pipeline, yaml_files
from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError
from sluice.flows import stages
from sluice.orchestration.dags import sync
from sluice.orchestration.dags.backfill import build_all as build_copies
from sluice.orchestration.dags.sync import build_all, build_sync_dag, schedule_of
from sluice.orchestration.retry import TaskError
from sluice.orchestration.submit import SubmitOperator
from sluice.orchestration.timetable import SluiceTimetable
from tests.dags.conftest import WritePipeline

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def dag(write_pipeline: WritePipeline) -> DAG:
    """The DAG of a pipeline whose runs have one task for all stages."""
    path = write_pipeline()
    path.write_text(path.read_text() + "run: {tasks: one}\n")
    return build_sync_dag(load_pipeline(path), path)


def test_the_dag_folder_has_no_import_errors(write_pipeline: WritePipeline) -> None:
    write_pipeline("shop")
    write_pipeline("stock", schedule='"*/5 * * * *"')
    bag = DagBag(dag_folder=str(REPOSITORY / "dags"))
    assert bag.import_errors == {}
    assert {"sync__shop", "sync__stock"} <= set(bag.dags)


def test_an_unchanged_file_gives_no_further_dag_version(write_pipeline: WritePipeline, tmp_path: Path) -> None:
    """Airflow makes a version of each text of a DAG that it has not seen: every parse of another process gives the
    same.
    """
    path = write_pipeline()
    path.write_text(f"{path.read_text()}complete: {{every: 1h}}\nverify: {{digest: log}}\n")
    script = (
        "import json\nfrom airflow.dag_processing.dagbag import DagBag\n"
        "from airflow.models.serialized_dag import SerializedDagModel\n"
        "from airflow.serialization.serialized_objects import DagSerialization\n"
        f"bag = DagBag(dag_folder={str(REPOSITORY / 'dags')!r})\n"
        "hashes = {name: SerializedDagModel.hash(DagSerialization.to_dict(dag)) for name, dag in bag.dags.items()}\n"
        "print(json.dumps([hashes, bag.import_errors]))"
    )
    parses = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'include'}", "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        parses.append(json.loads(done.stdout.splitlines()[-1]))
    assert parses[0] == parses[1]
    assert {"sync__shop", "backfill__shop", "verify__shop", "complete__shop"} <= set(parses[0][0]), parses[0]


def test_the_pipelines_of_the_repository_are_valid() -> None:
    assert [dag_id for dag_id in build_all(REPOSITORY / "include" / "pipelines") if dag_id.endswith(".invalid")] == []


def test_each_target_has_its_tables_as_assets(dag: DAG, write_pipeline: WritePipeline) -> None:
    outlets = {task.task_id: [one.name for one in task.outlets] for task in dag.tasks if task.outlets}
    assert outlets == {"ack.reporting": ["sluice:shop.reporting"], "ack.archive": ["sluice:shop.archive"]}
    path = write_pipeline("quiet")
    path.write_text(path.read_text() + "assets: false\n")
    assert not [task for task in build_sync_dag(load_pipeline(path), path).tasks if task.outlets]


@pytest.mark.promise("F6")
def test_drain_merge_load_ack_for_each_target(dag: DAG) -> None:
    edges = {task.task_id: set(task.downstream_task_ids) for task in dag.tasks}
    assert edges["merge"] == {"load.reporting", "load.archive"}
    assert edges["load.reporting"] == {"ack.reporting"}
    assert edges["load.archive"] == {"ack.archive"}
    assert edges["ack.reporting"] == set()
    assert edges["drain"] == {"merge"}
    assert dag.get_task("load.archive").trigger_rule == TriggerRule.ALL_SUCCESS


@pytest.mark.parametrize(("tasks", "above"), [("one", {"drain"}), ("own", {"sense", "drain"})])
def test_a_further_stage_is_a_task_of_its_own(
    write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch, tasks: str, above: set[str]
) -> None:
    """Its entry says what its task is called, shows and needs; no operator is written for it."""
    kind = stages.StageType(doing="auditing", about="Audits the batch.", records="a file", color="#ffffff")

    def with_audit(pipeline: PipelineConfig, rules: Sequence[RuleConfig]) -> tuple[stages.Stage, ...]:
        return (*stages.pipeline_stages(pipeline, rules), stages.Stage("audit", needs=("drain",)))

    monkeypatch.setitem(stages.STAGE_TYPES, "audit", kind)
    monkeypatch.setattr(sync, "pipeline_stages", with_audit)
    path = write_pipeline()
    path.write_text(path.read_text() + f"run: {{tasks: {tasks}}}\n")
    task = build_sync_dag(load_pipeline(path), path).get_task("audit")
    assert (task.stage, task.ui_color, set(task.upstream_task_ids)) == ("audit", "#ffffff", above)
    assert "Audits the batch." in task.doc_md
    assert "recorded by a file" in task.doc_md


def test_workers_are_shared_as_the_file_says(write_pipeline: WritePipeline) -> None:
    path = write_pipeline()
    begun = path.read_text()
    path.write_text(begun + "run: {tasks: one}\n")
    made = build_all(path.parent)
    sync, catchup = made["sync__shop"], made["catchup__shop"]
    assert sync.max_active_tasks == sync.max_active_runs + 2
    assert {(t.pool, str(t.weight_rule)) for t in sync.tasks} == {("default_pool", "absolute")}
    assert {t.task_id: t.priority_weight for t in sync.tasks if t.priority_weight != 10} == {"drain": 1010}
    path.write_text(begun)
    own = build_all(path.parent)["sync__shop"]
    captures = {"sense": 1010, "drain": 1010}
    assert {t.task_id: t.priority_weight for t in own.tasks if t.priority_weight != 10} == captures
    assert {t.priority_weight for t in catchup.tasks} == {5}
    assert sync.get_task("drain").execution_timeout == timedelta(minutes=35)
    text = (
        begun + "\nworkers: {at_most: 2, pool: quick, bulk_pool: slow, priority: 1}\nrun: {max_time: 5s, grace: 1m}\n"
    )
    path.write_text(text)
    made = build_all(path.parent)
    sync, catchup = made["sync__shop"], made["catchup__shop"]
    assert (sync.max_active_tasks, sync.get_task("drain").execution_timeout) == (2, timedelta(seconds=65))
    assert {t.pool for t in sync.tasks} == {"quick"}
    assert {t.priority_weight for t in sync.tasks} == {1, 1001}
    assert {(t.pool, t.priority_weight) for t in catchup.tasks} == {("slow", 1)}


PLACES = """
workers:
  pool: quick
  stages:
    drain: {queue: madrid}
    merge: {queue: oslo}
    load: {queue: oslo, pool: loads}
    load.archive: {executor: LocalExecutor, pool: archive}
    ack.archive: {pool: archive}
"""


def placed(task: object) -> tuple[str, ...]:
    return tuple(getattr(task, key) or "" for key in ("queue", "pool", "executor"))


@pytest.mark.promise("G1")
def test_each_stage_runs_where_the_file_says(write_pipeline: WritePipeline) -> None:
    path = write_pipeline()
    path.write_text(path.read_text() + "run: {tasks: own}" + PLACES)
    made = build_all(path.parent)
    tasks = {task.task_id: placed(task) for task in made["sync__shop"].tasks}
    assert tasks == {
        "sense": ("madrid", "quick", ""),
        "drain": ("madrid", "quick", ""),
        "merge": ("oslo", "quick", ""),
        "load.reporting": ("oslo", "loads", ""),
        "load.archive": ("oslo", "archive", "LocalExecutor"),
        "ack.reporting": ("default", "quick", ""),
        "ack.archive": ("default", "archive", ""),
    }
    assert {task.task_id: placed(task) for task in made["catchup__shop"].tasks} == {
        "catch_up.reporting": ("oslo", "default_pool", ""),
        "catch_up.archive": ("oslo", "default_pool", "LocalExecutor"),
    }, "what a quarantined target lacks is delivered where it is loaded, in the pool of work that may wait"
    stored = DagSerialization.from_dict(DagSerialization.to_dict(made["sync__shop"]))
    assert placed(stored.get_task("load.archive")) == ("oslo", "archive", "LocalExecutor")
    copies = build_copies(path.parent)["backfill__shop"]
    assert {placed(task) for task in copies.tasks} == {("madrid", "default_pool", "")}


@pytest.mark.parametrize(
    ("shape", "places", "found"),
    [
        ("run: {tasks: one}", "{drain: {queue: madrid}}", {"drain": "madrid"}),
        (
            "run: {max_batches: 1}",
            "{drain: {queue: madrid}, load: {queue: oslo}}",
            {"drain": "madrid", "load.archive": "oslo"},
        ),
    ],
    ids=["one task", "one batch a run"],
)
def test_other_shapes_have_the_places_that_their_tasks_keep(
    write_pipeline: WritePipeline, shape: str, places: str, found: dict[str, str]
) -> None:
    path = write_pipeline()
    path.write_text(f"{path.read_text()}{shape}\nworkers: {{stages: {places}}}\n")
    tasks = {task.task_id: task.queue for task in build_all(path.parent)["sync__shop"].tasks}
    assert {name: tasks[name] for name in found} == found
    assert tasks["merge"] == "default"


def test_jobs_of_spark_submit_have_places_too(write_pipeline: WritePipeline) -> None:
    path = write_pipeline(mode="submit")
    path.write_text(path.read_text() + PLACES)
    made = build_all(path.parent)["sync__shop"]
    assert isinstance(made.get_task("merge"), SubmitOperator)
    assert placed(made.get_task("merge")) == ("oslo", "quick", "")


def test_an_executor_that_is_not_there_is_named_in_place_of_the_dag(write_pipeline: WritePipeline) -> None:
    path, _ = write_pipeline(), write_pipeline("other")
    path.write_text(path.read_text() + "workers: {stages: {drain: {executor: Nowhere}}}\n")
    made = build_all(path.parent)
    assert {"sync__shop.invalid", "sync__other"} <= set(made)
    assert "no executor 'Nowhere'" in str(made["sync__shop.invalid"].doc_md)
    bag = DagBag(dag_folder=str(REPOSITORY / "dags"))
    assert "sync__other" in bag.dags


def test_a_pipeline_with_more_targets_than_one_has_a_dag_that_brings_them_back(write_pipeline: WritePipeline) -> None:
    path = write_pipeline()
    dags = build_all(path.parent, only="catchup__shop")
    dag = dags["catchup__shop"]
    assert set(dag.task_ids) == {"catch_up.reporting", "catch_up.archive"}
    assert dag.max_active_runs == 1
    assert min(task.retries for task in dag.tasks) >= 1_000_000  # they wait for months
    DagSerialization.to_dict(dag)
    single = path.read_text().replace(
        "  - {name: archive, type: mysql, connection: archive_mysql, consistency: batch}\n", ""
    )
    path.write_text(single)
    assert set(build_all(path.parent)) == {"sync__shop"}


@pytest.mark.promise("A20", "F6")
@pytest.mark.parametrize("mode", ["connect", "submit"])
def test_rules_with_a_task_of_their_own_are_in_the_graph(
    write_pipeline: WritePipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The shape follows engine.yaml as it is when the file is parsed; a wrong engine.yaml is the merge's to report."""
    monkeypatch.setenv("SLUICE_RULES", str(tmp_path / "rules"))
    engine = tmp_path / "rules/engine.yaml"
    engine.parent.mkdir()
    engine.write_text(
        "rules:\n  - {name: late, path: late.py, type: spark, order: 9}\n  - {name: fused, path: f.py, order: 2}\n"
        "  - {name: early, builtin: mask, order: 1, task: own, match: {table: customers}, params: {columns: [email]}}\n"
    )
    path = write_pipeline(mode=mode)
    path.write_text(path.read_text() + "rules: engine.yaml\n")
    dag = build_sync_dag(load_pipeline(path), path)
    edges = {task.task_id: set(task.downstream_task_ids) for task in dag.tasks}
    assert edges["merge"] == {"rule.early"}
    assert edges["rule.early"] == {"rule.late"}
    assert edges["rule.late"] == {"load.reporting", "load.archive"}
    early = dag.get_task("rule.early")
    assert early.depends_on_past is False
    assert "built-in rule `mask`" in early.doc_md
    if mode == "submit":
        assert early.application_args[-2:] == ["--rule", "early"]
        assert Path(early.application).is_file()
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert again.task_ids == dag.task_ids
    engine.write_text("rules: [{nmae: x}]\n")
    assert build_sync_dag(load_pipeline(path), path).get_task("merge").downstream_task_ids == {
        "load.reporting",
        "load.archive",
    }


def test_tasks_that_work_side_by_side_start_together_and_keep_their_chain(
    write_pipeline: WritePipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_RULES", str(tmp_path / "rules"))
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/engine.yaml").write_text(
        "rules: [{name: early, builtin: mask, task: own, params: {columns: [a]}}]\n"
    )
    path = write_pipeline()
    path.write_text(path.read_text() + "rules: engine.yaml\n")
    dag = build_sync_dag(load_pipeline(path), path)
    above = {task.task_id: set(task.upstream_task_ids) for task in dag.tasks}
    assert above.pop("sense") == set()
    assert all("sense" in names for names in above.values())
    chain = {name: names - {"sense"} for name, names in above.items()}
    assert chain == {
        "drain": set(),
        "merge": {"drain"},
        "rule.early": {"merge"},
        "load.reporting": {"rule.early"},
        "ack.reporting": {"load.reporting"},
        "load.archive": {"rule.early"},
        "ack.archive": {"load.archive"},
    }
    for name in set(chain) - {"drain"}:
        assert dag.get_task(name).trigger_rule == TriggerRule.ONE_SUCCESS
    assert dag.max_active_tasks == len(dag.tasks)
    assert dag.max_active_runs == 1, "an idle pipeline keeps one run open"
    assert all(task.doc_md for task in dag.tasks)
    assert DagSerialization.from_dict(DagSerialization.to_dict(dag)).task_ids == dag.task_ids


@pytest.mark.parametrize("run", ["tasks: own", "tasks: one", "max_time: 0s"])
@pytest.mark.parametrize("mode", ["connect", "submit"])
def test_fused_rules_are_seen_in_the_name_and_the_documentation_of_their_task(
    write_pipeline: WritePipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, run: str
) -> None:
    monkeypatch.setenv("SLUICE_RULES", str(tmp_path / "rules"))
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/tidy.py").write_text('"""Mail addresses | in lower case.\n\nMore."""\n')
    (tmp_path / "rules/engine.yaml").write_text(
        "rules:\n  - {name: tidy, path: tidy.py, match: {schema: shop, table: customers}}\n"
        '  - {name: hide, builtin: mask, params: {columns: [a]}, description: "Hides\\nnames"}\n'
        "  - {name: early, path: gone.py, task: own}\n  - {name: after, path: gone.py}\n"
    )
    path = write_pipeline(mode=mode)
    path.write_text(path.read_text() + f"rules: engine.yaml\nrun: {{{run}}}\n")
    dag = build_sync_dag(load_pipeline(path), path)
    merge, early = dag.get_task("merge"), dag.get_task("rule.early")
    assert (merge.task_display_name, early.task_display_name) == ("merge + 2 rules", "rule.early + 1 rule")
    assert "| **tidy** | Mail addresses \\| in lower case. | `shop.customers` | `tidy.py`, row |" in merge.doc_md
    assert "| **hide** | Hides names | `.*..*` | built-in `mask` |" in merge.doc_md
    assert "early" not in merge.doc_md
    assert "| **early** |  | `.*..*` | `gone.py`, row |\n| **after** |" in early.doc_md
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert again.get_task("merge").task_display_name == "merge + 2 rules"


@pytest.mark.parametrize(
    ("mode", "schedule", "run"),
    [
        ("submit", "continuous", "tasks: own"),
        ("connect", "30s", "tasks: own"),
        ("connect", "continuous", "tasks: own, max_batches: 1"),
        ("connect", "continuous", "tasks: own, max_time: 0s"),
        ("connect", "continuous", "tasks: one, max_time: 5s"),
    ],
)
def test_runs_of_one_batch_have_the_chain_of_tasks(
    write_pipeline: WritePipeline, mode: str, schedule: str, run: str
) -> None:
    path = write_pipeline(mode=mode, schedule=schedule)
    path.write_text(path.read_text() + f"run: {{{run}}}\n")
    dag = build_sync_dag(load_pipeline(path), path)
    assert "sense" not in dag.task_ids
    assert dag.get_task("merge").upstream_task_ids == {"drain"}


@pytest.mark.promise("B8")
def test_batches_are_taken_and_delivered_in_order_and_merged_in_parallel(dag: DAG) -> None:
    own_past = {task.task_id: task.depends_on_past for task in dag.tasks}
    assert own_past == {
        "drain": True,
        "merge": False,
        "load.reporting": True,
        "ack.reporting": True,
        "load.archive": True,
        "ack.archive": True,
    }
    assert dag.max_active_runs == 3
    assert dag.catchup is False
    assert isinstance(dag.timetable, SluiceTimetable)


@pytest.mark.promise("F6")
def test_an_ack_keeps_a_run_open_whose_load_is_red(dag: DAG) -> None:
    assert dag.get_task("ack.reporting").trigger_rule == TriggerRule.NONE_SKIPPED


@pytest.mark.promise("F6")
def test_retries_come_from_the_pipeline_file(dag: DAG) -> None:
    for task in dag.tasks:
        assert task.retries == 5
        assert task.retry_delay == timedelta(seconds=2)
        longest = task.retry_policy.max_delay if hasattr(task, "retry_policy") else task.max_retry_delay  # Airflow 3.2
        assert longest == timedelta(seconds=30)


def test_people_read_what_goes_where(write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://airflow.example:8080/")
    path = write_pipeline()
    dag = build_sync_dag(load_pipeline(path), path)
    assert "| `shop.orders` | reporting | `reporting.orders` (without internal_note; ts as created_at) |" in dag.doc_md
    assert all(task.doc_md for task in dag.tasks)
    assert dag.owner_links == {"sluice": "http://airflow.example:8080/plugin/sluice"}


def test_the_dag_survives_airflows_serialization(dag: DAG) -> None:
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert again.task_ids == dag.task_ids
    assert isinstance(again.timetable, SluiceTimetable)
    assert again.timetable.active_runs_limit is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [("*/5 * * * *", "CronTriggerTimetable"), ("30s", "DeltaTriggerTimetable"), ("continuous", "SluiceTimetable")],
)
def test_schedules(text: str, kind: str) -> None:
    assert type(schedule_of(text)).__name__ == kind


def test_a_clock_skips_an_idle_run_and_only_continuous_waits(write_pipeline: WritePipeline) -> None:
    path = write_pipeline(schedule="30s")
    assert build_sync_dag(load_pipeline(path), path).get_task("drain").waits is False
    path = write_pipeline()
    assert build_sync_dag(load_pipeline(path), path).get_task("drain").waits is True


def test_submit_mode_uses_spark_submit(write_pipeline: WritePipeline) -> None:
    path = write_pipeline(mode="submit")
    dag = build_sync_dag(load_pipeline(path), path)
    merge, load = dag.get_task("merge"), dag.get_task("load.reporting")
    assert Path(merge.application).name == "merge.py"
    assert Path(load.application).name == "load.py"
    number = "{{ ti.xcom_pull(task_ids='drain') }}"
    assert merge.application_args == ["--pipeline", str(path), "--batch", number]
    assert load.application_args == ["--pipeline", str(path), "--batch", number, "--target", "reporting"]
    assert Path(merge.application).is_file()
    assert Path(load.application).is_file()
    assert load.depends_on_past is True


@pytest.mark.parametrize(
    ("message", "may_pass"),
    [("Cannot execute: x. Error code is: 65.", False), ("Error code is: 75.", True), ("killed", True)],
)
def test_a_failed_spark_submit_says_whether_to_wait(
    write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch, message: str, may_pass: bool
) -> None:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
    from airflow.sdk.exceptions import AirflowException

    def execute(self: SparkSubmitOperator, context: object) -> None:
        assert json.loads(os.environ["AIRFLOW_CONN_SHOP_MYSQL"])["host"] == "db"
        raise AirflowException(message)

    for name in ("SHOP_MYSQL", "REPORTING_MYSQL", "ARCHIVE_MYSQL", "ZOOKEEPER_DEFAULT"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", "mysql://me:secret@db:3306")
    monkeypatch.setattr(SparkSubmitOperator, "execute", execute)
    monkeypatch.setattr(SubmitOperator, "_wait_while_paused", lambda self: None)  # there is no ZooKeeper to ask
    path = write_pipeline(mode="submit")
    with pytest.raises(TaskError, match="the cause is in the log above") as caught:
        build_sync_dag(load_pipeline(path), path).get_task("merge").execute({})
    assert caught.value.may_pass is may_pass


def test_a_wrong_file_hides_no_other_and_says_what_is_wrong(write_pipeline: WritePipeline, pipelines: Path) -> None:
    write_pipeline("shop")
    (pipelines / "bad.yaml").write_text(
        "version: 1\npipeline: bad\nsource: {connection: a, colour: red}\ntargets: []\n"
    )
    dags = build_all(pipelines)
    assert set(dags) == {"sync__shop", "catchup__shop", "sync__bad.invalid"}
    bad = dags["sync__bad.invalid"]
    assert "invalid" in bad.tags
    assert "bad.yaml:3" in bad.doc_md
    assert "source.colour" in bad.doc_md
    with pytest.raises(TaskError, match=r"source\.colour"):
        bad.get_task("read_pipeline_file").execute({})


def test_two_files_of_one_name_never_become_one_dag(write_pipeline: WritePipeline, pipelines: Path) -> None:
    write_pipeline("shop", file="a")
    write_pipeline("shop", file="b")
    dags = build_all(pipelines)
    assert set(dags) == {"sync__shop", "catchup__shop", "sync__b.invalid"}
    assert "a.yaml and b.yaml" in dags["sync__b.invalid"].doc_md
    with pytest.raises(TaskError):
        raise TaskError.of(ConfigError("x"))


def test_a_task_builds_only_its_own_dag(write_pipeline: WritePipeline, pipelines: Path) -> None:
    write_pipeline("shop")
    write_pipeline("stock")
    write_pipeline("odd", file="another_name")
    assert set(build_all(pipelines, only="sync__shop")) == {"sync__shop"}
    assert "sync__odd" in build_all(pipelines, only="sync__odd")


def test_parsing_imports_nothing_heavy(write_pipeline: WritePipeline) -> None:
    write_pipeline()
    heavy = [
        "pyarrow", "pyspark", "kazoo", "numba", "pandas", "pymysql", "sluice.flows.capture.drain",
        "sluice.flows.transform.merge", "fastapi",
    ]  # fmt: skip
    script = (
        "import sys, runpy; import airflow.sdk; before = set(sys.modules); "
        f"runpy.run_path({str(REPOSITORY / 'dags/sync.py')!r});print([m for m in {heavy!r} if m in sys.modules and m "
        "not in before])"
    )
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'include'}"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


BAD = {
    "bytes.yaml": b"pipeline: \xff",
    "control.yaml": b"pipeline: a\x1b",
    "deep.yaml": b"a: " + b"[" * 5000,
    "bomb.yaml": "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 10)}]" for n in range(12)).encode(),
    "span.yaml": b"capture: {segments: {retain: 99999999999999d}}",
    "size.yaml": b"capture: {batch: {max_bytes: " + b"9" * 400 + b"}}",
    "empty.yaml": b"",
    "a b.yaml": b"x",
    "a_b.yaml": b"x",
    "n" * 240 + ".yaml": b"x",
    os.fsdecode(b"\xff.yaml"): b"x",
}


def test_bad_files_of_any_kind_hide_nothing(pipelines: Path, write_pipeline: WritePipeline) -> None:
    from sluice.orchestration import web
    from sluice.orchestration.dags import backfill, control, retention, sync, verify

    write_pipeline("shop")
    for name, content in BAD.items():
        (pipelines / name).write_bytes(content)
    (pipelines / "folder.yaml").mkdir()
    os.mkfifo(pipelines / "pipe.yaml")
    (pipelines / "loop.yaml").symlink_to("loop.yaml")
    dags = sync.build_all(pipelines)
    assert {"sync__shop", "catchup__shop"} <= set(dags)
    invalid = [dag for name, dag in dags.items() if name.endswith(".invalid")]
    assert len(invalid) == len(BAD) + 3
    for dag in invalid:
        assert len(dag.dag_id) <= 200
        dag.doc_md.encode()
    assert set(backfill.build_all(pipelines)) == {"backfill__shop"}
    assert set(verify.build_all(pipelines)) == {"verify__shop"}
    assert control.build_control_dag(pipelines).params.get_param("pipeline").schema["enum"] == ["shop"]
    assert len(retention.build_retention_dag(pipelines).task_ids) == len(BAD) + 6
    said = [web.ask_status(str(path)) for path in yaml_files(pipelines)]
    json.dumps(said, ensure_ascii=False).encode()
    assert {one["dag_id"] for one in said if one["state"] == "invalid"} == {dag.dag_id for dag in invalid}


def test_a_file_that_no_check_foresaw_hides_nothing(
    pipelines: Path, write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.orchestration.dags import backfill, sync, verify

    write_pipeline("shop")
    write_pipeline("other")
    for module, name in (
        (sync, "build_sync_dag"),
        (backfill, "build_backfill_dag"),
        (verify, "build_verify_dag"),
    ):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda p, path, real=real: {"shop": real}[p.pipeline](p, path))
    assert set(sync.build_all(pipelines)) == {"sync__shop", "catchup__shop", "sync__other.invalid"}
    assert set(backfill.build_all(pipelines)) == {"backfill__shop"}
    assert set(verify.build_all(pipelines)) == {"verify__shop"}
