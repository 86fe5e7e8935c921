"""A pipeline from MySQL to PostgreSQL: the plan and what makes it, rows, keys and foreign keys, DDL, logins, fences."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devstack.postgresql import PostgreSQLServer
from sluice.config.connections import parse_connection
from sluice.errors import ConfigError, Fenced, LoadError, MappingError, SluiceError, TargetUnavailable
from sluice.model.tables import TableId, TableSchema
from sluice.targets.postgresql.connection import connect
from sluice.targets.postgresql.session import kept
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.small_units import small_units
from tests.support.servers.certificates import self_signed
from tests.support.servers.fixtures import setting
from tests.support.tables.batches import Delivery
from tests.support.tables.family import FAMILY, NAMES, write
from tests.support.tables.people import delete, insert, people, update

PG = "postgresql"


@pytest.fixture
def schema(mysql_source: Any, postgresql: Any, fresh_schema: Any, fresh_pg_schema: Any) -> str:
    """An empty schema of the same name on both sides."""
    return str(fresh_pg_schema(fresh_schema(mysql_source, options="CHARACTER SET utf8mb4")))


def options(schema: str, *more: str, **lines: str) -> str:
    """YAML inside of the target."""
    given = [f"    {name}: {value}" for name, value in lines.items()]
    return "\n".join([*given, f"    options: {{{', '.join([f'ack_schema: {schema}', *more])}}}"])


def in_schema(server: Any, schema: str, *statements: str) -> list[tuple[Any, ...]]:
    return list(server.execute(f'SET search_path = "{schema}"', *statements))


def assert_alike(made: Case, *tables: str) -> None:
    for table in tables:
        here = made.source.execute(f"SELECT * FROM `{made.schema}`.{table}")
        there = made.target.execute(f'SELECT * FROM "{made.schema}".{table}')
        assert sorted(there, key=repr) == sorted(here, key=repr), table


@pytest.mark.promise("B24")
def test_from_an_empty_target_to_equal_tables(
    tmp_path: Path, mysql_source: Any, postgresql: Any, zookeeper: Any, schema: str
) -> None:
    """``check`` shows the plan and proposes what is missing, ``--apply`` makes it; a dump and the log fill it."""
    mysql_source.execute(
        f"CREATE TABLE {schema}.orders (id BIGINT UNSIGNED PRIMARY KEY, email VARCHAR(80) UNIQUE, amount "
        "DECIMAL(12,2), at DATETIME(3), state ENUM('a','b'))",
        f"CREATE TABLE {schema}.log (what VARCHAR(20), n INT)",
        f"INSERT INTO {schema}.orders VALUES (18446744073709551615, 'a', 1.5, '2024-02-29 01:02:03.004', 'b'), (2, "
        "'b', NULL, NULL, NULL)",
    )
    with case(
        tmp_path, mysql_source, postgresql, zookeeper, schema, kind=PG, target_extra=options(schema), start="dump"
    ) as made:
        planned = made.cli("check", "case", "--json")
        assert planned.returncode == 1
        assert f'CREATE TABLE \\"{schema}\\".\\"orders\\" (\\"id\\" numeric(20) NOT NULL' in planned.stdout
        assert "the order of the labels is lost" in planned.stdout
        done = made.cli("check", "case", "--apply", "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        postgresql.execute(f'ALTER TABLE "{schema}".orders ADD CONSTRAINT one_email UNIQUE (email)')
        made.run_until_head()
        mysql_source.execute(
            *(
                f"UPDATE {schema}.orders SET email = '{b}' WHERE email = '{a}'" for a, b in ("ax", "ba", "xb")
            ),  # they swap
            f"UPDATE {schema}.orders SET id = 7 WHERE id = 2",
            f"INSERT INTO {schema}.log VALUES ('x', 1), ('x', 1), (NULL, NULL), ('x', 1)",
            f"DELETE FROM {schema}.log WHERE n = 1 LIMIT 2",
        )
        made.run_until_head()
        assert_alike(made, "orders", "log")
        postgresql.execute(f'DELETE FROM "{schema}".log')
        mysql_source.execute(f"DELETE FROM {schema}.log WHERE n = 1")
        with pytest.raises(LoadError, match=r"the target has 0 of the 1 rows to delete: \(x,1\)"):
            made.run_until_head()


@pytest.mark.parametrize("settings", ["unchecked row", "ordered row", "ordered batch"])
def test_foreign_keys_end_equal(
    tmp_path: Path,
    mysql_source: Any,
    postgresql: Any,
    zookeeper: Any,
    schema: str,
    settings: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The source writes the effects of its foreign keys to its log; the target has the same keys, and they hold."""
    keys, consistency = settings.split()
    small_units(monkeypatch, 8)
    choose = random.Random(settings)
    mysql_source.execute(*FAMILY, database=schema)
    in_schema(postgresql, schema, *FAMILY)
    extra = options(schema, f"foreign_keys: {keys}", consistency=consistency)
    with case(tmp_path, mysql_source, postgresql, zookeeper, schema, kind=PG, target_extra=extra) as made:
        made.run_until_head()
        for _ in range(2):
            write(mysql_source, schema, choose, 200)
            made.run_until_head()
            assert_alike(made, *NAMES)
        if keys == "unchecked":
            return
        postgresql.execute(
            "SET session_replication_role = replica", f'INSERT INTO "{schema}".children VALUES (900, 77, 0)'
        )
        mysql_source.execute(f"INSERT INTO {schema}.parents VALUES (77, 'p77')")
        made.run_until_head()
        mysql_source.execute(f"DELETE FROM {schema}.parents WHERE id = 77")
        with pytest.raises(LoadError, match=r"foreign key c_p does not hold after the batch: .* \(parent\) = \(77\)"):
            made.run_until_head()


