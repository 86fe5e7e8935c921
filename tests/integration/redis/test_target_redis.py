"""The Redis target on a real server: indexes, expiry, forms, partial rows, what is refused, what ``sluice check`` says
of the server.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.errors import ConfigError, LoadError, MappingError, TargetUnavailable
from sluice.model.column_types import ColumnKind
from sluice.model.dialects import UNKNOWN
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.port import Checkpoint, StoredRange, comparer_of
from sluice.targets.port.reconcile import KeyRange
from sluice.targets.redis import checkpoint
from sluice.targets.rows_in_memory import RowsInMemory, planned_table
from sluice.testing.targets import Op, Pipe, _definition, _Letters, _schema_change, changed, gone, new, people

pytest.importorskip("redis")

from devstack import ports
from devstack.redis import RedisServer
from tests.support.benches.redis_bench import RedisBench


def made(
    server: Any, options: dict[str, Any], table: TableSchema | None = None, changes: str = "latest"
) -> tuple[RedisBench, TableSchema, Pipe]:
    bench = RedisBench(server, changes)
    table = table or people(bench.schema)
    table = replace(table, table=TableId(bench.schema, table.table.table))
    texts = json.dumps(options).replace("SCHEMA", bench.schema)
    bench.options |= json.loads(texts)
    bench.create_table(table)
    return bench, table, Pipe(bench)


INDEXES = {
    "indexes": [
        {"table": "SCHEMA.people", "key": "SCHEMA:email:{email}"},
        {"table": "SCHEMA.people", "key": "SCHEMA:points", "score": "points"},
    ]
}


def indexed(bench: RedisBench) -> tuple[dict[str, set[str]], dict[str, float]]:
    with bench.client as client:
        sets = {
            key.decode().rpartition(":")[2]: {one.decode().rpartition(":")[2] for one in client.smembers(key)}
            for key in client.scan_iter(f"{bench.schema}:email:*")
        }
        scores = {
            one.decode().rpartition(":")[2]: score
            for one, score in client.zrange(f"{bench.schema}:points", 0, -1, withscores=True)
        }
    return sets, scores


def test_indexes_follow_every_change(redis_server: Any) -> None:
    bench, table, pipe = made(redis_server, INDEXES)
    pipe.deliver((table, [new(1, "a", 10), new(2, "a", 20), new(3, None, None), new(4, "b", 40)]))
    assert indexed(bench) == ({"a": {"1", "2"}, "b": {"4"}}, {"1": 10, "2": 20, "4": 40})
    pipe.deliver((
        table,
        [changed((1, "a", 10), (1, "c", 11)), gone(2, "a", 20), changed((4, "b", 40), (5, "b", None))],
    ))
    assert indexed(bench) == ({"c": {"1"}, "b": {"5"}}, {"1": 11})
    pipe.deliver((table, [new(1, "d", 12)]))  # a row that is copied again says nothing of the old one
    assert indexed(bench) == ({"d": {"1"}, "b": {"5"}}, {"1": 12})
    truncate = _schema_change(
        pipe,
        0,
        f"TRUNCATE `{bench.schema}`.people",
        (ChangeKind.TRUNCATE_TABLE,),
        *[_definition(bench.schema, "people")] * 2,
    )
    pipe.write(pipe.given([], schema_changes=(truncate,)))
    assert indexed(bench) == ({}, {})


def test_a_row_that_an_index_cannot_take_is_refused_alone(redis_server: Any) -> None:
    bench, table, pipe = made(redis_server, INDEXES)
    pipe.deliver((table, [new(1, "a", 10)]))
    with bench.client as client:
        client.set(f"{bench.schema}:email:x", "of somebody else")
    rows = [changed((1, "a", 10), (1, "x", 11)), new(2, "b", 2)]
    with pytest.raises(LoadError, match=r"email:\{email\} of an index holds a string.*key .*people:1"):
        pipe.write(replace(pipe.given([(table, rows)]), held=1))
    letters = _Letters(lambda: None)
    pipe.epoch, pipe.batch = 2, 1
    pipe.config = {"on_error": "dead_letter"}
    pipe.write(pipe.given([(table, rows)]), rejected=letters)
    assert [one.row["id"].to_pylist() for one in letters.kept] == [[1]]
    assert pipe.state(table) == Counter([(1, "a", 10), (2, "b", 2)])


TIMED = TableSchema(
    TableId("s", "sessions"),
    (
        Column("id", ColumnKind.INT, "int", nullable=False),
        Column("ends", ColumnKind.DATETIME, "datetime(3)", fsp=3),
        Column("day", ColumnKind.DATE, "date"),
    ),
    ("id",),
)


def test_rows_go_at_the_time_of_a_column(redis_server: Any) -> None:
    import datetime as dt

    bench, table, pipe = made(redis_server, {"expire": {"column": "ends"}}, TIMED)
    soon, day = dt.datetime.now(dt.UTC).replace(tzinfo=None) + dt.timedelta(hours=1), dt.date(2024, 2, 29)
    past = dt.datetime(2001, 2, 3, 4, 5, 6)
    pipe.deliver((table, [new(1, soon, day), new(2, None, day), new(3, past, day)]))
    with bench.client as client:
        left = [client.pttl(f"{bench.schema}.sessions:{number}") for number in (1, 2, 3)]
    assert 3_500_000 < left[0] <= 3_600_000
    assert left[1:] == [-1, -2]
    comparer = comparer_of(pipe.target)
    assert comparer is not None
    rows = pipe.given([(table, [new(1, soon, day), new(2, None, day), new(3, past, day)])]).tables[0].files[0]
    assert isinstance(rows, RowsInMemory)
    found = comparer.compare(planned_table(table), rows.data, None)
    assert (found.missing, found.different) == ((), ()), "a row that has expired is not missing"


@pytest.mark.parametrize(
    ("column", "latest", "past"),
    [
        (Column("ends", ColumnKind.BIGINT, "bigint"), 2**63 - 1, 1),
        (Column("ends", ColumnKind.BIGINT, "bigint unsigned", unsigned=True), 2**64 - 1, 1),
        (
            Column("ends", ColumnKind.DECIMAL, "decimal(65,3)", precision=65, scale=3),
            Decimal("9" * 62 + ".999"),
            Decimal("1.5"),
        ),
    ],
    ids=["bigint", "unsigned", "decimal"],
)
def test_a_row_that_goes_after_all_time_never_goes(redis_server: Any, column: Column, latest: Any, past: Any) -> None:
    columns = (Column("id", ColumnKind.INT, "int", nullable=False), column)
    table = TableSchema(TableId("s", "sessions"), columns, ("id",))
    bench, table, pipe = made(redis_server, {"expire": {"column": "ends"}}, table)
    soon = type(past)(int(time.time()) + 3_600)
    pipe.deliver((table, [new(1, latest), new(2, soon), new(3, past)]))
    with bench.client as client:
        left = [client.pttl(f"{bench.schema}.sessions:{number}") for number in (1, 2, 3)]
    assert left[0] == -1
    assert 0 < left[1] <= 3_600_000
    assert left[2] == -2


def test_rows_go_some_time_after_they_were_written(redis_server: Any) -> None:
    bench, table, pipe = made(redis_server, {"expire": {"after": "1h"}})
    pipe.deliver((table, [new(1, "a", 1)]))
    with bench.client as client:
        assert 3_500_000 < client.pttl(f"{bench.schema}.people:1") <= 3_600_000
    assert comparer_of(pipe.target) is None


def test_the_text_of_one_column(redis_server: Any) -> None:
    bench, table, pipe = made(redis_server, {"form": "string", "value_column": "email"})
    pipe.deliver((table, [new(1, "ä", 1), new(2, None, 2), new(3, "", 3)]))
    with bench.client as client:
        assert client.mget(*(f"{bench.schema}.people:{n}" for n in (1, 2, 3))) == ["ä".encode(), None, b""]
    comparer = comparer_of(pipe.target)
    assert comparer is not None
    rows = pipe.given([(table, [new(1, "ä", 1), new(2, None, 2), new(3, "x", 3), new(4, "y", 4)])]).tables[0].files[0]
    assert isinstance(rows, RowsInMemory)
    found = comparer.compare(planned_table(table), rows.data, None, values=True)
    assert found.missing == (3,)
    assert [(one.row, one.columns, one.values) for one in found.different] == [(2, ("email",), (("x", ""),))]


@pytest.mark.parametrize("form", ["hash", "json"])
def test_rows_that_lack_columns_swap_their_keys(redis_server: Any, form: str) -> None:
    """Their old values are only at the target, and the batch is written twice, from its begin to its end."""
    bench, table, pipe = made(redis_server, {"form": form})
    bench.options["form"] = form
    pipe.deliver((table, [new(1, "a", 1), new(2, "b", 2), new(3, "c", 3)]))
    ops = [
        changed((1, None, None), (2, None, 9)),
        changed((2, None, None), (1, None, None)),
        changed((3, "c", 3), (3, "z", 4)),
    ]
    batch = pipe.given([(table, ops)])
    [one] = batch.tables
    [file] = one.files
    assert isinstance(file, RowsInMemory)
    # of the columns, then of the old row: only id, and points of the first; all of the third
    known = pa.array([bytes([0b101]), bytes([0b001]), None], pa.binary())
    partly = replace(one, files=(RowsInMemory(file.table, file.data.append_column("_present", known)),))
    batch = replace(batch, tables=(partly,))
    pipe.take_over()
    for _ in range(2):
        writer = pipe.writer(batch)
        writer.prepare()
        results = [unit.write() for phase in writer.plan(2) for unit in phase]
    writer.commit(results)
    assert pipe.state(table) == Counter([(2, "a", 9), (1, "b", 2), (3, "z", 4)])


def test_a_key_that_another_program_wrote_becomes_the_row(redis_server: Any) -> None:
    bench, table, pipe = made(redis_server, {})
    with bench.client as client:
        client.rpush(f"{bench.schema}.people:1", "not a row")
    pipe.deliver((table, [new(1, "a", 1)]))
    assert pipe.state(table) == Counter([(1, "a", 1)])


def test_listed_keys_and_whole_tables_are_removed(redis_server: Any) -> None:
    bench, table, pipe = made(redis_server, {})
    pipe.deliver((table, [new(n, "a", n) for n in range(5)]))
    plan = planned_table(table)
    key = replace(plan, columns=plan.columns[:1], dialect=UNKNOWN)
    kept = pa.table({"id": pa.array([2], pa.int32())}, schema=pa.schema([table.field(table.columns[0])]))
    stretch = KeyRange(("id",), listed=pa.table({"id": pa.array([1, 2, 77], pa.int32())}), kept=kept)
    pipe.write(pipe.given([], reconcile=(StoredRange(key, stretch, listed=True),)))
    assert sorted(row[0] for row in pipe.state(table)) == [0, 2, 3, 4]
    reconciler = pipe.target.reconciler()
    assert reconciler is not None
    assert reconciler.refuses(key)
    assert not reconciler.refuses(replace(plan, columns=()))
    pipe.write(pipe.given([], reconcile=(StoredRange(replace(plan, columns=()), KeyRange()),)))
    assert not pipe.state(table)
    other = Pipe(bench, pipeline="other")
    other.deliver((table, [new(1, "a", 1)]))
    assert [(one.pipeline, one.tables) for one in reconciler.others()] == [("other", {str(table.table)})]


@pytest.mark.parametrize("anew", [False, True], ids=["gone", "made anew"])
def test_a_stream_that_is_gone_or_another_stops_the_load(redis_server: Any, anew: bool) -> None:
    """Trimming is no loss; a deleted stream is, and what `sluice check --apply` does leads out."""
    bench = RedisBench(redis_server, "all")
    table = people(bench.schema)
    bench.create_table(table)
    pipe = Pipe(bench)
    for number in (1, 2):
        pipe.deliver((table, [new(number, "a", number)]))
    schema, stream = bench.target().schema(), str(table.table)
    assert schema is not None
    with bench.client as client:
        client.xtrim(stream, maxlen=0)
        pipe.deliver((table, [new(3, "c", 3)]))
        client.delete(stream)
        if anew:
            client.xadd(stream, {"by": "hand"})
    batch = pipe.given([(table, [new(4, "d", 4)])])
    reason = rf"the stream {re.escape(stream)} {'was deleted and made anew' if anew else 'is gone'}"
    with pytest.raises(LoadError, match=reason) as stopped:
        pipe.write(batch)
    assert "`sluice check PIPELINE --apply` have the load make it anew" in (stopped.value.hint or "")
    [found] = [one for one in schema.compare([planned_table(table)]) if one.severity == "error"]
    assert re.match(reason, found.why)
    with bench.client as client:
        client.delete(stream)
    schema.apply(found.statement)
    pipe.write(batch)
    assert [one.after["id"] for one in bench.received() if one.after] == [4]
    assert not [one for one in schema.compare([planned_table(table)]) if one.severity == "error"]


def test_a_stream_goes_on_where_a_killed_load_stopped(redis_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice.targets.redis import streams

    monkeypatch.setattr(streams, "_ENTRIES", 3)
    bench, table, pipe = made(redis_server, {}, changes="all")
    batch = pipe.given([(table, [new(n, "a", n) for n in range(10)])])
    pipe.take_over()
    [[unit]] = pipe.writer(batch).plan(1)
    real, sent = streams.RowSender.run, []

    def stops(self: Any, *words: Any) -> Any:
        sent.append(words)
        if len(sent) == 3:
            raise TargetUnavailable("the connection was cut")
        return real(self, *words)

    monkeypatch.setattr(streams.RowSender, "run", stops)
    with pytest.raises(TargetUnavailable):
        unit.write()
    assert len(bench.received()) == 6
    assert pipe.held == 0
    pipe.epoch = 2
    pipe.write(batch)
    assert [one.after and one.after["id"] for one in bench.received()] == list(range(10))


@contextmanager
def own_server(folder: Path, **settings: object) -> Iterator[RedisServer]:
    given = {name.replace("_", "-"): value for name, value in settings.items()}
    with RedisServer(folder / "redis", password="s3cret-of-one", settings=given) as server:
        yield server


def test_a_killed_server_is_gone_and_starts_again_with_its_rows(tmp_path: Path) -> None:
    with own_server(tmp_path, appendfsync="always") as server:
        bench = RedisBench(server)
        table = people(bench.schema)
        bench.create_table(table)
        pipe = Pipe(bench)
        pipe.deliver((table, [new(1, "a", 1)]))
        server.kill()
        assert not ports.accepts(server.port)
        with pytest.raises(TargetUnavailable):
            pipe.checkpoints.read()
        server.start()
        assert pipe.held == 1
        assert pipe.state(table) == Counter([(1, "a", 1)])


def findings(server: Any, options: dict[str, Any]) -> list[tuple[str, str]]:
    bench = RedisBench(server, options=options)
    schema = bench.target().schema()
    assert schema is not None
    found = schema.compare([planned_table(people(bench.schema))])
    return [(one.severity, one.why) for one in found if not one.absent]


@pytest.mark.parametrize(
    ("settings", "options", "severity", "said"),
    [
        ({}, {}, "ok", "appendfsync everysec: a crash of the machine loses about the last second"),
        ({"appendfsync": "always"}, {"fsync": True}, "ok", "a crash loses nothing"),
        ({"appendonly": "no"}, {}, "warning", "a crash or a restart of the server loses every row"),
        ({"appendonly": "no", "save": "60 1"}, {}, "warning", "loses what was written since the last of save '60 1'"),
        ({"appendonly": "no"}, {"fsync": True}, "error", "options.fsync waits for the server's log, and it keeps none"),
        ({"appendfsync": "no"}, {"fsync": True}, "error", "appendfsync no: the server never waits for its disk"),
        ({"maxmemory_policy": "allkeys-lru"}, {}, "error", "removes any key, the checkpoint too"),
        ({"maxmemory_policy": "volatile-ttl"}, {"expire": {"after": "1h"}}, "warning", "before their time"),
    ],
)
def test_check_says_what_a_crash_can_lose(
    tmp_path: Path, settings: dict[str, object], options: dict[str, Any], severity: str, said: str
) -> None:
    with own_server(tmp_path, **settings) as server:
        found = findings(server, options)
        assert any(said in why and how == severity for how, why in found), found


def test_a_server_in_cluster_mode_is_refused_by_name(tmp_path: Path) -> None:
    with own_server(tmp_path, cluster_enabled="yes", cluster_port=ports.free_port(), appendonly="no") as server:
        bench = RedisBench(server)
        assert any("cluster mode" in why for how, why in findings(server, {}) if how == "error")
        with pytest.raises(ConfigError, match="cluster mode"), bench.target().open(1):
            pass


def test_an_acknowledged_batch_is_on_the_disk(tmp_path: Path) -> None:
    with own_server(tmp_path) as server:
        bench = RedisBench(server, options={"fsync": True})
        table = people(bench.schema)
        bench.create_table(table)
        pipe = Pipe(bench)
        pipe.deliver((table, [new(1, "a", 1)]))
        log = b"".join(path.read_bytes() for path in sorted((server.folder / "appendonlydir").glob("*.aof")))
        assert b"people:1" in log


def test_a_batch_whose_disk_did_not_answer_waits_for_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record was moved, so that the repeat changes nothing: it has to write all the same, to wait for the disk."""
    waited, wait_for_disk = [], checkpoint._wait_for_disk

    def late(client: Any, place: Any) -> None:
        wait_for_disk(client, place)
        waited.append(client.ask("reading the batch", "HGET", place.checkpoint_key, "batch"))
        if waited.count(b"1") == 1:
            raise TargetUnavailable("the server did not write its log to its disk in time (fsync: true)")

    monkeypatch.setattr(checkpoint, "_wait_for_disk", late)
    with own_server(tmp_path) as server:
        bench = RedisBench(server, options={"fsync": True})
        table = people(bench.schema)
        bench.create_table(table)
        pipe = Pipe(bench)
        pipe.take_over()
        batch = pipe.given([(table, [new(1, "a", 1)])])
        with pytest.raises(TargetUnavailable, match="in time"):
            pipe.write(batch)
        assert pipe.held == batch.number
        pipe.checkpoints.advance(Checkpoint(pipe.epoch, batch.number, batch.position))
        assert waited.count(b"1") == 2
        assert pipe.take_over() == batch.number
        assert waited.count(b"1") == 3


