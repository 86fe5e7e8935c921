"""The ``backfill__{pipeline}`` DAG: a form for copying tables again, and Airflow's own Backfill over a range of
time.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError, DumpRefused, SluiceError
from sluice.flows.stages import StageKind
from sluice.orchestration.dag_runs import backfill_id_of
from sluice.orchestration.dags.common import OWNER, START, bulk_place, bulk_share
from sluice.orchestration.dags.forms import (
    as_list,
    as_text,
    build_each,
    captured,
    overwrite_field,
    require_known,
    tables_field,
    targets_field,
)
from sluice.orchestration.operators import SluiceOperator
from sluice.orchestration.retry import TaskError, retries
from sluice.orchestration.run_note import NOTE_EVERY_S, RunNote
from sluice.orchestration.runtime import open_runtime
from sluice.orchestration.timetable import BackfillTimetable
from sluice.orchestration.triggers import DumpTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.flows.dump.progress import DumpView

MOST_PARTS = 50
"""Mapped tasks of a run, at most; more tables share them."""

ENDED = "Airflow ended the task read of run {run}: somebody marked, cleared or deleted it, or its worker was shut down"

_DOC = """Copies rows of **`{source}`** to the targets again while the log is read: without a lock, without stopping anything, and never back in time.
A row that the log changes meanwhile keeps what the log says.

- **Trigger** opens a form: which tables, which keys, rows that meet a condition, or every key that was touched in a span of time. With *dry run* it
  only says how many rows that would be.
- **Backfill** (next to Trigger) on a range of time: the current row of every key that was touched in each whole hour of it goes to the targets again.
  The keys come from the retained segments.
- `read` has one task a table. Their progress is in the note of the run, and in `sluice dump show {pipeline}`.
- While it runs: `sluice dump pause|resume|tune|cancel {pipeline}`. A run that failed goes on after the last finished chunk: press *Clear*.
- When no process reads it (its run was marked failed or deleted, its worker died), `sluice dump show` and the page say *no reader* and since when.
  *Clear* takes it up; without its run, trigger this DAG with the id of the dump, or run `sluice dump work {pipeline} ID`.

