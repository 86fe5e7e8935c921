"""A message that Kafka refuses is named, although the client's next call fails before the refusal is reported."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException

from sluice.config.connections import Endpoint
from sluice.errors import LoadError, TargetUnavailable
from sluice.targets.kafka.client import errors
from sluice.targets.kafka.transactions import Channel, Failure


class Refusing:
    """A producer whose transaction has failed: calls say so, and the reason comes with the next poll."""

    def __init__(self, failure: Failure, reason: int | None) -> None:
        self.failure, self.reason = failure, reason
        self.aborted = False

    def begin_transaction(self) -> None:
        """Begin one."""

    def produce(self, topic: str, **message: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._STATE, "Unable to produce message: Local: Erroneous state"))

    def poll(self, wait_s: float) -> int:
        if self.reason is not None:
            message = SimpleNamespace(topic=lambda: "shop.orders", key=lambda: b'{"id":7}')
            self.failure.note(KafkaError(self.reason), message)
        return 0

    def purge(self) -> None:
        self.reason = None

    def abort_transaction(self, timeout_s: float) -> None:
        self.aborted = True


def channel(reason: int | None) -> Channel:
    made: Any = object.__new__(Channel)
    endpoint = Endpoint("events", "kafka", "", extra={"bootstrap.servers": "localhost:9"})
    made.place = SimpleNamespace(owner="case.kafka", endpoint=endpoint, ack_topic="_ack", key=b"k", timeout_s=5.0)
    made.failure, made.usable, made.hidden = Failure(), True, set()
    made.producer = Refusing(made.failure, reason)
    return made  # type: ignore[no-any-return]


def test_the_refused_message_is_named_and_not_the_call_that_came_after_it() -> None:
    made = channel(KafkaError.MSG_SIZE_TOO_LARGE)
    with pytest.raises(LoadError, match=r"shop\.orders, key .*7.*max\.message\.bytes") as raised:
        made.commit(None, lambda: made.producer.produce("shop.orders"))
    assert "Erroneous state" not in str(raised.value)
    assert made.producer.aborted


def test_without_a_refused_message_the_call_itself_is_named() -> None:
    made = channel(None)
    with pytest.raises(TargetUnavailable, match="Erroneous state"):
        made.commit(None, lambda: made.producer.produce("shop.orders"))


def test_an_answer_that_does_not_come_is_tried_again() -> None:
    """The futures of the admin client raise Python's own error."""
    never: Future[None] = Future()
    endpoint = Endpoint("events", "kafka", "", extra={"bootstrap.servers": "localhost:9"})
    with (
        pytest.raises(TargetUnavailable, match="making the topic t: no answer"),
        errors(endpoint, "making the topic t"),
    ):
        never.result(0)
