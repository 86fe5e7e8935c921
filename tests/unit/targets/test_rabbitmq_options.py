"""The options and the connection of a RabbitMQ target: what is refused, where messages go, and what it promises."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError, MappingError
from sluice.model.tables import TableId
from sluice.targets.port import Guarantee, Ordering
from sluice.targets.rabbitmq.sender import wanted
from sluice.targets.rabbitmq.target import RabbitMQTarget

ORDERS = TableId("shop", "orders")


def target(
    options: dict[str, Any], extra: dict[str, Any] | None = None, *, kind: str = "rabbitmq", **config: Any
) -> RabbitMQTarget:
    given = {"name": "events", "type": "rabbitmq", "connection": "c", "options": options, **config}
    return RabbitMQTarget(
        TargetConfig.model_validate(given), Endpoint("c", kind, "localhost", extra=extra or {}), "shop:1"
    )


@pytest.mark.parametrize(
    ("options", "config", "said"),
    [
        ({"nope": 1}, {}, r"options.nope: rabbitmq targets have no such option"),
        ({"routing_key": "{key}"}, {}, r"routing_key: {key} is not known"),
        ({"exchange": "{schema"}, {}, r"exchange: expected"),
        ({"routing_key": ""}, {}, r"the default exchange needs a routing_key"),
        ({"stream": "a"}, {}, r"stream goes with send_to: streams"),
        ({"send_to": "streams", "exchange": "a"}, {}, r"exchange goes with send_to: queues"),
        ({"send_to": "streams", "unroutable": "discard"}, {}, r"unroutable goes with send_to: queues"),
        ({"send_to": "streams", "ack_stream": "a.{target}"}, {}, r"ack_stream must have {pipeline}, {target} in it"),
        ({"statements": "{table}"}, {}, r"statements: {table} is not known"),
        ({"format": "canal-json", "schemas": True}, {}, r"schemas goes with format: debezium-json"),
        ({"format": "maxwell-json", "transactions": "t"}, {"changes": "all"}, r"transactions goes with the formats"),
        ({"transactions": "t"}, {"changes": "latest"}, r"options.transactions is for changes: all"),
        ({"max_message_bytes": 1}, {}, r"options.max_message_bytes"),
        ({"confirm_window": 0}, {}, r"options.confirm_window"),
    ],
)
def test_what_is_refused(options: dict[str, Any], config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        target(options, **config)


@pytest.mark.parametrize(
    ("extra", "kind", "said"),
    [
        ({"nope": 1}, "rabbitmq", r"extra has nope, which is not known"),
        ({"stream_port": "x"}, "rabbitmq", r"stream_port 'x' is not the number of a port"),
        ({"ssl": True, "ca": "/nowhere/ca.pem"}, "rabbitmq", r"ca '/nowhere/ca.pem' is not a file"),
        ({}, "redis", r"is of type redis, not rabbitmq"),
    ],
)
def test_connections_that_are_refused(extra: dict[str, Any], kind: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        target({}, extra, kind=kind)


def test_ports_of_both_protocols() -> None:
    assert (target({}).place.port, target({}).place.stream_port) == (5672, 5552)
    encrypted = target({}, {"ssl": True}).place
    assert (encrypted.port, encrypted.stream_port) == (5671, 5551)
    assert encrypted.tls is not None
    assert target({}, kind="amqp").place.vhost == "/"


@pytest.mark.parametrize(
    ("options", "ordering", "guarantee", "needs"),
    [
        ({}, Ordering.TABLE, Guarantee.AT_LEAST_ONCE, {("queue", "shop.orders")}),
        ({"routing_key": "all"}, Ordering.GLOBAL, Guarantee.AT_LEAST_ONCE, {("queue", "all")}),
        ({"exchange": "changes"}, Ordering.GLOBAL, Guarantee.AT_LEAST_ONCE, {("exchange", "changes")}),
        ({"exchange": "{schema}"}, Ordering.TABLE, Guarantee.AT_LEAST_ONCE, {("exchange", "shop")}),
        ({"exchange": "{schema}", "statements": "ddl"}, Ordering.TABLE, Guarantee.AT_LEAST_ONCE,
            {("exchange", "shop"), ("queue", "ddl")}),
        ({"send_to": "streams"}, Ordering.TABLE, Guarantee.IDEMPOTENT, {("stream", "shop.orders")}),
        ({"send_to": "streams", "stream": "{pipeline}"}, Ordering.GLOBAL, Guarantee.IDEMPOTENT, {("stream", "shop:1")}),
        (
            {"send_to": "streams", "transactions": "tx", "statements": "ddl"},
            Ordering.TABLE,
            Guarantee.IDEMPOTENT,
            {("stream", "shop.orders"), ("stream", "tx"), ("stream", "ddl")},
        ),
    ],
)  # fmt: skip
def test_order_guarantee_and_what_has_to_be_there(
    options: dict[str, Any], ordering: Ordering, guarantee: Guarantee, needs: set[tuple[str, str]]
) -> None:
    made = target(options, changes="all")
    assert made.capabilities.ordering == {ordering}
    assert made.capabilities.guarantee is guarantee
    assert (made.checkpoints is not None) == (guarantee is Guarantee.IDEMPOTENT)
    assert set(wanted(made.place, [ORDERS])) == needs


def test_names_are_within_the_protocols_limits() -> None:
    streams = target({"send_to": "streams"}).place
    assert streams.route_of(TableId("läden", "a%b")) == "l%C3%A4den.a%25b"  # the client counts characters as bytes
    assert target({}).place.route_of(TableId("läden", "a%b")) == "läden.a%b"
    assert streams.publisher() == "sluice/shop%3A1.events"
    long = streams.publisher("r" * 400)
    assert len(long) <= 255
    assert long != streams.publisher("r" * 401)
    with pytest.raises(MappingError, match=r"the stream .*… is longer than 255 bytes"):
        streams.route_of(TableId("s", "ä" * 60))


def test_the_placeholder_of_a_text_that_the_log_lacks_is_an_option() -> None:
    form = target({"schemas": True, "unavailable_value_placeholder": "unknown"}, changes="all").options.form
    assert form.has_schemas
    assert form.unavailable_value_placeholder == "unknown"
