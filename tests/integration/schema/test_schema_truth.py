"""The server decides: random and written statements, folded from the log, give what its own information_schema says
after each of them; and rows whose table maps carry no names decode to what SELECT said when they were written."""

from __future__ import annotations

import contextlib
import os
import random
import struct
from collections.abc import Callable
from typing import Any

import pymysql
import pytest

from sluice.config.connections import parse_connection
from sluice.errors import SluiceError
from sluice.model.definitions import TableDefinition
from sluice.model.tables import TableId
from sluice.sources.mysql.catalog.history_tracker import SchemaTracker
from sluice.sources.mysql.catalog.information_schema import flavour_of, read_state, read_tables
from sluice.sources.mysql.catalog.live_table import read_definition
from sluice.sources.mysql.events.table_map import parse_table_map
from sluice.sources.mysql.reader.statement_scan import statements_between
from sluice.sources.mysql.server.connection import collations, open_connection, rows_of, server_info
from sluice.sources.mysql.server.table_list import create_statement, source_tables
from tests.support.grammar import ddl_statements as statements
from tests.support.grammar.definitions import comparable, differing

SEQUENCES = int(os.environ.get("SLUICE_DDL_SEQUENCES", "2"))
LENGTH = int(os.environ.get("SLUICE_DDL_LENGTH", "60"))


class Truth:
    """Runs statements on a server, remembers what the server says after each, and compares with what folding the log
    gives.
    """

    def __init__(self, server: Any, schema: str) -> None:
        self.server, self.schema = server, schema
        self.endpoint = parse_connection("source", server.connection_json())
        with open_connection(self.endpoint) as connection:
            self.start = server_info(connection).head
            self.state = read_state(connection, server_info(connection))
        self.after: list[tuple[str, tuple[str, int], dict[TableId, TableDefinition]]] = []
        self.refused = 0

    def run(self, *sqls: str, charset: str = "utf8mb4", mode: str | None = None) -> None:
        """Run statements that the server may refuse. ``mode``: the session's sql_mode."""
        with (
            open_connection(self.endpoint) as probe,
            self.server.connect(self.schema, charset=charset) as connection,
            connection.cursor() as cursor,
        ):
            flavour = flavour_of(probe, server_info(probe))
            if mode is not None:
                cursor.execute(f"SET SESSION sql_mode = '{mode}'")
            for sql in sqls:
                try:
                    cursor.execute(sql)
                except pymysql.err.MySQLError:
                    self.refused += 1
                    continue
                info = server_info(probe)
                names = [TableId(str(s), str(t)) for s, t in self._tables(probe)]
                definitions = {d.table: d for d in read_tables(probe, flavour, names)}
                self.after.append((sql, info.head.order, definitions))

    def _tables(self, probe: Any) -> list[tuple[str, str]]:
        with probe.cursor() as cursor:
            cursor.execute(
                "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND "
                "TABLE_TYPE = 'BASE TABLE'",
                (self.schema,),
            )
            return list(cursor.fetchall())

    def compare(self) -> None:
        """Fold the log; raises AssertionError at the first statement after which the two differ."""
        with open_connection(self.endpoint) as connection:
            head, names = server_info(connection).head, collations(connection)
        tracker = SchemaTracker(lambda: self.state, lambda: names)
        pending = list(self.after)
        differences: list[tuple[Any, ...]] = []

        def fold(statement: Any) -> None:
            """What was said before this statement came has to be what was folded so far."""
            while pending and pending[0][1] < statement.position.order:
                differences.extend(self._differences(*pending.pop(0)))
            tracker.statement(statement)

        statements_between(self.endpoint, server_id=4_000_000_123, start=self.start, stop=head, statement=fold)
        for sql, order, definitions in pending:
            differences += self._differences(sql, order, definitions)
        assert not differences, "\n".join(map(str, differences))

    def _differences(
        self, sql: str, _: tuple[int, int], definitions: dict[TableId, TableDefinition]
    ) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        mine = {t for t in (*self.state.tables, *self.state.unknown) if t.schema == self.schema}
        for table in sorted(mine | set(definitions)):
            folded, truth = self.state.find(table), definitions.get(table)
            said = comparable(folded) if folded else self.state.why_unknown(table)
            is_ = comparable(truth) if truth else None
            if said != is_:
                found.append((sql, table.table, *differing(said, is_)))
                if truth is not None:  # so that one mistake is told once
                    self.state.put(truth)
                else:
                    self.state.forget(table)
        return found


