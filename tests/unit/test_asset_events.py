"""Target tables as Airflow assets: each batch of rows is announced once, under an address without credentials."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.config.connections import Endpoint
from sluice.coordination.announcements import KEPT, Announcements
from sluice.errors import LoadError, StorageUnavailable
from sluice.model.tables import TableId
from sluice.operations.asset_events import uri_of
from sluice.orchestration.assets import announce, outlet
from tests.support.twins.pipes import Pipe, pipe

ORDERS = TableId("shop", "orders")


class Outlets(dict[Any, "Outlets"]):
    """Stands for Airflow's accessors of outlet events."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __missing__(self, key: Any) -> Outlets:
        self[key] = made = Outlets()
        return made

    def add(self, asset: Any, extra: dict[str, Any]) -> None:
        self.events.append((asset.uri, extra))


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Pipe]:
    yield from pipe(tmp_path, "copy", "other")


def told(one: Pipe, target: str = "copy", claim: str = "none") -> list[tuple[str, dict[str, Any]]]:
    context, runtime = {"outlet_events": Outlets()}, one.made.runtime()
    announce(context, runtime, target, claim)
    return context["outlet_events"][outlet(runtime.name, target)].events


def start(one: Pipe) -> None:
    """The first batch of a pipeline: what came before the first run that announces is not told."""
    one.commit(("insert", "a", (1, "x")))
    one.deliver()
    assert told(one) == []


def test_a_run_tells_of_each_table_once_with_its_batches_and_rows(one: Pipe) -> None:
    start(one)
    one.commit(("insert", "a", (2, "y")), ("insert", "a", (3, "y")))
    one.deliver()
    one.commit(("insert", "a", (4, "z")))
    one.deliver()
    [(uri, extra)] = told(one)
    assert uri.endswith("/a")
    assert uri.startswith("memory://")
    assert (extra["first_batch"], extra["last_batch"], extra["rows"]) == (2, 3, 3)
    assert extra["target"] == "copy"
    assert extra["sources"][0].endswith(".a")
    assert extra["committed_at"] is not None
    assert told(one, claim="run-2") == [], "nothing came since"
    assert len(told(one, "other")) == 0, "its first call only notes where it begins"


def test_what_a_target_got_outside_of_a_run_is_told_by_the_next_one(one: Pipe) -> None:
    start(one)
    one.refuse("no", "copy")
    one.commit(("insert", "a", (2, "bad")))
    with pytest.raises(LoadError):
        one.deliver()
    assert told(one) == []
    one.refuse("", "copy")
    one.deliver()
    [(_, extra)] = told(one)
    assert extra["rows"] == 1


