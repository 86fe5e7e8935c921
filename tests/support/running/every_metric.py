"""A status and the stages of a run that give each metric a value."""

from __future__ import annotations

from sluice.coordination.failures import StageFailure
from sluice.operations.status import Silence, Status, TargetStatus
from sluice.operations.subscriptions import SubscriptionStatus

EVERYTHING = Status(
    pipeline="p", state="failing", head=None, captured=None, next_batch=5, lag_ms=1, lag_bytes=2, draining_by=None,
    targets=[TargetStatus(name="t", type="mysql", batch=4, position=None, lag_ms=7, lag_bytes=8, loading_by=None)],
    no_answer=[Silence("target t", "2026-01-01T00:00:00Z", "it is silent")],
    failures=[StageFailure("drain", "no", "2026-01-01T00:00:00Z", 3, fault="yours")],
    errors_counted=[("drain", "yours", 3)],
    rules=[{"name": "r", "rows_in": 1, "rows_out": 1, "changed": 1, "errors": 0, "dead_letters": 0, "seconds": 0.5}],
    files={"copied": 1, "unchanged": 1, "missing": 1, "bytes": 1, "bytes_per_s": 1, "in_progress": 1},
    subscriptions=[SubscriptionStatus(name="s", reader="anna", batch=1, lag_batches=3, lag_ms=9, connected_at=None, acknowledged_at=None)],
    verification={"differing": 2, "ended_ms": 1_000}, conflicts=1, retention_s=100.0, purge_horizon_s=10.0,
    retained_bytes=5, retained_budget_bytes=7, retained_left_bytes=9,
)  # fmt: skip
STAGES = [{"stage": "merge", "seconds": 1.5, "batches": 2, "rows": 3, "errors": 0}]
