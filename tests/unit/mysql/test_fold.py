"""Statements, parsed and folded without a server: what is understood, what is not, and what kinds of change a reader is
told.
"""

from __future__ import annotations

import contextlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import DecodeError
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.tables import TableId
from sluice.mysql.ddl.catalog import SchemaState, Session
from sluice.mysql.ddl.collations import Collations
from sluice.mysql.ddl.lexer import NO_BACKSLASH_ESCAPES, Dialect, tokens
from sluice.mysql.ddl.parser import parse_statement
from sluice.mysql.ddl.types import Flavour
from sluice.sources.mysql.events.statement_effects import effects_of

COLLATIONS = Collations(
    {"utf8mb4_0900_ai_ci": "utf8mb4", "utf8mb4_bin": "utf8mb4", "latin1_swedish_ci": "latin1", "binary": "binary"},
    {"utf8mb4": "utf8mb4_0900_ai_ci", "latin1": "latin1_swedish_ci", "binary": "binary"},
    {"utf8mb4": 4, "latin1": 1, "binary": 1},
)
K = ChangeKind


def state(*statements: str, mariadb: bool = False, version: int = 90000) -> SchemaState:
    made = SchemaState(Flavour(mariadb, version, COLLATIONS), server_collation="utf8mb4_0900_ai_ci")
    for statement in ("CREATE DATABASE d", *statements):
        made.fold(statement, "d", Session())
    return made


def kinds(made: SchemaState, statement: str) -> list[tuple[str, list[ChangeKind]]]:
    return [(str(change.table), list(change.kinds)) for change in made.fold(statement, "d", Session())]


TABLE = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(10) NOT NULL, n INT, e ENUM('a','b'))"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("ALTER TABLE t ADD COLUMN x INT", [K.ADD_COLUMN]),
        ("ALTER TABLE t DROP COLUMN n", [K.DROP_COLUMN]),
        ("ALTER TABLE t RENAME COLUMN n TO m", [K.RENAME_COLUMN]),
        ("ALTER TABLE t CHANGE n m BIGINT", [K.RENAME_COLUMN, K.WIDEN_COLUMN]),
        ("ALTER TABLE t MODIFY v VARCHAR(20) NOT NULL", [K.WIDEN_COLUMN]),
        ("ALTER TABLE t MODIFY v VARCHAR(5) NOT NULL", [K.CHANGE_COLUMN]),
        ("ALTER TABLE t MODIFY e ENUM('a','b','c')", [K.WIDEN_COLUMN]),
        ("ALTER TABLE t MODIFY e ENUM('c','a','b')", [K.CHANGE_COLUMN]),
        ("ALTER TABLE t MODIFY v VARCHAR(10)", [K.ALLOW_NULL]),
        ("ALTER TABLE t MODIFY n INT NOT NULL", [K.REQUIRE_VALUE]),
        ("ALTER TABLE t MODIFY n INT FIRST", [K.MOVE_COLUMN]),
        ("ALTER TABLE t ALTER n SET DEFAULT 5", [K.COLUMN_ATTRIBUTES]),
        ("ALTER TABLE t DROP PRIMARY KEY", [K.PRIMARY_KEY]),
        ("ALTER TABLE t ADD INDEX (n), COMMENT 'x'", [K.INDEXES, K.TABLE_OPTIONS]),
        ("ALTER TABLE t TRUNCATE PARTITION p0", [K.ROWS_REMOVED]),
        ("ALTER TABLE t RENAME TO u, ADD x INT", [K.ADD_COLUMN, K.RENAME_TABLE]),
        ("ALTER TABLE t FORCE", [K.NOTHING]),
        ("TRUNCATE t", [K.TRUNCATE_TABLE]),
        ("DROP TABLE t", [K.DROP_TABLE]),
    ],
)
def test_kinds(statement: str, expected: list[ChangeKind]) -> None:
    made = state(TABLE)
    changes = made.fold(statement, "d", Session())
    assert list(dict.fromkeys(changes[0].kinds)) == expected
    assert TableChange.from_json(changes[0].to_json()) == changes[0] or expected[0] in {K.RENAME_COLUMN, K.MOVE_COLUMN}


def test_databases_take_their_tables_along() -> None:
    made = state(TABLE)
    assert kinds(made, "DROP DATABASE d") == [("d.t", [K.DROP_TABLE]), ("d.", [K.DROP_DATABASE])]
    assert made.find(TableId("d", "t")) is None