DDL = (
    "ALTER TABLE t ADD COLUMN a INT NOT NULL, ADD COLUMN b VARCHAR(10) NOT NULL DEFAULT 'it''s', ADD COLUMN c "
    "DECIMAL(6,2) DEFAULT 1.5 FIRST",
    "ALTER TABLE t MODIFY COLUMN n BIGINT UNSIGNED, MODIFY COLUMN v VARCHAR(200) NOT NULL",
    "ALTER TABLE t CHANGE COLUMN b b2 TEXT NULL, RENAME COLUMN a TO a2",
    "ALTER TABLE t RENAME COLUMN a2 TO b2, RENAME COLUMN b2 TO a2",
    "ALTER TABLE t ALTER COLUMN c SET DEFAULT 7, ADD INDEX (n), COMMENT 'x', ADD COLUMN ts TIMESTAMP(3) NULL DEFAULT "
    "CURRENT_TIMESTAMP(3)",
    "ALTER TABLE t DROP COLUMN c, ADD COLUMN bits BIT(4) NOT NULL DEFAULT b'101', ADD COLUMN e ENUM('x','y') NOT "
    "NULL, ADD COLUMN j JSON",
    "CREATE TABLE t2 (id INT AUTO_INCREMENT PRIMARY KEY, x VARCHAR(5) DEFAULT 'q', g CHAR(9) AS (UPPER(x)))",
    "CREATE TABLE IF NOT EXISTS t (id INT PRIMARY KEY, n INT, v VARCHAR(20), w INT)",
    "CREATE TABLE IF NOT EXISTS t2 LIKE t",
    "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, v)",
    "RENAME TABLE t TO t3, t2 TO t",
    "ALTER TABLE t3 RENAME TO t4, ADD COLUMN z DATE",
    "TRUNCATE TABLE t",
    "DROP TABLE t",
)


def _shown(name: str) -> str:
    if name == "ts":
        return f"to_char(\"{name}\", 'YYYY-MM-DD HH24:MI:SS.MS')"
    return f'"{name}"::{"int" if name == "bits" else "text"}'


