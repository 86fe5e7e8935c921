"""DDL of a real PostgreSQL in its log, noted by event triggers: where it stands among the rows, and who may write it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sluice.errors import UnknownEvent
from sluice.model.schema_changes import TableChange
from sluice.sources import open_source
from sluice.sources.postgresql import ddl_trigger
from tests.support.twins.source_kinds import PostgreSQLCase, Reader, apply_missing, noting, postgresql_case

PLAIN = "sluice_ddl_plain"
"""A login without any right but on its schema."""


@pytest.fixture(params=["postgresql_source", pytest.param("postgresql_15", marks=pytest.mark.full)])
def case(request: pytest.FixtureRequest) -> Iterator[PostgreSQLCase]:
    with noting(request.getfixturevalue(request.param)) as made:
        yield made


@pytest.fixture
def reader(case: PostgreSQLCase, tmp_path: Path) -> Reader:
    with case.source.open() as session:
        assert session.head is not None
        made = Reader(case, tmp_path, session.head)
    made.once()  # what is known is that of now
    return made


def told(reader: Reader) -> list[list[Any]]:
    """Per batch, in order: kinds of changes of definitions (with the name before) and rows."""
    found = []
    for result in reader.all():
        rows = [(change.op, change.after or change.before) for change in reader.changes([result])]
        front = [record for record in result.manifest.ddl if record.seq < result.manifest.changes or not rows]
        back = [record for record in result.manifest.ddl if record not in front]
        made = [[kinds(record) for record in part] for part in (front, back)]
        found.append([*made[0], *rows, *made[1]])
    return found


def kinds(record: Any) -> str:
    [change] = map(TableChange.from_json, record.changes)
    renamed = f" to {change.renamed_to.table}" if change.renamed_to else ""
    return f"{change.table.table}: {', '.join(change.kinds)}{renamed}"


def test_every_statement_arrives_without_a_row(case: PostgreSQLCase, reader: Reader) -> None:
    """Each comes with the definition as it was after it, though the catalog knows only the last one."""
    case.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(10), n int)",
        "ALTER TABLE t ADD COLUMN paid numeric(8,2) NOT NULL DEFAULT 1.50, ALTER COLUMN n TYPE bigint",
        "ALTER TABLE t RENAME COLUMN v TO w",
        "ALTER TABLE t DROP COLUMN n",
        "ALTER TABLE t ADD COLUMN n text",
        "ALTER TABLE t RENAME TO u",
        "CREATE TABLE gone AS SELECT 1 AS id",
        "DROP TABLE gone",
        "CREATE TEMPORARY TABLE other (id int)",
        "CREATE UNLOGGED TABLE cache (id int)",
        "DROP TABLE cache",
        "CREATE TYPE mood AS ENUM ('low', 'high')",
        "CREATE TABLE moods (id int PRIMARY KEY, m mood)",
        "ALTER TYPE mood ADD VALUE 'higher'",
        f"CREATE SCHEMA {case.schema}_2",
        f"ALTER TABLE moods SET SCHEMA {case.schema}_2",
        f"DROP SCHEMA {case.schema}_2 CASCADE",
        "DROP TABLE u",
    )
    results = reader.all()
    records = [record for result in results for record in result.manifest.ddl]
    assert [kinds(record) for record in records] == [
        "t: create table",
        "t: widen column, add column",
        "t: rename column",
        "t: drop column",
        "t: add column",
        "t: rename table to u",
        "gone: create table",
        "gone: drop table",
        "moods: create table",
        "moods: widen column",
        "moods: rename table to moods",
        "u: drop table",
    ]
    changes = [TableChange.from_json(record.changes[0]) for record in records]
    after = changes[1].after
    assert after is not None
    paid = after.column("paid")
    assert (paid.type, paid.nullable, paid.default) == ("numeric(8,2)", False, "1.50")
    assert [c.name for c in (changes[4].after or after).columns] == ["id", "w", "paid", "n"]
    assert sum(result.manifest.changes for result in results) == 1  # of CREATE TABLE AS


@pytest.mark.parametrize("between", ["VACUUM ANALYZE t", "ALTER TABLE t SET (fillfactor = 90)"])
def test_a_column_that_was_replaced_between_rows(case: PostgreSQLCase, reader: Reader, between: str) -> None:
    """A column of the same name and type: the log alone does not show it, and the catalog shows it too early."""
    case.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
    case.execute(between, "INSERT INTO t VALUES (2, 2)", "ALTER TABLE t DROP v, ADD v int", "UPDATE t SET v = 3")
    assert told(reader) == [
        ["t: create table", ("i", {"id": 1, "v": 1}), ("i", {"id": 2, "v": 2})],
        ["t: drop column, add column", ("u", {"id": 1, "v": 3}), ("u", {"id": 2, "v": 3})],
    ]


def test_two_renames_with_a_row_between(case: PostgreSQLCase, reader: Reader) -> None:
    """Without noted statements this is ambiguous, and stops."""
    case.create("a")
    case.commit(("insert", "a", (1, "x")))
    reader.all()
    case.execute(
        "ALTER TABLE a RENAME v TO w", "INSERT INTO a VALUES (2, 'y')", "ALTER TABLE a RENAME w TO x",
        "INSERT INTO a VALUES (3, 'z')",
    )  # fmt: skip
    assert told(reader) == [
        ["a: rename column", ("i", {"id": 2, "w": "y"})],
        ["a: rename column", ("i", {"id": 3, "x": "z"})],
    ]


def test_statements_and_rows_in_one_transaction(case: PostgreSQLCase, reader: Reader) -> None:
    """Rows in front of a statement have the old definition, and stand in front of it."""
    case.create("a")
    case.create("b")
    case.commit(("insert", "a", (1, "x")), ("insert", "b", (1, "x")))
    reader.all()
    case.execute(
        "BEGIN", "INSERT INTO b VALUES (2, 'y')", "ALTER TABLE a ADD n int", "UPDATE a SET n = 7",
        "ALTER TABLE a ALTER n SET NOT NULL", "ALTER TABLE a DROP v", "INSERT INTO b VALUES (3, 'z')", "COMMIT",
        "BEGIN", "DELETE FROM b WHERE id = 3", "ALTER TABLE b ADD m int", "COMMIT",
        "BEGIN", "INSERT INTO b VALUES (4, 'w', 4)", "ALTER TABLE b ALTER v SET NOT NULL, ALTER v SET DEFAULT 'd'",
        "INSERT INTO b VALUES (5, 'v', 5)", "COMMIT",
        "BEGIN", "ALTER TABLE b DROP m", "INSERT INTO b VALUES (6, 'u')", "ROLLBACK",
        "BEGIN", "INSERT INTO b VALUES (7, 'gone', 7)", "SAVEPOINT s", "ALTER TABLE b DROP m", "ROLLBACK TO s",
        "DROP TABLE b", "CREATE TABLE b (id int PRIMARY KEY, k int)", "INSERT INTO b VALUES (8, 8)", "COMMIT",
    )  # fmt: skip
    assert told(reader) == [
        [
            "a: add column", ("i", {"id": 2, "v": "y"}), ("u", {"id": 1, "v": "x", "n": 7}),
            ("i", {"id": 3, "v": "z"}), "a: require value", "a: drop column",
        ],
        [("d", {"id": 3, "v": "z"}), "b: add column"],
        [("i", {"id": 4, "v": "w", "m": 4}), ("i", {"id": 5, "v": "v", "m": 5}), "b: require value, column attributes"],
        ["b: drop table", "b: create table", ("i", {"id": 8, "k": 8})],
    ]  # fmt: skip


def test_rows_of_two_forms_in_one_transaction_stop(case: PostgreSQLCase, reader: Reader) -> None:
    """Behind what stands in front of the transaction, and it does not go on by itself."""
    case.create("a")
    case.commit(("insert", "a", (1, "x")))
    case.execute("BEGIN", "CREATE TABLE c (id int PRIMARY KEY)", "INSERT INTO a VALUES (2, 'y')",
                 "ALTER TABLE a ADD n int", "INSERT INTO a VALUES (3, 'z', 3)", "COMMIT")  # fmt: skip
    assert [c.after for c in reader.changes([reader.once()])] == [{"id": 1, "v": "x"}]
    with pytest.raises(UnknownEvent, match=r"\.a, then its definition") as raised:
        reader.once()
    assert raised.value.whole_until is None


def test_a_statement_in_front_of_a_batch_leaves_what_was_known(case: PostgreSQLCase, reader: Reader) -> None:
    """A transaction that has to begin a batch is read twice, and noted once."""
    case.create("a")
    case.create("b")
    case.execute("INSERT INTO a VALUES (1, 'x')", "INSERT INTO b VALUES (1, 'x')")
    reader.all()
    case.execute(
        "INSERT INTO a VALUES (2, 'y')",
        "BEGIN", "UPDATE a SET v = 'z'", "ALTER TABLE a ADD n int", "ALTER TABLE b ADD n int",
        "INSERT INTO b VALUES (2, 'y', 2)", "COMMIT",
    )  # fmt: skip
    assert told(reader) == [
        [("i", {"id": 2, "v": "y"})],
        [
            "b: add column", ("u", {"id": 1, "v": "z"}), ("u", {"id": 2, "v": "z"}),
            ("i", {"id": 2, "v": "y", "n": 2}), "a: add column",
        ],
    ]  # fmt: skip


def test_partitioned_tables(case: PostgreSQLCase, reader: Reader) -> None:
    """Partitions come and go without a word; the table's own definition is followed."""
    case.execute(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p_low PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "INSERT INTO p VALUES (1, 'a')",
        "ALTER TABLE p ADD n int",
        "CREATE TABLE p_high PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "INSERT INTO p VALUES (11, 'b', 1)",
        "DROP TABLE p_high",
    )
    assert told(reader) == [
        ["p: create table", ("i", {"id": 1, "v": "a"})],
        ["p: add column", ("i", {"id": 11, "v": "b", "n": 1})],
    ]


