"""The loading process killed in mid-batch, an old one that comes back, the broker killed in mid-load.

A stream has each change once; a queue has each at least once, in order.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import RetryableError
from sluice.testing.targets import Pipe, new
from tests.support.crashes import calls
from tests.support.crashes.deaths import (
    EXPECTED,
    SECOND,
    an_old_writer_comes_back,
    first_delivered,
    killed_at_every_call,
)
from tests.support.crashes.strikes import children, twice_arrived

pytest.importorskip("pika")
pytest.importorskip("rstream")

from devstack.rabbitmq import RabbitMQServer, find_rabbitmq
from sluice.targets.rabbitmq.client import AmqpClient
from sluice.targets.rabbitmq.stream_client import _Publisher
from tests.support.benches.rabbitmq_bench import RabbitMQBench

children.set_forkserver_preload(["tests.support.crashes.calls", "tests.support.benches.rabbitmq_bench"])
STREAMS = {"send_to": "streams", "confirm_window": 2}


def delivered(server: Any, options: dict[str, Any] = STREAMS) -> tuple[RabbitMQBench, Any, Pipe, Any]:
    """A bench whose first batch is delivered, and the second batch."""
    bench = RabbitMQBench(server, "all", options)
    table, pipe = first_delivered(bench)
    return bench, table, pipe, pipe.given([(table, SECOND)])


def test_a_loader_that_is_killed_at_every_call(rabbitmq: Any) -> None:
    """Windows of two messages: some deaths are between messages of the batch."""
    killed_at_every_call(calls.rabbitmq, lambda: RabbitMQBench(rabbitmq, "all", STREAMS), 4, sides=1)


def test_an_old_loader_that_comes_back(rabbitmq: Any) -> None:
    """It publishes the rest of the batch then, and nothing changes."""
    an_old_writer_comes_back(calls.frames_of_rabbitmq, lambda: RabbitMQBench(rabbitmq, "all", STREAMS), 0, 1)


def test_a_queue_gets_a_batch_again_in_order(rabbitmq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load that ends after some messages of a batch: the next attempt sends all of it, with the same ids."""
    bench, table, pipe, batch = delivered(rabbitmq, {"exchange": "changes", "confirm_window": 2})
    publish, sent = AmqpClient.publish, []

    def breaks(client: AmqpClient, one: Any) -> None:
        if len(sent) == 3:
            raise RetryableError("cut")
        sent.append(one.id)
        publish(client, one)

    monkeypatch.setattr(AmqpClient, "publish", breaks)
    with pytest.raises(RetryableError, match="cut"):
        pipe.write(batch)
    monkeypatch.undo()
    pipe.write(batch)
    ids = [one.id for one in bench.received()]
    assert set(twice_arrived(bench)) <= set(sent)
    assert twice_arrived(bench), "nothing of the first attempt arrived"
    assert list(dict.fromkeys(ids)) == sorted(set(ids), key=_place), "out of order"
    assert pipe.state(table) == EXPECTED


def _place(message_id: str) -> tuple[int, int]:
    _, batch, number, _ = message_id.rsplit("/", 3)
    return int(batch), int(number)


@pytest.mark.parametrize("kind", ["stream", "queue"])
def test_the_broker_is_killed_in_mid_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """It dies while windows of a batch are under way; then it starts again on its data, and the batch is sent again."""
    options = {**(STREAMS if kind == "stream" else {"exchange": "changes"}), "confirm_window": 100, "timeout": "20s"}
    with RabbitMQServer(tmp_path / "server", program=find_rabbitmq(), password="s3cret-of-one") as server:
        bench, table, pipe, second = delivered(server, options)
        pipe.write(second)
        time.sleep(2)  # the broker has noted a new queue on its disk by then
        rows = [(100 + n, "n", n) for n in range(1_000)]
        batch = pipe.given([(table, [new(*row) for row in rows])])
        settle, flush, looks = _Publisher.settle, AmqpClient._on_confirm, []

        def struck() -> None:
            looks.append(kind)
            if len(looks) == 4:
                server.kill()

        async def settled(publisher: Any, most: int) -> None:
            struck()
            await settle(publisher, most)

        def confirmed(client: Any, frame: Any) -> None:
            struck()
            flush(client, frame)

        monkeypatch.setattr(_Publisher, "settle", settled)
        monkeypatch.setattr(AmqpClient, "_on_confirm", confirmed)
        with pytest.raises(RetryableError):
            pipe.write(batch)
        monkeypatch.undo()
        assert not server.running
        server.start()
        pipe.epoch += 1
        _until_delivered(pipe, batch)
        ids = [one.id for one in bench.received()]
        assert list(dict.fromkeys(ids)) == sorted(set(ids), key=_place), "out of order"
        assert pipe.state(table) == EXPECTED + Counter(rows)
        assert bench.streams == (not twice_arrived(bench)), "a queue has some twice, a stream none"


def _until_delivered(pipe: Pipe, batch: Any) -> None:
    end = time.monotonic() + 240
    while True:
        try:
            if pipe.checkpoints.take_over(pipe.epoch).batch < batch.number:
                pipe.write(batch)
        except RetryableError:
            assert time.monotonic() < end, "the batch is not delivered"
            time.sleep(0.2)
        else:
            return