def test_definitions_follow(tmp_path: Path, mysql_source: Any, postgresql: Any, zookeeper: Any, schema: str) -> None:
    """Statement by statement: columns, and the values of rows that were there, are those of the source; rows before and
    after arrive.
    """
    source, number = mysql_source, 10
    source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    source.execute(f"INSERT INTO {schema}.t VALUES (1, 5, 'a'), (2, NULL, 'b')")
    with case(
        tmp_path, source, postgresql, zookeeper, schema, kind=PG, target_extra=options(schema), start="dump"
    ) as made:
        made.make_missing()
        made.run_until_head()
        for statement in DDL:
            tables = [row[0] for row in source.execute("SHOW TABLES", database=schema)]
            for table in tables:
                number += 1
                source.execute(f"INSERT IGNORE INTO {schema}.{table} (id) VALUES ({number})")
                with suppress(pymysql.err.OperationalError):  # a table without it
                    source.execute(f"UPDATE {schema}.{table} SET v = 'z' WHERE v IS NULL")
            source.execute(f"USE `{schema}`", "SET time_zone = '+00:00'", statement)
            made.run_until_head()
            for (table,) in source.execute("SHOW TABLES", database=schema):
                names = [
                    row[0]
                    for row in source.execute(
                        "SELECT column_name FROM information_schema.columns WHERE table_schema = "
                        f"'{schema}' AND table_name = '{table}' AND generation_expression = ''"
                    )
                ]
                there = postgresql.execute(
                    f"SELECT column_name FROM information_schema.columns WHERE table_schema = '{schema}' AND "
                    f"table_name = '{table}'"
                )
                assert {row[0] for row in there} == set(names), statement
                mine = [f"`{n}` + 0" if n == "bits" else f"CAST(`{n}` AS CHAR)" for n in names]
                theirs = [_shown(name) for name in names]
                here = source.execute(f"SELECT {', '.join(mine)} FROM {schema}.{table} ORDER BY {table}.id")
                found = postgresql.execute(f'SELECT {", ".join(theirs)} FROM "{schema}".{table} ORDER BY {table}.id')
                assert found == here, statement


EXTRAS = (
    "ALTER TABLE t ADD COLUMN c INT COMMENT 'it''s new', ADD INDEX by_c (c, n)",
    "ALTER TABLE t MODIFY n INT COMMENT 'a \\\\ and a \\n', COMMENT = 'changed'",
    "ALTER TABLE t RENAME COLUMN c TO d",
    "CREATE UNIQUE INDEX both_of_them ON t (d, v)",
    "ALTER TABLE t DROP INDEX by_n, ADD INDEX by_n (n, d)",
    "ALTER TABLE t DROP COLUMN d",
    "RENAME TABLE t TO t2",
    "DROP INDEX by_n ON t2",
    "ALTER TABLE t2 ADD FULLTEXT INDEX words (v), ADD INDEX cut2 (v(5)), ADD INDEX "
    "name_that_is_longer_than_what_is_left_of_the_name_of_t (n)",
    "ALTER TABLE t2 MODIFY n INT, COMMENT = ''",
    "CREATE TABLE fresh (id INT PRIMARY KEY COMMENT 'key', a INT, UNIQUE u (a)) COMMENT 'made by the log'",
)
INDEXES = """SELECT c.relname, i.indisunique, (SELECT string_agg(a.attname, ',' ORDER BY k.place) FROM unnest(i.indkey::int2[])
WITH ORDINALITY k(n, place) JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
JOIN pg_namespace s ON s.oid = c.relnamespace WHERE s.nspname = '{}' AND c.relname <> '_sluice_ack' AND NOT i.indisprimary"""
COMMENTS = """SELECT c.relname, COALESCE(a.attname, ''), d.description FROM pg_description d JOIN pg_class c ON c.oid = d.objoid
JOIN pg_namespace s ON s.oid = c.relnamespace LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.objsubid AND d.objsubid > 0
WHERE d.classoid = 'pg_class'::regclass AND s.nspname = '{}'"""
MYSQL_INDEXES = """SELECT table_name, index_name, non_unique = 0, GROUP_CONCAT(column_name ORDER BY seq_in_index),
MAX(sub_part IS NOT NULL), MAX(index_type)
FROM information_schema.statistics WHERE table_schema = '{}' AND index_name NOT IN ('PRIMARY', 'too_long') GROUP BY 1, 2, 3"""
MYSQL_COMMENTS = """SELECT table_name, '', table_comment FROM information_schema.tables WHERE table_schema = '{0}' AND table_comment <> '' UNION
SELECT table_name, column_name, column_comment FROM information_schema.columns WHERE table_schema = '{0}' AND column_comment <> ''"""