def test_swapped_names() -> None:
    made = state(TABLE, "CREATE TABLE u (other INT)")
    made.fold("RENAME TABLE t TO tmp, u TO t, tmp TO u", "d", Session())
    found = made.find(TableId("d", "t"))
    assert found is not None
    assert [c.name for c in found.columns] == ["other"]


def test_names_in_one_statement_are_those_before_it() -> None:
    made = state("CREATE TABLE s (a INT, b VARCHAR(3))", "ALTER TABLE s CHANGE a b INT, CHANGE b a VARCHAR(3)")
    found = made.find(TableId("d", "s"))
    assert found is not None
    assert [(c.name, c.type) for c in found.columns] == [("b", "int"), ("a", "varchar(3)")]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t FROBNICATE n",
        "ALTER TABLE t ADD COLUMN x FANCYTYPE",
        "ALTER TABLE t DROP COLUMN never_there",
        "CREATE TABLE t2 AS SELECT 1",
        "ALTER TABLE t ADD SYSTEM VERSIONING",
        "ALTER TABLE t CONVERT TO CHARACTER SET latin1",
    ],
)
def test_what_is_not_understood_is_never_guessed(statement: str) -> None:
    made = state(TABLE, "ALTER TABLE t MODIFY e ENUM('ü')")
    try:
        changes = made.fold(statement, "d", Session(), "binlog.000001:4")
    except DecodeError:
        return
    name = changes[-1].table
    assert K.UNKNOWN in changes[-1].kinds
    assert made.find(name) is None
    assert made.why_unknown(name) is not None


def test_versioned_comments_by_server() -> None:
    def words(sql: str, **dialect: object) -> list[str]:
        return [t.text for t in tokens(sql, Dialect(**dialect))][:-1]  # type: ignore[arg-type]

    sql = "a /*!50700 b */ /*!100100 c */ /*M!100200 d */ /* e */"
    assert words(sql, version=80403) == ["a", "b"]
    assert words(sql, version=101105, mariadb=True) == ["a", "c", "d"]
    assert words(sql, version=50736) == ["a", "b"]


def test_old_servers_print_widths() -> None:
    made = state("CREATE TABLE w (a INT UNSIGNED, b TINYINT(1), y YEAR, z INT ZEROFILL)", version=50744)
    found = made.find(TableId("d", "w"))
    assert found is not None
    assert [c.type for c in found.columns] == ["int(10) unsigned", "tinyint(1)", "year(4)", "int(10) unsigned zerofill"]


@given(st.text(max_size=60))
def test_any_text_gives_a_statement_or_a_decode_error(text: str) -> None:
    for sql in (text, "ALTER TABLE t " + text, "CREATE TABLE t (" + text):
        try:
            parse_statement(sql, "d", Dialect())
        except DecodeError:
            continue


SEEDS = (
    TABLE,
    "ALTER TABLE t ADD COLUMN `x y` ENUM('a', x'62', b'1') CHARACTER SET latin1 DEFAULT 'a' COMMENT 'it''s' AFTER id, "
    "DROP n, RENAME TO u",
    "CREATE DEFINER=`a`@`%` TRIGGER tr BEFORE INSERT ON t FOR EACH ROW SET @`x` = 'y', @@global.x = 1e5",
    "CREATE TABLE s.20151214 (a SERIAL, b DECIMAL(19.5) DEFAULT -1.5, FOREIGN KEY f (b) REFERENCES t (id), KEY (b), "
    "CHECK (a > 0)) CHARSET = DEFAULT",
    "RENAME TABLE t TO `a``b`, d.v TO v /*!50003 , x TO y */ -- end",
    "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u, CONVERT TO CHARACTER SET utf8mb4 COLLATE DEFAULT",
    "CREATE OR REPLACE DATABASE d CHARACTER SET DEFAULT COLLATE nothing",
    "CREATE UNIQUE INDEX i ON t (v(5), (id + 1)) COMMENT '\\\\'",
    "DROP TABLE IF EXISTS t, `v`, s.`w`",
)  # fmt: skip


