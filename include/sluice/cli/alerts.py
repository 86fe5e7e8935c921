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
    for one in alerts["rules"]:
        switched = "on" if one["on"] else f"[yellow]off since {escape(str(one['off_since']))}[/]"
        table.add_row(escape(one["rule"]), switched, _holds(one), escape(one["what"]))
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

    names = [one.value for one in AlertRule]
    if rule not in names:
        raise ConfigError(f"there is no alert rule {rule!r}{meant(rule, names)}", hint=f"there are {', '.join(names)}")
    print_plan(service().act(pipeline, f"alert-{to}", {"rule": rule, "reason": reason}), as_json)


def _holds(one: dict[str, Any]) -> str:
    if one["since"] is None:
        return ""
    names = f": {', '.join(one['names'])}" if one["names"] else ""
    return f"[red]since {escape(str(one['since']))}{escape(names)}[/]"


def _told(found: dict[str, Any]) -> str:
    if not found["watches"]:
        return (
            "[yellow]the pipeline file sets neither alert_connection nor alert_notifiers nor alert_lag: only "
            "subscriptions are watched[/]"
        )
    told = [f"the webhook of {found['tells']}"] if found["tells"] else []
    told += found.get("notifiers", [])
    return f"told: {escape(', '.join(told) or 'the log and the metrics only')}"
