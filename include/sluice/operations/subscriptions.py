"""Named subscriptions for operators: their lag, which one will expire, and what retention keeps for them.

A batch that a subscription has not acknowledged is kept until it is ``subscriptions.expire`` old, and no longer,
whether the reader is slow or gone: so what subscriptions hold back is bounded in time, and no reader can fill the disk.
When such a batch is removed, the subscription has expired.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from sluice.coordination.state import PipelineState
from sluice.coordination.subscriptions import Subscription
from sluice.errors import ConfigError, SegmentError
from sluice.flows.runtime import Runtime
from sluice.flows.stored import stored_manifest
from sluice.model.nearest import meant
from sluice.operations.plan import ActionPlan
from sluice.segments.store import SegmentStore

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStatus:
    """One subscription now.

    Attributes:
        reader: whose it is. batch: the last acknowledged one.
        lag_batches: stored after that; lag_ms: age of the oldest change of them, 0: there is none, None: not known.
        connected_at, acknowledged_at: when a client connected, and acknowledged, last (ISO 8601); None: never.
        expires_at: when retention may remove the first batch that is not acknowledged; None: that is more than half of
            the time away.
        expired_at: when it did; None: it did not.
        alert_since: since when people are told that it will expire.
    """

    name: str
    reader: str
    batch: int
    lag_batches: int
    lag_ms: int | None
    connected_at: str | None
    acknowledged_at: str | None
    expires_at: str | None = None
    expired_at: str | None = None
    alert_since: str | None = None

    @property
    def warning(self) -> str:
        """A sentence for operators; "" if there is nothing to do."""
        who = f"subscription {self.name} of reader {self.reader}"
        if self.expired_at:
            return (
                f"{who} expired at {self.expired_at}: batches after {self.batch} were removed unacknowledged; its "
                "client has to begin anew"
            )
        if self.expires_at:
            return (
                f"{who} has not acknowledged batch {self.batch + 1} and expires at {self.expires_at}: let its client "
                "go on, or `sluice subscriptions delete` it"
            )
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return the status as commands print it."""
        return asdict(self)


def alert_key(subscription: str) -> str:
    """Return the key under which a subscription's alert is recorded, as a target's is under its name."""
    return f"subscription:{subscription}"


def kept_s(runtime: Runtime) -> float:
    """Return how many seconds a batch is kept for a subscription that has not acknowledged it."""
    pipeline = runtime.pipeline
    return max(pipeline.subscriptions.expire, pipeline.capture.segments.retain).total_seconds()


def subscriptions(runtime: Runtime, state: PipelineState) -> list[SubscriptionStatus]:
    """Return the status of all subscriptions of a pipeline, by name."""
    cursor = state.cursor()
    last = cursor.next_batch - 1 if cursor else 0
    return [_status(runtime, state, subscription, last) for subscription in state.subscriptions.all()]


def _status(runtime: Runtime, state: PipelineState, subscription: Subscription, last: int) -> SubscriptionStatus:
    now_s = time.time()
    lag_ms = 0 if subscription.batch >= last else _age_ms(runtime.store, state, subscription.batch + 1, now_s)
    return SubscriptionStatus(
        name=subscription.name,
        reader=subscription.reader,
        batch=subscription.batch,
        lag_batches=max(last - subscription.batch, 0),
        lag_ms=lag_ms,
        connected_at=_iso(subscription.connected_ms / 1000),
        acknowledged_at=_iso(subscription.acknowledged_ms / 1000),
        expires_at=None if subscription.expired_ms else _expires_at(runtime, subscription, lag_ms, now_s),
        expired_at=_iso(subscription.expired_ms / 1000),
        alert_since=state.alerts.since(alert_key(subscription.name)),
    )


def _age_ms(store: SegmentStore, state: PipelineState, number: int, now_s: float) -> int | None:
    """Return the age of the oldest change of a batch; None if the batch is no longer known."""
    record = state.batches.get(number)
    began_us = record.first_commit_time_us if record else 0
    if not began_us:
        try:
            manifest = stored_manifest(store, number, record)
        except SegmentError:
            return None
        began_us = manifest.first_commit_time_us if manifest else 0
    return max(int(now_s * 1000) - began_us // 1000, 0) if began_us else None


def _expires_at(runtime: Runtime, subscription: Subscription, lag_ms: int | None, now_s: float) -> str | None:
    """Return when the subscription expires, once half of its time has passed, else None.

    A file is no older than its changes, so it is only looked at if these are old enough.
    """
    limit_s = kept_s(runtime)
    if not lag_ms or lag_ms / 1000 < limit_s / 2:
        return None
    at_s = runtime.store.written_s(subscription.batch + 1)
    return _iso(at_s + limit_s) if at_s and now_s - at_s >= limit_s / 2 else None


def _iso(at_s: float) -> str | None:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s)) if at_s else None


class Held:
    """The batches that retention has to keep for subscriptions, as of its start."""

    def __init__(self, runtime: Runtime, state: PipelineState) -> None:
        self._state = state
        self._before_s = time.time() - kept_s(runtime)
        self._live = [subscription for subscription in state.subscriptions.all() if not subscription.expired_ms]
        self.expired: list[str] = []

    def keeps(self, batch: int, written_at_s: float) -> bool:
        """Return True if a subscription has not acknowledged the batch and the batch is not too old to be kept for
        it.
        """
        return written_at_s >= self._before_s and any(subscription.batch < batch for subscription in self._live)

    def expire(self, batch: int, *, dry_run: bool) -> None:
        """Expire the subscriptions that have not acknowledged the batch, before it is removed."""
        for subscription in [subscription for subscription in self._live if subscription.batch < batch]:
            if dry_run or self._state.subscriptions.expire(subscription.name, batch, int(time.time() * 1000)):
                self._live.remove(subscription)
                self.expired.append(subscription.name)
                _log.warning(
                    "subscription_expired",
                    subscription=subscription.name,
                    reader=subscription.reader,
                    acknowledged_batch=subscription.batch,
                    dry_run=dry_run,
                )


def delete(runtime: Runtime, name: str, *, by: str, dry_run: bool) -> ActionPlan:
    """Forget a subscription. It holds no batch any more; its client is told, and may make a new one of the same name.

    Raises:
        ConfigError: there is none of that name.
    """
    with runtime.state() as state:
        subscription = state.subscriptions.get(name)
        if subscription is None:
            raise _unknown(runtime, name, [subscription.name for subscription in state.subscriptions.all()])
        if not dry_run:
            state.subscriptions.delete(name)
            state.alerts.clear(alert_key(name))
            state.audit.note(
                by=by,
                what="subscription deleted",
                details={"name": name, "reader": subscription.reader, "batch": subscription.batch},
            )
    return ActionPlan(
        "delete",
        (
            f"subscription {name} of reader {subscription.reader}, which has acknowledged batch {subscription.batch}, "
            "is forgotten",
        ),
    )


def _unknown(runtime: Runtime, name: str, names: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{runtime.name} has no subscription {name!r}{meant(name, names)}",
        hint=f"`sluice subscriptions list {runtime.name}` shows them",
    )
