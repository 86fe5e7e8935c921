"""Dumps beside the log: whatever writers do meanwhile, the target ends equal, and no row of it ever goes back to an
older value.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sluice.flows.dump import worker as dumping
from sluice.flows.dump.progress import views
from sluice.flows.dump.start import start
from sluice.flows.dump.worker import work
from sluice.model.dumps import DumpState
from sluice.operations.verify.verify import VerifySpec, verify
from sluice.sources.mysql.snapshot import border_guess, chunk_reader, result_set
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import KEYS, Watcher, Writers, begin, both, delivering, dumped, fill, step
from tests.support.running.waiting import ended, wait_until
from tests.support.servers.fixtures import setting


@pytest.fixture
def shop(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) -> Iterator[Case]:
    schema = fresh_schema(mysql_source, mysql_target)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        yield made


@pytest.mark.promise("C9")
@pytest.mark.parametrize("chunk_rows", [1, 7, 100, 5000])
def test_random_writers_and_chunks_of_every_size(shop: Case, chunk_rows: int, monkeypatch) -> None:
    guessed: list[object] = []
    if chunk_rows == 7:  # with borders that are guessed, as those of large chunks are
        plain = border_guess.BorderGuesses.border
        monkeypatch.setattr(border_guess, "FEWEST_ROWS", 1)
        monkeypatch.setattr(
            border_guess.BorderGuesses,
            "border",
            lambda self, *told, mariadb: guessed.append(plain(self, *told, mariadb=mariadb)) or guessed[-1],
        )
    both(shop, "CREATE TABLE t (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))")
    rows = 60 if chunk_rows == 1 else 700
    fill(shop, "t", rows)
    begin(shop)
    shop.yaml += f"\ndump: {{chunk_rows: {chunk_rows}, parallelism: 3}}\n"
    shop.path.write_text(shop.yaml, encoding="utf-8")
    with (
        Watcher(shop, "t") as watcher,
        Writers(shop, "t", rows // 2 + 20, seed=chunk_rows) as writers,
        delivering(shop),
    ):
        dump = start(shop.runtime())
        done = work(shop.runtime(), dump.id)
        assert done.state is DumpState.DONE
        assert writers.changes > 0
    shop.run_until_head()
    shop.assert_equal("t")
    assert watcher.polls > 0
    assert watcher.back == []
    assert any(guessed) == (chunk_rows == 7)


@pytest.fixture
def quiet(shop: Case) -> Case:
    """A pipeline that stands at the head, small chunks."""
    shop.yaml += "\ndump: {chunk_rows: 50, parallelism: 2}\n"
    shop.path.write_text(shop.yaml, encoding="utf-8")
    return shop


@pytest.mark.promise("C5")
def test_keys_of_every_type(quiet: Case) -> None:
    rows = 230
    for name, (columns, values) in KEYS.items():
        both(quiet, f"CREATE TABLE `k_{name}` ({columns}, v INT) DEFAULT CHARSET utf8mb4")
        lines = ",".join(values.replace("{i}", str(i)) for i in range(rows))
        quiet.source.execute(f"USE `{quiet.schema}`", f"INSERT INTO `k_{name}` VALUES {lines}")
    begin(quiet)
    seen = dumped(quiet)
    assert {t.table.partition(".")[2]: t.rows for t in seen.tables} == {f"k_{name}": rows for name in KEYS}
    assert all(t.chunks >= 5 for t in seen.tables)
    quiet.assert_equal()


def test_chunks_end_at_days_that_no_calendar_has(quiet: Case) -> None:
    """ALLOW_INVALID_DATES stores them, and a chunk may begin at one."""
    both(quiet, "CREATE TABLE days (d DATE PRIMARY KEY, v INT)")
    days = [f"('{year}-{month:02}-31', {year})" for year in range(1990, 2023) for month in (2, 4, 6, 9, 11)]
    allowed = "SET sql_mode = 'ALLOW_INVALID_DATES'"
    quiet.source.execute(f"USE `{quiet.schema}`", allowed, f"INSERT INTO days VALUES {','.join(days)}")
    begin(quiet)
    (table,) = dumped(quiet, replace=True).tables
    assert (table.rows, table.chunks >= 3) == (len(days), True)
    quiet.assert_equal("days")
    found = verify(quiet.runtime(), VerifySpec(most=1000))
    assert (found.rows, found.differing) == (len(days), 0)


@pytest.mark.promise("C4")
def test_key_range_keys_condition_and_time_range(quiet: Case) -> None:
    both(quiet, "CREATE TABLE t (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))")
    fill(quiet, "t", 300)
    begin(quiet)
    table = [f"{quiet.schema}.t"]

    def ids() -> list[int]:
        found = [int(r[0]) for r in quiet.target.execute(f"SELECT id FROM `{quiet.schema}`.t ORDER BY id")]
        quiet.target.execute(f"DELETE FROM `{quiet.schema}`.t")
        return found

    dumped(quiet, tables=table, lower=["10"], upper=["130"])
    assert ids() == list(range(10, 131))
    dumped(quiet, tables=table, keys=["5", "7", "5", "299", "1000"])
    assert ids() == [5, 7, 299]
    dumped(quiet, tables=table, where="id % 100 = 3 OR note = 'n5'")
    assert ids() == [3, 5, 103, 203]
    quiet.source.execute(f"UPDATE `{quiet.schema}`.t SET version = 7 WHERE id IN (20, 40, 60)")
    quiet.run_until_head()
    quiet.source.execute(
        f"USE `{quiet.schema}`", "UPDATE t SET version = 8 WHERE id = 40", "DELETE FROM t WHERE id = 60"
    )
    quiet.run_until_head()
    ids()
    dumped(quiet, tables=table, since="2020-01-01")
    assert ids() == [20, 40]
    assert quiet.source.execute(f"SELECT version FROM `{quiet.schema}`.t WHERE id = 40") == [(8,)]


@pytest.mark.parametrize(
    "where",
    [
        "1=1) OR (1=1",
        "id = 1; DROP TABLE t",
        "1 UNION SELECT 1",
        "v > /*!50000 '') UNION SELECT pay FROM private.salaries WHERE (1= */ 1",
        "bad() = 1",
        "SLEEP(600) = 0",
        "idd = 1",
    ],
)
def test_a_condition_is_one_condition_of_columns_and_values(quiet: Case, where: str) -> None:
    from sluice.errors import ConfigError

    both(quiet, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))")
    quiet.source.execute(f"INSERT INTO `{quiet.schema}`.t VALUES (1, 'a'), (2, 'b')")
    begin(quiet)
    with pytest.raises(ConfigError, match="the condition cannot be used"):
        dumped(quiet, tables=[f"{quiet.schema}.t"], where=where)
    assert len(quiet.source.execute(f"SELECT * FROM `{quiet.schema}`.t")) == 2


@pytest.mark.parametrize("server", ["mysql_source", "mariadb"])
def test_nothing_is_written_at_a_read_only_source(
    server, request, tmp_path, mysql_target, zookeeper, fresh_schema
) -> None:
    from sluice.model.dumps import Marking

    source = request.getfixturevalue(server)
    schema = fresh_schema(source, mysql_target)
    reader = f"reader_{schema}"[:30]
    source.execute(
        f"CREATE USER `{reader}`@'%' IDENTIFIED BY 'p'",
        f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO `{reader}`@'%'",
    )
    with case(tmp_path, source, mysql_target, zookeeper, schema) as made:
        made.connections["case_source"] = source.connection_json(user=reader, password="p")
        made.yaml += "\ndump: {chunk_rows: 40, parallelism: 2}\n"
        made.path.write_text(made.yaml, encoding="utf-8")
        both(made, "CREATE TABLE t (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))")
        fill(made, "t", 400)
        begin(made)
        with Watcher(made, "t") as watcher, Writers(made, "t", 250, seed=5), delivering(made):
            dump = start(made.runtime())
            assert dump.marking is (Marking.SNAPSHOT if server == "mariadb" else Marking.GTID)
            work(made.runtime(), dump.id)
        made.run_until_head()
        made.assert_equal("t")
        assert watcher.back == []
        marks = source.execute(
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_NAME LIKE '\\_sluice\\_mark%'"
        )
        for place, name in marks:  # other tests' tables
            written = f"SELECT COUNT(*) FROM `{place}`.`{name}` WHERE mark LIKE '{dump.id}/%'"
            assert source.execute(written) == [(0,)]
        assert (schema, "_sluice_mark_case") not in marks
    source.execute(f"DROP USER `{reader}`@'%'")


def test_an_idle_read_only_source_is_copied(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        made.yaml += "\ndump: {chunk_rows: 40, marks: none}\n"
        made.path.write_text(made.yaml, encoding="utf-8")
        both(made, "CREATE TABLE t (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))")
        fill(made, "t", 100)
        begin(made)
        dumped(made)
        made.assert_equal("t")


def test_a_pipeline_that_starts_with_a_dump(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, start="dump") as made:
        made.yaml = made.yaml.replace(f'include: ["{schema}\\\\..*"]', f'include: ["{schema}\\\\.t"]')
        made.path.write_text(made.yaml, encoding="utf-8")
        for name in ("t", "later"):
            both(made, f"CREATE TABLE {name} (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))")
            fill(made, name, 300)
        with Watcher(made, "t") as watcher, Writers(made, "t", 200, seed=9):
            made.run_until_head()
        made.run_until_head()
        made.assert_equal("t")
        assert watcher.back == []
        assert made.target.execute(f"SELECT COUNT(*) FROM `{schema}`.later") == [(0,)]
        made.yaml = made.yaml.replace(
            f'include: ["{schema}\\\\.t"]', f'include: ["{schema}\\\\.t", "{schema}\\\\.later"]'
        )
        made.path.write_text(made.yaml, encoding="utf-8")
        made.run_until_head()
        made.assert_equal("t", "later")


@pytest.mark.parametrize("last", ["3", "2", "1"])
@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
def test_unique_values_that_move_behind_a_dumped_row_in_one_batch(quiet: Case, image: str, last: str) -> None:
    """What the dump read is what the target holds: the value has to be free before another row takes it, be that row
    dumped or not.
    """
    both(quiet, "CREATE TABLE t (id INT PRIMARY KEY, email VARCHAR(20), note INT, UNIQUE (email))")
    begin(quiet)
    quiet.source.execute(f"USE `{quiet.schema}`", "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    quiet.run_until_head()
    quiet.assert_equal("t")
    runtime = quiet.runtime()
    with setting(quiet.source, binlog_row_image=image):
        dump = start(runtime, tables=[f"{quiet.schema}.t"], upper=[last])
        moved = threading.Event()

        def move(at: str, chunk: Any) -> None:
            if at == "marked" and not moved.is_set():
                quiet.source.execute(
                    f"USE `{quiet.schema}`",
                    "UPDATE t SET email = NULL WHERE id = 3",
                    "UPDATE t SET email = 'c' WHERE id = 2",
                    "UPDATE t SET email = 'b' WHERE id = 1",
                    "UPDATE t SET email = 'a' WHERE id = 3",
                )
                moved.set()

        worker = threading.Thread(target=lambda: work(quiet.runtime(), dump.id, hook=move), daemon=True)
        worker.start()
        assert moved.wait(300)
        with runtime.state():
            while step(quiet, runtime):
                pass
        ended(worker)
    quiet.assert_equal("t")
    assert quiet.target.execute(f"SELECT email FROM `{quiet.schema}`.t ORDER BY id") == [("b",), ("c",), ("a",)]


@pytest.mark.parametrize("index", ["", "by_place"])
@pytest.mark.parametrize("server", ["mysql_source", "mariadb"])
def test_rows_that_move_past_the_copy_of_which_the_log_brings_a_part(
    server: str, index: str, request: Any, tmp_path: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """Out of a range that is not read yet, into one that has been read: no chunk holds them, and the log not all of
    their columns.
    """
    source = request.getfixturevalue(server)
    schema = fresh_schema(source, mysql_target)
    with case(
        tmp_path, source, mysql_target, zookeeper, schema, extra="dump: {chunk_rows: 50, parallelism: 1}"
    ) as made:
        both(made, "CREATE TABLE t (id INT PRIMARY KEY, place INT, note VARCHAR(20), KEY by_place (place))")
        source.execute(
            f"INSERT INTO {schema}.t VALUES {','.join(f'({i}, {i}, {chr(39)}n{i}{chr(39)})' for i in range(120))}"
        )
        begin(made)
        dump = start(made.runtime(), tables=[f"{schema}.t"], index=index)
        moves = ["place = -1 WHERE id = 110", "note = 'late', place = 3 WHERE id = 111"] if index else [
            "id = -5 WHERE id = 110", "id = id - 200, note = 'late' WHERE id > 115", "id = -6 WHERE id = -5",
        ]  # fmt: skip
        seen: list[int] = []
        first = 2 if index else 1  # rows without a place in the index come before the others

        def move(at: str, chunk: Any) -> None:
            if at == "marked" and chunk.id.number == first and not seen:
                seen.append(chunk.id.number)
                with source.connect(schema) as connection, connection.cursor() as cursor:
                    cursor.execute("SET SESSION binlog_row_image = 'MINIMAL'")
                    for words in moves:
                        cursor.execute(f"UPDATE t SET {words}")

        with delivering(made):
            work(made.runtime(), dump.id, hook=move)
        if not index:  # once more, before anybody has read the rows that moved
            with source.connect(schema) as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION binlog_row_image = 'MINIMAL'")
                cursor.execute("UPDATE t SET id = -7 WHERE id = -6")
            runtime = made.runtime()
            with runtime.state():
                while step(made, runtime):
                    pass
        made.run_until_head()
        assert seen == [first]
        made.assert_equal("t")
        assert len(source.execute(f"SELECT 1 FROM {schema}.t")) == 120


@pytest.mark.parametrize(
    ("server", "marks"), [("mysql_source", "table"), ("mysql_source", "none"), ("mariadb", "none")]
)
def test_a_transaction_prepared_before_a_chunk_and_committed_behind_its_select(
    server: str, marks: str, request: Any, tmp_path: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """Its rows stand in the log before the window, and are newer than what the chunk saw all the same."""
    source = request.getfixturevalue(server)
    schema = fresh_schema(source, mysql_target)
    with case(tmp_path, source, mysql_target, zookeeper, schema, extra=f"dump: {{marks: {marks}}}") as made:
        both(made, "CREATE TABLE t (id INT PRIMARY KEY, version INT)")
        begin(made)
        source.execute(f"INSERT INTO {schema}.t VALUES (1, 0), (2, 0)")
        made.run_until_head()
        with source.connect(schema) as connection, connection.cursor() as cursor:
            for statement in ("XA START 'one'", "UPDATE t SET version = 1", "XA END 'one'", "XA PREPARE 'one'"):
                cursor.execute(statement)
        runtime = made.runtime()
        dump = start(runtime, tables=[f"{schema}.t"])
        committed = threading.Event()

        def commit(at: str, chunk: Any) -> None:
            if at == "selected" and not committed.is_set():
                source.execute("XA COMMIT 'one'")
            if at == "marked":
                committed.set()

        worker = threading.Thread(target=lambda: work(made.runtime(), dump.id, hook=commit), daemon=True)
        worker.start()
        assert committed.wait(60)
        with Watcher(made, "t") as watcher, runtime.state():
            while worker.is_alive():
                step(made, runtime)
        assert watcher.back == []
        made.assert_equal("t")


@pytest.mark.promise("C8")
def test_a_chunk_is_read_without_a_lock(quiet: Case, monkeypatch) -> None:
    """While its rows are on the way: no row is locked, and the table only as any SELECT does it (so that nobody drops
    it meanwhile).
    """
    both(quiet, "CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")
    quiet.source.execute(
        "INSERT INTO t WITH RECURSIVE s AS (SELECT 1 n UNION ALL SELECT n + 1 FROM s WHERE n < 40) SELECT n, "
        "REPEAT('x', 400000) FROM s",
        database=quiet.schema,
    )
    begin(quiet)
    seen: list[tuple[set[tuple[str, ...]], list[tuple[str, ...]], list[tuple[str, ...]]]] = []
    monkeypatch.setattr(result_set, "PIECE_BYTES", 1 << 20)
    plain = dumping.write_chunk

    def look() -> None:
        tables = quiet.source.execute(
            "SELECT OBJECT_TYPE, LOCK_TYPE, LOCK_STATUS FROM performance_schema.metadata_locks WHERE OBJECT_SCHEMA = "
            f"'{quiet.schema}' AND OBJECT_NAME = 't'"
        )
        others = quiet.source.execute(
            "SELECT OBJECT_TYPE, LOCK_TYPE FROM performance_schema.metadata_locks WHERE OBJECT_TYPE IN ('GLOBAL', "
            "'BACKUP LOCK', 'COMMIT') AND LOCK_TYPE NOT LIKE 'INTENTION%'"
        )
        rows = quiet.source.execute(
            f"SELECT LOCK_TYPE, LOCK_MODE FROM performance_schema.data_locks WHERE OBJECT_SCHEMA = '{quiet.schema}'"
        )
        quiet.source.execute(
            "SET innodb_lock_wait_timeout = 1, lock_wait_timeout = 1",
            f"UPDATE t SET v = CONCAT(v, '{len(seen)}') WHERE id IN (1, 20, 40)",
            f"INSERT INTO t VALUES ({100 + len(seen)}, 'new')",
            database=quiet.schema,
        )
        seen.append((set(tables), others, rows))

    def watched(store: Any, path: str, schema: Any, pieces: Any) -> Any:
        def looking() -> Iterator[Any]:
            for number, piece in enumerate(pieces):
                if number < 3:
                    look()
                yield piece

        return plain(store, path, schema, looking())

    monkeypatch.setattr(dumping, "write_chunk", watched)
    with delivering(quiet):
        work(quiet.runtime(), start(quiet.runtime()).id)
    quiet.run_until_head()
    quiet.assert_equal("t")
    assert len(seen) >= 3
    for tables, others, rows in seen:
        assert tables == {("TABLE", "SHARED_READ", "GRANTED")}, "what a SELECT that is still under way has"
        assert others == []
        assert rows == []


def test_a_definition_that_changes_while_a_chunk_is_read(quiet: Case) -> None:
    both(quiet, "CREATE TABLE t (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))")
    fill(quiet, "t", 60)
    begin(quiet)
    quiet.target.execute(f"ALTER TABLE `{quiet.schema}`.t ADD COLUMN more INT DEFAULT 4")
    done: list[int] = []

    def alter(at: str, chunk: Any) -> None:
        if at == "selected" and not done:
            done.append(1)
            quiet.source.execute(f"ALTER TABLE `{quiet.schema}`.t ADD COLUMN more INT DEFAULT 4")

    with delivering(quiet):
        dump = start(quiet.runtime())
        work(quiet.runtime(), dump.id, hook=alter)
    quiet.run_until_head()
    quiet.assert_equal("t")


@pytest.mark.promise("C16")
def test_the_published_example(quiet: Case) -> None:
    """DBLog's figure: a chunk of k1 to k6, and changes of k1 and k3 between its watermarks.

    k1 and k3 come from the log alone, the other four stand where the high watermark is: behind all that is between the
    marks, before all that follows.
    """
    from sluice.segments.reader import iter_changes

    both(quiet, "CREATE TABLE t (k VARCHAR(4) PRIMARY KEY, version INT NOT NULL)")
    quiet.source.execute(
        f"USE `{quiet.schema}`", "INSERT INTO t VALUES ('k1',0),('k2',0),('k3',0),('k4',0),('k5',0),('k6',0)"
    )
    begin(quiet)

    def update(key: str, version: int) -> None:
        quiet.source.execute(f"UPDATE `{quiet.schema}`.t SET version = {version} WHERE k = '{key}'")

    moments = {
        "claimed": [("k2", 1)],  # before the low mark: the chunk has it
        "low": [("k1", 1)],  # between the marks, before the select
        "selected": [("k3", 1)],  # between the marks, behind the select: the chunk's k3 is stale
        "high": [("k4", 2)],  # behind the high mark
    }

    def between(at: str, chunk: Any) -> None:
        for key, version in moments.get(at, []):
            update(key, version)

    runtime = quiet.runtime()
    dump = start(runtime)
    stop = threading.Event()
    worker = threading.Thread(target=lambda: work(quiet.runtime(), dump.id, hook=between, stop=stop), daemon=True)
    worker.start()
    with runtime.state() as state:
        wait_until(lambda: any(c.state == "marked" for c in state.dumps.chunks(dump.id)), "a chunk")
        while step(quiet, runtime):
            pass
        ended(worker)
        changes = [
            (c.op, (c.after or {})["k"], (c.after or {})["version"])
            for n in range(1, state.cursor().next_batch)
            for c in iter_changes(runtime.store, runtime.store.read_manifest(state.batches.get(n).manifest))
        ]
    dumped_rows = sorted(c for c in changes if c[0] == "r")
    assert dumped_rows == [("r", "k2", 1), ("r", "k4", 0), ("r", "k5", 0), ("r", "k6", 0)]
    assert [c for c in changes if c[0] == "u"] == [("u", "k2", 1), ("u", "k1", 1), ("u", "k3", 1), ("u", "k4", 2)]
    first, last = changes.index(("r", "k2", 1)), max(i for i, c in enumerate(changes) if c[0] == "r")
    assert changes.index(("u", "k3", 1)) < min(i for i, c in enumerate(changes) if c[0] == "r") <= first
    assert last < changes.index(("u", "k4", 2))
    quiet.assert_equal("t")


@pytest.mark.parametrize("replace", [False, True], ids=["from nothing", "replacing"])
def test_changes_that_a_snapshot_of_mariadb_does_not_see_follow_the_copy(
    tmp_path, mariadb, mysql_target, zookeeper, fresh_schema, monkeypatch, replace: bool
) -> None:
    """The only read of a table without a key is overtaken by changes, some of them in batches that are delivered
    meanwhile.
    """
    schema = fresh_schema(mariadb, mysql_target)
    whole, overtaken = chunk_reader.MySQLChunkReader.rows, list[str]()

    def write(number: int) -> None:
        with made.source.connect(made.schema) as connection, connection.cursor() as cursor:
            connection.begin()
            cursor.execute("UPDATE log SET b = CONCAT(b, '+') WHERE a %% 3 = %s", (number % 3,))
            cursor.execute("DELETE FROM log WHERE a = %s", (number + 5,))
            cursor.execute("INSERT INTO log VALUES (%s, 'more'), (1, 'one')", (number + 100,))
            connection.commit()

    with case(tmp_path, mariadb, mysql_target, zookeeper, schema, start="latest" if replace else "dump") as made:
        made.yaml += "\ndump: {marks: none}\n"
        made.path.write_text(made.yaml, encoding="utf-8")

        def states() -> set[str]:
            return {view.state for view in views(made.runtime())}

        def disturbed(reader: Any, *asked: Any) -> Iterator[Any]:
            pieces = whole(reader, *asked)
            yield next(pieces)
            overtaken.append("log")
            write(1)
            place = reader.end_of_log()
            with made.runtime().state() as state:
                wait_until(lambda: state.cursor().position.has_reached(place), "the capture of what was written")
            write(2)
            yield from pieces

        both(made, "CREATE TABLE log (a INT, b VARCHAR(40))")
        for server in (mariadb, mysql_target) if replace else (mariadb,):
            server.execute(*(f"INSERT INTO `{schema}`.log VALUES ({number}, 'old')" for number in range(30)))
        monkeypatch.setattr(chunk_reader.MySQLChunkReader, "rows", disturbed)
        if replace:
            made.run_until_head()
            write(0)
            dump = start(made.runtime(), tables=[f"{schema}.log"], replace=True)
            reading = threading.Thread(target=work, args=(made.runtime(), dump.id))
            reading.start()
        wait_until(lambda: made.run_until_head() is not None and states() == {"done"}, "the copy")
        write(3)
        made.run_until_head()
        assert overtaken == ["log"]
        made.assert_equal("log")
        if replace:
            ended(reading)


def test_a_table_without_a_key_is_not_dumped_onto_its_rows(quiet: Case) -> None:
    from sluice.errors import ConfigError

    both(quiet, "CREATE TABLE log (a INT, b VARCHAR(20))")
    begin(quiet)
    with pytest.raises(ConfigError, match="no primary key"):
        start(quiet.runtime())
