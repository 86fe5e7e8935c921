"""The ``verify__{pipeline}`` DAG: a form for comparing the targets with the source, and for repairing what differs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.sdk import DAG, Param
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException

from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError
from sluice.model.verify_method import VerifyMethod
from sluice.orchestration.dag_runs import verify_id_of
from sluice.orchestration.dags.common import OWNER, START, bulk_share
from sluice.orchestration.dags.forms import (
    as_list,
    build_each,
    captured,
    overwrite_field,
    require_known,
    tables_field,
    targets_field,
)
from sluice.orchestration.dags.sync import schedule_of
from sluice.orchestration.operators import SluiceOperator
from sluice.orchestration.retry import retries
from sluice.orchestration.run_note import NOTE_EVERY_S, RunNote
from sluice.orchestration.runtime import open_runtime

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.operations.verify.progress import Progress
    from sluice.operations.verify.result import TableResult, VerifyResult

NOTED_DIFFERENCES = 10
"""Differences of a table in the note of a run, at most."""

_DOC = """Compares what the targets hold with **`{source}`**, row by row, while the log flows, without a lock.
A row that is merely on its way is not reported.

- **Trigger** opens a form: which tables and targets, a condition, a method, a sample of the key ranges, and *repair*: rows that differ are
  copied again, and rows that only a target has are removed. The method *sweep* compares the targets with digests that are kept from the log
  (`verify: {{digest: log}}`), and then what differs.
- The result is in the note of the run, in `sluice verify show {pipeline}`, and in one line in `sluice status`. If rows differ afterwards, the run
  fails.
- `verify: {{schedule: "0 3 * * *", sample: 100%}}` in the pipeline file makes it run by itself (UTC). Such a run repairs nothing.