def test_comments_and_indexes_follow(
    tmp_path: Path, mysql_source: Any, postgresql: Any, zookeeper: Any, schema: str
) -> None:
    """From the statement that makes the table on: comments, and with ``indexes: true`` the secondary indexes that
    PostgreSQL can have.
    """
    source = mysql_source
    source.execute(
        f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, n INT COMMENT 'a ''number''', v VARCHAR(20), w VARCHAR(700), "
        "KEY by_n (n), UNIQUE one_v (v), KEY too_long (w), KEY cut (v(3))) COMMENT 'the table'"
    )

    def same() -> None:
        here = {
            (table, columns): bool(unique)
            for table, _, unique, columns, cut, kind in source.execute(MYSQL_INDEXES.format(schema))
            if not cut and kind == "BTREE"
        }
        there = {(table, columns): unique for table, unique, columns in postgresql.execute(INDEXES.format(schema))}
        assert there == here
        comments = source.execute(MYSQL_COMMENTS.format(schema))
        assert sorted(postgresql.execute(COMMENTS.format(schema))) == sorted(comments)
        assert here or comments

    target = options(schema, "indexes: true")
    with case(tmp_path, source, postgresql, zookeeper, schema, kind=PG, target_extra=target) as made:
        made.make_missing()
        made.run_until_head()
        same()
        for statement in EXTRAS:
            source.execute(f"USE `{schema}`", statement)
            made.run_until_head()
            same()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("ALTER TABLE t MODIFY COLUMN v DATE", "column v was varchar.20. and is date"),
        ("ALTER TABLE t ADD COLUMN u INT DEFAULT (1 + 1)", "would get other values in the new column u"),
        ("ALTER TABLE t ADD COLUMN d DATE NOT NULL", "0000-00-00"),
        (f"ALTER TABLE t ADD COLUMN `{'x' * 64}` INT", "longer than 63 bytes"),
    ],
)
def test_ddl_that_cannot_be_followed_stops(
    tmp_path: Path, mysql_source: Any, postgresql: Any, zookeeper: Any, schema: str, statement: str, said: str
) -> None:
    mysql_source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v VARCHAR(20))")
    mysql_source.execute(f"INSERT INTO {schema}.t VALUES (1, '2024-02-29')")
    with case(
        tmp_path, mysql_source, postgresql, zookeeper, schema, kind=PG, target_extra=options(schema), start="dump"
    ) as made:
        made.make_missing()
        made.run_until_head()
        mysql_source.execute(f"USE `{schema}`", "SET sql_mode = ''", statement)
        with pytest.raises(LoadError, match=said) as caught:
            made.run_until_head()
        assert statement[:40] in caught.value.message
        assert caught.value.hint
        assert caught.value.where


def test_odd_names(tmp_path: Path, postgresql: Any, fresh_pg_schema: Any) -> None:
    """Per cent signs, quotes, spaces, cases; a name that the server would cut is refused."""
    db = fresh_pg_schema(f'o"d %s %% {os.getpid()}'.replace('"', ""))
    plain = people(db, 'ta"ble %s')
    names = ('I"d %', "e mail", "POINTS")
    columns = [replace(column, name=name) for column, name in zip(plain.columns, names, strict=True)]
    schema = TableSchema(plain.table, tuple(columns), (columns[0].name,))
    pipe = Delivery(tmp_path, postgresql, target={"type": PG, "options": {"ack_schema": db}})
    with pytest.raises(MappingError) as caught:
        pipe.deliver({schema: [{"_op": "i", 'I"d %': 1, "e mail": "a", "POINTS": 2}]})
    assert caught.value.hint
    create = caught.value.hint.partition(": ")[2]
    postgresql.execute(create)
    pipe.batch = 0
    pipe.load(
        pipe.merge(pipe.write({schema: [{"_op": "i", 'I"d %': n, "e mail": "a", "POINTS": 2} for n in (1, 2)]})),
        finish=False,
    )
    assert postgresql.execute(f'SELECT count(*) FROM "{db}"."ta""ble %s" WHERE "POINTS" = 2') == [(2,)]
    long = TableSchema(TableId(db, "ü" * 32), schema.columns, schema.primary_key)
    pipe.begin(1)
    with pytest.raises(MappingError, match="64 bytes, and PostgreSQL takes 63"):
        pipe.plan(pipe.merge(pipe.write({long: [{"_op": "i", 'I"d %': 1}]})))


