"""The alert rules of a pipeline: what each watches, whether people switched it off, and since when it holds.

They are recorded among the alerts in ZooKeeper: ``rule:NAME`` since a rule holds, ``off:NAME`` since it is switched
off.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sluice.coordination.alerts import OFF
from sluice.errors import ConfigError
from sluice.model.alert_rule import AlertRule

if TYPE_CHECKING:
    from sluice.config.pipeline import NotifierConfig, PipelineConfig
    from sluice.coordination.state import PipelineState


MEANINGS: dict[AlertRule, str] = {
    AlertRule.STOPPED: "The pipeline stands still until a person acts, or has failed three times in a row",
    AlertRule.LAG: "A target lags more than alert_lag",
    AlertRule.DEAD_LETTERS: "Dead letters wait",
    AlertRule.DIFFERENCES: "The last verification found differences",
    AlertRule.AT_RISK: "Half of the source's retention has passed for log that is not captured, or the disk of the "
    "segment store is nearly full",
    AlertRule.SUBSCRIPTION: "A subscription is about to expire",
}

WAYS_ON: dict[AlertRule, str] = {
    AlertRule.STOPPED: "Run what the text says after its arrow; look up the error that it names",
    AlertRule.LAG: "`sluice status PIPELINE` shows which stage is slow or stands",
    AlertRule.DEAD_LETTERS: "`sluice dead-letters list PIPELINE`; mend the cause, then replay or discard them",
    AlertRule.DIFFERENCES: "`sluice verify PIPELINE --repair` copies what differs",
    AlertRule.AT_RISK: "`sluice status PIPELINE` says what holds it; keep the log for longer, or free the disk",
    AlertRule.SUBSCRIPTION: "Start its reader; one that has expired begins anew with the snapshot",
}
"""What a person does when a rule holds."""


def rule_key(rule: AlertRule) -> str:
    """Return the key under which a rule's alert is recorded, as a target's is under its name."""
    return f"rule:{rule}"


def off_key(rule: AlertRule) -> str:
    """Return the key under which it is recorded that a rule is switched off."""
    return f"{OFF}{rule}"


def switched_off(recorded: Mapping[str, str]) -> dict[str, str]:
    """Return rule -> since when it is switched off. ``recorded``: key -> since."""
    return {rule.value: recorded[off_key(rule)] for rule in AlertRule if off_key(rule) in recorded}


def holding(recorded: Mapping[str, str]) -> dict[str, str]:
    """Return rule -> since when it holds, of the rules that watch the pipeline as a whole."""
    return {rule.value: recorded[rule_key(rule)] for rule in AlertRule if rule_key(rule) in recorded}


def listed(pipeline: PipelineConfig, state: PipelineState) -> dict[str, Any]:
    """Return the rules for a page: what each watches, whether it is on, since when it holds and for what.

    ``tells``: the connection of the webhook, or "". ``notifiers``: classes of Airflow's notifiers that are told.
    Without both, alerts are in the log and the metrics only. ``watches`` False: neither ``alert_lag`` nor
    ``alert_connection`` nor ``alert_notifiers`` is set, so only subscriptions are watched.
    """
    from sluice.operations.subscriptions import alert_key

    recorded = state.alerts.all()
    off, prefix = switched_off(recorded), alert_key("")
    each = {  # raised for each target or subscription, under its own key
        AlertRule.LAG: {key: since for key, since in recorded.items() if ":" not in key},
        AlertRule.SUBSCRIPTION: {
            key.removeprefix(prefix): since for key, since in recorded.items() if key.startswith(prefix)
        },
    }
    rules = []
    for rule in AlertRule:
        since_by_name = each.get(rule, {})
        since = min(since_by_name.values(), default=None) if rule in each else recorded.get(rule_key(rule))
        rules.append({
            "rule": rule.value,
            "what": MEANINGS[rule],
            "on": rule.value not in off,
            "off_since": off.get(rule.value),
            "since": since,
            "names": sorted(since_by_name),
        })
    limit = pipeline.alert_lag
    return {
        "rules": rules,
        "tells": pipeline.alert_connection or "",
        "notifiers": notifier_names(pipeline),
        "limit_s": limit.total_seconds() if limit is not None else None,
        "watches": watches(pipeline),
    }


def watches(pipeline: PipelineConfig) -> bool:
    """Return True if the pipeline file asks for alerts."""
    return pipeline.alert_lag is not None or pipeline.alert_connection is not None or bool(pipeline.alert_notifiers)


def receivers(pipeline: PipelineConfig) -> list[str]:
    """Return who is told of an alert besides the log, in words."""
    webhook = [f"the webhook of {pipeline.alert_connection}"] if pipeline.alert_connection else []
    return webhook + notifier_names(pipeline)


def notifier_names(pipeline: PipelineConfig) -> list[str]:
    """Return the names of the notifiers' classes, without their modules."""
    return [notifier.class_.rpartition(".")[2] for notifier in pipeline.alert_notifiers]


def notifier_class(config: NotifierConfig) -> Any:
    """Return the class of a notifier, imported by its name. Raises ConfigError if there is none."""
    module, _, name = config.class_.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"there is no notifier {config.class_}: {error}",
            where="alert_notifiers",
            hint="install its provider for Airflow's workers and triggerer, or correct class in the pipeline file",
        ) from None


def switch(state: PipelineState, rule: AlertRule, *, on: bool, by: str, reason: str = "") -> list[str]:
    """Switch a rule on or off; returns what was done. Off, nobody is told of it until it is switched on again."""
    changed = state.alerts.clear(off_key(rule)) if on else state.alerts.raise_(off_key(rule), 0)
    word = "on" if on else "off"
    if changed:
        state.audit.note(by=by, what=f"alert {word}", details={"rule": rule.value, "reason": reason})
    return [f"alert {rule.value} is {word}" if changed else f"it was {word} before"]
