"""A value that arrives is the value that left: boundary values of every type by every way of writing, compared by the
servers' own checksums.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devstack.mariadb import MariaDBServer
from sluice.config.connections import parse_connection
from sluice.errors import LoadError, MappingError
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.operations.control import skip
from sluice.operations.deadletters.replay import replay
from sluice.operations.deadletters.store import letters
from sluice.targets.mysql.connection import connect
from sluice.targets.mysql.session import kept
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import dumped
from tests.support.servers.fixtures import setting
from tests.support.tables.batches import Delivery
from tests.support.values.boundary_values import BOTH, LENIENT, MARIADB, MYSQL, TABLES, Types, insert, leniently


@pytest.fixture(scope="session")
def mariadb_target(server_folder: Path) -> Iterator[MariaDBServer]:
    """A second MariaDB."""
    with MariaDBServer(server_folder / "mariadb-target", name="mariadb-target", server_id=104) as server:
        yield server


def of_server(server: str) -> Types:
    """The types that a source of this kind has."""
    return BOTH | (MYSQL if server == "mysql_source" else MARIADB)


def create(made: Case, types: Types) -> None:
    """Tables ``k`` (a key), ``heap`` (no key) and ``v`` (the values) on both sides."""
    columns = ", ".join(f"`{name}` {kind}" for name, (kind, _) in types.items())
    options = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    made_of = [f"CREATE TABLE {table} (id INT{key}, mark INT, {columns}) {options}" for table, key in TABLES.items()]
    for server in (made.source, made.target):
        leniently(server, made.schema, *made_of)


WAYS = [
    ("mysql_source", "FULL", "bulk"), ("mysql_source", "FULL", "upsert"), ("mysql_source", "MINIMAL", "upsert"),
    ("mysql_source", "NOBLOB", "upsert"),
    ("mariadb", "FULL", "bulk"), ("mariadb", "FULL", "upsert"), ("mariadb", "MINIMAL", "upsert"),
]  # fmt: skip


@pytest.mark.parametrize(("server", "image", "way"), WAYS, ids=["-".join(way) for way in WAYS])
def test_every_value_by_every_way(
    tmp_path: Any, request: Any, monkeypatch: Any, zookeeper: Any, fresh_schema: Any, server: str, image: str, way: str
) -> None:
    monkeypatch.setattr("sluice.targets.mysql.load_data.BULK_ROWS", 1 if way == "bulk" else 1 << 30)
    source = request.getfixturevalue(server)
    target = request.getfixturevalue("mysql_target" if server == "mysql_source" else "mariadb_target")
    types = of_server(server)
    db = fresh_schema(source, target, options="CHARACTER SET utf8mb4")
    with setting(source, binlog_row_image=image), case(tmp_path, source, target, zookeeper, db) as made:
        create(made, types)
        made.run_until_head()
        rows = insert(made, types)
        made.run_until_head()
        made.assert_equal("k", "heap", "v")
        every = ", ".join(f"a.`{name}` = b.`{name}`" for name in types)
        changes = [
            "UPDATE k SET id = id + 1000",  # every row moves; MINIMAL: with values that only the target has
            f"UPDATE k a JOIN v b ON b.id = (a.id - 1000) % {rows} + 1 SET {every}, a.mark = 1 WHERE a.id % 2",
            f"UPDATE k a JOIN v b ON b.id = (a.id - 999) % {rows} + 1 SET {every}, a.id = a.id + 5000 WHERE a.id % 2 "
            "= 0",
        ]
        if image == "FULL":
            changes.append("UPDATE heap SET mark = 2 WHERE id % 3 = 0")
        with source.connect(made.schema) as connection, connection.cursor() as cursor:
            cursor.execute(LENIENT)
            for change in changes:
                cursor.execute(change)
                made.run_until_head()
                made.assert_equal("k", "heap")
            if image == "FULL":
                cursor.execute("DELETE FROM heap WHERE id % 2")
            cursor.execute("DELETE FROM k WHERE mark = 1")
            made.run_until_head()
            made.assert_equal("k", "heap")
            if image == "FULL":
                cursor.execute("DELETE FROM heap")
                made.run_until_head()
        assert target.execute(f"SELECT COUNT(*) FROM {db}.heap")[0][0] == (0 if image == "FULL" else rows)


PASSES = "def transform(row, context):\n    return row\n"
RAISES = "def transform(row, context):\n    raise ValueError('not now')\n"


@contextmanager
def refusing(made: Case, *tables: str) -> Iterator[None]:
    """The target takes no row with mark = 7."""
    leniently(made.target, made.schema, *(f"ALTER TABLE {t} ADD CONSTRAINT no_{t} CHECK (mark <> 7)" for t in tables))
    yield
    leniently(made.target, made.schema, *(f"ALTER TABLE {t} DROP CONSTRAINT no_{t}" for t in tables))


def replayed(made: Case, wanted: int) -> None:
    """That many letters wait, and each is replayed."""
    assert len(letters(made.runtime())) == wanted
    done = replay(made.runtime(), [], by="test")
    assert [(one.outcome, one.why) for one in done] == [("replayed", "")] * wanted


@pytest.mark.parametrize("server", ["mysql_source", "mariadb"])
def test_every_value_by_dump_and_by_replay(
    tmp_path: Any, request: Any, zookeeper: Any, fresh_schema: Any, server: str
) -> None:
    """Rows that a dump reads; rows that a target refused, or a rule; a batch that was skipped; and their replay."""
    source = request.getfixturevalue(server)
    target = request.getfixturevalue("mysql_target" if server == "mysql_source" else "mariadb_target")
    types = of_server(server)
    db = fresh_schema(source, target, options="CHARACTER SET utf8mb4")
    letter = "    on_error: dead_letter"
    with case(tmp_path, source, target, zookeeper, db, extra="rules: engine.yaml", target_extra=letter) as made:
        (tmp_path / "rules/engine.yaml").write_text("rules: [{name: mine, path: mine.py, on_error: dead_letter}]")
        rule = tmp_path / "rules/mine.py"
        rule.write_text(PASSES)
        create(made, types)
        rows = insert(made, types)
        made.run_until_head()
        for tables, more in ((["k", "v"], {}), (["heap"], {"replace": True})):
            assert dumped(made, tables=[f"{db}.{name}" for name in tables], **more).state == "done"
        made.assert_equal(*TABLES)
        columns = ", ".join(f"`{name}`" for name in types)
        every = ", ".join(f"a.`{name}` = b.`{name}`" for name in types)
        added = {t: f"INSERT INTO {t} (id, mark, {columns}) SELECT id + %d, 7, {columns} FROM v" for t in ("k", "heap")}
        moved = f"UPDATE k a JOIN v b ON b.id = (a.id + %d) %% {rows} + 1 SET {every}, a.mark = 7"

        with refusing(made, "k", "heap"):
            leniently(source, db, added["heap"] % 100, moved % 0)
            made.run_until_head()
        replayed(made, 2 * rows)
        made.assert_equal(*TABLES)

        rule.write_text(RAISES)
        leniently(source, db, added["k"] % 100, "DELETE FROM heap WHERE id > 100")
        made.run_until_head()
        rule.write_text(PASSES)
        replayed(made, 2 * rows)
        made.assert_equal(*TABLES)

        leniently(target, db, "RENAME TABLE k TO away")
        leniently(source, db, moved % 1, added["heap"] % 200)
        with pytest.raises(MappingError):
            made.run_until_head()
        runtime = made.runtime()
        with runtime.state() as state:
            held = state.acks.get("copy")
        assert held is not None
        skip(runtime, "copy", held.batch + 1, by="test", reason="", dry_run=False)
        leniently(target, db, "RENAME TABLE away TO k")
        made.run_until_head()
        replayed(made, 1)
        made.assert_equal(*TABLES)


@pytest.mark.parametrize(
    ("server", "kind"), [(s, c) for s in ("mysql_source",) for c in ("en", "se", "fl", "db", "eng")]
)
def test_labels_and_floats_as_keys(
    tmp_path: Any, request: Any, zookeeper: Any, fresh_schema: Any, mysql_target: Any, server: str, kind: str
) -> None:
    source = request.getfixturevalue(server)
    db = fresh_schema(source, mysql_target)
    declared, values = BOTH[kind]
    unique = [v for v in values if v != "-0e0"] if kind in {"fl", "db"} else values
    with case(tmp_path, source, mysql_target, zookeeper, db) as made:
        for side in (source, mysql_target):
            with side.connect(db) as connection, connection.cursor() as cursor:
                cursor.execute(LENIENT)
                cursor.execute(f"CREATE TABLE t (c {declared} NOT NULL, n INT NOT NULL, m INT, PRIMARY KEY (c, n))")
        made.run_until_head()
        with source.connect(db) as connection, connection.cursor() as cursor:
            cursor.execute(LENIENT)
            cursor.execute(f"INSERT INTO t VALUES {', '.join(f'({v}, 1, 1), ({v}, 2, 2)' for v in unique)}")
            made.run_until_head()
            made.assert_equal("t")
            for value in unique[1:]:
                cursor.execute(f"UPDATE t SET m = 9 WHERE n = 1 AND c = {value} + 0")
                cursor.execute(f"DELETE FROM t WHERE n = 2 AND c = {value} + 0")
            made.run_until_head()
            made.assert_equal("t")


EDGES = [(1 << 24) + d for d in (-2, -1, 0, 1)] + [2 * (1 << 24) - 2]
"""Bytes of commands on both sides of the protocol's packets of 16 MiB - 1."""
SIZES = [int(mb) << 20 for mb in os.environ.get("SLUICE_TEST_VALUE_MB", "9").split(",")]
"""The whole proof takes 9,17,40,100."""


