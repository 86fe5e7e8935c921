"""The actions of people on a pipeline, by name: one table for the command line, the page and the control DAG.

An order has the fields of an action, as the API names them (:mod:`sluice.orchestration.page.orders`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sluice.flows.runtime import Runtime
from sluice.operations import control, target_switch
from sluice.operations.adopt import adopt
from sluice.operations.alert_rules import AlertRule
from sluice.operations.alert_rules import switch as switch_rule
from sluice.operations.channel import leave
from sluice.operations.control import ActionPlan


def act(runtime: Runtime, action: str, order: Mapping[str, Any], *, by: str, dry_run: bool = False) -> ActionPlan:
    """Carry an action out. ``dry_run``: only say what it would do, which some actions cannot.

    Raises KeyError for a name that is not in the table, else what the action raises.
    """
    return _ACTIONS[action](runtime, order, by, dry_run)


def _pause(runtime: Runtime, order: Mapping[str, Any], by: str, dry_run: bool) -> ActionPlan:
    return control.pause(runtime, by=by, reason=order["reason"])


def _resume(runtime: Runtime, order: Mapping[str, Any], by: str, dry_run: bool) -> ActionPlan:
    return control.resume(runtime, by=by)


def _restart(runtime: Runtime, order: Mapping[str, Any], by: str, dry_run: bool) -> ActionPlan:
    return control.restart(runtime, by=by, reason=order["reason"], grace_s=order["grace_s"])


def _rollback(runtime: Runtime, order: Mapping[str, Any], by: str, dry_run: bool) -> ActionPlan:
    return control.rollback(runtime, by=by, dry_run=dry_run)


def _skip(runtime: Runtime, order: Mapping[str, Any], by: str, dry_run: bool) -> ActionPlan:
    more = {"reason": order["reason"], "lost": order["lost"]}
    return control.skip(runtime, order["target"], order["batch"], by=by, dry_run=dry_run, **more)


def _redeliver(runtime: Runtime, order: Mapping[str, Any], by: str, dry_run: bool) -> ActionPlan:
    return control.redeliver(runtime, order["target"], by=by, dry_run=dry_run, from_batch=order["from_batch"])


def _seek(runtime: Runtime, order: Mapping[str, Any], by: str, dry_run: bool) -> ActionPlan:
    return control.seek(runtime, order["to"], by=by, dry_run=dry_run, drop=order["drop"])


def _failover(runtime: Runtime, order: Mapping[str, Any], by: str, dry_run: bool) -> ActionPlan:
    return control.failover(runtime, order["to"], by=by, reason=order["reason"], dry_run=dry_run)


def _switch_target(runtime: Runtime, order: Mapping[str, Any], by: str, dry_run: bool) -> ActionPlan:
    how = {"by": by, "reason": order["reason"], "dry_run": dry_run, "rewind": order["rewind"]}
    return target_switch.switch(runtime, order["target"], order["to"], **how)


def _adopt(runtime: Runtime, order: Mapping[str, Any], by: str, dry_run: bool) -> ActionPlan:
    from_target = order["side"] == "target"
    return adopt(runtime, order["target"], from_target=from_target, by=by, reason=order["reason"], dry_run=dry_run)


def _leave(runtime: Runtime, order: Mapping[str, Any], by: str, dry_run: bool) -> ActionPlan:
    leave(runtime, by=by)
    return ActionPlan("leave", (f"{runtime.name} works without a channel",))


def _switch_alert(on: bool, runtime: Runtime, order: Mapping[str, Any], by: str, dry_run: bool) -> ActionPlan:
    with runtime.state() as state:
        steps = switch_rule(state, AlertRule(order["rule"]), on=on, by=by, reason=order["reason"])
    return ActionPlan("alert", tuple(steps))


_ACTIONS: dict[str, Callable[[Runtime, Mapping[str, Any], str, bool], ActionPlan]] = {
    "pause": _pause,
    "resume": _resume,
    "restart": _restart,
    "rollback": _rollback,
    "skip": _skip,
    "redeliver": _redeliver,
    "seek": _seek,
    "failover": _failover,
    "switch-target": _switch_target,
    "adopt": _adopt,
    "channel-leave": _leave,
    "alert-on": partial(_switch_alert, True),
    "alert-off": partial(_switch_alert, False),
}
"""Name -> (runtime, order, who, only say) -> what was done."""


__all__ = ["act"]