def test_rows_that_come_with_a_partition(case: PostgreSQLCase, reader: Reader) -> None:
    """They are not in the log: the table is named. Not for an empty one, and not for one whose rows are in the log."""
    case.execute("CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    for n in range(1, 6):
        case.execute(f"CREATE TABLE part_{n} (LIKE p INCLUDING ALL)")
    case.execute("INSERT INTO part_1 VALUES (10, 'a')", "INSERT INTO part_2 VALUES (20, 'a')")
    reader.all()

    def after(*statements: str) -> list[tuple[Any, ...]]:
        case.execute(*statements)
        return [result.filled for result in (reader.once(), reader.once())]

    attach = "ALTER TABLE p ATTACH PARTITION part_{0} FOR VALUES FROM ({0}0) TO ({0}9)".format
    assert after(attach(1)) == [(case.table("p"),), ()]
    assert after("BEGIN", "SAVEPOINT s", attach(2), "RELEASE s", "COMMIT") == [(case.table("p"),), ()]
    assert (
        after("BEGIN", "INSERT INTO part_3 VALUES (30)", "SAVEPOINT s", attach(3), "ROLLBACK TO s", "COMMIT")[0] == ()
    )
    assert after("INSERT INTO part_4 VALUES (40)", "BEGIN", attach(4), "ROLLBACK") == [(), ()]
    assert after(attach(5), "INSERT INTO p VALUES (51)", "ALTER TABLE p ADD n int") == [(), ()]
    inner = "CREATE TABLE inner_p PARTITION OF p FOR VALUES FROM (60) TO (90) PARTITION BY RANGE (id)"
    assert after(inner, "CREATE TABLE part_6 PARTITION OF inner_p FOR VALUES FROM (60) TO (70)") == [(), ()]
    case.execute("CREATE TABLE part_7 (LIKE p INCLUDING ALL)", "INSERT INTO part_7 VALUES (70)")
    assert after("ALTER TABLE inner_p ATTACH PARTITION part_7 FOR VALUES FROM (70) TO (80)")[0] == (case.table("p"),)
    case.execute("CREATE TABLE part_8 (LIKE p INCLUDING ALL) PARTITION BY RANGE (id)",
                 "CREATE TABLE part_81 PARTITION OF part_8 FOR VALUES FROM (80) TO (85)", "INSERT INTO part_81 VALUES (81)")  # fmt: skip
    assert after("ALTER TABLE inner_p ATTACH PARTITION part_8 FOR VALUES FROM (80) TO (90)")[0] == (case.table("p"),)


def dropping(case: PostgreSQLCase) -> str:
    """The row that the trigger writes for a dropped table."""
    [(oid,)] = case.server.execute(f"SELECT '{case.schema}.a'::regclass::oid::bigint")
    return json.dumps({"version": 1, "tag": "DROP TABLE", "dropped": [[oid, case.schema, "a"]]})


def test_statements_from_before_what_is_known(case: PostgreSQLCase, tmp_path: Path) -> None:
    """A pipeline that begins in front of them knows the table of today: it takes no column from the targets.

    What they have already is said once more, and is there."""
    with case.source.open() as session:
        assert session.head is not None
        reader = Reader(case, tmp_path, session.head)
    case.execute("CREATE TABLE a (id int PRIMARY KEY, v text)", "INSERT INTO a VALUES (1, 'x')")
    case.execute("ALTER TABLE a ADD n int", "INSERT INTO a VALUES (2, 'y', 2)", "ALTER TABLE a DROP v")
    case.execute("ALTER TABLE a ADD m int", "INSERT INTO a VALUES (3, 3, 3)")
    assert told(reader) == [
        [("i", {"id": 1, "v": "x"})],
        ["a: add column", ("i", {"id": 2, "v": "y", "n": 2})],
        ["a: drop column", "a: add column", ("i", {"id": 3, "n": 3, "m": 3})],
    ]


# -- who may write it --------------------------------------------------------------------------------------------------
@pytest.fixture
def plain(case: PostgreSQLCase) -> Iterator[str]:
    """A user who owns tables of the schema, and may write all data."""
    case.server.execute(
        f"CREATE ROLE {PLAIN} LOGIN",
        f"GRANT ALL ON SCHEMA {case.schema} TO {PLAIN}",
        f"GRANT pg_write_all_data TO {PLAIN}",
    )
    yield PLAIN
    case.server.execute(f"DROP OWNED BY {PLAIN}", f"DROP ROLE {PLAIN}")


def test_nobody_else_writes_statements(case: PostgreSQLCase, reader: Reader, plain: str) -> None:
    """Nor by a logical message. Statements that such a user really ran are noted."""
    case.create("a")
    reader.all()
    content = dropping(case)
    with case.server.connect() as connection:
        connection.execute(f"SET ROLE {plain}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"INSERT INTO {ddl_trigger.TABLE} (said) VALUES (%s)", (content,))
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT sluice_ddl.note()")
        for prefix in ("sluice", "sluice_ddl", "sluice.load"):
            connection.execute("SELECT pg_logical_emit_message(true, %s, %s)", (prefix, content))
        connection.execute(f"CREATE TABLE {case.schema}.own (id int PRIMARY KEY)")
    case.commit(("insert", "a", (1, "x")))
    assert told(reader) == [["own: create table", ("i", {"id": 1, "v": "x"})]]


def test_a_table_of_a_stranger_proves_nothing(postgresql_source: Any, tmp_path: Path) -> None:
    """Somebody made the schema before the installation: nothing is made in it, and its rows are not believed."""
    with postgresql_case(postgresql_source, ddl=True) as case:
        case.create("a")
        case.server.execute(
            f"CREATE ROLE {PLAIN} LOGIN", f"CREATE SCHEMA sluice_ddl AUTHORIZATION {PLAIN}",
            "SET ROLE " + PLAIN, "CREATE TABLE sluice_ddl._sluice_ddl (id bigint PRIMARY KEY, said text)", "RESET ROLE",
            f"ALTER PUBLICATION {case.slot} ADD TABLE sluice_ddl._sluice_ddl",
        )  # fmt: skip
        try:
            with case.source.open() as session:
                assert session.missing() == []  # type: ignore[attr-defined]
                [finding] = [f for f in session.preflight(None) if f.setting == "source.ddl"]
                assert PLAIN in finding.why
                assert session.head is not None
                reader = Reader(case, tmp_path, session.head)
            reader.once()
            case.server.execute(f"INSERT INTO sluice_ddl._sluice_ddl VALUES (1, '{dropping(case)}')")
            case.commit(("insert", "a", (1, "x")))
            assert told(reader) == [[("i", {"id": 1, "v": "x"})]]
        finally:
            case.server.execute("DROP SCHEMA sluice_ddl CASCADE", f"DROP ROLE {PLAIN}")


# -- what may go wrong -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "broken", ["ALTER TABLE sluice_ddl._sluice_ddl RENAME said TO other",
               "ALTER TABLE sluice_ddl._sluice_ddl ADD CHECK (said LIKE '%failed%') NOT VALID"]
)  # fmt: skip
def test_a_trigger_that_fails_leaves_the_statement_alone(case: PostgreSQLCase, reader: Reader, broken: str) -> None:
    """Its change is noticed at the next row, as without a trigger: also one that the log alone does not show."""
    case.create("a")
    case.commit(("insert", "a", (1, "x")))
    reader.all()
    case.execute(broken, "ALTER TABLE a ADD n int", "INSERT INTO a VALUES (2, 'y', 2)")
    assert told(reader) == [["a: add column", ("i", {"id": 2, "v": "y", "n": 2})]]


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("ALTER EVENT TRIGGER sluice_ddl_end DISABLE", "sluice_ddl_end is disabled"),
        ("DROP EVENT TRIGGER sluice_ddl_drop", "are missing"),
        ("CREATE OR REPLACE FUNCTION sluice_ddl.note() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'",
         "not that of this version"),
        ("ALTER FUNCTION sluice_ddl.note() RESET search_path", "not that of this version"),
        ("ALTER PUBLICATION {slot} DROP TABLE sluice_ddl._sluice_ddl", "lacks the table"),
        ("ALTER TABLE sluice_ddl._sluice_ddl DISABLE ROW LEVEL SECURITY", "are missing"),
    ],
)  # fmt: skip
def test_check_finds_what_keeps_statements_out(case: PostgreSQLCase, reader: Reader, broken: str, why: str) -> None:
    """And its statements make it whole."""
    case.create("a")
    case.execute(broken.replace("{slot}", case.slot))
    with case.source.open() as session:
        [finding] = [f for f in session.preflight(None) if f.setting == "source.ddl"]
        severity = "error" if "this version" in why else "warning"
        assert (finding.severity, why in finding.why) == (severity, True), finding
        session.require_ready(None)  # an error of the check stops no capture
        apply_missing(case)
        assert [f for f in session.preflight(None) if f.setting == "source.ddl"] == []
    reader.all()
    case.execute("ALTER TABLE a RENAME v TO w")
    assert told(reader) == [["a: rename column"]]