The sync DAG places what is read, so it has to be running."""  # noqa: E501


def build_all(folder: Path, *, only: str | None = None) -> dict[str, DAG]:
    """See :func:`sluice.orchestration.dags.forms.build_each`."""
    return build_each(folder, backfill_id_of, build_backfill_dag, only=only)


def build_backfill_dag(pipeline: PipelineConfig, path: Path) -> DAG:
    """Build the DAG ``plan >> read (one per table) >> placed``."""
    file = str(path.resolve())
    with DAG(
        dag_id=backfill_id_of(pipeline.pipeline),
        description=f"Copy tables of {pipeline.source.connection} again",
        schedule=BackfillTimetable(),
        start_date=START,
        catchup=False,
        max_active_runs=4,
        max_active_tasks=pipeline.workers.bulk_at_most,
        doc_md=_DOC.format(source=pipeline.source.connection, pipeline=pipeline.pipeline),
        tags={"sluice", "backfill"},
        params=form(pipeline, captured(file)),
        render_template_as_native_obj=True,
        default_args={
            "owner": OWNER,
            **bulk_share(pipeline),
            **bulk_place(pipeline, StageKind.CAPTURE),
            **retries(20, timedelta(seconds=5), timedelta(minutes=1)),
        },
    ) as dag:
        plan = PlanDumpOperator(task_id="plan", pipeline=file)
        read = ReadDumpOperator.partial(
            task_id="read", pipeline=file, map_index_template="{{ task.part['label'] }}", max_active_tis_per_dagrun=8
        ).expand(part=plan.output)
        read >> PlacedOperator(task_id="placed", pipeline=file, trigger_rule="none_failed")
    return dag


def form(pipeline: PipelineConfig, captured: Sequence[str]) -> dict[str, Param]:
    """Return the fields of the trigger form."""
    dump = pipeline.dump
    text = ["null", "string"]
    rows, pace = "Which rows", "How fast"
    return {
        "tables": tables_field(captured),
        "targets": targets_field(pipeline, "Who gets the rows"),
        **overwrite_field(pipeline.pipeline),
        "dry_run": Param(False, type=["null", "boolean"], title="Dry run", description="Only say which tables, and "
        "about how many rows."),
        "replace": Param(
            False, type=["null", "boolean"], title="Replace",
            description="Also remove rows from the targets that the source does not have (any more); of a table "
            "without a key, all of them first.",
        ),
        "first_key": Param(None, type=text, title="First key",
            description="Key columns joined by commas; of one table.", section=rows),
        "last_key": Param(None, type=text, title="Last key", description="Included.", section=rows),
        "keys": Param(None, type=text, format="multiline", title="Keys",
            description="A key a line, columns joined by commas.", section=rows),
        "where": Param(None, type=text, title="Condition",
            description="SQL, on one table; runs read-only at the source.", section=rows),
        "since": Param(
            None, type=text, format="date-time", title="Touched since",
            description="Current rows of the keys that the log touched from here …", section=rows,
        ),
        "until": Param(None, type=text, format="date-time", title="Touched until", description="… up to here.",
            section=rows),
        "index": Param(
            None, type=text, title="Index", description="Cut one table by this index, not by its primary key; first "
            "and last key mean it.",
            section=rows,
        ),
        "chunk_rows": Param(dump.chunk_rows, type="integer", minimum=1, title="Rows a chunk", section=pace),
        "parallelism": Param(dump.parallelism, type="integer", minimum=1, maximum=64, title="Chunks at the same time",
            section=pace),
        "delay_ms": Param(
            int(dump.delay.total_seconds() * 1000), type="integer", minimum=0, title="Pause between chunks (ms)",
            section=pace
        ),
        "max_rows_per_second": Param(
            dump.max_rows_per_second, type="integer", minimum=0, title="Rows a second, at most",
            description="0: as fast as it goes.",
            section=pace,
        ),
        "dump": Param(None, type=text, title="Dump",
            description="Id of a dump that is recorded already: go on with it.", section="Advanced"),
    }  # fmt: skip


class PlanDumpOperator(SluiceOperator):
    """Records the dump that the form or the interval asks for; returns the parts that ``read`` works on."""

    ui_color = "#d6eaf8"

    def work(self, context: Context, **_: Any) -> list[dict[str, Any]]:
        """Record the dump, or find the one to go on with, and return the parts to read."""
        from sluice.flows.dump.start import start, tuned

        run: Any = context["dag_run"]
        runtime = open_runtime(self.pipeline)
        try:
            require_known(run, form(runtime.pipeline, ()))
        except ConfigError as error:  # a misspelt `tables` would copy all of them
            raise AirflowFailException(str(error)) from None
        params = dict(context["params"])
        since, until = as_text(params.get("since")), as_text(params.get("until"))
        kind = str(getattr(run.run_type, "value", run.run_type))
        if kind == "scheduled":
            raise AirflowSkipException("the form is empty: there is nothing to copy")
        if kind == "backfill":
            since, until = run.data_interval_start.isoformat(), run.data_interval_end.isoformat()
        note = RunNote(context)
        recorded = as_text(params.get("dump")).strip()
        name = recorded or _dump_id(run)
        with runtime.state() as state:
            known_ids = state.dumps.ids()
            dump = state.dumps.get(name) if name in known_ids else None
        if recorded and dump is None:
            raise AirflowFailException(
                f"there is no dump {recorded!r} to go on with; the newest are: {', '.join(known_ids[-5:]) or 'none'} "
                "(empty: a new one)"
            )
        if dump is None:
            try:
                dump = start(
                    runtime,
                    tables=as_list(params.get("tables")),
                    targets=as_list(params.get("targets")),
                    lower=_columns(params.get("first_key")),
                    upper=_columns(params.get("last_key")),
                    keys=[line.strip() for line in as_text(params.get("keys")).splitlines() if line.strip()],
                    where=as_text(params.get("where")),
                    since=since,
                    until=until,
                    index=as_text(params.get("index")),
                    replace=bool(params.get("replace")),
                    tuning=tuned(
                        runtime.pipeline,
                        **{n: params.get(n) for n in ("chunk_rows", "parallelism", "delay_ms", "max_rows_per_second")},
                    ),
                    dry_run=bool(params.get("dry_run")),
                    overwrite=bool(params.get("overwrite")),
                    by=f"airflow:{run.run_id}",
                    reason="backfill" if since or until else "asked for",
                    id_=name,
                )
            except ConfigError as error:  # retrying is useless: the request has to change
                raise AirflowFailException(str(error)) from None
        if params.get("dry_run"):
            lines = [f"| {t.table} | about {t.estimate:,} |" for t in dump.tables]
            note.write(
                "**Dry run**: nothing is read.\n\n| table | rows |\n|---|---|\n" + "\n".join(lines or ["| none | 0 |"])
            )
            self.log.info("dry run: %s", [(str(t.table), t.estimate) for t in dump.tables])
            return []
        tables = [str(t.table) for t in dump.tables]
        self.log.info("dump %s of %s", dump.id, tables)
        return parts(dump.id, tables)


def parts(dump: str, tables: Sequence[str]) -> list[dict[str, Any]]:
    """Return what each mapped task reads: one table, or several if there are many."""
    count = min(len(tables), MOST_PARTS)
    shares = [list(range(i, len(tables), count)) for i in range(count)]
    return [
        {
            "dump": dump,
            "tables": share,
            "label": tables[share[0]] + (f" and {len(share) - 1} more" if share[1:] else ""),
        }
        for share in shares
    ]


class ReadDumpOperator(SluiceOperator):
    """Reads the chunks of some tables until the sync DAG has placed them all.

    A retry goes on after the last finished chunk.

    While it could only wait (for the log, or for the end of a pause), it waits in the triggerer.
    """

    ui_color = "#fdebd0"
    template_fields: Sequence[str] = ("part",)

    def __init__(self, *, part: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.part = part
        self._stop: threading.Event | None = None

    def work(self, context: Context, **_: Any) -> dict[str, Any]:
        """Read chunks until none is left or the task has to wait."""
        from sluice.flows.dump.progress import has_work, is_over, one_view
        from sluice.flows.dump.worker import work

        runtime = open_runtime(self.pipeline)
        name, tables = str(self.part["dump"]), tuple(int(i) for i in self.part["tables"])
        self._stop = threading.Event()
        run: Any = context["dag_run"]
        ended = ENDED.format(run=run.run_id)
        note = RunNote(context)
        over = False
        while not over:
            with _Live(note, self.pipeline, name):
                try:
                    work(runtime, name, tables=tables, stop=self._stop, why_stop=ended, until_placed=False)
                except DumpRefused as error:  # retrying is useless here, too
                    raise AirflowFailException(str(error)) from None
            if self._stop.is_set():
                note.write(progress_note(one_view(runtime, name)), last=True)
                raise TaskError(ended, may_pass=True)
            with runtime.state() as state:
                over = is_over(state, name, tables)
                goes_on = has_work(state, name, tables)
            if not goes_on:
                note.write(progress_note(one_view(runtime, name)), last=True)
                self.log.info(
                    "nothing to read now: waiting for the sync DAG to place chunks, or for the end of a pause"
                )
                self.wait(DumpTrigger(self.pipeline, name, list(tables)))
        seen_view = one_view(open_runtime(self.pipeline), name)
        own_views = [t for i, t in enumerate(seen_view.tables) if i in tables]
        return {
            "rows": sum(t.rows for t in own_views),
            "overtaken": sum(t.overtaken for t in own_views),
            "state": seen_view.state,
        }

    def on_kill(self) -> None:
        """Stop reading when Airflow ends the task: running chunks end, and the dump then shows that it has no
        reader.
        """
        if self._stop is not None:
            self._stop.set()


class PlacedOperator(SluiceOperator):
    """Reports the outcome of the dump."""

    ui_color = "#e8daef"

    def work(self, context: Context, **_: Any) -> dict[str, Any]:
        """Write the outcome of the dump into the run's note and return it."""
        from sluice.flows.dump.progress import one_view

        run: Any = context["dag_run"]
        name = as_text(context["params"].get("dump")) or _dump_id(run)
        try:
            seen_view = one_view(open_runtime(self.pipeline), name)
        except ConfigError:  # a dry run has recorded nothing
            return {"rows": 0}
        RunNote(context).write(progress_note(seen_view), last=True)
        self.log.info("done %s", seen_view.to_json())
        return {"dump": seen_view.id, "state": seen_view.state, "rows": seen_view.rows}


