"""``sluice alerts``: the alert rules of a pipeline, as the operator's page shows and switches them."""

from __future__ import annotations

from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from sluice.cli.console import AsJson, Pipeline, out, print_json
from sluice.cli.service import service

alerts_app = typer.Typer(no_args_is_help=True, help="Alert rules: see which hold, switch one off and on.")


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