@pytest.fixture(params=["mysql_source", "mariadb"])
def truth(request, fresh_schema) -> Truth:
    server = request.getfixturevalue(request.param)
    return Truth(server, fresh_schema(server, options="CHARACTER SET utf8mb4"))


@pytest.mark.promise("C1")
def test_written_statements(truth: Truth) -> None:
    truth.run(*statements.WRITTEN, *(statements.MARIADB if truth.state.flavour.mariadb else statements.MYSQL))
    truth.compare()
    assert truth.refused <= 3


@pytest.mark.promise("C20")
@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_random_statements(truth: Truth, seed: int) -> None:
    made = statements.Random(random.Random(seed), mariadb=truth.state.flavour.mariadb)
    for _ in range(LENGTH):
        before = len(truth.after)
        sql, done = made.next()
        truth.run(sql)
        if len(truth.after) > before:
            done()
    truth.compare()
    assert len(truth.after) > LENGTH // 3


def test_create_as_select_in_a_session_of_another_charset(truth: Truth) -> None:
    """Servers log it in UTF-8 whatever the session's charset is: names and labels stay what they are."""
    truth.run(
        "CREATE TABLE a (n INT COMMENT 'ж', e ENUM('ж','x') CHARACTER SET utf8mb4, ж INT) AS SELECT 1 AS n",
        "CREATE TABLE b (ж INT, e ENUM('鉄'))",
        "CREATE TABLE c AS SELECT * FROM a",
        charset="sjis",
    )
    truth.compare()
    assert truth.refused == 0


