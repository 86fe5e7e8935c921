"""The ``retention`` DAG: removes what is no longer needed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator, Param
from airflow.sdk.exceptions import AirflowSkipException

from sluice.config.loading import load_pipeline, yaml_files
from sluice.config.pipeline import PipelineConfig, parse_span
from sluice.errors import ConfigError, SluiceError
from sluice.orchestration.dag_runs import CONTROL_ID, FAMILIES, RETENTION_ID, dag_id_of
from sluice.orchestration.dags.common import OWNER, START
from sluice.orchestration.dags.sync import invalid_dag_id
from sluice.orchestration.logfiles import KEPT_RUNS, OldLogs, processor_logs, remove, task_logs
from sluice.orchestration.operators import SluiceOperator
from sluice.orchestration.retry import boundary, retries
from sluice.orchestration.run_note import API_CONNECTION
from sluice.orchestration.runtime import open_runtime
from sluice.targets.registry import may_maintain_files

KEEP_IDLE_RUNS = timedelta(hours=1)

DEFAULTS = {"keep_runs": "2d", "keep_logs": "14d", "keep_audit": "365d"}
"""The default time for which things are kept; ``SLUICE_KEEP_RUNS`` and so on in the environment of the DAG processor
override it.
"""

OWN_RUNS = ("sync", "catchup", "upkeep")
ASKED_RUNS = ("backfill", "verify", "complete", "control")
"""The tags of DAGs whose runs are kept as long as logs."""

_DOC = f"""Every hour:

- `segments.*` removes the batches of one pipeline that every target has acknowledged and that are older than its
  `capture.segments.retain` (and than `subscriptions.expire`, where a named subscription lacks them), and entries of its audit (`sluice audit`)
  that are older than *keep_audit*. With `compact_after` it puts older batches together into archives.
- `targets.*` looks after the files of targets that keep tables as files (Delta Lake, Iceberg): it compacts small ones and removes those that no
  version within its retention needs, while batches are loaded. The target's `maintenance` in its options says how.
- `runs` removes runs of Sluice's DAGs from Airflow's own database, with all rows of their tasks: those of sync, catch-up and this
  DAG that ended longer than *keep_runs* ago, those of copies, verifications and control after *keep_logs*, and those that found nothing to do
  (a clock starts them) after an hour. It uses
  Airflow's REST API and needs a connection **`{API_CONNECTION}`** (type http: host, port, login and password of a user
  who may delete runs); without one it is skipped, and Airflow keeps all runs.
- `logs` removes Airflow's log files of Sluice's DAGs that are older than *keep_logs*, on the machine where it runs: task logs run by run, and
  the DAG processor's. The newest {KEPT_RUNS} runs of each DAG stay.

The ages are `SLUICE_KEEP_RUNS`, `SLUICE_KEEP_LOGS` and `SLUICE_KEEP_AUDIT` (`2d`, `12h`, ...). **Trigger** opens a form: with *dry run* every task
lists what it would remove, and removes nothing. Of Airflow's own audit log the API server removes what tasks
of these DAGs wrote (not what people did) after *keep_logs*; for all of it the log of `logs` has the command `airflow db clean`."""  # noqa: E501


def ages() -> dict[str, str]:
    """Return the time span of each setting, with the environment's values."""
    return {name: os.environ.get(f"SLUICE_{name.upper()}") or text for name, text in DEFAULTS.items()}


def age(context: Any, name: str) -> timedelta:
    """Return a time span of the run's parameters. Raises ConfigError if it is not a duration."""
    text = str(context["params"].get(name) or ages()[name])
    try:
        return parse_span(text)
    except ValueError as error:
        raise ConfigError(
            f"{name} {text!r} is not a duration: {error}",
            where=f"SLUICE_{name.upper()}, or the form of the DAG retention",
            hint="write a number and a unit, such as 12h or 14d",
        ) from None


def is_dry(context: Any) -> bool:
    """Return True if the run shall only say what would be removed."""
    return bool(context["params"].get("dry_run"))


