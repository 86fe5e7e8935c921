"""One pipeline with eight kinds of targets: each is killed, and refused, in turn while writers write; the others go on, and all end equal."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import ER

from sluice.flows.capture.drain import head_of
from sluice.model.offset import Offset
from sluice.model.tables import TableSchema
from sluice.sources.mysql.reader.warm_up import compile_kernels
from sluice.testing.targets import Bench, people
from tests.support.pipelines.case import Case, case
from tests.support.running.waiting import ended, wait_until
from tests.support.servers.http_receiver import OK, Receiver, Reply
from tests.support.servers.proxy import TcpProxy

PATIENCE_S = 900
Action = Callable[[], object]


@dataclass
class Store:
    """One target. ``faults``: by name, how it begins and how it ends. ``bench``: reads it as the contract suite does."""

    kind: str
    bench: Bench
    connection: dict[str, Any]
    options: dict[str, Any]
    faults: dict[str, tuple[Action, Action]]

    @property
    def yaml(self) -> str:
        given = {"name": self.kind, "type": self.kind, "connection": f"case_{self.kind}", "options": self.options}
        return f"  - {json.dumps(given)}"

    def rows(self, table: TableSchema) -> set[tuple[Any, ...]]:
        """What it holds: its rows, or what its messages leave when they are applied one after the other."""
        if not self.bench.appends:
            return set(self.bench.rows(table))
        held: dict[Any, tuple[Any, ...]] = {}
        for one in self.bench.received():
            if one.table == str(table.table):
                if one.after is None:
                    held.pop((one.before or {})["id"], None)
                else:
                    held[one.after["id"]] = tuple(one.after[column.name] for column in table.columns)
        return set(held.values())


class Writers:
    """Threads that write random transactions over both tables, until they are told to end."""

    def __init__(self, server: Any, tables: list[TableSchema], seed: int, threads: int = 2) -> None:
        self._server, self._tables = server, tables
        self._ending = threading.Event()
        self.written = 0
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._write, args=(random.Random(seed + number), number), name=f"writer-{number}")
            for number in range(threads)
        ]
        for one in self._threads:
            one.start()

    def end(self) -> None:
        self._ending.set()
        for one in self._threads:
            ended(one)
        if self._error is not None:
            raise self._error

    def _write(self, dice: random.Random, number: int) -> None:
        """Each writer has keys of its own; the gaps between them have locks, so that one may meet a deadlock."""
        try:
            with self._server.connect() as connection, connection.cursor() as cursor:
                while not self._ending.wait(dice.uniform(0.02, 0.2)):
                    try:
                        cursor.execute("BEGIN")
                        for _ in range(dice.randint(1, 6)):
                            cursor.execute(*self._statement(dice, number))
                        cursor.execute(dice.choice(["COMMIT"] * 9 + ["ROLLBACK"]))
                    except pymysql.err.OperationalError as error:
                        if error.args[0] != ER.LOCK_DEADLOCK:
                            raise
                    self.written += 1
        except BaseException as error:
            self._error = error

    def _statement(self, dice: random.Random, number: int) -> tuple[str, tuple[Any, ...]]:
        table = dice.choice(self._tables).table
        place = f"`{table.schema}`.`{table.table}`"
        own = lambda: 1_000 * number + dice.randint(1, 60)  # noqa: E731
        email, points = dice.choice([None, "", "é\n" + "x" * dice.randint(0, 60)]), dice.randint(-9, 9)
        what = dice.random()
        if what < 0.5:
            return f"REPLACE INTO {place} VALUES (%s, %s, %s)", (own(), email, points)
        if what < 0.75:
            return f"UPDATE {place} SET email = %s, points = %s WHERE id = %s", (email, points, own())
        if what < 0.85:
            return f"UPDATE IGNORE {place} SET id = %s WHERE id = %s", (own(), own())
        return f"DELETE FROM {place} WHERE id = %s", (own(),)


@contextmanager
def stores(request: pytest.FixtureRequest, folder: Path, schema: str) -> Iterator[list[Store]]:
    """All kinds whose servers this machine can start, each reached by a link that can refuse."""
    asked = request.getfixturevalue
    for client in ("psycopg", "confluent_kafka", "redis", "pika", "deltalake"):
        pytest.importorskip(client)
    from tests.support.benches.delta_bench import DeltaBench
    from tests.support.benches.elasticsearch_bench import ElasticsearchBench
    from tests.support.benches.http_bench import HttpBench
    from tests.support.benches.kafka_bench import KafkaBench
    from tests.support.benches.postgresql_bench import PostgreSQLBench
    from tests.support.benches.rabbitmq_bench import RabbitMQBench
    from tests.support.benches.redis_bench import RedisBench
    from tests.support.benches.target_benches import MySQLBench

    with ExitStack() as opened:

        def linked(kind: str, server: Any, bench: Bench, options: dict[str, Any], **more: Any) -> Store:
            link = opened.enter_context(TcpProxy(server.host, server.port))
            connection = {**json.loads(server.connection_json(**more)), "port": link.port}

            def refuse() -> None:
                link.refusing = True
                link.cut()

            faults: dict[str, tuple[Action, Action]] = {
                "killed": (server.kill, server.start), "refused": (refuse, link.heal),
            }  # fmt: skip
            return Store(kind, bench, connection, options, faults)

        asked("fresh_pg_schema")(schema)
        mysql, postgresql, redis_server = asked("mysql_target"), asked("postgresql"), asked("redis_server")
        kafka, elasticsearch, rabbitmq = asked("kafka"), asked("elasticsearch"), asked("rabbitmq")
        receiver = opened.enter_context(Receiver())
        redis, search = RedisBench(redis_server), ElasticsearchBench(elasticsearch)
        queues, topics, hooks = (
            RabbitMQBench(rabbitmq, "latest", {"exchange": "changes"}),
            KafkaBench(kafka),
            HttpBench(receiver),
        )
        opened.callback(queues.remove)
        topics.schema = schema  # whose topics are read
        lake = folder / "lake"
        lake.mkdir()
        yield [
            linked("mysql", mysql, MySQLBench(mysql, schema), {"ack_schema": schema}, schema=schema),
            linked("postgresql", postgresql, PostgreSQLBench(postgresql, schema), {"ack_schema": schema}),
            linked("redis", redis_server, redis, redis.options),
            linked("elasticsearch", elasticsearch, search, {**search.options, "retry_for": "10s"}),
            linked("rabbitmq", rabbitmq, queues, queues.options),
            Store("kafka", topics, json.loads(kafka.connection_json()), topics.options, {
                "killed": (kafka.kill, kafka.start),
                "refused": (lambda: _limit_messages(kafka, schema, 500), lambda: _limit_messages(kafka, schema, None)),
            }),
            Store("http", hooks, {"conn_type": "http", "host": receiver.url, "password": hooks.secret}, {"retry_for": "10s"}, {
                "killed": (lambda: _answer(receiver, Reply(silent=True)), lambda: _answer(receiver, OK)),
                "refused": (lambda: _answer(receiver, Reply(503)), lambda: _answer(receiver, OK)),
            }),
            Store("delta", DeltaBench(lake), {"conn_type": "fs", "extra": {"path": str(lake)}}, {"location": str(lake)}, {
                "gone": (lambda: _take_away(lake), lambda: _give_back(lake)),
            }),
        ]  # fmt: skip


def _limit_messages(kafka: Any, schema: str, most_bytes: int | None) -> None:
    """Have the topics of rows refuse batches that are larger; None: as they were made. The broker needs room for its own markers of transactions."""
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    names = [name for name in client.list_topics(timeout=60).topics if name.startswith(f"{schema}.")]
    assert names
    how = AlterConfigOpType.DELETE if most_bytes is None else AlterConfigOpType.SET
    entry = ConfigEntry("max.message.bytes", str(most_bytes or ""), incremental_operation=how)
    resources = [ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry]) for name in names]
    for done in client.incremental_alter_configs(resources).values():
        done.result(60)


def _answer(receiver: Receiver, reply: Reply) -> None:
    receiver.answer = lambda got: reply


def _take_away(folder: Path) -> None:
    """As a share that is not mounted: what stands there is no folder."""
    folder.rename(folder.with_suffix(".away"))
    folder.write_text("", encoding="utf-8")


def _give_back(folder: Path) -> None:
    folder.unlink()
    folder.with_suffix(".away").rename(folder)


class Watch:
    """What ZooKeeper says of the pipeline, while another process runs it."""

    def __init__(self, made: Case, runner: subprocess.Popen[bytes], log: Path) -> None:
        self._made, self._runner, self._log = made, runner, log

    def head(self) -> Offset:
        return head_of(self._made.runtime())

    def until(self, condition: Callable[[], object], what: str) -> None:
        def is_so() -> object:
            if self._runner.poll() is not None:
                raise AssertionError(f"sluice run ended:\n{self._log.read_text(encoding='utf-8')[-5_000:]}")
            return condition()

        try:
            wait_until(is_so, what, PATIENCE_S)
        except AssertionError as error:
            error.add_note(self._log.read_text(encoding="utf-8")[-5_000:])
            raise

    def delivered(self, targets: list[str], head: Offset) -> bool:
        """Each of them acknowledged what the log had up to there."""
        with self._made.runtime().state() as state:
            held = [state.acks.get(target) for target in targets]
        return all(one is not None and one.position.order >= head.order for one in held)

    def acknowledged(self, target: str) -> int:
        with self._made.runtime().state() as state:
            held = state.acks.get(target)
        return held.batch if held is not None else 0

    def is_held(self, target: str) -> bool:
        with self._made.runtime().state() as state:
            return state.quarantine.reason(target) is not None

    def is_idle(self, head: Offset) -> bool:
        """All that was written is captured and delivered."""
        with self._made.runtime().state() as state:
            cursor = state.cursor()
            return cursor is not None and cursor.position.order >= head.order and not state.lacking()


@contextmanager
def running(made: Case) -> Iterator[Watch]:
    """``sluice run`` as a process of its own; it ends in order."""
    log = made.folder / "run.log"
    with log.open("wb") as out:
        runner = subprocess.Popen(
            made.command("run", made.name), env=made.environment, cwd=made.folder, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        yield Watch(made, runner, log)
        runner.send_signal(signal.SIGINT)
        runner.wait(PATIENCE_S)
    finally:
        runner.kill()
        runner.wait()


@pytest.mark.timeout(3600)
def test_each_target_fails_in_turn_and_all_end_equal(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    mysql_source: Any,
    mysql_target: Any,
    zookeeper: Any,
    fresh_schema: Any,
) -> None:
    compile_kernels()
    dice = random.Random(20261126)
    schema = fresh_schema(mysql_source, mysql_target)
    tables = [people(schema), people(schema, "friends")]
    with ExitStack() as opened:
        found = opened.enter_context(stores(request, tmp_path, schema))
        made = opened.enter_context(case(tmp_path, mysql_source, mysql_target, zookeeper, schema))
        source = found[0].bench.__class__(mysql_source, schema)  # type: ignore[call-arg]
        for table in tables:
            source.create_table(table)
            for store in found:
                if store.bench.appends:
                    store.bench.create_table(table)  # it notes the types
        made.connections |= {f"case_{store.kind}": json.dumps(store.connection) for store in found}
        head, _, _ = made.yaml.partition("targets:\n")
        text = head + "retry: {delay: 1s, max_delay: 2s}\ntargets:\n" + "\n".join(store.yaml for store in found)
        made.path.write_text(text + "\n", encoding="utf-8")
        made.make_missing()
        made.run_until_head()

        names = [store.kind for store in found]
        writers = Writers(mysql_source, tables, seed=dice.randint(0, 10**6))
        try:
            watch = opened.enter_context(running(made))
            begun = watch.head()
            watch.until(lambda: watch.delivered(names, begun), "that all targets have the first changes")
            turns = [(store, fault) for store in found for fault in store.faults]
            dice.shuffle(turns)
            for store, fault in turns:
                begin, end = store.faults[fault]
                others = [name for name in names if name != store.kind]
                begin()
                try:
                    watch.until(lambda store=store: watch.is_held(store.kind), f"that {store.kind} is missed, {fault}")
                    had, head_now = watch.acknowledged(store.kind), watch.head()
                    watch.until(
                        lambda others=others, head_now=head_now: watch.delivered(others, head_now),
                        f"that the others go on while {store.kind} is {fault}",
                    )
                    assert watch.acknowledged(store.kind) == had, f"{store.kind} was {fault}"
                    assert not any(watch.is_held(name) for name in others)
                finally:
                    end()
                back = watch.head()
                watch.until(lambda back=back: watch.delivered(names, back), f"that {store.kind} caught up, {fault}")
            writers.end()
            last = watch.head()
            watch.until(lambda: watch.is_idle(last), "that everything is delivered")
        finally:
            writers.end()
        assert writers.written > len(turns)
        for table in tables:
            expected = set(source.rows(table))
            assert expected
            for store in found:
                assert store.rows(table) == expected, f"{store.kind}: {table.table}"
