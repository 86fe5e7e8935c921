"""The RabbitMQ target on a real broker: what is refused, what is made, side messages, and batches that are repeated
with other contents.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.config.connections import Endpoint
from sluice.errors import CheckpointError, ConfigError, Fenced, LoadError, MappingError, TargetUnavailable
from sluice.model.schema_changes import ChangeKind
from sluice.targets.port import Checkpoint
from sluice.targets.rows_in_memory import planned_table
from sluice.testing.targets import Pipe, _definition, _Letters, _schema_change, changed, new, people

pytest.importorskip("pika")
pytest.importorskip("rstream")

from devstack import ports
from devstack.rabbitmq import RabbitMQServer, find_rabbitmq
from sluice.targets.port.record import change_record
from sluice.targets.rabbitmq.checkpoint import CheckpointStream
from sluice.targets.rabbitmq.stream_client import stream_connected
from sluice.targets.rabbitmq.target import RabbitMQTarget
from tests.support.benches.rabbitmq_bench import RabbitMQBench
from tests.support.crashes.strikes import twice_arrived
from tests.support.servers.certificates import self_signed

STREAMS = {"send_to": "streams"}


def made(server: Any, options: dict[str, Any], changes: str = "all", **config: Any) -> tuple[RabbitMQBench, Any, Pipe]:
    bench = RabbitMQBench(server, changes, options)
    table = people(bench.schema)
    bench.create_table(table)
    return bench, table, Pipe(bench, config=config)


@pytest.mark.parametrize("options", [{}, STREAMS], ids=["queue", "stream"])
def test_rows_that_are_too_large_become_dead_letters(rabbitmq: Any, options: dict[str, Any]) -> None:
    bench, table, pipe = made(rabbitmq, {**options, "max_message_bytes": 2_000}, "latest", on_error="dead_letter")
    letters = _Letters(lambda: None)
    pipe.write(pipe.given([(table, [new(1, "a", 1), new(2, "x" * 3_000, 2), new(3, "c", 3)])]), rejected=letters)
    assert [(one.row["id"].to_pylist(), one.where) for one in letters.kept] == [([2], "message too large")]
    assert sorted(one.after["id"] for one in bench.received() if one.after) == [1, 3]
    stops = Pipe(bench, name="stops")
    with pytest.raises(
        LoadError, match=r"a row of .*people is refused: a message of [\d,]+ bytes is larger than 2,000"
    ):
        stops.write(stops.given([(table, [new(2, "x" * 3_000, 2)])]))


def test_a_stream_takes_no_more_than_the_servers_frame(rabbitmq: Any) -> None:
    _, table, pipe = made(rabbitmq, {**STREAMS, "max_message_bytes": 50_000_000})
    with pytest.raises(LoadError, match=r"or the server's frame"):
        pipe.deliver((table, [new(1, "x" * 1_100_000, 1)]))
    assert pipe.held == 0


def test_messages_that_no_queue_gets(rabbitmq: Any) -> None:
    """The queue is bound for one table alone: rows of the other are dead letters, or stop the load, or are dropped
    where the options say so.
    """
    bench = RabbitMQBench(rabbitmq, "latest", {"exchange": "changes"})
    exchange = bench.options["exchange"]
    one, two = (people(bench.schema, name) for name in ("one", "two"))
    for table in (one, two):
        bench.create_table(table)
    connection = rabbitmq.client()
    channel = connection.channel()
    channel.queue_unbind(bench.queues[0], exchange, "#")
    channel.queue_bind(bench.queues[0], exchange, str(one.table))
    connection.close()
    batch = [(one, [new(1, "a", 1)]), (two, [new(2, "b", 2), new(3, "c", 3)])]

    letters, pipe = _Letters(lambda: None), Pipe(bench, config={"on_error": "dead_letter"})
    pipe.write(pipe.given(batch), rejected=letters)
    assert sorted(letter.row["id"].to_pylist()[0] for letter in letters.kept) == [2, 3]
    assert {letter.where for letter in letters.kept} == {"unroutable"}
    assert "312 NO_ROUTE" in letters.kept[0].reason
    assert [received.table for received in bench.received()] == [str(one.table)]

    stops = Pipe(bench, name="stops")
    with pytest.raises(LoadError, match=r"no queue got it: 312 NO_ROUTE, exchange .*changes, routing key .*two"):
        stops.write(stops.given(batch))
    drops = Pipe(bench, name="drops", config={"options": {"unroutable": "discard"}})
    drops.write(drops.given(batch))
    assert {received.table for received in bench.received()} == {str(one.table)}


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_a_queue_with_less_room_than_a_batch(rabbitmq: Any, kind: str) -> None:
    """A consumer gets each row once from one attempt, and the newest state of a row last."""
    bench, table, pipe = made(rabbitmq, {"confirm_window": 200})
    full_queue(rabbitmq, bench.queues[0], kind)
    rows = [new(n, "a", n) for n in range(150)]
    steps = [changed((7, name, 7), (7, after, 7)) for name, after in itertools.pairwise("abcdef")]
    consumed: list[tuple[int, str]] = []
    done = threading.Event()
    consumer = threading.Thread(target=slowly, args=(rabbitmq, bench.queues[0], consumed, done))
    consumer.start()
    try:
        pipe.deliver((table, [*rows, *steps]))
    finally:
        done.set()
        consumer.join()
    assert pipe.held == 1
    others = [number for number, _ in consumed if number != 7]
    assert sorted(others) == [n for n in range(150) if n != 7]
    names = [name for number, name in consumed if number == 7]
    assert names[-1] == "f"
    assert list(dict.fromkeys(names)) == list("abcdef") or len(names) > 6


def test_a_queue_that_stays_full_fails_the_batch(rabbitmq: Any) -> None:
    bench, table, pipe = made(rabbitmq, {"room_timeout": "1s"})
    full_queue(rabbitmq, bench.queues[0], "classic")
    with pytest.raises(TargetUnavailable, match=r"refused message p\.copy/1/\d+/.* for 1 s, .*full") as failed:
        pipe.write(pipe.given([(table, [new(n, "a", n) for n in range(50)])]))
    assert "options.room_timeout" in (failed.value.hint or "")
    assert pipe.held == 0


def full_queue(server: Any, name: str, kind: str) -> None:
    """Make a queue that has room for a few messages and refuses others."""
    connection = server.client()
    limits = {"x-queue-type": kind, "x-max-length": 8, "x-overflow": "reject-publish"}
    connection.channel().queue_declare(name, durable=True, arguments=limits)
    connection.close()


def slowly(server: Any, queue: str, consumed: list[tuple[int, str]], done: threading.Event) -> None:
    """Consume messages one by one until the queue is empty after ``done``."""
    connection = server.client()
    channel = connection.channel()
    while True:
        last = done.is_set()
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            after = json.loads(body)["after"]
            consumed.append((after["id"], after["email"]))
        elif last:
            break
        done.wait(0.005)
    connection.close()


def test_a_change_that_no_queue_gets_stops_the_load(rabbitmq: Any) -> None:
    bench, table, pipe = made(rabbitmq, {"exchange": "changes"})
    connection = rabbitmq.client()
    connection.channel().queue_unbind(bench.queues[0], bench.options["exchange"], "#")
    connection.close()
    with pytest.raises(LoadError, match=r"batch 1: no queue got message p\.copy/1/0/[0-9a-f]{8}: 312 NO_ROUTE"):
        pipe.deliver((table, [new(1, "a", 1)]))
    assert pipe.held == 0


@pytest.mark.parametrize(
    ("options", "what"),
    [({}, "queue"), ({"exchange": "{schema}"}, "exchange"), (STREAMS, "stream")],
    ids=["queue", "exchange", "stream"],
)
def test_check_makes_what_is_missing(rabbitmq: Any, options: dict[str, Any], what: str) -> None:
    bench = RabbitMQBench(rabbitmq, "all")
    bench.options = {**options, "create": "check"}
    bench.streams = options is STREAMS
    table = people(bench.schema)
    pipe = Pipe(bench)
    batch = pipe.given([(table, [new(1, "a", 1)])])
    with pytest.raises(MappingError, match=rf"the {what} {bench.schema}\S* .*is not there"):
        pipe.write(batch)
    schema = bench.target().schema()
    assert schema is not None
    [missing] = schema.compare([planned_table(table)])
    assert (missing.severity, missing.absent) == ("error", True)
    schema.apply(missing.statement)
    [found] = schema.compare([planned_table(table)])
    assert found.severity == "ok"
    assert ("exactly once" if bench.streams else "at least once") in found.why
    for words in ("DROP TABLE a", "rabbitmqadmin declare queue", "rabbitmqadmin delete queue name=a"):
        with pytest.raises(LoadError, match=r"this is no statement of a RabbitMQ target"):
            schema.apply(words)
    if not options:
        pipe.write(batch)
        assert [one.id for one in rabbitmq.messages(str(table.table), whole=True)] != []


@pytest.mark.parametrize("anew", [False, True], ids=["gone", "made anew"])
def test_a_stream_that_is_gone_or_another_stops_the_load(rabbitmq: Any, anew: bool) -> None:
    """Also with create: needed; `sluice check` says so, and what its --apply makes is taken."""
    bench, table, pipe = made(rabbitmq, STREAMS)
    pipe.deliver((table, [new(1, "a", 1)]))
    pipe.deliver((table, [new(2, "b", 2)]))
    target: Any = bench.target()
    stream, schema = str(table.table), target.schema()
    with stream_connected(target.place, "test") as client:
        client.delete(stream)
        if anew:
            client.create(stream)
    batch = pipe.given([(table, [new(3, "c", 3)])])
    reason = rf"the stream {re.escape(stream)} {'was deleted and made anew' if anew else 'is gone'}"
    with pytest.raises(LoadError, match=reason) as stopped:
        pipe.write(batch)
    assert "`sluice check p --apply` make it" in (stopped.value.hint or "")
    found = [one for one in schema.compare([planned_table(table)]) if one.severity == "error"]
    assert re.match(reason, found[0].why)
    if anew:
        assert "delete it" in (stopped.value.hint or "")
        with stream_connected(target.place, "test") as client:
            client.delete(stream)
        found = schema.compare([planned_table(table)])
    schema.apply(found[0].statement)
    pipe.write(batch)
    assert [one.after["id"] for one in bench.received() if one.after] == [3]
    assert [one.severity for one in schema.compare([planned_table(table)])] == ["ok"]


def test_transactions_and_statements_have_messages_of_their_own(rabbitmq: Any) -> None:
    bench, table, pipe = made(rabbitmq, {**STREAMS, "transactions": "tx.{pipeline}", "statements": "ddl.{target}"})
    name = f"side{bench.schema}"
    pipe.pipeline = pipe.name = name
    change = _schema_change(
        pipe, 0, "ALTER TABLE people ADD COLUMN extra INT", (ChangeKind.ADD_COLUMN,),
        _definition(bench.schema, "people"), _definition(bench.schema, "people", "extra"),
    )  # fmt: skip
    batch = pipe.given([(table, [new(1, "a", 1), new(2, "b", 2)])], schema_changes=(change,))
    pipe.write(batch)
    marks = [json.loads(one.body) for one in rabbitmq.messages(f"tx.{name}", stream=True, whole=True)]
    assert [one["status"] for one in marks] == ["BEGIN", "END"]
    assert marks[1]["event_count"] == 2
    [told] = rabbitmq.messages(f"ddl.{name}", stream=True, whole=True)
    assert "ADD COLUMN extra" in told.body.decode()
    places = [json.loads(one.body)["transaction"]["total_order"] for one in bench.messages()]
    assert places == [1, 2]
    pipe.checkpoints.rewind(Checkpoint(pipe.epoch, 0, None))
    assert len(bench.messages()) == 2


def test_a_batch_with_other_contents_is_delivered_again(rabbitmq: Any) -> None:
    """A part of a batch is in the stream; then it is read anew with other rows: they get new ids, so that none of them
    is dropped.
    """
    bench, table, pipe = made(rabbitmq, STREAMS)
    pipe.deliver((table, [new(1, "a", 1)]))
    first = pipe.given([(table, [new(2, "b", 2), new(3, "c", 3)])])
    pipe.take_over()
    [[unit]] = pipe.writer(first).plan(1)
    unit.write()
    pipe.batch -= 1
    other = pipe.given([(table, [new(4, "d", 4), new(5, "e", 5), new(6, "f", 6)])])
    pipe.epoch = 2
    pipe.write(other)
    assert [one.after["id"] for one in bench.received() if one.after] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(Fenced):
        unit.write()
    pipe.deliver((table, [changed((4, "d", 4), (4, "d", 5))]))
    assert not twice_arrived(bench)
    assert pipe.held == 3


def test_a_rewound_stream_gets_batches_again(rabbitmq: Any) -> None:
    bench, table, pipe = made(rabbitmq, STREAMS)
    batches = [pipe.deliver((table, [new(n, "a", n)])) for n in (1, 2)]
    pipe.checkpoints.rewind(Checkpoint(1, 0, None))
    for batch in batches:
        pipe.write(batch)
    assert [one.after["id"] for one in bench.received() if one.after] == [1, 2, 1, 2]
    assert len(set(twice_arrived(bench))) == 2, "with the same message ids"


def test_a_dead_letter_that_is_delivered_twice_arrives_once(rabbitmq: Any) -> None:
    bench, table, pipe = made(rabbitmq, STREAMS)
    pipe.deliver((table, [new(1, "a", 1)]))
    again = replace(pipe.given([(table, [new(2, "b", 2)])]), replay="letter-1", held=1)
    pipe.batch -= 1
    for _ in range(2):
        pipe.write(again)
    assert pipe.held == 1
    pipe.deliver((table, [new(3, "c", 3)]))
    pipe.write(replace(again, held=2))
    assert [one.after["id"] for one in bench.received() if one.after] == [1, 2, 3]


def test_a_checkpoint_that_is_gone_or_edited_stops_the_load(rabbitmq: Any) -> None:
    bench, table, pipe = made(rabbitmq, STREAMS)
    pipe.deliver((table, [new(1, "a", 1)]))
    batch = pipe.given([(table, [new(2, "b", 2)])])
    place = bench.target().place  # type: ignore[attr-defined]
    with stream_connected(place, "test") as client:
        edited = replace(pipe.checkpoints.read(), edited=True, batch=1)  # type: ignore[type-var]
        assert edited.batch == 1
        number = client.last_id(place.ack_stream, "sluice") + 1
        text = {
            "format": 1, "epoch": 1, "batch": 1, "identity": "", "position": None, "seal": 7, "slot": 1, "begun": "",
            "number": number,
            "nonce": "n", "owner": place.owner,
        }  # fmt: skip
        client.publish(place.ack_stream, "sluice", [(number, json.dumps(text).encode())])
        client.flush()
        assert pipe.checkpoints.read().edited  # type: ignore[union-attr]
        with pytest.raises(CheckpointError, match="was edited"):
            pipe.write(batch)
        client.delete(place.ack_stream)
    writer = pipe.writer(batch)
    [[unit]] = writer.plan(1)
    with pytest.raises(Fenced, match="the target's checkpoint is gone"):
        unit.write()


def test_two_processes_that_change_the_checkpoint_at_once(rabbitmq: Any) -> None:
    """The other one writes between the look and the record: the server drops the second record, and the change is made
    anew from the first.
    """
    bench, _, pipe = made(rabbitmq, STREAMS)
    pipe.take_over()
    place, seen = bench.target().place, []  # type: ignore[attr-defined]
    with stream_connected(place, "test") as client:

        def made_later(found: Any) -> Any:
            seen.append(found.checkpoint.epoch)
            if len(seen) == 1:
                pipe.checkpoints.take_over(5)
            return replace(found, begun="mine")

        now = change_record(CheckpointStream(client, place), made_later, place)
    assert now is not None
    assert seen == [1, 5]
    assert (now.begun, now.checkpoint.epoch) == ("mine", 5)


@pytest.mark.parametrize("options", [{}, STREAMS], ids=["queue", "stream"])
def test_servers_that_do_not_answer_and_logins_that_are_refused(rabbitmq: Any, options: dict[str, Any]) -> None:
    bench, table, pipe = made(rabbitmq, {**options, "create": "check"})
    there = bench.connection

    def endpoint(**other: Any) -> Endpoint:
        extra = {**there.extra, **other.pop("extra", {})}
        return replace(there, extra=extra, **other)

    free = ports.free_port()
    batch = pipe.given([(table, [new(1, "a", 1)])])
    for wrong, kind, said in (
        (endpoint(port=free, extra={"stream_port": free}), TargetUnavailable, r"at RabbitMQ 'target'"),
        (endpoint(password="nosuch-password"), ConfigError, r"at RabbitMQ 'target'"),
        (endpoint(schema="nosuch"), ConfigError, r"at RabbitMQ 'target'"),
    ):
        target = RabbitMQTarget(bench.config("rabbitmq", options=bench.options), wrong, "p")
        with pytest.raises(kind, match=said) as raised:
            _load(target, batch)
        assert wrong.password not in str(raised.value)


def test_certificates_are_verified(tmp_path: Path) -> None:
    """Both protocols with TLS: by the authority that the connection names, and not without it."""
    folder = self_signed(tmp_path, "server", "other")
    port, stream_port = ports.free_port(), ports.free_port()
    tls = {
        "listeners.ssl.1": f"127.0.0.1:{port}", "stream.listeners.ssl.1": f"127.0.0.1:{stream_port}",
        "stream.advertised_tls_port": stream_port, "ssl_options.cacertfile": folder / "server.pem",
        "ssl_options.certfile": folder / "server.pem", "ssl_options.keyfile": folder / "server.key",
        "ssl_options.verify": "verify_none", "ssl_options.fail_if_no_peer_cert": "false",
    }  # fmt: skip
    with RabbitMQServer(tmp_path / "broker", program=find_rabbitmq(), password="s3cret-of-one", settings=tls) as server:
        for options in ({}, STREAMS):
            bench, table, pipe = made(server, options)
            for authority in ("other", "server"):
                extra = {"stream_port": stream_port, "ssl": True, "ca": str(folder / f"{authority}.pem")}
                bench.connection = replace(bench.connection, port=port, extra=extra)
                if authority == "other":
                    with pytest.raises(ConfigError, match=r"the certificate of RabbitMQ 'target' is not accepted"):
                        pipe.deliver((table, [new(0, "x", 0)]))
                    pipe.batch = 0
                    continue
                pipe.deliver((table, [new(1, "a", 1)]))
            assert [one.after["id"] for one in bench.received() if one.after] == [1]


def _load(target: RabbitMQTarget, batch: Any) -> None:
    if target.checkpoints is not None:
        target.checkpoints.take_over(1)
    with target.open(1) as session:
        [[unit]] = session.begin(batch).plan(1)
    unit.write()