def test_what_cannot_be_read_now_is_told_later(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    start(one)
    one.commit(("insert", "a", (2, "y")))
    one.deliver()

    def away(*_: object) -> None:
        raise StorageUnavailable("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr("sluice.operations.asset_events.read_changeset", away)
        assert told(one) == []
    assert len(told(one)) == 1


def test_runs_that_acknowledge_at_the_same_time_share_the_batches(one: Pipe) -> None:
    """Each batch is told by one run, and by that one again if its task is repeated."""
    start(one)
    one.commit(("insert", "a", (2, "y")))
    one.deliver()
    first = told(one, claim="run-1")
    one.commit(("insert", "a", (3, "y")))
    one.deliver()
    second = told(one, claim="run-2")
    assert [event[1]["first_batch"] for event in (*first, *second)] == [2, 3]
    assert told(one, claim="run-1") == first, "its task was repeated"
    one.commit(("insert", "a", (4, "y")))
    one.deliver()
    [(_, extra)] = told(one, claim="run-2")
    assert (extra["first_batch"], extra["last_batch"]) == (3, 4), "its task was repeated, and more was there"


def test_a_run_whose_batches_another_took_meanwhile_looks_again(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice.operations import asset_events

    start(one)
    one.commit(("insert", "a", (2, "y")))
    one.deliver()
    read, others = asset_events.read_changeset, list[Any]()

    def slowly(*wanted: Any) -> Any:
        if not others:
            others.append(None)
            others.append(told(one, claim="run-2"))
        return read(*wanted)

    monkeypatch.setattr(asset_events, "read_changeset", slowly)
    assert told(one, claim="run-1") == []
    assert len(others[1]) == 1


def test_announcements_are_kept_by_target(one: Pipe) -> None:
    with one.made.runtime().state() as state:
        kept: Announcements = state.announcements
        none = kept.read("copy")
        assert none.share("run", None, 9) is None
        assert kept.take("copy", none, "run", (7, 9), 9)
        assert not kept.take("copy", none, "late", (7, 9), 9)
        for number in range(10, 80):
            assert kept.take("copy", kept.read("copy"), f"run-{number}", (number, number), number)
        held = kept.read("copy")
        assert (held.last, list(held.shares)[-1], len(held.shares)) == (79, "run-79", KEPT)
        assert kept.read("other").last is None


ADDRESSES: list[tuple[str, Endpoint, dict[str, Any], str]] = [
    ("mysql", Endpoint("c", "mysql", "db1", None, "u", "p", "x"), {}, "mysql://db1:3306/shop/orders"),
    ("mysql", Endpoint("c", "mysql", "db1", 3307), {}, "mysql://db1:3307/shop/orders"),
    ("postgresql", Endpoint("c", "postgres", "pg", None, "u", "p", "dwh"), {}, "postgres://pg:5432/dwh/shop/orders"),
    ("oracle", Endpoint("c", "oracle", "ora", None, "u", "p", "PDB1"), {}, "oracle://ora:1521/PDB1/shop/orders"),
    ("oracle", Endpoint("c", "oracle", "ora", None, "u", "p", "PDB2"), {}, "oracle://ora:1521/PDB2/shop/orders"),
    ("redis", Endpoint("c", "redis", "r"), {}, "redis://r:6379/shop/orders"),
    ("redis", Endpoint("c", "redis", "r", extra={"db": 2}), {}, "redis://r:6379/2/shop/orders"),
    ("redis", Endpoint("c", "redis", "r"), {"key": "{schema}-{table}:{key}"}, "redis://r:6379/shop-orders%3A"),
    ("rabbitmq", Endpoint("c", "amqp", "q"), {"create": "needed"}, "rabbitmq://q:5672/shop/orders"),
    ("rabbitmq", Endpoint("c", "amqp", "q", schema="a"), {"create": "needed"}, "rabbitmq://q:5672/a/shop/orders"),
    ("clickhouse", Endpoint("c", "http", "https://ch.example.com", 8443), {}, "clickhouse://ch.example.com:8443/shop/orders"),
    ("elasticsearch", Endpoint("c", "http", "es"), {}, "elasticsearch://es:9200/shop/orders"),
    ("elasticsearch", Endpoint("c", "http", "es"), {"index": "a-{schema}.{table}"}, "elasticsearch://es:9200/a-shop.orders"),
    ("mongodb", Endpoint("c", "mongo", "a:1,b:2"), {}, "mongodb://a:1/shop/orders"),
    ("mongodb", Endpoint("c", "mongo", "m"), {"database": "x_{schema}"}, "mongodb://m:27017/x_shop/orders"),
    ("http", Endpoint("c", "http", "https://h.example.com/in/a"), {}, "http://h.example.com/in/a/shop/orders"),
    ("http", Endpoint("c", "http", "https://h.example.com"), {"path": "/b/{table}"}, "http://h.example.com/b/%7Btable%7D/shop/orders"),
]  # fmt: skip


def opened(kind: str, endpoint: Endpoint, options: dict[str, Any]) -> Any:
    from sluice.config.pipeline import TargetConfig
    from sluice.targets.registry import kind_of

    config = TargetConfig.model_validate({"name": "t", "type": kind, "connection": "c", "options": options})
    return kind_of(kind).load()(config, endpoint, "p")


@pytest.mark.parametrize(("kind", "endpoint", "options", "uri"), ADDRESSES, ids=[one[3] for one in ADDRESSES])
def test_each_store_of_a_server_has_an_address_of_its_own(
    kind: str, endpoint: Endpoint, options: dict[str, Any], uri: str
) -> None:
    assert uri_of(kind, endpoint, opened(kind, endpoint, options), ORDERS) == uri


def test_every_kind_says_where_its_tables_are() -> None:
    from sluice.targets.registry import KINDS, kind_of

    assert all(hasattr(kind_of(name).load(), "location_of") for name in KINDS if name != "memory")
    assert uri_of("mystore", Endpoint("c", "", ""), None, ORDERS) == "mystore://localhost/shop/orders"


def test_odd_names_stay_one_part_of_the_address() -> None:
    endpoint = Endpoint("c", "mysql", "db")
    made = uri_of("mysql", endpoint, opened("mysql", endpoint, {}), TableId("a/b", "c d?"))
    assert made == "mysql://db:3306/a%2Fb/c%20d%3F"


def test_lake_tables_and_topics_have_addresses_of_their_own(tmp_path: Path) -> None:
    from sluice.config.pipeline import TargetConfig
    from sluice.targets.registry import kind_of

    lake = TargetConfig.model_validate({
        "name": "lake",
        "type": "delta",
        "connection": "l",
        "options": {"location": f"file://{tmp_path}"},
    })
    made = kind_of("delta").load()(lake, Endpoint("l", "fs", ""), "p")
    assert uri_of("delta", Endpoint("l", "fs", ""), made, ORDERS).startswith("file:///")
    topics = TargetConfig.model_validate({
        "name": "k",
        "type": "kafka",
        "connection": "k",
        "options": {"topic": "cdc.{table}"},
    })
    endpoint = Endpoint("k", "kafka", "k1:9093,k2:9093")
    made = kind_of("kafka").load()(topics, endpoint, "p")
    assert uri_of("kafka", endpoint, made, ORDERS) == "kafka://k1:9093/cdc.orders"