class PruneSegmentsOperator(SluiceOperator):
    """Removes acknowledged batches past their retention from one pipeline's store."""

    def execute(self, context: Any) -> dict[str, Any]:
        """Remove the batches that are no longer needed."""
        with boundary():
            from sluice.operations.retention import prune

            dry, keep = is_dry(context), age(context, "keep_audit")
            outcome = prune(open_runtime(self.pipeline), dry_run=dry, keep_audit_s=keep.total_seconds()).to_json()
        self.log.info("%s %s", "dry run, would prune" if dry else "pruned", outcome)
        counts = {name: len(outcome[name]) for name in ("removed", "compacted")}
        return {**counts, "kept": outcome["kept"], "audit": outcome["audit"], "dry_run": dry}


class MaintainTargetsOperator(SluiceOperator):
    """Maintains the files of one pipeline's targets. Fails, to be retried, if a table could not be maintained."""

    def execute(self, context: Any) -> dict[str, Any]:
        """Maintain the tables of the targets."""
        with boundary():
            from sluice.errors import TargetUnavailable
            from sluice.operations.maintenance import maintain

            outcomes = maintain(open_runtime(self.pipeline), dry_run=is_dry(context))
            self.log.info(
                "%s %s", "dry run, would do" if is_dry(context) else "done", [outcome.to_json() for outcome in outcomes]
            )
            failed = [
                f"{outcome.target}: {table.error}" for outcome in outcomes for table in outcome.tables if table.error
            ]
            if failed:
                raise TargetUnavailable(f"{len(failed)} tables could not be maintained, such as {failed[0]}")
        return {outcome.target: len(outcome.tables) for outcome in outcomes}


def loaded(folder: Path) -> dict[Path, PipelineConfig | None]:
    """Load the pipeline files, each once. None stands for an invalid one, whose sync DAG shows the error."""
    pipelines: dict[Path, PipelineConfig | None] = dict.fromkeys(yaml_files(folder))
    for path in pipelines:
        with suppress(SluiceError):
            pipelines[path] = load_pipeline(path)
    return pipelines


def has_files(pipeline: PipelineConfig) -> bool:
    """Return True if a target may have files to maintain."""
    return any(may_maintain_files(target.type) for target in pipeline.targets)


class PruneRunsOperator(BaseOperator):  # type: ignore[misc]
    """Removes ended runs older than ``keep_runs``; those of dumps, verifications and control actions after
    ``keep_logs``.
    """

    def execute(self, context: Any) -> Mapping[str, int]:
        """Remove old runs of Sluice's DAGs."""
        from sluice.orchestration.airflow_api import AirflowApi, count_runs, remove_runs, tagged_dags
        from sluice.orchestration.connections import from_airflow

        try:
            endpoint = from_airflow(API_CONNECTION)
        except ConfigError as error:
            raise AirflowSkipException(f"Airflow keeps all runs: {error}") from None
        with boundary():
            api = AirflowApi(endpoint)
            now = datetime.now(UTC)
            before, idle_before = now - age(context, "keep_runs"), now - KEEP_IDLE_RUNS
            asked_before = now - age(context, "keep_logs")
            ages_of: dict[str, tuple[datetime, datetime | None]] = {
                d: (before, idle_before) for tag in OWN_RUNS for d in tagged_dags(api, tag)
            }
            ages_of |= {d: (asked_before, None) for tag in ASKED_RUNS for d in tagged_dags(api, tag)}
            if is_dry(context):
                runs = {d: count_runs(api, d, before=at, idle_before=idle or at) for d, (at, idle) in ages_of.items()}
                self.log.info("dry run, would remove runs %s", some(runs))
                return some(runs)
            removed = {d: remove_runs(api, d, before=at, idle_before=idle) for d, (at, idle) in ages_of.items()}
        self.log.info("removed runs %s", some(removed))
        return some(removed)


