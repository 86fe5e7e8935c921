"""The loading process killed at every call of its client, an old one that comes back, the broker killed in mid-load:
each row once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from sluice.errors import Fenced, LoadError, RetryableError
from sluice.model.schema_changes import ChangeKind
from sluice.targets.kafka.place import Place
from sluice.targets.rows_in_memory import MemoryReader
from sluice.testing.targets import Pipe, _definition, _schema_change, changed, gone, new, people
from tests.support.benches.kafka_bench import KafkaBench
from tests.support.crashes import calls
from tests.support.crashes.strikes import At, children, stands_still, start, twice_arrived
from tests.support.readers import kafka_reading
from tests.support.running.waiting import wait_until

pytest.importorskip("confluent_kafka")
children.set_forkserver_preload(["tests.support.crashes.calls", "tests.support.benches.kafka_bench"])
FIRST = [new(n, "a", 0) for n in range(4)]
SECOND = [changed((n, "a", 0), (n, "b", 1)) for n in range(4)]
EXPECTED = Counter((n, "b", 1) for n in range(4))


@pytest.mark.parametrize("changes", ["latest", "all"])
def test_killed_at_every_call(kafka: Any, changes: str) -> None:
    """init, begin, each produce, flush, commit, before and after: take over and transaction alike."""
    point, deaths = 0, 0
    step = 1 if os.environ.get("SLUICE_CUTS") == "1" else {"latest": 5, "all": 3}[changes]
    while True:
        bench = KafkaBench(kafka, changes)
        table = people(bench.schema)
        bench.create_table(table)
        pipe = Pipe(bench)
        pipe.deliver((table, FIRST))
        bench.kill()
        batch = pipe.given([(table, SECOND)])
        child, said = start(calls.kafka, bench, [batch], 2, At(point // 2, point % 2 == 1, signal.SIGKILL))
        child.join(120)
        if child.exitcode == 0:
            made, error = said.get()
            assert not error
            break
        assert child.exitcode == -signal.SIGKILL
        deaths += 1
        held = pipe.held
        assert sum(pipe.state(table).values()) == 4
        assert (pipe.state(table) == EXPECTED) == (held == batch.number), (
            "rows and checkpoint are not of one transaction"
        )
        pipe.epoch = 3
        if pipe.checkpoints.take_over(3).batch < batch.number:
            pipe.write(batch)
        assert pipe.state(table) == EXPECTED
        assert pipe.held == batch.number
        assert not twice_arrived(bench)
        point += step
    assert deaths == -(-2 * len(made) // step)
    assert {"init_transactions", "begin_transaction", "produce", "flush", "commit_transaction"} <= set(made)


@pytest.mark.parametrize("before_rows", [True, False])
def test_a_table_is_emptied_in_the_transaction_of_its_batch(kafka: Any, before_rows: bool) -> None:
    """Killed at every call: the keys that the topic holds, the rows of the batch and the checkpoint arrive together or
    not at all.

    Rows that the statement follows are not sent: they went with it.
    """
    point, deaths = 0, 0
    after = Counter([(2, "z", 9), (7, "z", 9)] if before_rows else [])
    while True:
        bench = KafkaBench(kafka)
        table = people(bench.schema)
        bench.create_table(table)
        pipe = Pipe(bench)
        pipe.deliver((table, FIRST))
        pipe.deliver((table, [gone(3, "a", 0)]))
        bench.kill()
        definition = _definition(bench.schema, "people")
        truncate = _schema_change(
            pipe, 0, f"TRUNCATE `{bench.schema}`.people", (ChangeKind.TRUNCATE_TABLE,), definition, definition
        )
        rows = [new(2, "z", 9), new(7, "z", 9)] if before_rows else [changed((2, "a", 0), (2, "z", 9)), new(7, "z", 9)]
        batch = pipe.given([(table, rows)], schema_changes=(replace(truncate, before_rows=before_rows),))
        child, said = start(calls.kafka, bench, [batch], 2, At(point // 2, point % 2 == 1, signal.SIGKILL))
        child.join(120)
        if child.exitcode == 0:
            made, error = said.get()
            assert not error
        held = pipe.held
        expected = after if held == batch.number else Counter((n, "a", 0) for n in range(3))
        wait_until(
            lambda pipe=pipe, table=table, expected=expected: pipe.state(table) == expected,
            "the end of the transaction",
        )
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        deaths += 1
        pipe.epoch = 3
        if pipe.checkpoints.take_over(3).batch < batch.number:
            pipe.write(batch)
        assert pipe.held == batch.number
        wait_until(lambda pipe=pipe, table=table: pipe.state(table) == after, "the end of the transaction")
        point += 3
    assert deaths == -(-2 * len(made) // 3)
    tombstones = [one for one in bench.received() if one.op == "d" and f"/{batch.number}/" in one.id]
    assert sorted(one.before["id"] for one in tombstones if one.before) == [0, 1, 2], (
        "not of a row that is gone already"
    )


@pytest.mark.parametrize("call", ["flush", "commit_transaction"])
def test_an_old_writer_that_comes_back(kafka: Any, call: str) -> None:
    """It stands still before it commits; a newer one delivers the batch and the next; then the old one goes on."""
    bench = KafkaBench(kafka, "all")
    table = people(bench.schema)
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, FIRST))
    bench.kill()
    batch = pipe.given([(table, SECOND)])
    number = {"flush": 9, "commit_transaction": 10}[call]  # take over is 5 calls, then init is none, begin, 5 messages
    child, said = start(calls.kafka, bench, [batch], 2, At(number, False, signal.SIGSTOP))
    assert stands_still(child)
    pipe.epoch = 3
    assert pipe.checkpoints.take_over(3).batch == 1
    pipe.write(batch)
    pipe.deliver((table, [new(9, "z", 9)]))
    os.kill(child.pid, signal.SIGCONT)
    made, error = said.get()
    child.join(60)
    assert error.startswith("Fenced"), (error, made)
    assert pipe.state(table) == EXPECTED + Counter([(9, "z", 9)])
    assert pipe.held == 3
    assert not twice_arrived(bench)


def test_a_process_that_is_out_of_date_does_not_disturb_a_newer_one(kafka: Any) -> None:
    bench = KafkaBench(kafka)
    table = people(bench.schema)
    pipe = Pipe(bench)
    batch = pipe.given([(table, FIRST)])
    pipe.checkpoints.take_over(5)
    with pytest.raises(Fenced):
        _elsewhere(lambda: bench.target().checkpoints.take_over(4))
    with pytest.raises(Fenced):
        _elsewhere(lambda: next(iter(Pipe(bench, epoch=4).writer(batch).plan(1)[0])).write())
    pipe.epoch = 5
    writer = pipe.writer(batch)  # its producer was not shut out: no new one has to be made
    writer.commit([unit.write() for phase in writer.plan(1) for unit in phase])
    assert pipe.held == 1


def _elsewhere(work: Any) -> None:
    """As another process would: without this one's producer."""
    from sluice.targets.kafka import transactions

    mine = dict(transactions._slots)
    transactions._slots.clear()
    try:
        work()
    finally:
        transactions._slots.clear()
        transactions._slots.update(mine)