def test_a_login_with_password_tls_and_few_rights(tmp_path: Path, server_folder: Path, postgresql: Any) -> None:
    """SCRAM, certificates, a user that may neither make schemas nor switch triggers off, and row security."""
    self_signed(tmp_path, "server", subject="DNS:localhost")
    key, certificate = tmp_path / "server.key", tmp_path / "server.pem"
    tls = {"ssl": "on", "ssl_cert_file": certificate, "ssl_key_file": key}
    folder = server_folder / "postgresql-tls"
    with PostgreSQLServer(folder, distribution=postgresql.distribution, password="s3cr't", options=tls) as server:
        server.execute("CREATE ROLE app LOGIN PASSWORD 'pw'", "CREATE SCHEMA own", "GRANT USAGE ON SCHEMA own TO app")
        server.execute("CREATE SCHEMA acks AUTHORIZATION app")
        server.execute(
            "CREATE TABLE own.people (id int PRIMARY KEY, email varchar(80), points int)",
            "GRANT ALL ON own.people TO app",
        )

        def endpoint(password: str = "pw", host: str = "127.0.0.1", **extra: Any) -> Any:
            return replace(
                parse_connection("target", server.connection_json(user="app", password=password, **extra)), host=host
            )

        def encrypted(**extra: Any) -> bool:
            with connect(endpoint(host="localhost", **extra)) as connection:
                return bool(connection.pgconn.ssl_in_use)

        assert not encrypted(sslmode="disable")
        assert encrypted(sslmode="require")
        assert encrypted(sslmode="verify-full", sslrootcert=str(certificate))
        with pytest.raises(ConfigError, match="do not agree on TLS"):
            encrypted(sslmode="verify-full", sslrootcert="system")
        with pytest.raises(ConfigError, match=r"sslcert .* is not a file"):
            encrypted(sslcert="/nowhere")
        with pytest.raises(ConfigError, match="check login, password and database") as caught:
            connect(endpoint("wr0ng-one"))
        assert "wr0ng-one" not in str(caught.value)

        class App:
            def connection_json(self) -> str:
                return server.connection_json(user="app", password="pw")

        pipe = Delivery(tmp_path, App(), target={"type": PG, "options": {"ack_schema": "acks"}})
        schema = people("own")
        pipe.deliver({schema: [insert(1, "a")]})
        assert server.execute("SELECT * FROM own.people") == [(1, "a", None)]
        refused = Delivery(tmp_path / "no", App(), target={"type": PG, "options": {"ack_schema": "nobodys"}})
        with pytest.raises(ConfigError, match="permission denied for database"):
            refused.begin(1)
        server.execute("CREATE TABLE own.child (id int REFERENCES own.people)")
        with pytest.raises(MappingError, match="may not switch them off") as why:
            pipe.deliver({schema: [insert(2, "b")]})
        assert 'GRANT SET ON PARAMETER session_replication_role TO "app"' in str(why.value)
        server.execute(
            "GRANT SET ON PARAMETER session_replication_role TO app", "ALTER TABLE own.people ENABLE ROW LEVEL SECURITY"
        )
        kept.end()
        pipe.batch = 1
        with pytest.raises(MappingError, match="row security hides rows"):
            pipe.deliver({schema: [insert(2, "b")]})
        server.execute("ALTER TABLE own.people DISABLE ROW LEVEL SECURITY")
        pipe.batch = 1
        pipe.deliver({schema: [insert(2, "b")]})
        assert pipe.held == 2


def test_triggers_and_key_collations(tmp_path: Path, postgresql: Any, fresh_pg_schema: Any) -> None:
    """A plain trigger does not fire; one that always does is refused, and so is a key that holds two texts for
    equal.
    """
    db = fresh_pg_schema()
    in_schema(
        postgresql, db,
        "CREATE TABLE people (id int PRIMARY KEY, email varchar(80), points int)",
        f'CREATE FUNCTION "{db}".f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.points := 99; RETURN NEW; END $$',
        "CREATE TRIGGER tr BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION f()",
    )  # fmt: skip
    pipe = Delivery(tmp_path, postgresql, target={"type": PG, "options": {"ack_schema": db}})
    schema = people(db)
    pipe.deliver({schema: [insert(1, "a", 1)]})
    in_schema(postgresql, db, "ALTER TABLE people ENABLE ALWAYS TRIGGER tr")
    with pytest.raises(MappingError, match="trigger tr is ENABLE ALWAYS"):
        pipe.deliver({schema: [insert(2, "b", 2)]})
    assert in_schema(postgresql, db, "SELECT * FROM people") == [(1, "a", 1)]


