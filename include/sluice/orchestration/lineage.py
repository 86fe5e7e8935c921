"""What Airflow's OpenLineage provider asks the tasks of a sync DAG for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from sluice.flows.runtime import Runtime

_log = structlog.get_logger()


def operator_lineage(runtime: Runtime, target: str, numbers: Sequence[int]) -> Any:
    """Return what Airflow's OpenLineage provider asks an operator for; None if there is nothing, or it fails."""
    with suppress(ImportError):
        from airflow.providers.openlineage.extractors import OperatorLineage

        from sluice.operations.lineage import table_lineage
        from sluice.operations.lineage_events import data_sets

        try:
            inputs, outputs = data_sets(table_lineage(runtime, target, numbers))
        except Exception as error:  # the task is done, whatever lineage says
            _log.warning("lineage_emit_failed", pipeline=runtime.name, target=target, error=str(error)[:300])
            return None
        return OperatorLineage(inputs=inputs, outputs=outputs)
    return None