def some(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts that are not 0: with hundreds of pipelines most are."""
    return {name: count for name, count in counts.items() if count}


class PruneLogsOperator(BaseOperator):  # type: ignore[misc]
    """Removes Airflow's log files of ``dags`` and of the DAG processor for ``files``, on the machine where it runs."""

    def __init__(self, *, dags: Sequence[str], files: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dags = list(dags)
        self.files = list(files)

    def execute(self, context: Any) -> Mapping[str, int]:
        """Remove old task logs of Sluice's DAGs."""
        from airflow.sdk.configuration import conf

        with boundary():
            keep = age(context, "keep_logs")
            before_s = time.time() - keep.total_seconds()
            tasks = Path(conf.get("logging", "base_log_folder"))
            processor = Path(conf.get("logging", "dag_processor_child_process_log_directory"))
            logs = [
                *task_logs(tasks, self.dags, before_s=before_s),
                *processor_logs(processor, self.files, before_s=before_s),
            ]
            if not is_dry(context):
                logs = [logs for logs in logs if self._removed(logs)]
        word = "would remove" if is_dry(context) else "removed"
        for log in logs[:MOST_LINES]:
            at = datetime.fromtimestamp(log.written_s, UTC).isoformat(timespec="seconds")
            self.log.info("%s %s: %s files, %s bytes, last written %s", word, log.path, log.files, log.size_bytes, at)
        if logs[MOST_LINES:]:
            self.log.info("%s %s more folders", word, len(logs) - MOST_LINES)
        self.log.info(
            "rows of Airflow's own audit log are removed by: %s", db_clean(self.dags, datetime.now(UTC) - keep)
        )
        return {
            "folders": len(logs),
            "files": sum(o.files for o in logs),
            "size_bytes": sum(o.size_bytes for o in logs),
        }

    def _removed(self, logs: OldLogs) -> bool:
        try:
            remove(logs)
        except OSError as error:
            self.log.warning("%s stays: %s", logs.path, error)
            return False
        return True


MOST_LINES = 100
"""Lines of the log about what is removed, at most; the rest is a number."""


def db_clean(dags: Sequence[str], before: datetime) -> str:
    """Return the command that removes the rows of Airflow's audit log about these DAGs; for a machine that has
    Airflow's database.
    """
    return (
        f"airflow db clean --tables log --dag-ids {','.join(dags)} "
        f"--clean-before-timestamp {before.isoformat(timespec='seconds')} --skip-archive --yes"
    )


def build_retention_dag(folder: Path) -> DAG:
    """Build the DAG: ``segments.{file stem}`` per pipeline file, ``targets.{file stem}`` if it has a target with files,
    and ``runs``.
    """
    with DAG(
        dag_id=RETENTION_ID,
        description="Removes acknowledged batches past their retention, and old runs and logs of Sluice's DAGs",
        schedule="17 * * * *",
        start_date=START,
        catchup=False,
        max_active_runs=1,
        doc_md=_DOC,
        tags={"sluice", "upkeep"},
        params={
            "dry_run": Param(False, type="boolean", title="Dry run", description="Only list what would be removed."),
            "keep_runs": Param(
                ages()["keep_runs"], type="string", title="Keep runs", description="Ended runs of sync DAGs."
            ),
            "keep_logs": Param(
                ages()["keep_logs"], type="string", title="Keep logs", description="Log files of Sluice's DAGs."
            ),
            "keep_audit": Param(
                ages()["keep_audit"], type="string", title="Keep audit", description="Entries of `sluice audit`."
            ),
        },
        default_args={
            "owner": OWNER,
            **retries(3, timedelta(seconds=30), timedelta(minutes=5)),
            "execution_timeout": timedelta(minutes=50),
        },
    ) as dag:
        files = loaded(folder)
        for path, pipeline in files.items():
            name = invalid_dag_id(path).removeprefix(dag_id_of("")).removesuffix(".invalid")
            PruneSegmentsOperator(task_id=f"segments.{name}", pipeline=os.path.realpath(path))
            if pipeline is not None and has_files(pipeline):
                MaintainTargetsOperator(task_id=f"targets.{name}", pipeline=os.path.realpath(path))
        PruneRunsOperator(task_id="runs")
        PruneLogsOperator(task_id="logs", dags=own_dags(files), files=DAG_FILES)
    return dag


DAG_FILES = ("sync.py", "backfill.py", "verify.py", "complete.py", "control.py", "retention.py")
"""The files in the folder ``dags``."""


def own_dags(files: Mapping[Path, PipelineConfig | None]) -> list[str]:
    """Return the ids of all DAGs that Sluice makes from these files, including invalid ones."""
    names = {path.stem for path in files} | {pipeline.pipeline for pipeline in files.values() if pipeline is not None}
    families = [id_of(name) for name in sorted(names) for id_of in FAMILIES]
    return [*families, *map(invalid_dag_id, files), RETENTION_ID, CONTROL_ID]
