"""alert: tell people, once, when a target lags more than ``alert_lag`` or a subscription will expire, and once more
when that is over.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import structlog

from sluice.config.connections import ConnectionResolver, Endpoint
from sluice.config.pipeline import PipelineConfig
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, RetryableError, SluiceError
from sluice.flows.runtime import Runtime
from sluice.operations.status import Status
from sluice.operations.subscriptions import alert_key

_log = structlog.get_logger()

WEBHOOK_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Alert:
    """The lag of a target crossed its limit: ``raised`` upwards, else downwards."""

    pipeline: str
    consumer: str
    raised: bool
    lag_ms: int
    limit_ms: int

    @property
    def text(self) -> str:
        """The alert as one sentence."""
        if not self.raised:
            return f"{self.pipeline}: target {self.consumer} has caught up"
        return (
            f"{self.pipeline}: target {self.consumer} is {self.lag_ms / 1000:.0f} s behind its source, "
            f"more than {self.limit_ms / 1000:g} s; `sluice status {self.pipeline}` shows where it stands"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the body of the message that is sent."""
        return {
            "text": self.text,
            "pipeline": self.pipeline,
            "target": self.consumer,
            "state": "raised" if self.raised else "cleared",
            "lag_ms": self.lag_ms,
            "limit_ms": self.limit_ms,
        }


@dataclass(frozen=True, slots=True)
class ExpiryAlert:
    """A subscription will expire, or has; not ``raised``: that is over."""

    pipeline: str
    subscription: str
    raised: bool
    why: str
    lag_ms: int

    @property
    def consumer(self) -> str:
        """Key of the subscription among the alerts."""
        return alert_key(self.subscription)

    @property
    def text(self) -> str:
        """The alert as one sentence."""
        return f"{self.pipeline}: " + (self.why if self.raised else f"subscription {self.subscription} goes on")

    def to_json(self) -> dict[str, Any]:
        """Return the body of the message that is sent."""
        return {
            "text": self.text,
            "pipeline": self.pipeline,
            "subscription": self.subscription,
            "state": "raised" if self.raised else "cleared",
            "lag_ms": self.lag_ms,
        }


def check_lag(runtime: Runtime, now: Status) -> list[Alert | ExpiryAlert]:
    """Compare every target's lag with ``alert_lag``, and see which subscription will expire.

    Of many callers one gets each alert; it has been told when this returns.

    To a target's limit the time is added for which its batches wait on purpose.
    """
    found: list[Alert | ExpiryAlert] = []
    if runtime.pipeline.alert_lag is None and not any(one.warning or one.alert_since for one in now.subscriptions):
        return found
    with runtime.state() as state:
        found += _lag_alerts(runtime, now, state)
        found += _expiry_alerts(runtime.name, now, state)
    for alert in found:
        if alert.raised:
            _log.error("alert_raised", pipeline=alert.pipeline, target=alert.consumer, reason=alert.text)
        else:
            _log.info("alert_cleared", pipeline=alert.pipeline, target=alert.consumer, reason=alert.text)
        _tell(runtime.pipeline, runtime.resolver, alert)
    return found


def _lag_alerts(runtime: Runtime, now: Status, state: PipelineState) -> Iterator[Alert]:
    limit, waits = runtime.pipeline.alert_lag, runtime.commit_every
    if limit is None:
        return
    for target in now.targets:
        if target.lag_ms is None:
            continue
        limit_ms = int((limit.total_seconds() + waits.get(target.name, 0.0)) * 1000)
        late = target.lag_ms > limit_ms
        if late and state.alerts.raise_(target.name, target.lag_ms):
            yield Alert(runtime.name, target.name, True, target.lag_ms, limit_ms)
        elif not late and target.alert_since and state.alerts.clear(target.name):
            yield Alert(runtime.name, target.name, False, target.lag_ms, limit_ms)


def _expiry_alerts(name: str, now: Status, state: PipelineState) -> Iterator[ExpiryAlert]:
    for one in now.subscriptions:
        key, lag_ms = alert_key(one.name), one.lag_ms or 0
        if one.warning and state.alerts.raise_(key, lag_ms):
            yield ExpiryAlert(name, one.name, True, one.warning, lag_ms)
        elif not one.warning and one.alert_since and state.alerts.clear(key):
            yield ExpiryAlert(name, one.name, False, "", lag_ms)


def _tell(pipeline: PipelineConfig, resolver: ConnectionResolver, alert: Alert | ExpiryAlert) -> None:
    """Send the alert to the webhook, if there is one.

    A webhook that does not answer only gives a log line: delivery continues.
    """
    connection = pipeline.alert_connection
    if connection is None:
        return
    try:
        post(resolver(connection), alert.to_json())
    except SluiceError as error:
        _log.error("alert_send_failed", pipeline=alert.pipeline, target=alert.consumer, error=str(error))


def post(endpoint: Endpoint, body: dict[str, Any]) -> None:
    """Post JSON to a webhook: the connection's schema (http), host, port and ``extra.path``; its password is sent as a
    bearer token.
    """
    host = endpoint.host if "://" in endpoint.host else f"{endpoint.schema or 'http'}://{endpoint.host}"
    if not host.startswith(("http://", "https://")):
        raise ConfigError(
            f"connection {endpoint.connection_id!r} is not a webhook", hint="its schema must be http or https"
        )
    url = f"{host}:{endpoint.port}" if endpoint.port else host
    url += str(endpoint.extra.get("path", "/"))
    headers = {"Content-Type": "application/json"}
    if endpoint.password:
        headers["Authorization"] = f"Bearer {endpoint.password}"
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers, method="POST")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT_S):  # noqa: S310 - the operator's own connection
            pass
    except (urllib.error.URLError, OSError) as error:
        raise RetryableError(
            f"the webhook of connection {endpoint.connection_id!r} does not take alerts: {error}",
            where=endpoint.address,
        ) from None