def test_a_wrong_password_is_said_without_it(redis_server: Any) -> None:
    bench = RedisBench(redis_server)
    bench.connection = replace(bench.connection, password="another-secret")
    with pytest.raises(ConfigError, match="connecting at Redis 'target'") as caught:
        bench.target().checkpoints.read()  # type: ignore[union-attr]
    assert "another-secret" not in str(caught.value)


def test_a_server_that_is_away_is_waited_for(redis_server: Any) -> None:
    bench = RedisBench(redis_server)
    bench.connection = replace(bench.connection, port=1)
    with pytest.raises(TargetUnavailable, match="connecting"):
        bench.target().checkpoints.read()  # type: ignore[union-attr]


def test_options_that_a_table_does_not_fit_are_named_before_the_first_row(redis_server: Any) -> None:
    bench, table, pipe = made(redis_server, {})
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"expire": {"column": "email"}}, "expire names the column 'email'"),
        ({"indexes": [{"table": str(table.table), "key": "k:{nope}"}]}, "indexes names the column 'nope'"),
        ({"indexes": [{"table": str(table.table), "key": "k", "score": "email"}]}, "score 'email'"),
        ({"form": "string", "value_column": "nope"}, "value_column names the column 'nope'"),
    ]
    for options, said in wrong:
        pipe = Pipe(bench, name=f"t{len(said)}", config={"options": options})
        with pytest.raises(MappingError, match=said):
            pipe.write(pipe.given([(table, [new(1, "a", 1)])]))
    assert not pipe.state(table)


def test_every_ordinary_key_is_read_back(redis_server: Any) -> None:
    """Colons, percent signs and bytes of a key are the key's, and keys of other tables are not taken for it."""
    columns = (
        Column("a", ColumnKind.VARCHAR, "varchar(9)", nullable=False, charset="utf8mb4"),
        Column("b", ColumnKind.VARBINARY, "varbinary(9)", nullable=False),
    )
    _, table, pipe = made(redis_server, {}, TableSchema(TableId("s", "pairs"), columns, ("a", "b")))
    rows: list[Op] = [new("x:y", b"\x00:"), new("%3A", b""), new("*?[", b"\xff"), new("", b"a")]
    pipe.deliver((table, rows))
    comparer = comparer_of(pipe.target)
    assert comparer is not None
    found = pa.concat_tables(comparer.keys(planned_table(table)))  # type: ignore[attr-defined]
    assert Counter(map(tuple, (one.values() for one in found.to_pylist()))) == Counter(one.after for one in rows)
    pipe.deliver((table, [gone("x:y", b"\x00:")]))
    assert len(list(pipe.state(table).elements())) == 3
