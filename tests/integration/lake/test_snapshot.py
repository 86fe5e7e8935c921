"""The snapshot of a pipeline: the newest row of every key in lake tables, as of an exact batch."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import flight
from structlog.testing import capture_logs

from sluice.client import Subscription, subscribe
from sluice.config.pipeline import SNAPSHOT
from sluice.errors import ConfigError, LoadError, MappingError, TargetUnavailable
from sluice.flows.capture.drain import drain
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.run import run
from sluice.operations.check import check
from sluice.operations.retention import prune
from sluice.operations.snapshot import show
from sluice.operations.status import status
from sluice.segments.store import SegmentStore
from sluice.serve import read
from sluice.serve.batch_range import StoredBatches
from sluice.serve.table_index import TableIndex
from tests.support.pipelines.case import Case, as_older_versions_write, case
from tests.support.pipelines.subscribing import Exchanger, by_http, documents, replayed, replayed_events, serving
from tests.support.readers.lakes import IcebergLake, Lake
from tests.support.running.waiting import wait_until

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

LAKES: dict[str, Any] = {"delta": Lake, "iceberg": IcebergLake}
both_formats = pytest.mark.parametrize("kept_as", LAKES)


@contextmanager
def kept(
    folder: Path,
    source: Any,
    target: Any,
    zookeeper: Any,
    schema: str,
    *lines: str,
    kept_as: str = "delta",
    **more: Any,
) -> Iterator[Case]:
    """A pipeline with a snapshot in this format, and tables for its targets."""
    place = f'uri: "{(folder / "lake").as_uri()}", format: {kept_as}'
    extra = "\n".join([f"snapshot: {{{place}, retain_log: 7d}}", *lines])
    with case(folder, source, target, zookeeper, schema, extra=extra, **more) as made:
        made.make_missing()
        yield made


def lake_of(made: Case) -> Any:
    kept = made.runtime().pipeline.snapshot
    assert kept is not None
    return LAKES[kept.format](made.folder / "lake")


def rows_of(made: Case, table: str, version: int | None = None) -> list[tuple[Any, ...]]:
    """As the format's own client reads them."""
    return sorted(tuple(row.values()) for row in lake_of(made).rows(made.schema, table, version).to_pylist())


@pytest.mark.promise("D7")
@both_formats
def test_each_key_has_its_newest_row_as_of_a_batch_and_as_of_a_time(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, kept_as: str
) -> None:
    """It starts from a dump; a table made later begins in the log.

    Every older batch can be read as long as it is kept, with its columns.
    """
    schema = fresh_schema(mysql_source, mysql_target)
    mysql_source.execute("CREATE TABLE a (id INT PRIMARY KEY, v INT)", database=schema)
    mysql_source.execute("INSERT INTO a VALUES (1, 1), (2, 2), (3, 3)", database=schema)
    with kept(tmp_path, mysql_source, mysql_target, zookeeper, schema, kept_as=kept_as, start="dump") as made:
        assert not check(made.runtime()).failed
        states = []
        for change in (
            "UPDATE a SET v = 20 WHERE id = 2",
            "DELETE FROM a WHERE id = 3",
            "ALTER TABLE a ADD n INT DEFAULT 7, RENAME COLUMN v TO w",
            "CREATE TABLE b (id INT PRIMARY KEY, v INT)",
            "INSERT INTO b VALUES (7, 7)",
            "UPDATE a SET id = 9 WHERE id = 1",
        ):
            mysql_source.execute(change, database=schema)
            made.run_until_head()
            now = show(made.runtime())
            states.append((now, sorted(mysql_source.execute("SELECT * FROM a", database=schema))))
            assert rows_of(made, "a") == states[-1][1]
        assert rows_of(made, "b") == [(7, 7)]
        for then, rows in states:
            again = show(made.runtime(), f"{schema}.a", batch=then.batch)
            assert rows_of(made, "a", again.tables[0].version) == rows
            assert again.tables[0].rows == len(rows)
        there = {one.table.table: one for one in show(made.runtime(), batch=states[-2][0].batch).tables}
        assert there["b"].rows == 1
        deleted = next(one for one in states[1][0].tables if one.table.table == "a")
        found = show(made.runtime(), at=dt.datetime.fromisoformat(deleted.commit_time))
        assert [one.version for one in found.tables if one.table.table == "a"] == [deleted.version]

        said = json.loads(made.cli("snapshot", "show", made.name, f"{schema}.a", "--batch", "1", "--json").stdout)
        assert said["batch"] == 1
        assert [one["table"] for one in said["tables"]] == [f"{schema}.a"]
        assert f"as of batch {states[-1][0].batch}" in made.cli("snapshot", "show", made.name).stdout
        for wrong in (["x.y"], ["--batch", "999"], ["--at", "soon"]):
            assert made.cli("snapshot", "show", made.name, *wrong).returncode == 1
        with made.runtime().state() as state:
            assert state.acks.get(SNAPSHOT).batch == state.acks.get("copy").batch


@both_formats
def test_a_batch_touches_the_files_that_hold_its_rows(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, kept_as: str
) -> None:
    """The cost follows what changed: files of other keys stay as they are, however many there are."""
    schema = fresh_schema(mysql_source, mysql_target)
    mysql_source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", database=schema)
    with kept(tmp_path, mysql_source, mysql_target, zookeeper, schema, kept_as=kept_as) as made:
        made.run_until_head()
        for block in range(6):
            values = ", ".join(f"({block * 1000 + row}, 0)" for row in range(20))
            mysql_source.execute(f"INSERT INTO t VALUES {values}", database=schema)
            made.run_until_head()
        before = set(lake_of(made).files(schema, "t"))
        assert len(before) == 6
        mysql_source.execute("UPDATE t SET v = 1 WHERE id = 3005", database=schema)
        made.run_until_head()
        after = set(lake_of(made).files(schema, "t"))
        assert len(before - after) == 1, "the file with the row, and no other, is written anew"
        assert len(after - before) <= 2


def run_one_batch(made: Case) -> int:
    """What comes next is drained and given to every target; what waits goes on waiting.

    Returns the number of the batch.
    """
    for _ in range(20):
        runtime = made.runtime()
        before = acknowledged(made).batch if acknowledged(made) is not None else 0
        list(run(runtime, batches=1))
        if acknowledged(made).batch > before:
            return acknowledged(made).batch
    raise AssertionError("no batch was made")