@given(st.randoms(use_true_random=False), st.sampled_from(SEEDS), st.booleans(), st.sampled_from([0, 4, 1 << 20]))
def test_mutated_statements_are_followed_or_make_their_tables_unknown(random, sql, mariadb, mode) -> None:
    """No error but ours, and whatever is kept can be stored."""
    words = [w for seed in SEEDS for w in re.findall(r"\w+|\s+|.", seed)]
    pieces = re.findall(r"\w+|\s+|.", sql)
    for _ in range(random.randint(1, 6)):
        at = random.randrange(len(pieces) + 1)
        new = random.choice([
            *"`'\"@\\();,.#\0\udcff\u3000x0",
            "\n",
            "/*",
            "*/",
            "/*!",
            "--",
            random.choice(words),
            random.choice(words),
        ])
        pieces[at : at + random.randint(0, 2)] = [new]
    made = state(TABLE, "CREATE TABLE v (id INT)", mariadb=mariadb)
    text = "".join(pieces)
    try:
        changes = made.fold(text, "d", Session(sql_mode=mode), "binlog.000001:4")
    except DecodeError:
        changes = []
    effects_of(text, "d", Dialect(mariadb, 0, mode))
    json.dumps([made.to_json(), *(change.to_json() for change in changes)], ensure_ascii=False).encode()


def test_long_text_is_read_in_time() -> None:
    """Nothing grows faster than the text does: each of these took hours if it did."""
    many = 10_000
    for text in (
        "`" * many + "a",
        "'" * (many + 1),
        "(" * many,
        "/*" * many,
        "/*!99999" * many,
        "@`" * many,
        "a." * many,
        "RENAME " * many,
    ):
        for sql in (text, "ALTER TABLE t ADD " + text, "CREATE TABLE t (a INT DEFAULT " + text, "FROBNICATE " + text):
            made = state(TABLE)
            with contextlib.suppress(DecodeError):
                made.fold(sql, "d", Session())
            effects_of(sql, "d")


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("db.20151214", ["db", ".", "20151214"]),
        ("`db`.1e5 .5", ["db", ".", "1e5", ".5"]),
        ("1e5x 1.5COMMENT 1x 0x1G 0b12", ["1e5", "x", "1.5", "COMMENT", "1x", "0x1G", "0b12"]),
        (
            "'a'@'%' `b`@`my-host` c@localhost @@global.x @`y z`",
            ["a", "@'%'", "b", "@`my-host`", "c", "@localhost", "@@global.x", "@`y z`"],
        ),
        ("a\u00a0b\u3000 \u0661", ["a\u00a0b\u3000", "\u0661"]),
        ("a--b\n--\tc\n--\x01d\ne", ["a", "-", "-", "b", "e"]),
        ("a /*!99999 /* b */ c */ d /* /* */ e", ["a", "d", "e"]),
        ("x'4a' X'' b'01' n'x'", ["4a", "", "01", "n", "x"]),
    ],
)
def test_words_as_the_server_splits_them(sql: str, words: list[str]) -> None:
    assert [t.text for t in tokens(sql, Dialect(version=90700))][:-1] == words


def test_a_state_survives_being_stored() -> None:
    made = state(
        TABLE, "CREATE TABLE g (a INT, b INT AS (a + 1) STORED INVISIBLE, UNIQUE (b))", "ALTER TABLE g ADD z FANCY"
    )
    again = SchemaState.from_json(made.to_json())
    assert again.tables == made.tables
    assert again.unknown == made.unknown
    assert again.databases == made.databases


GERMAN = Collations(
    {
        **COLLATIONS.charset_of,
        "latin1_german1_ci": "latin1",
        "utf8mb4_general_ci": "utf8mb4",
        "utf16_general_ci": "utf16",
    },
    {**COLLATIONS.default_of, "utf16": "utf16_general_ci"},
    {**COLLATIONS.bytes_of, "utf16": 4},
)


@pytest.mark.parametrize(
    ("clauses", "mysql", "mariadb", "column"),
    [
        ("CONVERT TO CHARACTER SET latin1, COLLATE latin1_german1_ci", "latin1_german1_ci", "latin1_german1_ci",
            "latin1_swedish_ci"),
        ("DEFAULT CHARACTER SET utf8mb4, CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "utf8mb4_bin",
            "utf8mb4_0900_ai_ci", "utf8mb4_bin"),
        ("COLLATE utf8mb4_general_ci, CONVERT TO CHARACTER SET utf8mb4", "utf8mb4_0900_ai_ci", "utf8mb4_general_ci",
            "utf8mb4_0900_ai_ci"),
        ("CONVERT TO CHARACTER SET utf8mb4, DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "utf8mb4_bin",
            "utf8mb4_bin", "utf8mb4_0900_ai_ci"),
    ],
)  # fmt: skip
def test_a_default_charset_beside_a_conversion(clauses: str, mysql: str, mariadb: str, column: str) -> None:
    """What MySQL 8.0 and 9.7 and MariaDB 10.11 and 11.8 said (their names of the default collation of utf8mb4
    differ).
    """
    for is_mariadb, wanted in ((False, mysql), (True, mariadb)):
        made = SchemaState(
            Flavour(is_mariadb, 110800 if is_mariadb else 90000, GERMAN), server_collation="latin1_swedish_ci"
        )
        for statement in (
            "CREATE DATABASE d",
            "CREATE TABLE t (a VARCHAR(9), c ENUM('x'))",
            f"ALTER TABLE t {clauses}",
        ):
            made.fold(statement, "d", Session())
        table = made.find(TableId("d", "t"))
        assert table is not None
        assert (table.collation, [c.collation for c in table.columns]) == (wanted, [column, column])