@contextmanager
def packets(server: Any, size: int) -> Iterator[None]:
    """max_allowed_packet for new sessions; those that are kept end."""
    kept.end()
    [(before,)] = server.execute("SELECT @@GLOBAL.max_allowed_packet")
    server.execute(f"SET GLOBAL max_allowed_packet = {size}")
    try:
        yield
    finally:
        server.execute(f"SET GLOBAL max_allowed_packet = {before}")
        kept.end()


def test_commands_and_answers_of_several_packets(mysql_target: Any, fresh_schema: Any) -> None:
    db = fresh_schema(mysql_target)
    endpoint = parse_connection("target", mysql_target.connection_json(schema=db))
    with packets(mysql_target, 1 << 28):
        connection = connect(endpoint)
        for size in EDGES:
            text = "x" * (size - len("SELECT LENGTH('')") - 1)
            connection.ahead("SELECT 1")
            [[(first,)], [(long,)], [(last,)]] = connection.ask_all([
                f"SELECT LENGTH('{text}')",
                f"SELECT REPEAT('y', {size - 5})",
                "SELECT 3",
            ])
            assert (first, len(long), last) == (len(text), size - 5, 3)
        connection.close()


@pytest.mark.parametrize("way", ["bulk", "upsert"])
@pytest.mark.parametrize("size", SIZES)
def test_large_values(
    tmp_path: Path, mysql_target: Any, fresh_schema: Any, monkeypatch: Any, way: str, size: int
) -> None:
    """With a key, without one, and as a delete that is found by the value; a target that takes no such statement
    says so.
    """
    monkeypatch.setattr("sluice.targets.mysql.load_data.BULK_ROWS", 1 if way == "bulk" else 1 << 30)
    db = fresh_schema(mysql_target)
    mysql_target.execute(
        f"CREATE TABLE {db}.t (id INT PRIMARY KEY, b LONGBLOB)", f"CREATE TABLE {db}.heap (id INT, b LONGBLOB)"
    )
    columns = (Column("id", ColumnKind.INT, "int"), Column("b", ColumnKind.BLOB, "longblob"))
    keyed, heap = TableSchema(TableId(db, "t"), columns, ("id",)), TableSchema(TableId(db, "heap"), columns)
    value = (bytes(range(256)) * (size // 256 + 1))[:size]
    pipe = Delivery(tmp_path, mysql_target, target={"options": {"ack_schema": db}})
    rows = [{"_op": "i", "id": 1, "b": value}]
    changeset = pipe.merge(pipe.write({keyed: rows, heap: rows}))
    if way == "upsert":
        with (
            packets(mysql_target, 1 << 24),
            pytest.raises(LoadError, match="max_allowed_packet of the target is 16,777,216"),
        ):
            pipe.load(changeset)
        assert mysql_target.execute(f"SELECT COUNT(*) FROM {db}.t")[0][0] == 0
    with packets(mysql_target, 1 << 30):
        pipe.load(changeset)
        for table in ("t", "heap"):
            assert mysql_target.execute(f"SELECT SHA2(b, 256) FROM {db}.{table}") == [
                (hashlib.sha256(value).hexdigest(),)
            ]
        pipe.deliver({heap: [{"_op": "d", "id": 1, "b": value}]})
        assert mysql_target.execute(f"SELECT COUNT(*) FROM {db}.heap") == [(0,)]
        with pytest.raises(LoadError, match="0 of the 1 rows to delete"):
            pipe.deliver({heap: [{"_op": "d", "id": 1, "b": b"x"}]})
