"""What retention keeps for named subscriptions, what operators learn of them, and when one has expired; on a pipeline
without servers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from sluice.config.pipeline import SubscriptionsConfig
from sluice.coordination.subscriptions import Subscription
from sluice.errors import ConfigError, Fenced, SubscriptionOver
from sluice.operations.alerts import check_lag
from sluice.operations.metrics import gauges, samples
from sluice.operations.retention import prune
from sluice.operations.status import status
from tests.support.twins.pipes import Pipe, pipe


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Pipe]:
    """Batches 1 to 3 are delivered, and old enough to go."""
    for made in pipe(tmp_path, "copy", capture={"segments": {"retain": "0s", "uri": f"file://{tmp_path}/store"}}):
        for number in (1, 2, 3):
            made.commit(("insert", "a", (number, "x")))
            made.deliver()
        yield made


def expire(one: Pipe, span: timedelta) -> None:
    config = one.made.case.config
    one.made.case.config = config.model_copy(update={"subscriptions": SubscriptionsConfig(expire=span)})


def subscribed(one: Pipe, name: str = "reporting", at: int = 0) -> Subscription:
    with one.made.runtime().state() as state:
        made = state.subscriptions.connect(name, "anna", None, at, 1_790_000_000_000)
    assert made
    return made


def acknowledge(one: Pipe, held: Subscription, batch: int) -> None:
    with one.made.runtime().state() as state:
        state.subscriptions.acknowledge(held, batch, 1_790_000_001_000)


def test_batches_stay_until_every_live_subscription_has_acknowledged_them(one: Pipe) -> None:
    slow, quick = subscribed(one), subscribed(one, "quick")
    acknowledge(one, quick, 3)
    assert prune(one.made.runtime()).removed == ()
    acknowledge(one, slow, 2)
    assert prune(one.made.runtime(), dry_run=True).removed == (1, 2)
    assert prune(one.made.runtime()).to_json()["removed"] == [1, 2]
    acknowledge(one, slow, 3)
    assert prune(one.made.runtime()).removed == (3,)
    assert [s.expired_at for s in status(one.made.runtime()).subscriptions] == [None, None]


def test_an_abandoned_subscription_expires_and_holds_nothing_back(one: Pipe) -> None:
    held, current = subscribed(one, at=1), subscribed(one, "current", at=3)
    expire(one, timedelta(0))
    dry = prune(one.made.runtime(), dry_run=True)
    assert (dry.removed, dry.expired) == ((1, 2, 3), ("reporting",))
    with one.made.runtime().state() as state:
        assert state.subscriptions.usable("reporting", "anna")
    done = prune(one.made.runtime())
    assert (done.removed, done.expired) == ((1, 2, 3), ("reporting",))
    with one.made.runtime().state() as state:
        for use in (
            lambda: state.subscriptions.usable("reporting", "anna"),
            lambda: state.subscriptions.acknowledge(held, 2, 5),
        ):
            with pytest.raises(SubscriptionOver, match="batches after 1 were removed"):
                use()
        assert state.subscriptions.require(current).batch == 3
    one.commit(("insert", "a", (4, "x")))
    one.deliver()
    expire(one, timedelta(days=7))
    assert prune(one.made.runtime()).removed == ()  # the other one lacks it
    acknowledge(one, current, 4)
    assert prune(one.made.runtime()).removed == (4,)  # what has expired holds nothing back


def test_status_metrics_and_alerts_tell_of_the_lag_and_warn_before_the_end(one: Pipe) -> None:
    held = subscribed(one)
    acknowledge(one, held, 1)
    now = status(one.made.runtime())
    [seen] = now.subscriptions
    assert (seen.reader, seen.batch, seen.lag_batches, seen.warning) == ("anna", 1, 2, "")
    assert seen.lag_ms is not None
    assert seen.connected_at == "2026-09-21T14:13:20Z"
    assert json.loads(json.dumps(now.to_json(), default=str))["subscriptions"][0]["lag_batches"] == 2
    base = f"sluice.{now.pipeline}.subscriptions.reporting"
    found = gauges(samples(now))
    assert (found[f"{base}.lag_batches"], found[f"{base}.alert"]) == (2.0, 0.0)
    assert found[f"{base}.lag_seconds"] == seen.lag_ms / 1000
    assert check_lag(one.made.runtime(), now) == []
    expire(one, timedelta(0))
    late = status(one.made.runtime())
    assert "has not acknowledged batch 2 and expires at" in " ".join(late.warnings)
    assert gauges(samples(late))[f"{base}.alert"] == 1.0
    assert [alert.raised for alert in check_lag(one.made.runtime(), late)] == [True]
    assert check_lag(one.made.runtime(), late) == []
    acknowledge(one, held, 3)
    over = status(one.made.runtime())
    assert (over.subscriptions[0].lag_batches, over.subscriptions[0].lag_ms) == (0, 0)
    assert "reporting" not in " ".join(over.warnings)
    [alert] = check_lag(one.made.runtime(), over)
    assert (alert.to_json()["state"], alert.to_json()["subscription"]) == ("cleared", "reporting")


def test_the_commands_list_and_delete(one: Pipe) -> None:
    held = subscribed(one)
    acknowledge(one, held, 2)
    assert "reporting of anna: batch 2, lag 1 batches, " in one.sluice("status", "x")
    [row] = json.loads(one.sluice("subscriptions", "list", "x", "--json"))
    assert (row["name"], row["reader"], row["batch"], row["lag_batches"]) == ("reporting", "anna", 2, 1)
    assert "reporting" in one.sluice("subscriptions", "list", "x")
    assert "is forgotten" in one.sluice("subscriptions", "delete", "x", "reporting", "--dry-run")
    with pytest.raises(ConfigError, match="no subscription 'reportin'"):
        one.sluice("subscriptions", "delete", "x", "reportin", "--yes")
    one.sluice("subscriptions", "delete", "x", "reporting", "--yes")
    assert json.loads(one.sluice("subscriptions", "list", "x", "--json")) == []
    with one.made.runtime().state() as state, pytest.raises(Fenced, match="was deleted"):
        state.subscriptions.acknowledge(held, 3, 5)
    assert "subscription deleted" in one.sluice("audit", "x", "--json")
    assert prune(one.made.runtime()).removed == (1, 2, 3)