@contextmanager
def kept_together(folder: Path, source: Any, target: Any, zookeeper: Any, schema: str, kept_as: str) -> Iterator[Case]:
    """A pipeline whose snapshot takes batches together; the first rows are there."""
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", database=schema)
    source.execute("CREATE TABLE u (id INT PRIMARY KEY, v INT)", database=schema)
    with kept(folder, source, target, zookeeper, schema, kept_as=kept_as) as made:
        text = made.path.read_text(encoding="utf-8").replace("retain_log: 7d}", "retain_log: 7d, every: 1h}")
        made.path.write_text(text, encoding="utf-8")
        made.run_until_head()
        source.execute("INSERT INTO t VALUES (1, 1), (2, 2)", database=schema)
        source.execute("INSERT INTO u VALUES (1, 1)", database=schema)
        made.run_until_head()
        yield made


@both_formats
def test_a_snapshot_that_takes_batches_together_is_read_as_of_those_that_end_a_commit(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, kept_as: str
) -> None:
    """Batches wait, also for readers; a command writes them, one commit a table; a batch within them is shown as of the
    one before them.
    """
    schema = fresh_schema(mysql_source, mysql_target)
    with kept_together(tmp_path, mysql_source, mysql_target, zookeeper, schema, kept_as) as made:
        before, rows = acknowledged(made, SNAPSHOT).batch, rows_of(made, "t")
        versions = lake_of(made).versions(schema, "t")
        for value in (10, 20, 30):
            mysql_source.execute(f"UPDATE t SET v = {value} WHERE id = 1", database=schema)
            last = run_one_batch(made)
        assert last >= before + 3
        assert (acknowledged(made, SNAPSHOT).batch, rows_of(made, "t")) == (before, rows)
        wanted = {1: {"id": 1, "v": 30}, 2: {"id": 2, "v": 2}}
        with serving(made) as (_, reader):
            ask = {"tables": [f"{schema}.t"], "from_": "snapshot"}
            runtime = made.runtime()
            for is_midway in (False, True):
                if is_midway:  # all is written, and the first batch of it acknowledged
                    load(runtime, SNAPSHOT, last)
                    with runtime.state() as state:
                        state.acks.acknowledge(
                            SNAPSHOT, state.batches.require(before + 1), seen=state.acks.get(SNAPSHOT)
                        )
                read = reader.read(**ask)
                assert [mark["batch"] for mark in read.marks] == list(range(before, last + 1))
                assert replayed(read.rows()) == wanted
            assert made.cli("targets", "commit", made.name, SNAPSHOT).returncode == 0
            assert lake_of(made).versions(schema, "t") == versions + 1
            again = reader.read(**ask)
            assert [mark["batch"] for mark in again.marks] == [last]
            assert replayed(again.rows()) == wanted
        within = show(made.runtime(), batch=last - 1)
        assert (within.batch, within.asked, within.holds) == (before, last - 1, last)
        old = next(one for one in within.tables if one.table.table == "t")
        assert rows_of(made, "t", old.version) == rows
        assert show(made.runtime()).batch == last
        said = made.cli("snapshot", "show", made.name, "--batch", str(last - 1)).stdout
        assert f"no version as of batch {last - 1}" in said


