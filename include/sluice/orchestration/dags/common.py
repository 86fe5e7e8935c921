"""What the DAG families share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sluice.config.pipeline import PipelineConfig

START = datetime(2024, 1, 1, tzinfo=UTC)
"""Before any run; sync DAGs don't catch up, so it says nothing about what is delivered."""

OWNER = "sluice"


def shares(pool: str, priority: int) -> dict[str, Any]:
    """Arguments of every task of a DAG: of equal priority whatever follows it, so that the scheduler takes the run that has waited longest."""
    return {"pool": pool, "priority_weight": priority, "weight_rule": "absolute"}


def bulk_share(pipeline: PipelineConfig) -> dict[str, Any]:
    """The same of work that may wait: copies, verifications, deliveries to quarantined targets."""
    return shares(pipeline.workers.bulk_pool, pipeline.workers.bulk_priority)
