"""``sluice alerts``: the alert rules of a pipeline, as the operator's page shows and switches them."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from sluice.cli.console import AsJson, Pipeline, Reason, out, print_json, print_plan
from sluice.cli.service import service
from sluice.errors import ConfigError

alerts_app = typer.Typer(no_args_is_help=True, help="Alert rules: see which hold, switch one off and on.")

Rule = Annotated[str, typer.Argument(help="Name of the rule, as `sluice alerts list` shows it.")]


@alerts_app.command(name="list")
def list_alerts(pipeline: Pipeline, as_json: AsJson = False) -> None:
    """List the rules: what each watches, whether it is on, and since when it holds."""
    alerts = service().alerts(pipeline)
    if as_json:
        print_json(alerts)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("rule", "switched", "holds", "what it watches"):
        table.add_column(heading, overflow="fold")
    for rule in alerts["rules"]:
        switched = "on" if rule["on"] else f"[yellow]off since {escape(str(rule['off_since']))}[/]"
        table.add_row(escape(rule["rule"]), switched, _holds(rule), escape(rule["what"]))
    out.print(table)
    out.print(_told(alerts))


@alerts_app.command()
def on(pipeline: Pipeline, rule: Rule, reason: Reason = "", as_json: AsJson = False) -> None:
    """Tell people again when a rule holds."""
    _switch(pipeline, rule, "on", reason, as_json)


@alerts_app.command()
def off(pipeline: Pipeline, rule: Rule, reason: Reason = "", as_json: AsJson = False) -> None:
    """Tell nobody when a rule holds, until it is switched on again."""
    _switch(pipeline, rule, "off", reason, as_json)


def _switch(pipeline: str, rule: str, to: str, reason: str, as_json: bool) -> None:
    from sluice.model.nearest import meant
    from sluice.operations.alert_rules import AlertRule

    names = [alert_rule.value for alert_rule in AlertRule]
    if rule not in names:
        raise ConfigError(f"there is no alert rule {rule!r}{meant(rule, names)}", hint=f"there are {', '.join(names)}")
    print_plan(service().act(pipeline, f"alert-{to}", {"rule": rule, "reason": reason}), as_json)


def _holds(rule: dict[str, Any]) -> str:
    if rule["since"] is None:
        return ""
    names = f": {', '.join(rule['names'])}" if rule["names"] else ""
    return f"[red]since {escape(str(rule['since']))}{escape(names)}[/]"


def _told(alerts: dict[str, Any]) -> str:
    if not alerts["watches"]:
        return (
            "[yellow]the pipeline file sets neither alert_connection nor alert_notifiers nor alert_lag: only "
            "subscriptions are watched[/]"
        )
    receivers = [f"the webhook of {alerts['tells']}"] if alerts["tells"] else []
    receivers += alerts.get("notifiers", [])
    return f"told: {escape(', '.join(receivers) or 'the log and the metrics only')}"
