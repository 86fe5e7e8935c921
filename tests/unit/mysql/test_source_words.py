"""What a statement's words mean is read once, by the dialect's own room, for targets of every kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.errors import DecodeError
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.model.dialects import MARIADB, MYSQL, Dialect
from sluice.model.row_effects import Ran
from sluice.model.schema_changes import ChangeKind, StatementSession, TableChange
from sluice.model.source_words import StatementMeaning
from sluice.model.tables import TableId
from sluice.sources.words import words_of

K = ChangeKind
TABLE = TableId("s", "t")
A, B = ColumnDefinition("a", "int"), ColumnDefinition("b", "bigint unsigned", default="7")
LABELS = ColumnDefinition("l", "enum('x')", labels=("x", "ÿ"))
ODD = ColumnDefinition("o", "nonsense(4)")
SINCE = ColumnDefinition("since", "timestamp", default="'2024-05-01 12:00:00'")


def meaning(
    text: str,
    before: tuple[ColumnDefinition, ...],
    after: tuple[ColumnDefinition, ...],
    *kinds: K,
    dialect: Dialect = MYSQL,
    mode: int = 0,
    session: StatementSession | None = None,
) -> tuple[StatementMeaning, TableChange]:
    change = TableChange(TABLE, kinds, TableDefinition(TABLE, before), TableDefinition(TABLE, after))
    return StatementMeaning.read(words_of(dialect), Ran(text, "s", mode, session), (change,)), change


def test_names_that_are_used_again_are_told_by_the_statement() -> None:
    swapped = (replace(A, name="b"), replace(B, name="a"))
    found, change = meaning("ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a", (A, B), swapped)
    parts = found.altered_columns(change)
    assert parts is not None
    assert [(p.kind, p.old and p.old.name, p.new and p.new.name) for p in parts] == [
        (K.RENAME_COLUMN, "a", "b"),
        (K.RENAME_COLUMN, "b", "a"),
    ]
    anew = (replace(A, default="5"),)
    found, change = meaning("ALTER TABLE t DROP COLUMN a, ADD COLUMN a INT DEFAULT 5", (A,), anew)
    assert [part.kind for part in found.altered_columns(change) or ()] == [K.DROP_COLUMN, K.ADD_COLUMN]


def test_a_statement_that_alters_no_table_names_no_column() -> None:
    found, change = meaning("RENAME TABLE t TO u", (A,), (A,), K.RENAME_TABLE)
    assert found.altered_columns(change) is None


def test_a_statement_that_is_not_understood_says_why() -> None:
    found, change = meaning("ALTER TABLE t ADD c VARCHAR(3) DEFAULT 'x", (A,), (A, B), K.ADD_COLUMN)
    with pytest.raises(DecodeError, match="does not end"):
        found.altered_columns(change)
    assert found.default_value(B).value is not None  # the definition says it all the same


def test_types_are_those_before_and_after() -> None:
    found, _ = meaning("ALTER TABLE t DROP a, ADD b BIGINT UNSIGNED", (A, LABELS, ODD), (B, LABELS, ODD))
    assert found.types[A] == ColumnType(ColumnKind.INT)
    assert found.types[B] == ColumnType(ColumnKind.BIGINT, unsigned=True)
    assert found.types[LABELS].labels == ("x", "ÿ")
    assert ODD not in found.types
    assert found.default_value(ODD).why == "the type nonsense(4) is not known"


@pytest.mark.parametrize(("kinds", "known"), [((K.ADD_COLUMN,), True), ((K.RENAME_TABLE,), False)])
def test_a_rename_did_not_write_the_defaults(kinds: tuple[K, ...], known: bool) -> None:
    found, _ = meaning("…", (A,), (A, SINCE), *kinds, session=StatementSession(time_zone="+02:00"))
    assert (found.default_value(SINCE).value is not None) is known


def test_the_quotes_of_a_statement_are_read_as_its_session_reads_them() -> None:
    renamed = (replace(A, name="b"),)
    found, change = meaning('ALTER TABLE t RENAME COLUMN "a" TO "b"', (A,), renamed, mode=4)
    assert [part.kind for part in found.altered_columns(change) or ()] == [K.RENAME_COLUMN]


def test_words_of_another_dialect_are_not_guessed() -> None:
    found, change = meaning("ALTER TABLE t ADD b BIGINT", (A,), (A, B), K.ADD_COLUMN, dialect=Dialect("tds"))
    assert not found.types
    assert found.default_value(B).why == "statements of tds are not understood"
    with pytest.raises(DecodeError, match="statements of tds are not understood"):
        found.altered_columns(change)


def test_a_statement_that_makes_a_table_says_its_comments_and_indexes() -> None:
    text = """CREATE TABLE `t` (`id` int NOT NULL, `a` varchar(9) COMMENT 'it''s', b int,
        PRIMARY KEY (`id`), UNIQUE KEY `u` (a, b), KEY `part` (a(3)), KEY `e` ((b + 1)), FULLTEXT KEY `f` (a)) COMMENT='all'"""
    made = words_of(MYSQL).created_table(text, "s")
    assert made is not None
    assert (made.comment, made.comments) == ("all", (("a", "it's"),))
    assert [(one.name, one.columns, one.unique) for one in made.indexes] == [
        ("u", (("a", 0), ("b", 0)), True),
        ("part", (("a", 3),), False),
        ("e", (("", 0),), False),
    ]


@pytest.mark.parametrize("text", ["", "ALTER TABLE t ADD b INT", "CREATE TABLE t (a VARCHAR(9) COMMENT 'x)"])
def test_other_statements_make_no_table(text: str) -> None:
    assert words_of(MARIADB).created_table(text, "s") is None
    assert words_of(Dialect("tds")).created_table(text, "s") is None
