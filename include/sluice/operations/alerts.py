"""alert: tell people, once, when an alert rule holds (:mod:`sluice.operations.alert_rules`), and once more when that is
over.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import structlog

from sluice.config.connections import ConnectionResolver, Endpoint
from sluice.config.pipeline import NotifierConfig, PipelineConfig
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, Fault, RetryableError, SluiceError
from sluice.flows.runtime import Runtime
from sluice.model.alert_rule import AlertRule
from sluice.model.sizes import in_units
from sluice.operations.alert_rules import rule_key, watches
from sluice.operations.retention import DISK
from sluice.operations.status import Status
from sluice.operations.subscriptions import alert_key

_log = structlog.get_logger()

WEBHOOK_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Alert:
    """The lag of a target crossed its limit: ``raised`` upwards, else downwards."""

    rule: ClassVar = AlertRule.LAG
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
            "name": self.rule.public_name,
            "pipeline": self.pipeline,
            "target": self.consumer,
            "state": "raised" if self.raised else "cleared",
            "lag_ms": self.lag_ms,
            "limit_ms": self.limit_ms,
        }


@dataclass(frozen=True, slots=True)
class ExpiryAlert:
    """A subscription will expire, or has; not ``raised``: that is over."""

    rule: ClassVar = AlertRule.SUBSCRIPTION
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
            "name": self.rule.public_name,
            "pipeline": self.pipeline,
            "subscription": self.subscription,
            "state": "raised" if self.raised else "cleared",
            "lag_ms": self.lag_ms,
        }


@dataclass(frozen=True, slots=True)
class RuleAlert:
    """A rule that watches the pipeline as a whole holds; not ``raised``: that is over."""

    pipeline: str
    rule: AlertRule
    raised: bool
    why: str

    @property
    def consumer(self) -> str:
        """Key of the rule among the alerts."""
        return rule_key(self.rule)

    @property
    def text(self) -> str:
        """The alert as one sentence."""
        return f"{self.pipeline}: " + (self.why if self.raised else _OVER[self.rule])

    def to_json(self) -> dict[str, Any]:
        """Return the body of the message that is sent."""
        return {
            "text": self.text,
            "name": self.rule.public_name,
            "pipeline": self.pipeline,
            "rule": self.rule.value,
            "state": "raised" if self.raised else "cleared",
        }


_OVER = {
    AlertRule.STOPPED: "it goes on",
    AlertRule.DEAD_LETTERS: "no dead letter waits any more",
    AlertRule.DIFFERENCES: "the last verification found no differences",
    AlertRule.AT_RISK: "neither the source's retention nor the disk of the segment store is at risk any more",
}

AnyAlert = Alert | ExpiryAlert | RuleAlert

_MANY_ATTEMPTS = 3
"""Failures in a row after which a pipeline counts as stopped, although the next attempt may succeed."""


Notify = Callable[[Sequence[NotifierConfig], AnyAlert], None]
"""Tells these notifiers of Airflow of an alert; an error of one is its own matter."""


def check_lag(runtime: Runtime, now: Status, notify: Notify | None = None) -> list[AnyAlert]:
    """Compare every target's lag with ``alert_lag``, see which subscription will expire, and which alert rules hold.

    Of many callers one gets each alert; it has been told when this returns. A rule that is switched off alerts nobody.

    To a target's limit the time is added for which its batches wait on purpose. ``notify``: None outside of Airflow,
    which has the notifiers.
    """
    lag: list[AnyAlert] = []
    any_alerts = any(subscription.warning or subscription.alert_since for subscription in now.subscriptions)
    if not watches(runtime.pipeline) and not any_alerts and not now.alerts:
        return lag
    with runtime.state() as state:
        if AlertRule.LAG in now.alerts_off:
            _forget(state, [target.name for target in now.targets if target.alert_since])
        else:
            lag += _lag_alerts(runtime, now, state)
        if AlertRule.SUBSCRIPTION in now.alerts_off:
            _forget(
                state, [alert_key(subscription.name) for subscription in now.subscriptions if subscription.alert_since]
            )
        else:
            lag += _expiry_alerts(runtime.name, now, state)
        lag += _rule_alerts(runtime, now, state)
    for alert in lag:
        if alert.raised:
            _log.error(
                "alert_raised",
                pipeline=alert.pipeline,
                target=alert.consumer,
                name=alert.rule.public_name,
                reason=alert.text,
            )
        else:
            _log.info(
                "alert_cleared",
                pipeline=alert.pipeline,
                target=alert.consumer,
                name=alert.rule.public_name,
                reason=alert.text,
            )
        _tell(runtime.pipeline, runtime.resolver, alert)
        _notify(runtime.pipeline, alert, notify)
    return lag


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


def _forget(state: PipelineState, keys: list[str]) -> None:
    """Clear alerts of a rule that was switched off while it held, and tell nobody."""
    for key in keys:
        state.alerts.clear(key)


def held(now: Status) -> dict[AlertRule, str | None]:
    """Return what each rule that watches the pipeline as a whole says of a status: why it holds, or None.

    A rule is absent while what it watches is not known, for example as the segment store does not answer.
    """
    if now.state in {"unreachable", "not_configured"}:
        return {}
    reasons: dict[AlertRule, str | None] = {AlertRule.STOPPED: _stopped(now)}
    if any(silence.part == "store" for silence in now.no_answer) or now.errors:
        return reasons
    waiting = f"dead letters wait: {now.dead_letters}; `sluice dead-letters list {now.pipeline}` shows them"
    reasons[AlertRule.DEAD_LETTERS] = waiting if now.dead_letters else None
    differ = (now.verification or {}).get("outcome") == "different"
    reasons[AlertRule.DIFFERENCES] = f"the last verification found differences: {now.verified}" if differ else None
    reasons[AlertRule.AT_RISK] = _at_risk(now)
    return reasons


def _stopped(now: Status) -> str | None:
    if now.state == "stopped":
        return f"it is stopped: {now.errors[0] if now.errors else 'a target and the store of positions do not agree'}"
    stuck = [
        failure for failure in now.failures if failure.fault != Fault.PASSING or failure.attempts >= _MANY_ATTEMPTS
    ]
    return f"it stands still: {stuck[0]}: {stuck[0].error}" if stuck else None


def _at_risk(now: Status) -> str | None:
    kept_s, left_s = now.retention_s, now.purge_horizon_s
    if kept_s is not None and left_s is not None and left_s < kept_s / 2:
        return f"the source may remove log that is not captured in {left_s / 3600:.1f} hours"
    if now.retained_at_risk:
        remaining = f" in {in_units(now.retained_left_bytes)} of log" if now.retained_left_bytes is not None else ""
        return f"the source keeps {in_units(now.retained_bytes or 0)} of log for the slot, and gives it up{remaining}"
    return next((text for text in now.warnings if DISK in text), None)


def _rule_alerts(runtime: Runtime, now: Status, state: PipelineState) -> Iterator[RuleAlert]:
    is_watched = watches(runtime.pipeline)
    for rule, why in held(now).items():
        off = rule in now.alerts_off or not is_watched
        if why is not None and not off and rule not in now.alerts:
            if state.alerts.raise_(rule_key(rule), 0):
                yield RuleAlert(runtime.name, rule, True, why)
        elif rule in now.alerts and (why is None or off) and state.alerts.clear(rule_key(rule)) and not off:
            yield RuleAlert(runtime.name, rule, False, "")


def _expiry_alerts(name: str, now: Status, state: PipelineState) -> Iterator[ExpiryAlert]:
    for subscription in now.subscriptions:
        key, lag_ms = alert_key(subscription.name), subscription.lag_ms or 0
        if subscription.warning and state.alerts.raise_(key, lag_ms):
            yield ExpiryAlert(name, subscription.name, True, subscription.warning, lag_ms)
        elif not subscription.warning and subscription.alert_since and state.alerts.clear(key):
            yield ExpiryAlert(name, subscription.name, False, "", lag_ms)


def _tell(pipeline: PipelineConfig, resolver: ConnectionResolver, alert: AnyAlert) -> None:
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


def _notify(pipeline: PipelineConfig, alert: AnyAlert, notify: Notify | None) -> None:
    if not pipeline.alert_notifiers:
        return
    if notify is None:
        _log.error("alert_send_failed", pipeline=alert.pipeline, target=alert.consumer, error=NEEDS_AIRFLOW)
        return
    notify(pipeline.alert_notifiers, alert)


def warn_without_airflow(pipeline: PipelineConfig) -> None:
    """Log that a process without Airflow tells nobody of alerts, if the pipeline file names notifiers."""
    if pipeline.alert_notifiers:
        _log.warning("notifiers_unavailable", pipeline=pipeline.pipeline, reason=NEEDS_AIRFLOW)


NEEDS_AIRFLOW = (
    "alert_notifiers are Airflow's notifiers, and only tasks and the triggerer of Airflow send alerts by them; without "
    "Airflow, let Prometheus alert by docs/monitoring/alerts.yaml"
)


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