@dataclass(frozen=True)
class Pausing(MemoryReader):
    """Calls ``between`` when half of the rows were given."""

    between: Any = None

    def pieces(self, files: Any) -> Iterator[pa.Table]:
        for file in files:
            half = file.data.num_rows // 2
            yield file.data.slice(0, half)
            self.between()
            yield file.data.slice(half)


def _paused(pipe: Pipe, table: Any, rows: list[Any], between: Any) -> Any:
    from dataclasses import replace

    return replace(pipe.given([(table, rows)]), reader=Pausing(between=between))


def test_readers_see_a_batch_whole_or_not_at_all(kafka: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = KafkaBench(kafka)
    one, two = people(bench.schema, "one"), people(bench.schema, "two")
    pipe = Pipe(bench)
    pipe.deliver((one, FIRST), (two, FIRST))
    seen: list[tuple[int, int]] = []
    topics = [f"{bench.schema}.one", f"{bench.schema}.two"]

    def look() -> None:
        from sluice.targets.kafka import transactions

        for mine in transactions._slots.values():
            if mine.channel is not None and mine.channel.place.pipeline.startswith(bench.schema):
                mine.channel.producer.flush(30)
        seen.append(tuple(len(kafka_reading.read(kafka, *topics, committed=c)) for c in (True, False)))

    batch = _paused(pipe, two, [new(n, "c", 1) for n in range(10, 20)], look)
    pipe.write(batch)
    assert seen == [(8, 13)], "half of the batch is at the broker, and no read_committed reader has it"
    assert len(kafka_reading.read(kafka, *topics)) == 18


def test_the_broker_is_killed_in_mid_load(kafka: Any) -> None:
    bench = KafkaBench(kafka)
    table = people(bench.schema)
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, FIRST))
    kills: list[threading.Thread] = []

    def crash() -> None:
        if not kills:
            kafka.kill()
            kills.append(threading.Thread(target=kafka.start))
            kills[0].start()

    rows = [new(n, "c", 1) for n in range(10, 20)]
    batch = _paused(pipe, table, rows, crash)
    try:
        pipe.write(batch)
    except RetryableError:
        kills[0].join()
        pipe.epoch += 1
        if pipe.checkpoints.take_over(pipe.epoch).batch < batch.number:
            pipe.write(batch)
    kills[0].join()
    assert pipe.held == 2
    assert pipe.state(table) == Counter([(n, "a", 0) for n in range(4)] + [(n, "c", 1) for n in range(10, 20)])
    assert not twice_arrived(bench)


def test_a_batch_that_takes_longer_than_its_transaction_may(kafka: Any) -> None:
    """The broker gives it up; the error says so, and nothing of it is there."""
    bench = KafkaBench(kafka, options={"transaction_timeout": "1s"})
    table = people(bench.schema)
    pipe = Pipe(bench)
    pipe.deliver((table, FIRST))
    topic = f"{bench.schema}.people"

    def until_given_up() -> None:
        place: Place = bench.target().place  # type: ignore[attr-defined]
        consumer = place.client("Consumer", **{"group.id": "x", "isolation.level": "read_committed"})
        from confluent_kafka import TopicPartition

        from sluice.targets.kafka import transactions

        for mine in transactions._slots.values():
            if mine.channel is not None and mine.channel.place == place:
                mine.channel.producer.flush(30)
        everything = len(kafka_reading.read(kafka, topic, committed=False))
        assert everything > 4
        while True:  # until the broker's marker of the abort is there: it moves the end of what readers may read
            ends = [
                consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=10, cached=False)[1] for n in range(3)
            ]
            if sum(ends) >= everything + 4:
                break
        consumer.close()

    batch = _paused(pipe, table, [new(n, "c", 1) for n in range(10, 40)], until_given_up)
    with pytest.raises(LoadError, match="took longer than 1 s, and Kafka gave it up"):
        pipe.write(batch)
    assert pipe.held == 1
    assert len(kafka_reading.read(kafka, topic)) == 4