class _Live:
    """A context in which the note of a run follows the dump."""

    def __init__(self, note: RunNote, pipeline: str, dump: str) -> None:
        self._note, self._pipeline, self._dump = note, pipeline, dump
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="note", daemon=True)

    def __enter__(self) -> _Live:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(15)

    def _run(self) -> None:
        from sluice.flows.dump.progress import one_view

        try:
            runtime = open_runtime(self._pipeline)
            with runtime.state():
                while not self._stop.wait(NOTE_EVERY_S):
                    self._note.write(progress_note(one_view(runtime, self._dump)))
        except SluiceError:
            return


def progress_note(view: DumpView) -> str:
    """Format a progress bar per table, in Markdown."""
    lines = [
        f"**Dump `{view.id}`**: {view.no_reader or view.state}, {view.rows:,} rows placed, "
        f"{'' if view.no_reader else f'{view.rate:,.0f} rows/s, '}{time.strftime('%H:%M:%S', time.gmtime())} UTC",
        *([f"Waits: {view.waiting_for}"] if view.waiting_for else []),
        *([f"Note: {view.note}"] if view.note else []),
        "",
        "| table | | rows | of about | rows/s | left |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for t in view.tables:
        full = round(t.share * 20)
        remaining = (
            ""
            if t.state in {"done", "delivering", "no reader"}
            else "?"
            if t.remaining_s is None
            else f"{t.remaining_s:,.0f} s"
        )
        lines.append(
            f"| {t.table} | `{'█' * full}{'░' * (20 - full)}` | {t.rows:,} | {t.estimate:,} | {t.rate:,.0f} | "
            f"{remaining} |"
        )
    return "\n".join(lines)


def _dump_id(run: Any) -> str:
    """Return the id of the dump: the same for every attempt of a run, sortable by time."""
    planned_at = run.run_after.strftime("%Y%m%dT%H%M%S") if getattr(run, "run_after", None) else "run"
    return f"{planned_at}-{hashlib.sha256(str(run.run_id).encode()).hexdigest()[:6]}"


def _columns(value: Any) -> list[str]:
    text = as_text(value)
    return [part.strip() for part in text.split(",")] if text else []