@pytest.mark.parametrize(("labels", "to"), [("'é'", "utf8mb4"), ("'e'", "utf16")])
def test_labels_that_a_conversion_changes_are_not_guessed(labels: str, to: str) -> None:
    made = SchemaState(Flavour(False, 90000, GERMAN), server_collation="latin1_swedish_ci")
    for statement in (
        "CREATE DATABASE d",
        f"CREATE TABLE t (c ENUM({labels}))",
        f"ALTER TABLE t CONVERT TO CHARACTER SET {to}",
    ):
        made.fold(statement, "d", Session())
    assert "labels" in made.unknown[TableId("d", "t")].reason


def test_a_literal_of_a_session_without_escapes_is_kept_in_the_ordinary_spelling() -> None:
    made = state(TABLE)
    statement = r"ALTER TABLE t ADD a VARCHAR(9) DEFAULT 'a\b''c', ADD b VARCHAR(9) DEFAULT _latin1'\%', ADD c TEXT DEFAULT (CONCAT('\', 'x'))"
    made.fold(statement, "d", Session(NO_BACKSLASH_ESCAPES))
    table = made.find(TableId("d", "t"))
    assert table is not None
    assert [c.default for c in table.columns[-3:]] == [r"'a\\b''c'", r"_latin1'\\%'", r"(CONCAT('\\', 'x'))"]


def test_default_collations_of_the_session() -> None:
    made = SchemaState(Flavour(True, 110800, GERMAN), server_collation="latin1_swedish_ci")
    made.fold("CREATE DATABASE d", "", Session())
    made.fold(
        "CREATE TABLE t (a TEXT) CHARACTER SET utf8mb4", "d", Session(default_collations=(("utf8mb4", "utf8mb4_bin"),))
    )
    table = made.find(TableId("d", "t"))
    assert table is not None
    assert table.collation == "utf8mb4_bin"


@pytest.mark.parametrize(
    ("alter", "removes"),
    [
        ("ADD UNIQUE (n)", True),
        ("ADD UNIQUE KEY nv (n, v)", True),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (n)", True),
        ("ADD x INT UNIQUE", True),
        ("MODIFY u VARCHAR(3)", True),
        ("MODIFY u VARCHAR(10) NOT NULL", True),
        ("MODIFY u VARCHAR(10) CHARACTER SET latin1", True),
        ("DROP KEY u, ADD UNIQUE KEY u (u(2))", True),
        ("ADD CHECK (n > 0)", True),
        ("ADD CONSTRAINT c CHECK (n > 0)", True),
        ("PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (9))", True),
        ("ADD KEY (n)", False),
        ("ADD x INT", False),
        ("MODIFY n BIGINT", False),
        ("MODIFY v VARCHAR(3) NOT NULL", False),
        ("MODIFY u VARCHAR(20)", False),
        ("CHANGE u w VARCHAR(10)", False),
        ("DROP KEY u", False),
        ("DROP KEY u, ADD UNIQUE KEY other (u)", False),
    ],
)
def test_alter_ignore_removes_rows_that_a_new_definition_refuses(alter: str, removes: bool) -> None:
    """Without IGNORE the server refuses the statement instead."""
    table = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(10) NOT NULL, n INT, u VARCHAR(10), UNIQUE KEY u (u))"
    for word in ("IGNORE TABLE", "ONLINE IGNORE TABLE"):
        [(_, found)] = kinds(state(table, mariadb=True), f"ALTER {word} t {alter}")
        assert (K.ROWS_REMOVED in found) is removes, found
    [(_, plain)] = kinds(state(table, mariadb=True), f"ALTER TABLE t {alter}")
    assert K.ROWS_REMOVED not in plain
