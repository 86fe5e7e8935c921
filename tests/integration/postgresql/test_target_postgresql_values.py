"""A value that arrives in PostgreSQL is the value that left MySQL: boundary values of every type by every way of
writing, as both servers tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import LoadError
from sluice.operations.deadletters.replay import replay
from sluice.operations.deadletters.store import letters
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import dumped
from tests.support.servers.fixtures import setting
from tests.support.values.boundary_values import BOTH, LENIENT, MYSQL, insert, leniently
from tests.support.values.pg_values import rows

TYPES = BOTH | MYSQL | {"vc": (BOTH["vc"][0], [value for value in BOTH["vc"][1] if r"\0" not in value])}
TABLES = {"k": " PRIMARY KEY", "heap": "", "v": " PRIMARY KEY"}
COLUMNS = {"id": "int", "mark": "int", **{name: kind for name, (kind, _) in TYPES.items()}}


@contextmanager
def made_case(
    tmp_path: Path, source: Any, target: Any, zookeeper: Any, schema: str, *lines: str, **more: Any
) -> Iterator[Case]:
    """A pipeline from MySQL to PostgreSQL with tables of every type; ``sluice check --apply`` makes the target's."""
    extra = "\n".join(f"    {line}" for line in lines)
    with case(tmp_path, source, target, zookeeper, schema, kind="postgresql", target_extra=extra, **more) as made:
        columns = ", ".join(f"`{name}` {kind}" for name, (kind, _) in TYPES.items())
        for table, key in TABLES.items():
            leniently(
                source,
                schema,
                f"CREATE TABLE {table} (id INT{key}, mark INT, {columns}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            )
        made.make_missing()
        yield made


def assert_arrived(made: Case, *tables: str) -> None:
    for table in tables:
        there = rows(made.target, f'"{made.schema}".{table}', COLUMNS, mysql=False)
        for sent, found in zip(rows(made.source, f"`{made.schema}`.{table}", COLUMNS, mysql=True), there, strict=True):
            differ = {name: (a, b) for name, a, b in zip(COLUMNS, sent, found, strict=True) if a != b}
            assert not differ, f"{table} {sent[0]}: {differ}"


@pytest.mark.parametrize(
    ("image", "way"), [("FULL", "copy"), ("FULL", "parameters"), ("MINIMAL", "copy"), ("NOBLOB", "parameters")]
)
def test_every_value_by_every_way(
    tmp_path: Path,
    monkeypatch: Any,
    mysql_source: Any,
    postgresql: Any,
    zookeeper: Any,
    fresh_schema: Any,
    fresh_pg_schema: Any,
    image: str,
    way: str,
) -> None:
    monkeypatch.setattr("sluice.targets.postgresql.staging.PARAMETER_ROWS", 0 if way == "copy" else 1 << 30)
    monkeypatch.setattr("sluice.targets.postgresql.staging.SLICE_ROWS", 4)
    db = fresh_pg_schema(fresh_schema(mysql_source, options="CHARACTER SET utf8mb4"))
    lines = (f"options: {{ack_schema: {db}, zero_dates: 'null'}}",)
    with (
        setting(mysql_source, binlog_row_image=image),
        made_case(tmp_path, mysql_source, postgresql, zookeeper, db, *lines) as made,
    ):
        made.run_until_head()
        count = insert(made, TYPES)
        made.run_until_head()
        assert_arrived(made, *TABLES)
        every = ", ".join(f"a.`{name}` = b.`{name}`" for name in TYPES)
        changes = [
            "UPDATE k SET id = id + 1000",  # every row moves; MINIMAL: with values that only the target has
            f"UPDATE k a JOIN v b ON b.id = (a.id - 1000) % {count} + 1 SET {every}, a.mark = 1 WHERE a.id % 2",
            f"UPDATE k a JOIN v b ON b.id = (a.id - 999) % {count} + 1 SET {every}, a.id = a.id + 5000 WHERE a.id % 2 "
            "= 0",
        ]
        if image == "FULL":
            changes += ["UPDATE heap SET mark = 2 WHERE id % 3 = 0", "DELETE FROM heap WHERE id % 2"]
        with mysql_source.connect(db) as connection, connection.cursor() as cursor:
            cursor.execute(LENIENT)
            for change in (*changes, "DELETE FROM k WHERE mark = 1"):
                cursor.execute(change)
                made.run_until_head()
                assert_arrived(made, "k", "heap")


def test_every_value_by_dump_and_by_replay(
    tmp_path: Path, mysql_source: Any, postgresql: Any, zookeeper: Any, fresh_schema: Any, fresh_pg_schema: Any
) -> None:
    """Rows that a dump reads, with and without replacing; and rows that the target refuses, with their key, and takes
    once it can.
    """
    db = fresh_pg_schema(fresh_schema(mysql_source, options="CHARACTER SET utf8mb4"))
    lines = (f"options: {{ack_schema: {db}, zero_dates: 'null'}}", "on_error: dead_letter")
    with made_case(tmp_path, mysql_source, postgresql, zookeeper, db, *lines) as made:
        count = insert(made, TYPES)
        made.run_until_head()
        for tables, more in ((["k", "v"], {}), (["heap"], {"replace": True})):
            assert dumped(made, tables=[f"{db}.{name}" for name in tables], **more).state == "done"
        assert_arrived(made, *TABLES)
        postgresql.execute(f'INSERT INTO "{db}".k (id, mark) VALUES (-5, 1), (500, 1)')
        assert dumped(made, tables=[f"{db}.k"], replace=True).state == "done"
        assert_arrived(made, *TABLES)
        postgresql.execute(f'ALTER TABLE "{db}".k ADD CONSTRAINT seven CHECK (mark <> 7)')
        columns = ", ".join(f"`{name}`" for name in TYPES)
        leniently(mysql_source, db, f"INSERT INTO k (id, mark, {columns}) SELECT id + 100, 7, {columns} FROM v")
        made.run_until_head()
        kept = letters(made.runtime())
        assert len(kept) == count
        postgresql.execute(f'ALTER TABLE "{db}".k DROP CONSTRAINT seven')
        assert {one.outcome for one in replay(made.runtime(), [], by="test")} == {"replayed"}
        assert_arrived(made, *TABLES)


def test_what_cannot_be_held_is_refused_with_its_key(
    tmp_path: Path, mysql_source: Any, postgresql: Any, zookeeper: Any, fresh_schema: Any, fresh_pg_schema: Any
) -> None:
    db = fresh_pg_schema(fresh_schema(mysql_source, options="CHARACTER SET utf8mb4"))
    mysql_source.execute(
        f"CREATE TABLE {db}.odd (id INT PRIMARY KEY, t TEXT, d DATE, j JSON, n BIGINT UNSIGNED, x TIME)"
    )
    postgresql.execute(f'CREATE TABLE "{db}".odd (id int PRIMARY KEY, t varchar(5), d date, j jsonb, n int, x time)')
    odd = [
        "'a\\0b', NULL, NULL, 1, NULL",
        "'abcdef', NULL, NULL, 1, NULL",
        "'x', '0000-00-00', NULL, 1, NULL",
        "'x', NULL, '\"\\\\u0000\"', 1, NULL",
        "'x', NULL, NULL, 2147483648, NULL",
        "'x', NULL, NULL, 1, '24:00:00'",
        "'x', NULL, NULL, 1, '-00:00:01'",
    ]
    options = f"    options: {{ack_schema: {db}}}"
    with case(tmp_path, mysql_source, postgresql, zookeeper, db, kind="postgresql", target_extra=options) as made:
        made.run_until_head()
        fits = "INSERT INTO odd VALUES (99, 'abc  ', '2024-02-29', '[1]', 2147483647, '23:59:59')"
        leniently(mysql_source, db, fits, f"INSERT INTO odd VALUES (7, {odd[0]})")
        with pytest.raises(LoadError, match=r"column t has a NUL character.*with \(id\) = \(7\)"):
            made.run_until_head()
        assert postgresql.execute(f'SELECT * FROM "{db}".odd') == []
        made.path.write_text(made.yaml.replace("    options:", "    on_error: dead_letter\n    options:"))
        leniently(mysql_source, db, *(f"INSERT INTO odd VALUES ({n + 10}, {values})" for n, values in enumerate(odd)))
        made.run_until_head()
        assert postgresql.execute(f'SELECT id, t, d::text, n FROM "{db}".odd') == [
            (99, "abc  ", "2024-02-29", 2147483647)
        ]
        found = letters(made.runtime())
        assert len(found) == len(odd) + 1