The sync DAG has to be running: a comparison waits until the target holds the log up to the rows that were read."""  # noqa: E501


def build_all(folder: Path, *, only: str | None = None) -> dict[str, DAG]:
    """See :func:`sluice.orchestration.dags.forms.build_each`."""
    return build_each(folder, verify_id_of, build_verify_dag, only=only)


def build_verify_dag(pipeline: PipelineConfig, path: Path) -> DAG:
    """Build the DAG, which has one task."""
    file, clock = str(path.resolve()), pipeline.verify.schedule
    with DAG(
        dag_id=verify_id_of(pipeline.pipeline),
        description=f"Compare the targets with {pipeline.source.connection}",
        schedule=schedule_of(clock) if clock else None,
        start_date=START,
        catchup=False,
        max_active_runs=1,
        doc_md=_DOC.format(source=pipeline.source.connection, pipeline=pipeline.pipeline),
        tags={"sluice", "verify"},
        params=form(pipeline, captured(file)),
        render_template_as_native_obj=True,
        default_args={
            "owner": OWNER,
            **bulk_share(pipeline),
            **retries(3, timedelta(seconds=30), timedelta(minutes=5)),
        },
    ) as dag:
        VerifyOperator(task_id="verify", pipeline=file)
    return dag


def form(pipeline: PipelineConfig, tables: Sequence[str]) -> dict[str, Param]:
    """Return the fields of the trigger form."""
    return {
        "tables": tables_field(tables),
        "targets": targets_field(pipeline, "Which are compared"),
        "where": Param(
            "", type=["null", "string"], title="Condition",
            description="On columns of the one table named, at the source: only rows that meet it are compared.",
        ),
        "method": Param(
            pipeline.verify.method.value, type="string", enum=[method.value for method in VerifyMethod], title="Method",
            description="compare: both sides are read. sweep: the targets are read and compared with their digests "
            "(verify.digest: log); what differs, or has none, is compared with the source then.",
        ),
        "sample": Param(
            100 * pipeline.verify.share, type="number", exclusiveMinimum=0, maximum=100, title="Sample (%)",
            description="Share of the key ranges, or of the tables if they are swept.",
        ),
        "repair": Param(
            False, type=["null", "boolean"], title="Repair",
            description="Copy the rows that differ, and remove those that only the target has; then look at them "
            "again.",
        ),
        **overwrite_field(pipeline.pipeline),
        "values": Param(
            False, type=["null", "boolean"], title="Values", description="Keep and show the values that differ; "
            "masked columns stay masked.",
        ),
    }  # fmt: skip


class VerifyOperator(SluiceOperator):
    """Compares, repairs if the form says so, and fails if rows differ afterwards. A retry starts from the beginning."""

    ui_color = "#d5f5e3"

    def work(self, context: Context, **_: Any) -> dict[str, Any]:
        """Verify the tables and return the result."""
        from sluice.operations.verify.verify import VerifySpec, verify
        from sluice.orchestration.metrics import report

        run: Any = context["dag_run"]
        runtime = open_runtime(self.pipeline)
        params, note = dict(context["params"]), RunNote(context)
        try:
            require_known(run, form(runtime.pipeline, ()))
            spec = VerifySpec(
                tables=as_list(params.get("tables")),
                targets=as_list(params.get("targets")),
                where=str(params.get("where") or ""),
                sample=float(params.get("sample") or 100 * runtime.pipeline.verify.share) / 100,
                repair=bool(params.get("repair")),
                overwrite=bool(params.get("overwrite")),
                method=VerifyMethod(params.get("method") or runtime.pipeline.verify.method),
                values=bool(params.get("values")),
                by=f"airflow:{run.run_id}",
            )
            result = verify(runtime, spec, _Told(note))
        except ConfigError as error:  # retrying is useless: the request has to change
            raise AirflowFailException(str(error)) from None
        note.write(result_note(result, page_of(result)), last=True)
        self.log.info("verified %s", result.in_a_line())
        report(runtime, every_s=0.0)  # whoever watches for differences need not wait for the next batch
        if result.differing:
            raise AirflowFailException(
                f"{result.in_a_line()}; `sluice verify show {runtime.name} {result.id}` lists them"
            )
        return {"id": result.id, "outcome": result.outcome, "rows": result.rows}


class _Told:
    """Updates the note of the run at intervals."""

    def __init__(self, note: RunNote) -> None:
        from sluice.operations.verify.progress import Pace

        self._note, self._said, self._pace = note, 0.0, Pace()

    def __call__(self, progress: Progress) -> None:
        words = self._pace.words(progress)
        if time.monotonic() - self._said < NOTE_EVERY_S:
            return
        self._said = time.monotonic()
        self._note.write(words)


def page_of(result: VerifyResult) -> str:
    """Return the path of the result's page in this Airflow."""
    prefix = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return f"{prefix}/sluice/?pipeline={quote(result.pipeline)}&verify={quote(result.id)}"


def result_note(result: VerifyResult, page: str = "") -> str:
    """Format the result in Markdown: the outcome, a link to ``page``, which has all of it, then tables that differ
    before the others.
    """
    tables = sorted(result.tables, key=lambda table: (not table.differing, not (table.skipped or table.undecided)))
    lines = [
        f"**{result.in_a_line()}**" + (f" ([all of it]({page}))" if page else ""),
        "",
        "| table | target | rows | equal | different | missing | extra | undecided | repaired |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
        *(_row(table) for table in tables if not table.skipped),
        "",
    ]
    for table in tables:
        place = f"{table.table} at {table.target}"
        lines += [f"- {place} was not compared: {table.skipped}"] if table.skipped else []
        lines += [f"- {place}: {table.note}"] if table.note else []
        for difference in table.differences[:NOTED_DIFFERENCES]:
            columns = f" in {', '.join(difference.columns)}" if difference.columns else ""
            lines.append(f"- {place}: `({', '.join(difference.key)})` {difference.kind}{columns}")
    return "\n".join(lines)


def _row(table: TableResult) -> str:
    figures = (table.rows, table.equal, table.different, table.missing, table.extra, table.undecided, table.repaired)
    return f"| {table.table} | {table.target} | {' | '.join(f'{figure:,}' for figure in figures)} |"