def test_a_login_that_may_not_is_told_the_statements(postgresql_source: Any) -> None:
    """A superuser runs them as printed; then statements are noted for that login."""
    with postgresql_case(postgresql_source, ddl=True) as case:
        server = case.server
        server.execute(f"CREATE ROLE {PLAIN} LOGIN REPLICATION", f"GRANT CREATE ON DATABASE postgres TO {PLAIN}")
        try:
            endpoint = replace(case.endpoint, user=PLAIN)
            with open_source(case.config, lambda _: endpoint).open() as session:
                assert session.missing() == []  # type: ignore[attr-defined]
                [finding] = [f for f in session.preflight(None) if f.setting == "source.ddl"]
                head, _, script = finding.fix.partition("\n")
                assert head == "as a superuser:"
                server.execute(script)
                assert [f for f in session.preflight(None) if f.setting == "source.ddl"] == []
        finally:
            server.execute(ddl_trigger.REMOVAL, f"DROP OWNED BY {PLAIN}", f"DROP ROLE {PLAIN}")
        left = server.execute("SELECT count(*) FROM pg_event_trigger")
        assert left == [(0,)]


def test_statements_that_build_indexes_work(case: PostgreSQLCase, reader: Reader) -> None:
    """They commit in between; and only the index itself is a change that is followed."""
    case.create("a")
    reader.all()
    case.execute(
        "CREATE INDEX CONCURRENTLY a_v ON a (v)", "REINDEX INDEX CONCURRENTLY a_v", "DROP INDEX CONCURRENTLY a_v",
        "ALTER TABLE a SET UNLOGGED", "ALTER TABLE a SET LOGGED", "CLUSTER a USING a_pkey", "VACUUM FULL a",
        "CREATE MATERIALIZED VIEW m AS SELECT * FROM a", "REFRESH MATERIALIZED VIEW m", "DROP MATERIALIZED VIEW m",
        "CREATE VIEW w AS SELECT * FROM a", "DROP VIEW w", "ANALYZE a", "INSERT INTO a VALUES (1, 'x')",
    )  # fmt: skip
    assert told(reader) == [["a: indexes", "a: indexes", ("i", {"id": 1, "v": "x"})]]