@pytest.mark.parametrize("mode", ["", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES"])
@pytest.mark.parametrize("charset", ["utf8mb4", "sjis", "latin1"])
def test_statements_that_the_server_writes_itself(truth: Truth, charset: str, mode: str) -> None:
    """In UTF-8, with backslashes as escapes, whatever the session has; names in quotes as the session's mode says."""
    one = "\\" if "NO_BACKSLASH" in mode else "\\\\"
    odd = {"utf8mb4": "é鉄", "sjis": "鉄ж", "latin1": "éß"}[charset]
    columns = (
        f"(`{odd}` INT, e ENUM('a{one}b', 'it''s', '{odd}') CHARACTER SET utf8mb4 DEFAULT 'a{one}b' COMMENT 'c{one}n', "
        f"v CHAR(9) DEFAULT '{odd}')"
    )
    truth.run(
        f"CREATE TABLE t1 {columns} COMMENT 't{one}n{odd}' AS SELECT 1 AS one",
        f"CREATE TABLE IF NOT EXISTS t2 {columns} AS SELECT 1 AS one",
        f"CREATE TABLE IF NOT EXISTS t2 {columns} AS SELECT 2 AS two",
        f"CREATE TABLE t3 (`{odd}` INT) COMMENT '{odd}' ENGINE=InnoDB CHARACTER SET utf8mb3 SELECT 1 AS one",
        f"CREATE TEMPORARY TABLE tmp {columns}",
        "CREATE TABLE t4 LIKE tmp",
        "CREATE TABLE IF NOT EXISTS t4 LIKE t1",
        "CREATE TABLE IF NOT EXISTS t5 LIKE tmp",
        f"CREATE TABLE `{odd}` {columns}",
        charset=charset,
        mode=mode,
    )
    truth.compare()
    assert truth.refused == 0


def test_labels_that_the_server_itself_does_not_write(truth: Truth) -> None:
    """Its own CREATE TABLE has ``?`` for them: the table is unknown until it is read again, and no label is wrong."""
    columns = "(e ENUM('😀', '?') CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)"
    truth.run(
        f"CREATE TABLE plain {columns}",
        f"CREATE TABLE t1 {columns} AS SELECT 1 AS one",
        f"CREATE TEMPORARY TABLE tmp {columns}",
        "CREATE TABLE t2 LIKE tmp",
    )
    with pytest.raises(AssertionError) as caught:
        truth.compare()
    assert truth.refused == 0
    told = [line for line in str(caught.value).splitlines() if line.strip().startswith("(")]
    assert len(told) == 2
    assert all("with ? for some characters in labels" in line for line in told)


@pytest.mark.parametrize("truth", ["mariadb"], indirect=True)
def test_a_create_or_replace_that_fails_has_dropped_the_table(truth: Truth) -> None:
    """MariaDB logs it with its error; what it would have made is not there."""
    truth.run(
        *(f"CREATE TABLE t{n} (a INT)" for n in range(3)),
        "CREATE OR REPLACE TABLE t0 (b INT INVISIBLE)",
        "CREATE OR REPLACE TABLE t1 (b INT, PRIMARY KEY (zz))",
        "DROP TABLE t2, nothing",
        "CREATE TABLE last (a INT)",
    )
    truth.compare()
    assert truth.refused == 3
    assert [table.table for table in truth.after[-1][2]] == ["last"]


_TEXT = "CREATE TABLE {t} (a TEXT NOT NULL, b INT NOT NULL, c INT NOT NULL, UNIQUE k (a), UNIQUE u (b))"
_LONG = "CREATE TABLE {t} (a VARCHAR(5000) NOT NULL, b INT NOT NULL, c INT NOT NULL, UNIQUE k (a), UNIQUE u (b))"
_SHORT = "CREATE TABLE {t} (a VARCHAR(10) NOT NULL, b INT NOT NULL, c INT NOT NULL, UNIQUE k (a), UNIQUE u (b))"
_WRITTEN = "CREATE TABLE {t} (a INT NOT NULL, b INT NOT NULL, UNIQUE k (a) USING HASH, UNIQUE u (b))"
_CHANGES = [
    "ADD d INT", "ADD INDEX (c)", "ADD UNIQUE (c)", "ADD UNIQUE (a(10))", "ADD UNIQUE USING HASH (c)",
    "MODIFY a TEXT NOT NULL", "MODIFY a VARCHAR(20) NOT NULL", "MODIFY a VARCHAR(5000) NOT NULL",
    "MODIFY a TEXT NOT NULL, ADD INDEX (c)", "MODIFY a TEXT NOT NULL, MODIFY b INT NULL", "MODIFY a TEXT NULL",
    "MODIFY b BIGINT NULL", "DROP INDEX u", "DROP INDEX k", "DROP INDEX k, ADD UNIQUE k (a)", "RENAME INDEX k TO z",
    "ADD PRIMARY KEY (c)", "FORCE, ALGORITHM=COPY",
]  # fmt: skip
_KEYS = [
    "a TEXT NOT NULL, b INT NOT NULL, UNIQUE k (a(10)), UNIQUE h (a), UNIQUE u (b)",
    "a TEXT NOT NULL, b INT NOT NULL, UNIQUE h (a(4000)), UNIQUE u (b)",
    "a TEXT NOT NULL, b INT, UNIQUE k (a), UNIQUE u (b)",
    "a TEXT, b INT NOT NULL, c INT, UNIQUE k (a), UNIQUE u (c), UNIQUE v (b)",
    "a TEXT NOT NULL, b VARCHAR(5000) NOT NULL, UNIQUE k (a), UNIQUE u (b)",
    "a LONGTEXT NOT NULL, b INT NOT NULL, UNIQUE k (a), UNIQUE u (b)",
    "a VARCHAR(700) NOT NULL, c VARCHAR(700) NOT NULL, b INT NOT NULL, UNIQUE k (a, c), UNIQUE u (b)",
    "a VARCHAR(768) NOT NULL, b INT NOT NULL, UNIQUE k (a), UNIQUE u (b)",
    "a VARCHAR(769) NOT NULL, b INT NOT NULL, UNIQUE k (a), UNIQUE u (b)",
    "a VARCHAR(5000) NOT NULL, b INT NOT NULL, UNIQUE k (a(10)), UNIQUE u (b)",
    "a VARCHAR(767) NOT NULL, c BIGINT NOT NULL, b INT NOT NULL, UNIQUE k (a, c), UNIQUE u (b)",
    "a INT NOT NULL, b INT NOT NULL, UNIQUE k USING HASH (a) COMMENT 'using', UNIQUE u (b) USING HASH USING BTREE",
    "a INT NOT NULL, b INT NOT NULL, UNIQUE u (b), PRIMARY KEY (a) USING HASH",
]
_ENGINES = [
    "a VARCHAR(251) NOT NULL, b INT NOT NULL, UNIQUE k (a), UNIQUE u (b)) ENGINE=MyISAM",
    "a VARCHAR(250) NOT NULL, b INT NOT NULL, UNIQUE k (a), UNIQUE u (b)) ENGINE=MyISAM",
]
_AFTER = [
    (),
    ("ALTER TABLE {t} ADD INDEX (b)",),
    ("ALTER TABLE {t} MODIFY b BIGINT NOT NULL",),
    ("ALTER TABLE {t} DROP PRIMARY KEY",),
    ("CREATE TABLE {t}_ LIKE {t}", "DROP TABLE {t}", "RENAME TABLE {t}_ TO {t}"),
]


def test_keys_that_are_hashes(mariadb: Any, fresh_schema: Any) -> None:
    """MariaDB: what tells rows apart is what the log itself calls the primary key, or the table is unknown."""
    truth = Truth(mariadb, schema := fresh_schema(mariadb, options="CHARACTER SET utf8mb4"))
    cases = [(f"CREATE TABLE {{t}} ({keys})",) for keys in _KEYS] + [(f"CREATE TABLE {{t}} ({e}",) for e in _ENGINES]
    altered = [
        (made, f"ALTER TABLE {{t}} {change}", *again)
        for made in (_TEXT, _LONG, _SHORT, _WRITTEN)
        for change in _CHANGES
        for again in _AFTER
    ]
    cases += random.Random(SEQUENCES).sample(altered, min(len(altered), SEQUENCES * 30))
    with mariadb.connect(schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        for number, statements_ in enumerate(cases):
            for sql in statements_:
                with contextlib.suppress(pymysql.err.MySQLError):
                    cursor.execute(sql.format(t=f"t{number}"))
            cursor.execute(f"INSERT INTO t{number} VALUES ()")
        connection.commit()
    with open_connection(truth.endpoint) as connection:
        head, names = server_info(connection).head, collations(connection)
        flavour = flavour_of(connection, server_info(connection))
        tables = [TableId(schema, f"t{number}") for number in range(len(cases))]
        now = {d.table: d.row_key for d in read_tables(connection, flavour, tables)}
        live = {t: read_definition(connection, t, lambda: names) for t in tables}
    tracker = SchemaTracker(lambda: truth.state, lambda: names)
    statements_between(
        truth.endpoint, server_id=4_000_000_125, start=truth.start, stop=head, statement=tracker.statement
    )
    logged = _logged_keys(mariadb, truth.start.file, head.file)
    unknown = 0
    for table, statements_ in zip(tables, cases, strict=True):
        key = tuple(live[table].plan.schema.columns[n].name for n in logged[table])
        assert now[table] == key, statements_
        assert tuple(live[table].plan.schema.columns[n].name for n in live[table].plan.key) == key, statements_
        folded = truth.state.find(table)
        if folded is None:
            unknown += 1
        else:
            assert folded.row_key == key, statements_
    assert unknown < len(cases) // 4


def _logged_keys(server: Any, first: str, last: str) -> dict[TableId, tuple[int, ...]]:
    """What the table maps of the server's log files say."""
    found: dict[TableId, tuple[int, ...]] = {}
    for file in (f for f in sorted(server.data_dir.glob(f"{first.split('.')[0]}.*")) if first <= f.name <= last):
        data, at = file.read_bytes(), 4
        while at < len(data):
            size = struct.unpack_from("<I", data, at + 9)[0]
            if data[at + 4] == 19:
                table_map = parse_table_map(data[at + 19 : at + size - 4], mariadb=True)
                found[table_map.table] = table_map.primary_key or ()
            at += size
    return found


_SIZES = [
    "VARCHAR(30000)", "VARCHAR(20000)", "VARCHAR(60000)", "VARBINARY(60000)", "TEXT(30000)", "TEXT(100)", "TEXT",
    "CHAR(9)", "BLOB(30000)", "BLOB", "NVARCHAR(30000)",
]  # fmt: skip
_OWN = [
    "",
    " CHARACTER SET utf8mb3",
    " CHARACTER SET utf8mb4",
    " CHARACTER SET latin1",
    " CHARACTER SET binary",
    " COLLATE ucs2_bin",
]
_BEFORE = ["VARCHAR(40)", "TEXT", "INT"]


def test_sizes_of_columns_next_to_a_conversion(truth: Truth) -> None:
    """A column that CONVERT TO CHARACTER SET meets is as long as it is in the new charset."""
    choose, number = random.Random(SEQUENCES), 0
    sqls: list[str] = []
    for size in _SIZES:
        for own in _OWN:
            for to in choose.sample(["ucs2", "latin1", "utf8mb4", "utf8mb3", "binary"], min(5, 2 * SEQUENCES // 2)):
                number += 1
                change = choose.choice([
                    "CHANGE a a {c}",
                    "CHANGE IF EXISTS a b {c}",
                    "MODIFY a {c} FIRST",
                    "ADD b {c}",
                ])
                change = change if truth.state.flavour.mariadb else change.replace("IF EXISTS ", "")
                actions = [f"CONVERT TO CHARACTER SET {to}", change.format(c=size + own)]
                choose.shuffle(actions)
                sqls += [
                    f"CREATE TABLE t{number} (a {choose.choice(_BEFORE)}, z INT)",
                    f"ALTER TABLE t{number} {', '.join(actions)}",
                    f"DROP TABLE t{number}",
                ]
    truth.run(*sqls, mode="")
    truth.compare()


_ORACLE = (
    "DATE", "VARCHAR2(10)", "NUMBER", "NUMBER(5)", "NUMBER(5, 2) NOT NULL", "NUMBER UNSIGNED", "CLOB", "RAW(10)", "BLOB",
    "BLOB(10)", "VARCHAR2(70000)", "RAW(70000)", "mariadb_schema.DATE", "oracle_schema.DATE", "DATE DEFAULT SYSDATE",
    "VARCHAR2(5) CHARACTER SET latin1", "TIMESTAMP(3) NULL", "REAL", "DECIMAL", "LONG", "CHAR", "YEAR", "TIME", "DATETIME",
)  # fmt: skip


@pytest.mark.parametrize("mode", ["ORACLE", "ORACLE,STRICT_ALL_TABLES", "ANSI_QUOTES"])
def test_types_as_oracle_names_them(mariadb, fresh_schema, mode: str) -> None:
    """``sql_mode=ORACLE``: DATE has a time, BLOB is a long one, and there are other names."""
    truth = Truth(mariadb, fresh_schema(mariadb, options="CHARACTER SET utf8mb4"))
    create = [f'CREATE TABLE "t{n}" ("id" INT PRIMARY KEY, "c" {kind})' for n, kind in enumerate(_ORACLE)]
    alter = [f"ALTER TABLE t0 ADD c{n} {kind}" for n, kind in enumerate(_ORACLE)]
    modify = [f"ALTER TABLE t0 MODIFY c{n} {kind}" for n, kind in enumerate((*_ORACLE[5:], *_ORACLE[:5]))]
    truth.run("CREATE TABLE t0 (id INT)", *create, *alter, *modify, mode=mode)
    truth.compare()
    assert len(truth.after) > 30


_BYTES = [
    "CREATE TABLE {t} (id INT PRIMARY KEY, e ENUM('\xff','a') CHARACTER SET binary)",
    "CREATE TABLE {t} (id INT PRIMARY KEY, e SET(x'ff','?') CHARACTER SET binary DEFAULT '?')",
    "CREATE TABLE {t} (id INT PRIMARY KEY COMMENT '\xff\xfe') COMMENT '\xff'",
    "CREATE TABLE {t} (id INT PRIMARY KEY, b VARBINARY(9) DEFAULT '\xff')",
    "CREATE TABLE {t} (id INT PRIMARY KEY, b VARBINARY(9) AS (CONCAT('\xff', id)) VIRTUAL)",
    "CREATE TABLE {t} (id INT PRIMARY KEY, b VARCHAR(9) DEFAULT (CONCAT('\xff', x'ff')))",
    "CREATE TABLE {t} (id INT PRIMARY KEY, CHECK (id <> '\xff'))",
    "CREATE TABLE {t} (id INT PRIMARY KEY, KEY ((CONCAT('\xff', id))))",
    *(
        f"CREATE TABLE {{t}} (id INT PRIMARY KEY, e ENUM('\xe9\xe8','a') CHARACTER SET {first}); ALTER TABLE {{t}} "
        f"{change} {then}"
        for first, then in [
            ("latin1", "utf8mb4"),
            ("latin1", "ucs2"),
            ("ucs2", "latin1"),
            ("latin1", "binary"),
            ("latin1", "sjis"),
        ]
        for change in ["CONVERT TO CHARACTER SET", "MODIFY e ENUM('\xe9\xe8','a') CHARACTER SET"]
    ),
]


@pytest.mark.parametrize("names", ["latin1", "binary"])
def test_bytes_that_are_no_text_in_a_definition(truth: Truth, names: str) -> None:
    """Whoever asks the server for a definition gets it or one of our errors, and can ask on; lists of tables have all
    of them.
    """
    schema = truth.schema
    tables: list[TableId] = []
    told: list[str] = []
    with truth.server.connect(schema, charset="latin1") as connection, connection.cursor() as cursor:
        cursor.execute(f"SET sql_mode = '', NAMES {names}")
        for number, sqls in enumerate(_BYTES):
            with contextlib.suppress(pymysql.err.MySQLError):
                for sql in sqls.format(t=f"t{number}").split("; "):
                    cursor.execute(sql)
                tables.append(TableId(schema, f"t{number}"))
    assert len(tables) > len(_BYTES) // 2
    with open_connection(truth.endpoint) as connection:
        known = collations(connection)
        flavour = flavour_of(connection, server_info(connection))
        listed = {found.schema.table for found in source_tables(connection, lambda table: table.schema == schema)}
        assert listed >= set(tables)
        questions: list[Callable[[TableId], object]] = [
            lambda t: read_tables(connection, flavour, [t]),
            lambda t: read_definition(connection, t, lambda: known),
            lambda t: create_statement(connection, t, TableId(schema, "other")),
        ]
        for table in tables:
            for ask in questions:
                try:
                    ask(table)
                except SluiceError as error:
                    told.append(str(error))
                assert rows_of(connection, "SELECT 'é'") == [("é",)]
        broken: dict[TableId, str] = {}
        found = {d.table for d in read_tables(connection, flavour, tables, broken=broken)}
        assert found | set(broken) == set(tables)
    assert told
    assert all(schema in text for text in told)
