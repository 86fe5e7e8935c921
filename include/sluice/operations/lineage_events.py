"""Lineage as objects and events of OpenLineage's own client (extra ``openlineage``), and a reporter for ``sluice run``.

Delivery never depends on it: the reporter works in a thread of its own, and gives up at the end of the process after
:data:`LAST_S` seconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from sluice import __version__
from sluice.operations.lineage import ColumnOrigin, DataSet, TableLineage

_log = structlog.get_logger()
Look = Callable[[str, Sequence[int]], Sequence[TableLineage]]
PRODUCER = f"urn:sluice:{__version__}"
INTERVAL_S = 60.0
"""Seconds between two events of a target in ``sluice run``, whatever the number of its batches."""
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
    from openlineage.client.facet_v2 import schema_dataset

    inputs = sorted({given for table in tables for given in table.inputs})
    outputs = []
    for table in tables:
        fields = [
            schema_dataset.SchemaDatasetFacetFields(name=one.name, type=one.type or one.kind or one.arrow_type)
            for one in table.columns
        ]
        facets: dict[str, Any] = {"schema": schema_dataset.SchemaDatasetFacet(fields=fields)}
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
    return [InputDataset(namespace=one.namespace, name=one.name) for one in inputs], outputs


def _column_lineage(table: TableLineage) -> Any:
    from openlineage.client.facet_v2 import column_lineage_dataset as lineage

    fields = {}
    for column in table.columns:
        found = [(given, known.get(column.name)) for given, known in table.origins.items()]
        inputs = [_input_field(given, origin) for given, origin in found if origin is not None]
        if inputs:
            fields[column.name] = lineage.Fields(inputFields=inputs)
    return lineage.ColumnLineageDatasetFacet(fields=fields)


def _input_field(given: DataSet, origin: ColumnOrigin) -> Any:
    from openlineage.client.facet_v2 import column_lineage_dataset as lineage

    step = lineage.Transformation(
        type="DIRECT",
        subtype="TRANSFORMATION" if origin.steps else "IDENTITY",
        description=", ".join(origin.steps),
        masking=origin.masked,
    )
    return lineage.InputField(namespace=given.namespace, name=given.name, field=origin.column, transformations=[step])


def event(pipeline: str, target: str, tables: Sequence[TableLineage]) -> Any:
    """Return the COMPLETE event of one run of the job ``sluice.PIPELINE.TARGET``."""
    from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import job_type_job, processing_engine_run
    from openlineage.client.uuid import generate_new_uuid

    inputs, outputs = data_sets(tables)
    kind = job_type_job.JobTypeJobFacet(processingType="STREAMING", integration="SLUICE", jobType="JOB")
    engine = processing_engine_run.ProcessingEngineRunFacet(version=__version__, name="Sluice")
    return RunEvent(
        eventType=RunState.COMPLETE,
        eventTime=datetime.now(UTC).isoformat(),
        run=Run(runId=str(generate_new_uuid()), facets={"processing_engine": engine}),
        job=Job(
            namespace=os.environ.get("OPENLINEAGE_NAMESPACE") or "default",
            name=f"sluice.{pipeline}.{target}",
            facets={"jobType": kind},
        ),
        producer=PRODUCER,
        inputs=inputs,
        outputs=outputs,
    )


class LineageReporter:
    """Sends an event per target and interval of the batches that ``sluice run`` acknowledged.

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
        self._numbers: list[int] = []
        self._lock, self._ends = threading.Lock(), threading.Event()
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

    def add(self, batch: int) -> None:
        """Note a batch that every target has acknowledged. It never waits."""
        with self._lock:
            self._numbers.append(batch)

    def close(self, timeout_s: float = LAST_S) -> None:
        """Send what is left, and wait ``timeout_s`` at most."""
        self._ends.set()
        self._thread.join(timeout_s)

    def _work(self) -> None:
        ended = False
        while not ended:
            ended = self._ends.wait(self._interval_s)
            with self._lock:
                numbers, self._numbers = self._numbers, []
            if numbers:
                self._send(numbers)

    def _send(self, numbers: Sequence[int]) -> None:
        began = time.monotonic()
        for target in self._targets:
            try:
                tables = self._look(target, numbers)
                if tables:
                    self._emit(event(self._pipeline, target, tables))
            except Exception as error:  # a transport may raise anything, and no load fails for it
                if not self._said:
                    self._said = True
                    _log.warning(
                        "lineage_emit_failed",
                        pipeline=self._pipeline,
                        target=target,
                        seconds=round(time.monotonic() - began, 1),
                        error=f"{type(error).__name__}: {error}"[:300],
                    )