def test_a_paused_loader_is_fenced(tmp_path: Path, postgresql: Any, fresh_pg_schema: Any) -> None:
    """A process that stands still inside its COPY gives its locks back when a newer one takes over, and can commit
    nothing any more.
    """
    db = fresh_pg_schema()
    postgresql.execute(f'CREATE TABLE "{db}".people (id int PRIMARY KEY, email varchar(80), points int)')
    target = {"type": PG, "options": {"ack_schema": db, "lock_wait": 1}}
    schema = people(db)
    code = (
        "import os, signal, sys; from pathlib import Path; from tests.integration.postgresql.test_target_postgresql "
        f"import paused;paused(Path({str(tmp_path / 'old')!r}), {postgresql.connection_json()!r}, {db!r})"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "inside\n"
        pipe = Delivery(tmp_path / "new", postgresql, target=target)
        pipe.epoch = 2
        assert pipe.begin(2) == 0
        pipe.deliver({schema: [insert(1, "new")]})
        os.kill(child.pid, signal.SIGCONT)
        assert child.stdout.read().splitlines()[-1] in {"Fenced", "TargetUnavailable"}
        assert postgresql.execute(f'SELECT * FROM "{db}".people') == [(1, "new", None)]
    finally:
        child.kill()
        child.wait()


def paused(folder: Path, connection: str, db: str) -> None:
    """Load a row, and stand still inside of its COPY; in a process of its own."""
    from sluice.targets.postgresql import staging, wire

    class Server:
        def connection_json(self) -> str:
            return connection

    def still() -> bytes:
        print("inside", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        return b"\xff\xff"

    staging.PARAMETER_ROWS = 0
    wire.copy_end = still
    pipe = Delivery(folder, Server(), target={"type": PG, "options": {"ack_schema": db}})
    try:
        pipe.deliver({people(db): [insert(1, "old")]})
        print("delivered", flush=True)
    except SluiceError as error:
        print(type(error).__name__, flush=True)


def test_an_update_of_a_row_that_is_gone_stops(
    tmp_path: Path, mysql_source: Any, postgresql: Any, zookeeper: Any, schema: str
) -> None:
    """With partial row images the target must have the row."""
    mysql_source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, a INT, b INT)")
    extra = options(schema)
    with (
        setting(mysql_source, binlog_row_image="MINIMAL"),
        case(tmp_path, mysql_source, postgresql, zookeeper, schema, kind=PG, target_extra=extra) as made,
    ):
        made.make_missing()
        made.run_until_head()
        mysql_source.execute(f"INSERT INTO {schema}.t VALUES (1, 1, 1), (2, 2, 2)")
        made.run_until_head()
        postgresql.execute(f'DELETE FROM "{schema}".t WHERE id = 2')
        mysql_source.execute(f"UPDATE {schema}.t SET a = 5")
        with pytest.raises(
            LoadError, match="the target has 1 of 2 rows of which the log only contains the changed columns"
        ):
            made.run_until_head()
        assert postgresql.execute(f'SELECT * FROM "{schema}".t') == [(1, 1, 1)]


def test_two_loads_at_once_wait_for_each_other(tmp_path: Path, postgresql: Any, fresh_pg_schema: Any) -> None:
    """A lock that somebody else holds is waited for, and the load goes on when it is given back."""
    db = fresh_pg_schema()
    postgresql.execute(f'CREATE TABLE "{db}".people (id int PRIMARY KEY, email varchar(80), points int)')
    pipe = Delivery(tmp_path, postgresql, target={"type": PG, "options": {"ack_schema": db, "lock_wait": 1}})
    schema = people(db)
    pipe.deliver({schema: [insert(1, "a")]})
    with postgresql.connect() as other:
        other.execute("BEGIN")
        other.execute(f'UPDATE "{db}".people SET points = 1')
        done = threading.Timer(1.5, other.commit)
        done.start()
        pipe.deliver({schema: [update(insert(1, "a"), email="b"), delete(insert(5))]})
        done.join()
    assert postgresql.execute(f'SELECT * FROM "{db}".people') == [(1, "b", None)]
    with pytest.raises(Fenced):
        pipe.begin(0)


def test_the_server_is_killed_between_two_calls(tmp_path: Path, server_folder: Path, postgresql: Any) -> None:
    """The error can be tried again, units travel as bytes, and the batch is there once."""
    with PostgreSQLServer(server_folder / "postgresql-killed", distribution=postgresql.distribution) as server:
        server.execute("CREATE SCHEMA own", "CREATE TABLE own.heap (id int, email varchar(80), points int)")
        keyed = people("own", "heap")
        schema = TableSchema(keyed.table, keyed.columns)
        pipe = Delivery(tmp_path, server, target={"type": PG})
        changeset = pipe.merge(pipe.write({schema: [insert(1), insert(1)]}))
        pipe.begin(1)
        writer = pipe.writer(changeset)
        writer.prepare()
        [[*units]] = writer.plan(1)
        server.kill()
        with pytest.raises(TargetUnavailable, match="does not answer"):
            units[0].write()
        server.start()
        units = pickle.loads(pickle.dumps(units))
        for _ in range(2):
            results = [unit.write() for unit in units]
        server.kill()
        with pytest.raises(TargetUnavailable):
            writer.commit(results)
        server.start()
        writer.commit(results)
        assert server.execute("SELECT * FROM own.heap") == [(1, None, None)] * 2
        assert pipe.held == 1


@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
def test_keys_that_only_the_source_holds_equal(
    tmp_path: Path, mysql_source: Any, postgresql: Any, zookeeper: Any, schema: str, image: str
) -> None:
    """The source's collation knows no case; the target tells the spellings apart, and has the source's."""
    names, choose = ("a", "A", "á", "b", "B", "a b"), random.Random(image)
    mysql_source.execute(
        f"CREATE TABLE {schema}.t (k VARCHAR(20), n INT, v INT, u VARCHAR(20) UNIQUE, PRIMARY KEY (k, n))"
    )
    extra = options(schema)
    with (
        setting(mysql_source, binlog_row_image=image),
        case(tmp_path, mysql_source, postgresql, zookeeper, schema, kind=PG, target_extra=extra) as made,
    ):
        made.make_missing()
        postgresql.execute(f'ALTER TABLE "{schema}".t ADD UNIQUE (u)')
        made.run_until_head()
        for _ in range(6):
            for _ in range(40):
                one, other, n = choose.choice(names), choose.choice(names), choose.randint(1, 2)
                mysql_source.execute(
                    choose.choice([
                        f"INSERT IGNORE INTO {schema}.t VALUES ('{one}', {n}, 1, '{other}')",
                        f"UPDATE IGNORE {schema}.t SET k = '{other}' WHERE k = '{one}'",
                        f"UPDATE IGNORE {schema}.t SET u = '{other}', v = v + 1 WHERE k = '{one}'",
                        f"UPDATE {schema}.t SET k = UPPER(k), u = UPPER(u)",
                        f"UPDATE {schema}.t SET v = v + 1 WHERE n = {n}",
                        f"REPLACE INTO {schema}.t VALUES ('{one}', {n}, 2, '{other}')",
                        f"DELETE FROM {schema}.t WHERE k = '{one}' AND n = {n}",
                    ])
                )
            made.run_until_head()
            assert_alike(made, "t")


def test_masked_values_are_in_no_error(tmp_path: Path, postgresql: Any, fresh_pg_schema: Any) -> None:
    """The server's own words have the row: of a masked one they are left out."""
    db = fresh_pg_schema()
    postgresql.execute(
        f'CREATE TABLE "{db}".people (id int PRIMARY KEY, email varchar(80) UNIQUE, points int CHECK (points > 0))'
    )
    target = {"type": PG, "options": {"ack_schema": db}}
    taken, bad, odd = insert(7, "s3cret-mail"), insert(8, "s3cret-other", -1), insert(9, "s3cret\0")
    rows = [(taken, "23505"), (bad, "23514"), (odd, "NUL")]
    for name, masked in (("open", []), ("hidden", [r".*\.email"])):
        for number, (row, error) in enumerate(rows):
            folder = tmp_path / f"{name}{number}"
            pipe = Delivery(folder, postgresql, target=target, name=f"{name}{number}", masked=masked)
            postgresql.execute(f"INSERT INTO \"{db}\".people VALUES (1, 's3cret-mail', 1) ON CONFLICT DO NOTHING")
            with pytest.raises(LoadError, match=error) as caught:
                pipe.deliver({people(db): [row]})
            assert ("s3cret" in str(caught.value)) is (name == "open" and error != "NUL")