def test_a_target_that_joins_has_the_waiting_batches_of_the_snapshot_written_up_to_its_start(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    first = Lake(tmp_path / "first")
    mysql_source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", database=schema)
    with kept(tmp_path, mysql_source, first, zookeeper, schema, kind="delta") as made:
        text = made.path.read_text(encoding="utf-8").replace("retain_log: 7d}", "retain_log: 7d, every: 1h}")
        made.path.write_text(text, encoding="utf-8")
        made.run_until_head()
        mysql_source.execute("INSERT INTO t VALUES (1, 1), (2, 2)", database=schema)
        made.run_until_head()
        for value in (10, 20):
            mysql_source.execute(f"UPDATE t SET v = {value} WHERE id = 1", database=schema)
            waits_for = run_one_batch(made)
        assert acknowledged(made, SNAPSHOT).batch < waits_for
        made.connections["late"], made.target = mysql_target.connection_json(schema=schema), mysql_target
        join(made)
        list(run(made.runtime(), batches=1))
        assert acknowledged(made, "late").batch == acknowledged(made).batch, "it began at once, and was not tried again"
        written = show(made.runtime(), batch=waits_for)
        assert [one.batch for one in written.tables] == [waits_for], "the batch before the start ends the commit"
        mysql_source.execute("DELETE FROM t WHERE id = 2", database=schema)
        run_one_batch(made)
        mysql_source.execute("INSERT INTO t VALUES (3, 3)", database=schema)
        made.run_until_head()
        made.assert_equal("t")


@pytest.mark.promise("D7")
def test_old_batches_are_given_up_after_retain_log_and_no_earlier(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any,
    monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """In Iceberg tables, by what the DAG retention does: small files become larger ones, and files that only old
    batches need go.

    Delta's client looks at the times of files: tests/integration/lake/test_target_delta.py.
    """
    schema = fresh_schema(mysql_source, mysql_target)
    mysql_source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", database=schema)
    with kept(tmp_path, mysql_source, mysql_target, zookeeper, schema, kept_as="iceberg") as made:
        retained = f"retain_log: 1h, options: {{cluster_by: {{{schema}.t: [v]}}, maintenance: {{small_files: 2}}}}}}"
        text = made.path.read_text(encoding="utf-8").replace("retain_log: 7d}", retained)
        made.path.write_text(text, encoding="utf-8")
        made.run_until_head()
        for step in range(4):
            mysql_source.execute(f"INSERT INTO t VALUES ({step}, 0)", database=schema)
            made.run_until_head()
        rows, newest = rows_of(made, "t"), show(made.runtime()).batch
        old = show(made.runtime(), batch=newest - 1).tables[0]

        def maintained(after: dt.timedelta) -> Any:
            at = dt.datetime.now(dt.UTC) + after
            clock = type("Clock", (dt.datetime,), {"now": classmethod(lambda cls, zone=None: at)})
            monkeypatch.setattr("sluice.targets.iceberg.maintain.datetime", clock)
            said = made.cli("targets", "maintain", made.name, "--json")
            return json.loads(said.stdout)[0]["tables"]

        [done] = maintained(dt.timedelta(minutes=50))
        assert (done["merged"], done["removed"], done["expired"]) == (4, 0, 0)
        assert len(lake_of(made).files(schema, "t")) == 1
        assert "clustered by v" in made.cli("check", made.name).stdout
        assert rows_of(made, "t", old.version) == [row for row in rows if row != (3, 0)]
        [done] = maintained(dt.timedelta(minutes=70))
        assert done["expired"] == 4
        assert done["removed"] >= 4
        assert rows_of(made, "t") == rows
        said = made.cli("snapshot", "show", made.name, "--batch", str(newest - 1))
        assert (said.returncode, "cannot be read as of batch" in said.stderr) == (1, True)
        [now] = show(made.runtime()).tables
        assert (now.batch, now.rows, now.files, now.commit_time != "") == (newest, 4, 1, True)


def test_a_pipeline_without_a_snapshot_says_so(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    with (
        case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made,
        pytest.raises(ConfigError, match="no snapshot"),
    ):
        show(made.runtime())


TYPES = (
    "id BIGINT UNSIGNED PRIMARY KEY, n DECIMAL(30,10), t TIME(6), d DATETIME(6), s TIMESTAMP(3) NULL, e "
    "ENUM('a','','b'), z SET('x','y'), j JSON, b BIT(9), y YEAR, raw VARBINARY(20), f FLOAT, g INT AS (y + 1), txt "
    "VARCHAR(50) CHARACTER SET utf8mb4, p POINT"
)
VALUES = (
    "(18446744073709551615, -1.5, '-838:59:59', '2026-01-01 01:02:03.000004', '2026-01-01 01:02:03.5', 'b', 'x,y', "
    "'{\"a\": [1, null]}', b'100000001', 1999, x'00ff20', 1.5, 'Größe 😀', POINT(1, 2)), "
    "(2, NULL, NULL, NULL, NULL, '', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
)


@contextmanager
def before_it_joins(
    folder: Path, source: Any, late: Any, zookeeper: Any, schema: str, *lines: str, **more: Any
) -> Iterator[Case]:
    """A pipeline with a snapshot that is full, and a target that :func:`join` adds."""
    with kept(
        folder, source, Lake(folder / "first"), zookeeper, schema, *lines, kind="delta", start="dump", **more
    ) as made:
        made.run_until_head()
        made.connections["late"] = late.connection_json(schema=schema)
        made.target = late
        yield made


def join(made: Case) -> None:
    """A target joins, which starts from the snapshot; its tables are there."""
    late = "targets:\n  - {name: late, type: mysql, connection: late, start: snapshot}\n"
    made.path.write_text(made.path.read_text(encoding="utf-8").replace("targets:\n", late), encoding="utf-8")
    made.make_missing()


@contextmanager
def no_row_read(source: Any, schema: str) -> Iterator[None]:
    """The general log has no SELECT from a table of the schema meanwhile."""
    source.execute("SET GLOBAL log_output = 'TABLE', GLOBAL general_log = ON")
    try:
        yield
    finally:
        source.execute("SET GLOBAL general_log = OFF, GLOBAL log_output = 'FILE'")
    said = source.execute("SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log")
    source.execute("TRUNCATE mysql.general_log")
    asked = [text for (text,) in said if text.lstrip().upper().startswith("SELECT") and f"`{schema}`" in text]
    assert not asked, "no row was read"


@pytest.mark.promise("D10")
@both_formats
def test_a_target_that_joins_starts_from_the_snapshot_and_nothing_is_read_at_the_source(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, kept_as: str
) -> None:
    """Values of every kind come back as they were, changes go on, and the general log has no SELECT of a row."""
    schema = fresh_schema(mysql_source, mysql_target)
    mysql_source.execute(f"CREATE TABLE v ({TYPES})", database=schema)
    mysql_source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", database=schema)
    mysql_source.execute(
        f"INSERT INTO v (id, n, t, d, s, e, z, j, b, y, raw, f, txt, p) VALUES {VALUES}", database=schema
    )
    mysql_source.execute("INSERT INTO t VALUES " + ", ".join(f"({n}, {n})" for n in range(500)), database=schema)
    with before_it_joins(tmp_path, mysql_source, mysql_target, zookeeper, schema, kept_as=kept_as) as made:
        mysql_source.execute("DELETE FROM t WHERE id % 5 = 0", database=schema)
        made.run_until_head()
        join(made)
        with no_row_read(mysql_source, schema):
            mysql_source.execute("UPDATE t SET v = -1 WHERE id < 100", database=schema)
            made.run_until_head()
        made.assert_equal("v", "t")
        with made.runtime().state() as state:
            assert len(state.dumps.ids()) == 1, "the first copy, and none for the target"
        mysql_source.execute("INSERT INTO t VALUES (1000, 0)", database=schema)
        made.run_until_head()
        made.assert_equal("v", "t")


def test_a_start_from_the_snapshot_that_is_killed_ends_equal(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """Killed when its batch is recorded, and again when its first rows are there."""
    schema = fresh_schema(mysql_source, mysql_target)
    for table in ("a", "b", "c"):
        mysql_source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)", database=schema)
        values = ", ".join(f"({n}, {n})" for n in range(5000))
        mysql_source.execute(f"INSERT INTO {table} VALUES {values}", database=schema)
    with before_it_joins(tmp_path, mysql_source, mysql_target, zookeeper, schema, session_s=2) as made:
        join(made)

        def recorded() -> bool:
            with made.runtime().state() as state:
                return state.acks.get("late") is not None

        def some_rows() -> bool:
            return any(mysql_target.execute(f"SELECT 1 FROM `{schema}`.{table} LIMIT 1") for table in "abc")

        for step, seen in enumerate((recorded, some_rows)):
            mysql_source.execute(f"UPDATE a SET v = -1 WHERE id % 7 = {step}", database=schema)
            process = subprocess.Popen(
                made.command("run", made.name), env=made.environment, cwd=tmp_path, stdout=subprocess.DEVNULL
            )
            try:
                wait_until(seen, "the start from the snapshot")
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
        mysql_source.execute("DELETE FROM b WHERE id > 4000", database=schema)
        made.run_until_head()
        made.assert_equal("a", "b", "c")


def test_a_target_that_joins_together_with_the_snapshot_waits_until_a_dump_has_filled_it(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    mysql_source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", database=schema)
    mysql_source.execute("INSERT INTO t VALUES (1, 1), (2, 2)", database=schema)
    with case(tmp_path, mysql_source, Lake(tmp_path / "first"), zookeeper, schema, kind="delta", start="dump") as made:
        made.make_missing()
        made.run_until_head()
        made.connections["late"], made.target = mysql_target.connection_json(schema=schema), mysql_target
        made.path.write_text(made.yaml + f'snapshot: {{uri: "{tmp_path / "lake"}"}}\n', encoding="utf-8")
        join(made)
        made.run_until_head()
        mysql_source.execute("INSERT INTO t VALUES (3, 3)", database=schema)
        made.run_until_head()
        made.assert_equal("t")
        assert rows_of(made, "t") == [(1, 1), (2, 2), (3, 3)]


def test_rules_and_mapping_apply_once_and_what_only_rows_tell_is_refused(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """The snapshot has a table's rows as rules made them, under the names of the target.

    A target and a reader that begin with it get them so.
    """
    schema = fresh_schema(mysql_source, mysql_target)
    mysql_source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT, at TIME(3), secret VARCHAR(20))", database=schema)
    values = "(1, 10, '-1:00:00.5', 'a@x'), (2, 20, NULL, 'b@x'), (3, 30, '838:59:59', 'c@x')"
    mysql_source.execute(f"INSERT INTO t VALUES {values}", database=schema)
    mapping = f"mapping: [{{from: {schema}.t, to: {schema}.other, columns: {{rename: {{v: w}}}}}}]"
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/engine.yaml").write_text(
        "rules:\n"
        "  - {name: few, builtin: filter, params: {where: 'id > 1'}}\n"
        "  - {name: hide, builtin: mask, params: {columns: [secret]}}\n"
        "  - {name: more, path: more.sql, type: sql}\n",
        encoding="utf-8",
    )
    (tmp_path / "rules/more.sql").write_text("SELECT * REPLACE (v + 1 AS v) FROM rows", encoding="utf-8")
    lines = (mapping, "rules: engine.yaml")
    with before_it_joins(tmp_path, mysql_source, mysql_target, zookeeper, schema, *lines) as made:
        join(made)
        assert not [
            found for found in check(made.runtime()).findings if found.part == "rules" and found.severity == "error"
        ]
        with serving(made) as (_, reader):
            read = reader.read(tables=[f"{schema}.other"], from_="snapshot")
            assert [(row["id"], row["w"], row["secret"]) for row in read.rows()] == [(2, 21, "***"), (3, 31, "***")]
        mysql_source.execute("INSERT INTO t VALUES (4, 40, NULL, 'd@x')", database=schema)
        made.run_until_head()
        rows = mysql_target.execute("SELECT id, w, CAST(at AS CHAR), secret FROM other ORDER BY id", database=schema)
        assert rows == [(2, 21, None, "***"), (3, 31, "838:59:59.000", "***"), (4, 41, None, "***")]
        lake = Lake(made.folder / "lake").rows(schema, "other").sort_by("id")
        assert lake["w"].to_pylist() == [21, 31, 41]

        engine = made.folder / "rules" / "engine.yaml"
        engine.write_text("rules: [{name: own, path: own.py, type: row}]\n", encoding="utf-8")
        (made.folder / "rules/own.py").write_text("def transform(row, context):\n    return row\n", encoding="utf-8")
        [refused] = [
            one for one in check(made.runtime()).findings if "cannot be read back from the snapshot" in one.why
        ]
        assert "rule 'own' is of type row, and what columns it makes is known when it runs" in refused.why


OWN = """
def transform(row, context):
    row["loud"] = row["name"].upper()
    row["half"] = row["id"] / 2
    return context.to(f"{context.schema}.attic", row) if row["name"] == "gone" else row
"""


@both_formats
def test_a_target_that_joins_where_only_rows_tell_what_rules_make_of_them(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, kept_as: str
) -> None:
    """Columns that a rule of type row adds, and a table that only it sends rows to; a reader gets them, too.

    Columns that came and went since.
    """
    schema = fresh_schema(mysql_source, mysql_target)
    mysql_source.execute(
        "CREATE TABLE t (id INT UNSIGNED PRIMARY KEY, name VARCHAR(20), at TIME(3), old INT)", database=schema
    )
    rows = "(2, 'b', '-1:00:00.5', 1), (3, 'gone', NULL, 1), (4, 'd', NULL, 1)"
    mysql_source.execute(f"INSERT INTO t VALUES {rows}", database=schema)
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/engine.yaml").write_text(
        f"rules: [{{name: own, path: own.py, type: row, emits: {{{schema}.attic: {{key: [id]}}}}}}]\n",
        encoding="utf-8",
    )
    (tmp_path / "rules/own.py").write_text(OWN, encoding="utf-8")
    first = Lake(tmp_path / "first")
    lines = {"kept_as": kept_as, "kind": "delta", "start": "dump"}
    with kept(tmp_path, mysql_source, first, zookeeper, schema, "rules: engine.yaml", **lines) as made:
        with pytest.raises(MappingError, match="sluice check case --apply"):
            made.run_until_head()
        made.make_missing()  # what rules make is known by the batch that waits
        made.run_until_head()
        mysql_source.execute("INSERT INTO t VALUES (5, 'e', NULL, 2), (6, 'gone', NULL, 2)", database=schema)
        mysql_source.execute("UPDATE t SET name = 'bb' WHERE id = 2", database=schema)
        made.run_until_head()
        mysql_source.execute("ALTER TABLE t ADD COLUMN fresh INT DEFAULT 7, DROP COLUMN old", database=schema)
        made.run_until_head()
        assert len(made.runtime().store.list_files("snapshot-columns")) == 2, "one for each table: they did not change"
        assert {str(one.table) for one in show(made.runtime()).tables} == {f"{schema}.t", f"{schema}.attic"}
        made.connections["late"], made.target = mysql_target.connection_json(schema=schema), mysql_target
        join(made)
        assert not check(made.runtime()).failed
        with serving(made) as (_, reader):
            read = reader.read(from_="snapshot").rows()
            assert sorted((row["id"], row["loud"], row["half"]) for row in read) == [
                (2, "BB", 1.0), (3, "GONE", 1.5), (4, "D", 2.0), (5, "E", 2.5), (6, "GONE", 3.0)]  # fmt: skip
        with no_row_read(mysql_source, schema):
            mysql_source.execute("DELETE FROM t WHERE id = 4", database=schema)
            made.run_until_head()
        kept_rows = mysql_target.execute(
            "SELECT id, name, CAST(at AS CHAR), fresh, loud, half FROM t ORDER BY id", database=schema
        )
        assert kept_rows == [(2, "bb", "-01:00:00.500", 7, "BB", 1.0), (5, "e", None, 7, "E", 2.5)]
        sent = mysql_target.execute("SELECT id, loud, half FROM attic ORDER BY id", database=schema)
        assert sent == [(3, "GONE", 1.5), (6, "GONE", 3.0)]


FALLS_BACK = "    on_lost_batches: snapshot"


@contextmanager
def falling_back(
    folder: Path, source: Any, target: Any, zookeeper: Any, fresh_schema: Any, kept_as: str = "delta"
) -> Iterator[Case]:
    """A pipeline of two tables with rows, of which the segments keep nothing that they need not, and a target that may
    lose batches.
    """
    schema = fresh_schema(source, target)
    for table in ("t", "u"):
        source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)", database=schema)
    source.execute("INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)", database=schema)
    source.execute("INSERT INTO u VALUES (1, 1), (2, 2)", database=schema)
    more = {"target_extra": FALLS_BACK, "start": "dump", "session_s": 2}
    with kept(folder, source, target, zookeeper, schema, kept_as=kept_as, **more) as made:
        text = made.path.read_text(encoding="utf-8").replace('/store"}', '/store", retain: 1ms}')
        made.path.write_text(text, encoding="utf-8")
        assert not check(made.runtime()).failed
        made.run_until_head()
        yield made


def acknowledged(made: Case, target: str = "copy") -> Any:
    with made.runtime().state() as state:
        return state.acks.get(target)


def started_again(made: Case) -> bool:
    with made.runtime().state() as state:
        return any(entry["what"] == "start again" for entry in state.audit.entries())


@both_formats
def test_a_target_that_lacks_removed_batches_starts_again_from_the_snapshot(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, kept_as: str
) -> None:
    """It was away while rows went, came and changed, and one table lost all of its rows; a kill in between changes
    nothing.
    """
    with falling_back(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema, kept_as) as made:
        schema, there = made.schema, made.connections["case_target"]
        made.connections["case_target"] = there.replace(str(mysql_target.port), "1")
        held = acknowledged(made).batch
        for statement in ("DELETE FROM t WHERE id = 2", "UPDATE t SET v = 30 WHERE id = 3", "DELETE FROM u"):
            mysql_source.execute(statement, database=schema)
            with pytest.raises(TargetUnavailable):
                made.run_until_head()
        assert held + 1 in prune(made.runtime()).removed
        made.connections["case_target"] = there
        mysql_source.execute("INSERT INTO t VALUES (4, 4)", database=schema)
        process = subprocess.Popen(
            made.command("run", made.name), env=made.environment, cwd=tmp_path, stdout=subprocess.DEVNULL
        )
        try:
            wait_until(lambda: started_again(made), "the drain that finds the batches gone")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if acknowledged(made).restart:
            assert any("starts again from the snapshot" in warning for warning in status(made.runtime()).warnings)
        with no_row_read(mysql_source, schema):
            mysql_source.execute("UPDATE t SET v = v + 1", database=schema)
            made.run_until_head()
        made.assert_equal("t", "u")
        assert acknowledged(made).batch == acknowledged(made, SNAPSHOT).batch


def test_a_target_restored_from_a_backup_older_than_the_segments_starts_again_from_the_snapshot(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    with falling_back(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) as made:
        schema = made.schema
        saved = ("t", "_sluice_ack")
        for table in saved:
            mysql_target.execute(f"CREATE TABLE saved_{table} AS SELECT * FROM {table}", database=schema)
        for step in range(3):
            mysql_source.execute(f"DELETE FROM t WHERE id = {step}", database=schema)
            mysql_source.execute(f"INSERT INTO t VALUES ({step + 10}, 0)", database=schema)
            made.run_until_head()
        assert prune(made.runtime()).removed
        for table in saved:
            mysql_target.execute(f"DELETE FROM {table}", database=schema)
            mysql_target.execute(f"INSERT INTO {table} SELECT * FROM saved_{table}", database=schema)
        mysql_source.execute("INSERT INTO t VALUES (20, 0)", database=schema)
        made.run_until_head()
        made.assert_equal("t", "u")


def test_a_postgresql_target_that_lacks_removed_batches_starts_again_from_the_snapshot(
    tmp_path: Path, mysql_source: Any, postgresql: Any, zookeeper: Any, fresh_schema: Any, fresh_pg_schema: Any
) -> None:
    """Rows that went at the source meanwhile go there, too; one table lost all of its rows."""
    schema = fresh_pg_schema(fresh_schema(mysql_source))
    for table in ("t", "u"):
        mysql_source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(20))", database=schema)
        mysql_source.execute(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c')", database=schema)
    lines = f"{FALLS_BACK}\n    options: {{ack_schema: {schema}}}"
    more = {"kind": "postgresql", "target_extra": lines, "start": "dump"}
    with kept(tmp_path, mysql_source, postgresql, zookeeper, schema, **more) as made:
        text = made.path.read_text(encoding="utf-8").replace('/store"}', '/store", retain: 1ms}')
        made.path.write_text(text, encoding="utf-8")
        assert not check(made.runtime()).failed
        made.run_until_head()
        there, held = made.connections["case_target"], acknowledged(made).batch
        made.connections["case_target"] = there.replace(str(postgresql.port), "1")
        for statement in ("DELETE FROM t WHERE id = 2", "UPDATE t SET v = 'changed' WHERE id = 3", "DELETE FROM u"):
            mysql_source.execute(statement, database=schema)
            with pytest.raises(TargetUnavailable):
                made.run_until_head()
        assert held + 1 in prune(made.runtime()).removed
        made.connections["case_target"] = there
        mysql_source.execute("INSERT INTO t VALUES (4, 'new')", database=schema)
        made.run_until_head()
        assert started_again(made)
        for table in ("t", "u"):
            wanted = mysql_source.execute(f"SELECT id, v FROM {table} ORDER BY id", database=schema)
            assert postgresql.execute(f'SELECT id, v FROM "{schema}".{table} ORDER BY id') == wanted
        assert acknowledged(made).batch == acknowledged(made, SNAPSHOT).batch


def test_a_target_that_removes_no_ranges_of_keys_is_refused(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """It could not lose the rows that the source lost meanwhile."""
    schema = fresh_schema(mysql_source)
    mysql_source.execute("CREATE TABLE t (id INT PRIMARY KEY)", database=schema)
    lake = Lake(tmp_path / "copy")
    with kept(tmp_path, mysql_source, lake, zookeeper, schema, kind="delta", target_extra=FALLS_BACK) as made:
        found = [one for one in check(made.runtime()).findings if one.setting == "on_lost_batches"]
        assert [(one.part, one.severity) for one in found] == [("target copy", "error")]
        assert "cannot be removed: ranges of a table's keys there are not those of the source" in found[0].why


@pytest.mark.promise("D5", "D8", "D9")
@pytest.mark.parametrize(("form", "kept_as"), [("changes", "delta"), ("merged", "delta"), ("changes", "iceberg")])
def test_a_read_from_the_snapshot_loses_and_repeats_no_change_however_far_the_snapshot_lags(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, form: str, kept_as: str
) -> None:
    """A walk over the boundary: now a batch comes, now the snapshot gets one; each read gives its rows, and exactly the
    batches after them.
    """
    schema = fresh_schema(mysql_source, mysql_target)
    mysql_source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT, hidden INT)", database=schema)
    lines = ("window: 64", f'masked: ["{schema}.t.hidden"]')
    with kept(tmp_path, mysql_source, mysql_target, zookeeper, schema, *lines, kept_as=kept_as) as made:
        made.run_until_head()
        mysql_source.execute("INSERT INTO t VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3)", database=schema)
        made.run_until_head()
        choose, runtime = random.Random(form), made.runtime()
        with serving(made) as (_, reader), by_http(made) as http, runtime.state() as state:
            held = newest = state.acks.get(SNAPSHOT).batch
            for step in range(12):
                if newest - held < 3 and (newest == held or choose.random() < 0.6):
                    statements = (
                        f"INSERT INTO t VALUES ({step + 10}, 0, 0)",
                        f"UPDATE t SET v = v + 1 WHERE id % 3 = {step % 3}",
                        f"DELETE FROM t WHERE id = {choose.randrange(1, step + 11)}",
                        f"UPDATE t SET id = id + 100 WHERE id = {choose.randrange(1, step + 11)}",
                    )
                    mysql_source.execute(choose.choice(statements[:1] * 2 + statements), database=schema)
                    batch = drain(runtime, claim=f"test:walk:{step}", idle_wait_s=2).batch
                    if batch is not None:  # what was changed was there
                        load(runtime, "copy", batch)
                        ack(runtime, "copy", batch)
                        newest = batch
                else:
                    held += 1
                    load(runtime, SNAPSHOT, held)
                    ack(runtime, SNAPSHOT, held)
                read = reader.read(tables=[f"{schema}.t"], from_="snapshot", form=form)
                assert [mark["batch"] for mark in read.marks] == list(range(held, newest + 1))
                rows = read.rows()
                copied = [row["_batch"] for row in rows if row["_op"] == "r"]
                assert set(copied) <= {held}
                assert all(row["_op"] == "r" for row in rows[: len(copied)]), "the snapshot's rows come first"
                changes = [(row["_batch"], row["_seq"], row["_op"], row["id"]) for row in rows[len(copied) :]]
                assert len(set(changes)) == len(changes)
                now = mysql_source.execute("SELECT id, v FROM t", database=schema)
                wanted = {row[0]: dict(zip(("id", "v"), row, strict=True)) for row in now}
                assert replayed(rows) == wanted
                by_name = {"tables": f"{schema}.t", "from": "snapshot"}
                assert replayed_events(documents(http.get("/pipelines/case/changes", params=by_name))) == wanted
            assert newest - held <= 3 < newest


@pytest.mark.promise("D6", "D9")
def test_a_reader_at_any_batch_ends_equal_whether_the_batch_is_stored_or_gone(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """At each batch a reader has the tables as of the one before.

    It is told where all rows come anew; who asks for it gets an error instead.
    """
    with falling_back(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) as made:
        schema, newest = made.schema, made.runtime().store.batches

        def wanted() -> dict[Any, dict[str, Any]]:
            return {row[0]: {"id": row[0], "v": row[1]} for row in mysql_source.execute(f"SELECT * FROM {schema}.t")}

        tables_after = {newest()[-1]: wanted()}
        for step, change in enumerate((
            "DELETE FROM t WHERE id = 2",
            "UPDATE t SET id = 9 WHERE id = 1",
            "INSERT INTO t VALUES (5, 5)",
            "UPDATE t SET v = 0",
            "DELETE FROM t LIMIT 1",
        )):
            mysql_source.execute(change, database=schema)
            made.run_until_head()
            tables_after[newest()[-1]] = wanted()
            if step == 2:
                removed = prune(made.runtime()).removed
        name = f"{schema}.t"
        with serving(made) as (server, reader), by_http(made) as http:
            for before, held in tables_after.items():
                first = before + 1
                ask = {"tables": [name], "from_": {"batch": first}}
                read, is_gone = reader.read(**ask), first in removed
                assert read.resets == [max(tables_after)] * is_gone
                rows = read.rows()
                assert ("r" in {row["_op"] for row in rows}) == is_gone
                assert replayed(rows, held={} if is_gone else held) == wanted()

                table = dict(held)
                for batch in subscribe(
                    f"grpc://127.0.0.1:{server.port}", "case", tables=[name], start={"batch": first}, follow=False
                ):
                    table = replayed(batch.rows.to_pylist(), held={} if batch.replaces_all else table)
                assert table == wanted()

                query = {"tables": name, "from_batch": str(first)}
                lines = documents(http.get("/pipelines/case/changes", params={**query, "marks": "true"}))
                events = http.get("/pipelines/case/changes", params=query, headers={"Accept": "text/event-stream"}).text
                plain = http.get("/pipelines/case/changes", params=query)
                forced = http.get("/pipelines/case/changes", params={**query, "on_lost_batches": "snapshot"})
                if not is_gone:
                    assert "reset" not in events + forced.text
                    assert "Sluice-Reset-Batch" not in forced.headers
                    continue
                assert lines[0] == {"reset": {"batch": max(tables_after)}}
                assert replayed_events([line for line in lines if "op" in line]) == wanted()
                assert events.split("\n\n")[1] == f'event: reset\ndata: {{"reset":{{"batch":{max(tables_after)}}}}}'
                assert plain.status_code == 410, "no line could say it"
                assert forced.headers["Sluice-Reset-Batch"] == str(max(tables_after))
                assert replayed_events(documents(forced)) == wanted()
                for more in ({"on_lost_batches": "stop"}, {"to": first}):
                    with pytest.raises(flight.FlightServerError) as caught:
                        reader.read(**ask, **more)
                    assert json.loads(caught.value.extra_info)["error"] == "BatchesGone"


@pytest.mark.parametrize("when", ["listed", "found", "while it is read", "slowly"])
def test_a_reader_whose_batches_are_removed_while_it_begins_gets_all_rows_anew(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, monkeypatch: Any, when: str
) -> None:
    """By Flight, in Python without a name and with one: not an error that says that files are gone."""
    if when != "slowly":
        as_older_versions_write(monkeypatch)  # rows in files of their own
    with falling_back(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) as made:
        schema = made.schema

        def change(statement: str) -> int:
            mysql_source.execute(statement, database=schema)
            made.run_until_head()
            return made.runtime().store.batches()[-1]

        owner, name = {
            "listed": (StoredBatches, "first"),
            "found": (TableIndex, "refresh"),
            "while it is read": (read.BatchRows, "rows"),
            "slowly": (TableIndex, "refresh"),
        }[when]
        if when == "slowly":  # the manifest is gone, its folder stays until the reader has looked once
            left: list[tuple[SegmentStore, str]] = []
            delete = SegmentStore.delete_folder

            def delete_what_is_left(_: float) -> None:
                while left:
                    delete(*left.pop())

            monkeypatch.setattr(SegmentStore, "delete_folder", lambda store, path: left.append((store, path)))
            monkeypatch.setattr(read, "time", SimpleNamespace(sleep=delete_what_is_left))
        original, armed = getattr(owner, name), [False]

        def then(*arguments: Any, **named: Any) -> Any:
            if armed.pop():
                text = made.path.read_text(encoding="utf-8")
                made.path.write_text(f"{text}subscriptions: {{expire: 0s}}\n", encoding="utf-8")
                assert prune(made.runtime()).removed
                made.path.write_text(text, encoding="utf-8")
            armed.append(False)
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, then)
        for subscription in (None, "mine"):
            first, newest = (
                change("UPDATE t SET v = v + 1"),
                change("INSERT INTO t (id, v) SELECT MAX(id) + 1, 0 FROM t"),
            )
            with serving(made) as (server, _):
                armed[:] = [True]
                given = subscribe(
                    f"grpc://127.0.0.1:{server.port}", "case", name=subscription, start={"batch": first}, follow=False,
                    tables=[f"{schema}.t"],
                )  # fmt: skip
                [batch] = [one for one in given if one.rows.num_rows]
            assert (batch.number, batch.replaces_all) == (newest, True)
            rows = mysql_source.execute(f"SELECT * FROM {schema}.t")
            assert replayed(batch.rows.to_pylist()) == {row[0]: {"id": row[0], "v": row[1]} for row in rows}


def test_a_named_subscription_begins_with_the_snapshot_until_that_is_acknowledged(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """For the first time, and where what it lacks was removed.

    The client that has it goes on; the next one gets it again.
    """
    with falling_back(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) as made:
        schema = made.schema
        ask = {"from_": "snapshot", "tables": [f"{schema}.t"]}

        def change(statement: str) -> int:
            mysql_source.execute(statement, database=schema)
            made.run_until_head()
            return made.runtime().store.batches()[-1]

        def wanted() -> dict[Any, dict[str, Any]]:
            return {row[0]: {"id": row[0], "v": row[1]} for row in mysql_source.execute(f"SELECT * FROM {schema}.t")}

        def kept() -> tuple[int, bool]:
            with made.runtime().state() as state:
                found = state.subscriptions.get("mine")
            return found.batch, found.from_snapshot

        with serving(made) as (server, reader):
            newest = made.runtime().store.batches()[-1]
            one = Exchanger(reader, **ask)
            assert one.said("reset") == {"reset": {"batch": newest}}
            assert one.until(newest) == [newest]
            assert replayed(one.rows) == wanted()
            one.say(rollback=True)
            one.said("rolled_back")
            assert one.said("reset") == {"reset": {"batch": newest}}
            one.stream.cancel()
            assert kept() == (newest - 1, True)

            newest = change("DELETE FROM t WHERE id = 2")
            other = Exchanger(reader, **ask)
            assert other.said("reset") == {"reset": {"batch": newest}}
            assert other.until(newest) == [newest]
            other.stream.cancel()
            same = Exchanger(reader, session=other.hello["session"], **{**ask, "from_": {"batch": newest + 1}})
            following = change("INSERT INTO t VALUES (7, 7)")
            assert same.until(following) == [following], "it had the snapshot"
            assert same.ack(newest) == newest
            assert kept() == (newest, False)
            same.stream.cancel()

            address = f"grpc://127.0.0.1:{server.port}"
            named = subscribe(address, "case", name="mine", tables=ask["tables"])
            batch = next(named)
            assert (batch.number, batch.replaces_all) == (following, False)
            text = made.path.read_text(encoding="utf-8")
            made.path.write_text(f"{text}subscriptions: {{expire: 0s}}\n", encoding="utf-8")
            newest = change("UPDATE t SET id = 8 WHERE id = 7")
            assert prune(made.runtime()).expired == ("mine",)
            stopping = {**ask, "from_": "earliest", "on_lost_batches": "stop"}
            with pytest.raises(flight.FlightServerError, match="has expired"):
                Exchanger(reader, **stopping)
            while not batch.replaces_all:  # the update may have been on its way
                batch = next(named)
            assert batch.number == newest
            assert replayed(batch.rows.to_pylist()) == wanted()
            batch.ack()
            assert kept() == (newest, False)
            named.close()


def test_an_acknowledgement_that_comes_after_the_expiry_is_void(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """The client has a batch that the snapshot does not have yet; the service begins anew with an earlier one, and has
    never sent that batch.
    """
    with falling_back(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) as made:
        schema = made.schema

        def change(statement: str) -> None:
            mysql_source.execute(statement, database=schema)

        change("UPDATE t SET v = 10")
        made.run_until_head()
        kept = made.runtime().store.batches()[-1]
        change("DELETE FROM t WHERE id = 2")
        newest = drain(
            made.runtime(), claim="test:late", idle_wait_s=5
        ).batch  # neither the target nor the snapshot has it
        text = made.path.read_text(encoding="utf-8")
        with serving(made) as (server, _):
            named = subscribe(
                f"grpc://127.0.0.1:{server.port}", "case", name="mine", start={"batch": kept}, tables=[f"{schema}.t"]
            )
            assert isinstance(named, Subscription)
            with closing(named):
                before, late = next(named), next(named)
                assert (before.number, late.number) == (kept, newest)
                made.path.write_text(f"{text}subscriptions: {{expire: 0s}}\n", encoding="utf-8")
                assert prune(made.runtime()).expired == ("mine",)
                late.ack()
                snapshot, again = next(named), next(named)
                assert [(one.number, one.replaces_all) for one in (snapshot, again)] == [(kept, True), (newest, False)]
                table = replayed(snapshot.rows.to_pylist())
                assert replayed(again.rows.to_pylist(), held=table).keys() == {1, 3}
                again.ack()
                with made.runtime().state() as state:
                    assert state.subscriptions.get("mine").batch == newest


@both_formats
def test_what_the_snapshot_cannot_follow_is_passed_by_what_the_error_says(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, kept_as: str
) -> None:
    """Rows that cannot be converted are copied again by a setting; a batch with a default that is not known is skipped,
    and its table copied.
    """
    schema = fresh_schema(mysql_source, mysql_target)
    for server in (mysql_source, mysql_target):
        server.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", database=schema)
    with kept(tmp_path, mysql_source, mysql_target, zookeeper, schema, kept_as=kept_as) as made:
        made.run_until_head()
        mysql_source.execute("INSERT INTO t VALUES (1, 1), (2, 2), (3, 2)", database=schema)
        made.run_until_head()
        mysql_source.execute("ALTER TABLE t MODIFY v ENUM('a','b')", "DELETE FROM t WHERE id = 2", database=schema)
        with pytest.raises(LoadError, match="on_conversion: copy in snapshot"):
            made.run_until_head()
        made.path.write_text(made.path.read_text().replace("retain_log: 7d", "retain_log: 7d, on_conversion: copy"))
        for _ in range(2):
            made.run_until_head()
        assert rows_of(made, "t") == sorted(mysql_source.execute("SELECT * FROM t", database=schema))

        mysql_source.execute(
            "ALTER TABLE t ADD COLUMN twice INT DEFAULT (1 + 1)", "DELETE FROM t WHERE id = 3", database=schema
        )
        with pytest.raises(LoadError, match="is an expression") as raised:
            made.run_until_head()
        with made.runtime().state() as state:
            held = state.acks.get(SNAPSHOT)
        assert held is not None
        said = (raised.value.hint or "").replace("PIPELINE", made.name).replace("BATCH", str(held.batch + 1))
        skip, copy, apply = (one.split() for one in re.findall(r"`sluice ([^`]*)`", said))
        assert made.cli(*skip, "--yes").returncode == 0
        assert made.cli(*apply, "--yes").returncode in {0, 1}
        with ThreadPoolExecutor(1) as beside:
            copying = beside.submit(made.cli, *copy)
            while not copying.done():
                made.run_until_head()
            assert copying.result().returncode == 0, copying.result()
        made.run_until_head()
        assert rows_of(made, "t") == sorted(mysql_source.execute("SELECT * FROM t", database=schema))


INDEXED = (
    "id INT PRIMARY KEY, v INT, w INT, name VARCHAR(20), UNIQUE KEY once (w), KEY by_v (v), "
    "KEY `by``name` (name(5), v DESC) COMMENT 'two, parts'"
)


def shown(server: Any, schema: str, table: str) -> str:
    text = str(server.execute(f"SHOW CREATE TABLE `{schema}`.`{table}`")[0][1])
    return re.sub(r" AUTO_INCREMENT=\d+", "", text)


def fill_indexed(source: Any, schema: str, table: str, rows: int) -> None:
    source.execute(
        f"CREATE TABLE {table} ({INDEXED})",
        "SET SESSION cte_max_recursion_depth = 1000000",
        f"INSERT INTO {table} WITH RECURSIVE s AS (SELECT 1 n UNION ALL SELECT n + 1 FROM s WHERE n < {rows}) "
        "SELECT n, n * 7919 % 1000, n, CONCAT('name ', n % 100) FROM s",
        database=schema,
    )


def test_a_copy_killed_before_its_indexes_stand_has_them_after_the_next_attempt(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """The process is killed while it waits to build them. DDL of the log that follows finds the table whole."""
    schema = fresh_schema(mysql_source, mysql_target)
    fill_indexed(mysql_source, schema, "a", 100_000)
    with before_it_joins(tmp_path, mysql_source, mysql_target, zookeeper, schema, session_s=2) as made:
        join(made)
        whole = shown(mysql_target, schema, "a")
        assert whole == shown(mysql_source, schema, "a")
        process = subprocess.Popen(
            made.command("run", made.name), env=made.environment, cwd=tmp_path, stdout=subprocess.DEVNULL
        )
        try:
            with mysql_target.connect(schema, autocommit=False) as reader, reader.cursor() as cursor:
                wait_until(lambda: mysql_target.execute(f"SELECT 1 FROM `{schema}`.a LIMIT 1"), "the first rows")
                cursor.execute("SELECT * FROM a LIMIT 1")  # its definition cannot be changed from here on
                waiting = (
                    "SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata%' "
                    f"AND info LIKE '%{schema}%ADD KEY%'"
                )
                wait_until(lambda: mysql_target.execute(waiting), "the build")
                process.send_signal(signal.SIGKILL)
                process.wait()
                lacking = shown(mysql_target, schema, "a")
        finally:
            process.kill()
            process.wait()
        assert "KEY `by_v`" not in lacking
        assert "UNIQUE KEY `once`" in lacking
        with made.runtime().state() as state:
            assert state.acks.get("late").batch < state.cursor().next_batch - 1, "the copy is not delivered"
        mysql_source.execute("ALTER TABLE a RENAME INDEX by_v TO by_value", database=schema)
        made.run_until_head()
        assert (
            shown(mysql_target, schema, "a") == shown(mysql_source, schema, "a") == whole.replace("by_v`", "by_value`")
        )
        made.assert_equal("a")


def test_a_table_that_was_made_by_hand_or_has_rows_is_filled_with_its_indexes(
    tmp_path: Path,
    mysql_source: Any,
    mysql_target: Any,
    zookeeper: Any,
    fresh_schema: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    monkeypatch.setattr("sluice.flows.load.late_indexes.LEAST_ROWS", 1000)
    for table in ("made", "by_hand", "filled"):
        fill_indexed(mysql_source, schema, table, 3000)
    mysql_target.execute(f"CREATE TABLE by_hand ({INDEXED})", database=schema)
    with before_it_joins(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        join(made)
        mysql_target.execute("INSERT INTO filled VALUES (1, 2, 3, 'old')", database=schema)
        with capture_logs() as logs:
            made.run_until_head()
        said = {one["event"]: one["tables"] for one in logs if one["event"].startswith("indexes_")}
        assert said == dict.fromkeys(("indexes_left_out", "indexes_built"), f"{schema}.made")
        for table in ("made", "by_hand", "filled"):
            assert shown(mysql_target, schema, table) == shown(mysql_source, schema, table)
        made.assert_equal("made", "by_hand", "filled")
