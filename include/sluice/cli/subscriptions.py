"""``sluice subscriptions``: readers whose place the subscription service keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sluice.cli.console import AsJson, DryRun, Pipeline, Yes, log_to_stderr, open_pipeline, out, planned, print_json
from sluice.cli.service import service

if TYPE_CHECKING:
    from sluice.operations.subscriptions import SubscriptionStatus

subscriptions_app = typer.Typer(no_args_is_help=True, help="Readers whose place the subscription service keeps.")


@subscriptions_app.command(name="list")
def list_subscriptions(pipeline: Pipeline, as_json: AsJson = False) -> None:
    """Show how far each has acknowledged, its lag, and which one will expire."""
    log_to_stderr(False)
    subscriptions = service().subscriptions(pipeline)
    if as_json:
        print_json([subscription.to_json() for subscription in subscriptions])
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("subscription", "reader", "batch", "lag in batches", "lag", "connected", "acknowledged", "state"):
        table.add_column(heading, overflow="fold")
    for subscription in subscriptions:
        numbers = str(subscription.batch), str(subscription.lag_batches), _lag(subscription)
        when = subscription.connected_at or "", subscription.acknowledged_at or ""
        table.add_row(escape(subscription.name), escape(subscription.reader), *numbers, *when, _state(subscription))
    out.print(table)


@subscriptions_app.command()
def delete(
    pipeline: Pipeline,
    name: Annotated[str, typer.Argument(help="Name of the subscription.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Forget a subscription: no batch is kept for it, and its client is told. A new one of this name begins anew."""
    from sluice.operations import control, subscriptions

    log_to_stderr(False)
    runtime = open_pipeline(pipeline)
    planned(lambda dry: subscriptions.delete(runtime, name, by=control.who(), dry_run=dry), dry_run, yes, as_json)


def in_words_of(status: SubscriptionStatus) -> str:
    """Describe a subscription in one line."""
    words = f"{status.name} of {status.reader}: batch {status.batch}, lag {status.lag_batches} batches, {_lag(status)}"
    return ", ".join(filter(None, (words, _state(status))))


def _lag(subscription: SubscriptionStatus) -> str:
    return "?" if subscription.lag_ms is None else f"{subscription.lag_ms / 1000:.1f} s"


def _state(subscription: SubscriptionStatus) -> str:
    if subscription.expired_at:
        return f"expired {subscription.expired_at}"
    return f"expires {subscription.expires_at}" if subscription.expires_at else ""
