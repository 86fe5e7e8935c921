"""Lineage as objects and events of OpenLineage's own client (extra ``openlineage``), and a reporter for ``sluice run``.

Delivery never depends on it: the reporter works in a thread of its own, and gives up at the end of the process after
:data:`LAST_S` seconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from sluice import __version__
from sluice.errors import SluiceError
from sluice.operations.lineage import ColumnOrigin, DataSet, TableLineage

_log = structlog.get_logger()
Look = Callable[[str, Sequence[int]], Sequence[TableLineage]]
PRODUCER = f"urn:sluice:{__version__}"
INTERVAL_S = 60.0
"""Seconds after which a run of a target ends in ``sluice run``, whatever the number of its batches."""
LAST_S = 10.0
"""Seconds to wait for the last events at the end of the process."""


def is_configured() -> bool:
    """Return True if OpenLineage's client has a transport: a variable, or a file ``openlineage.yml``."""
    if os.environ.get("OPENLINEAGE_DISABLED", "").lower() in {"true", "1"}:
        return False
    named = any(os.environ.get(name) for name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG"))
    typed = any(name.startswith("OPENLINEAGE__TRANSPORT") for name in os.environ)
    files = [Path.cwd() / "openlineage.yml", Path.home() / ".openlineage" / "openlineage.yml"]
    return named or typed or any(path.is_file() for path in files)


def data_sets(tables: Sequence[TableLineage]) -> tuple[list[Any], list[Any]]:
    """Return (inputs, outputs) with their facets, as classes of the client."""
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

    inputs = sorted({data_set for table in tables for data_set in table.inputs})
    defined = {data_set: columns for table in tables for data_set, columns in table.source_columns.items()}
    outputs = []
    for table in tables:
        facets = _schema([(column.name, column.type or column.kind or column.arrow_type) for column in table.columns])
        if table.origins:
            facets["columnLineage"] = _column_lineage(table)
        counted = statistics.OutputStatisticsOutputDatasetFacet(rowCount=table.rows, size=table.size_bytes)
        outputs.append(
            OutputDataset(
                namespace=table.output.namespace,
                name=table.output.name,
                facets=facets,
                outputFacets={"outputStatistics": counted},
            )
        )
    read = [
        InputDataset(namespace=data_set.namespace, name=data_set.name, facets=_schema(defined.get(data_set, ())))
        for data_set in inputs
    ]
    return read, outputs


def _schema(columns: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the facet ``schema`` of columns with their types; nothing if they are not known."""
    from openlineage.client.facet_v2 import schema_dataset

    fields = [schema_dataset.SchemaDatasetFacetFields(name=name, type=kind) for name, kind in columns]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields)} if fields else {}


def _column_lineage(table: TableLineage) -> Any:
    from openlineage.client.facet_v2 import column_lineage_dataset as lineage

    fields = {}
    for column in table.columns:
        origins = [(data_set, by_column.get(column.name)) for data_set, by_column in table.origins.items()]
        inputs = [_input_field(data_set, origin) for data_set, origin in origins if origin is not None]
        if inputs:
            fields[column.name] = lineage.Fields(inputFields=inputs)
    return lineage.ColumnLineageDatasetFacet(fields=fields)


def _input_field(source: DataSet, origin: ColumnOrigin) -> Any:
    from openlineage.client.facet_v2 import column_lineage_dataset as lineage

    step = lineage.Transformation(
        type="DIRECT",
        subtype="TRANSFORMATION" if origin.steps else "IDENTITY",
        description=", ".join(origin.steps),
        masking=origin.masked,
    )
    return lineage.InputField(namespace=source.namespace, name=source.name, field=origin.column, transformations=[step])


def _new_id() -> str:
    from openlineage.client.uuid import generate_new_uuid

    return str(generate_new_uuid())


@dataclass(frozen=True, slots=True)
class RunOfJob:
    """A run of the job ``sluice.PIPELINE.TARGET``: what its events have in common."""

    pipeline: str
    target: str
    run_id: str = field(default_factory=_new_id)

    def event(self, kind: str, tables: Sequence[TableLineage] = (), error: str = "") -> Any:
        """Return an event of the run. ``kind``: START, COMPLETE, FAIL or ABORT; ``error``: why it failed."""
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import error_message_run, job_type_job, processing_engine_run

        inputs, outputs = data_sets(tables)
        engine = processing_engine_run.ProcessingEngineRunFacet(version=__version__, name="Sluice")
        facets: dict[str, Any] = {"processing_engine": engine}
        if error:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message=error, programmingLanguage="PYTHON")
        job_type = job_type_job.JobTypeJobFacet(processingType="STREAMING", integration="SLUICE", jobType="JOB")
        return RunEvent(
            eventType=RunState[kind],
            eventTime=datetime.now(UTC).isoformat(),
            run=Run(runId=self.run_id, facets=facets),
            job=Job(
                namespace=os.environ.get("OPENLINEAGE_NAMESPACE") or "default",
                name=f"sluice.{self.pipeline}.{self.target}",
                facets={"jobType": job_type},
            ),
            producer=PRODUCER,
            inputs=inputs,
            outputs=outputs,
        )


class LineageReporter:
    """Sends a run per target and interval of the batches that ``sluice run`` works on: START and COMPLETE, or FAIL.

    ``look``: target and batches -> their lineage. ``emit``: sends one event. Both may raise anything and take time.
    """

    def __init__(
        self,
        pipeline: str,
        targets: Sequence[str],
        look: Look,
        emit: Callable[[Any], None],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._pipeline, self._targets, self._look = pipeline, targets, look
        self._emit, self._interval_s = emit, interval_s
        self._changed = threading.Condition()
        self._numbers: list[int] = []
        self._begun = False
        self._end = ""  # the kind of the last events, once the work is over
        self._error = ""
        self._runs: list[RunOfJob] = []
        self._due_s = 0.0
        self._said = False
        self._thread = threading.Thread(target=self._work, name="lineage", daemon=True)
        self._thread.start()

    @classmethod
    def configured(cls, pipeline: str, targets: Sequence[str], look: Look) -> LineageReporter | None:
        """Return a reporter with the client's own configuration; None if there is none, or it is of no use (logged)."""
        if not is_configured():
            return None
        try:
            from openlineage.client import OpenLineageClient
            from openlineage.client.facet_v2 import set_producer

            set_producer(PRODUCER)
            return cls(pipeline, targets, look, OpenLineageClient().emit)
        except Exception as error:  # whatever the configuration of another product raises
            _log.warning("lineage_unavailable", pipeline=pipeline, error=f"{type(error).__name__}: {error}"[:300])
            return None

    def begin(self) -> None:
        """Note that the work on a batch has begun. It never waits."""
        with self._changed:
            if not self._begun:
                self._begun = True
                self._changed.notify()

    def add(self, batch: int) -> None:
        """Note a batch that every target has acknowledged. It never waits."""
        with self._changed:
            self._numbers.append(batch)
            if not self._begun:
                self._begun = True
                self._changed.notify()

    def close(self, error: BaseException | None = None, timeout_s: float = LAST_S) -> None:
        """Send what is left, and wait ``timeout_s`` at most. ``error``: what ended the work, None for its own end."""
        with self._changed:
            failed = isinstance(error, Exception)
            self._end = "COMPLETE" if error is None else "FAIL" if failed else "ABORT"
            if failed:
                self._error = str(error) if isinstance(error, SluiceError) else type(error).__name__
                self._begun = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, self._wait_s())
                end, begins, error = self._end, self._begun and not self._runs, self._error
            if begins:
                self._runs = [RunOfJob(self._pipeline, target) for target in self._targets]
                self._due_s = time.monotonic() + self._interval_s
                self._send("START", [])
            if self._runs and (end or time.monotonic() >= self._due_s):
                self._end_runs(end or "COMPLETE", error)
            if end:
                return

    def _has_work(self) -> bool:
        return bool(self._end) or (self._begun and not self._runs)

    def _wait_s(self) -> float | None:
        return max(self._due_s - time.monotonic(), 0.0) if self._runs else None

    def _end_runs(self, kind: str, error: str) -> None:
        """End the runs with what was acknowledged; those whose first batch is under way go on."""
        with self._changed:
            numbers, self._numbers = self._numbers, []
            if not numbers and not self._end:
                self._due_s = time.monotonic() + self._interval_s
                return
            self._begun = False
        self._send(kind, numbers, error)
        self._runs = []

    def _send(self, kind: str, numbers: Sequence[int], error: str = "") -> None:
        began = time.monotonic()
        for run in self._runs:
            try:
                self._emit(run.event(kind, self._look(run.target, numbers) if numbers else (), error))
            except Exception as problem:  # a transport may raise anything, and no load fails for it
                if not self._said:
                    self._said = True
                    _log.warning(
                        "lineage_emit_failed",
                        pipeline=self._pipeline,
                        target=run.target,
                        seconds=round(time.monotonic() - began, 1),
                        error=f"{type(problem).__name__}: {problem}"[:300],
                    )