def test_secondary_indexes_are_followed(case: PostgreSQLCase, reader: Reader) -> None:
    """Not one of expressions, and not one that goes with its column: a statement says so already."""
    case.execute("CREATE TABLE t (id int PRIMARY KEY, v text, n int)", "INSERT INTO t VALUES (1, 'x', 1)")
    reader.all()
    case.execute(
        "CREATE INDEX t_v ON t (v)", "INSERT INTO t VALUES (2, 'y', 2)", "CREATE INDEX t_e ON t (lower(v))",
        "CREATE UNIQUE INDEX CONCURRENTLY t_n ON t (n, v)", "ALTER INDEX t_v RENAME TO t_w",
        "ALTER TABLE t RENAME v TO w", "BEGIN", "UPDATE t SET n = 3 WHERE id = 1", "DROP INDEX t_n",
        "UPDATE t SET n = 4 WHERE id = 1", "COMMIT", "ALTER TABLE t DROP w", "ALTER TABLE t ADD UNIQUE (n)",
    )  # fmt: skip
    results = reader.all()
    records = [record for result in results for record in result.manifest.ddl]
    assert [(kinds(record), record.sql.partition("ON ")[2] or record.sql) for record in records] == [
        ("t: indexes", f'"{case.schema}"."t" ("v")'),
        ("t: indexes", f'"{case.schema}"."t" ("n", "v")'),
        ("t: indexes", f'"{case.schema}"."t" ("v")'),
        ("t: rename column", f'ALTER TABLE "{case.schema}"."t" RENAME COLUMN "v" TO "w"'),
        ("t: indexes", f'DROP INDEX "{case.schema}"."t_n"'),
        ("t: drop column", f'ALTER TABLE "{case.schema}"."t" DROP COLUMN "w"'),
        ("t: indexes", f'"{case.schema}"."t" ("n")'),
    ]
    assert [c.after["n"] for c in reader.changes(results) if c.after] == [2, 3, 4]


def test_an_index_alone_never_stops_rows(case: PostgreSQLCase, reader: Reader) -> None:
    """Where the trigger did not note it, it is taken from the catalog, wherever among the rows the log shows it."""
    case.create("a")
    reader.all()
    case.execute("ALTER EVENT TRIGGER sluice_ddl_end DISABLE")
    with case.server.connect(options=f"-c search_path={case.schema}") as one:
        one.autocommit = False
        one.execute("INSERT INTO a VALUES (1, 'x')")
        one.execute("CREATE INDEX a_v ON a (v)")
        one.execute("INSERT INTO a VALUES (2, 'y')")
        one.commit()
    assert told(reader) == [[("i", {"id": 1, "v": "x"}), ("i", {"id": 2, "v": "y"})]]
