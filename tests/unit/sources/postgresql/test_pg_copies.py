"""Copies of rows without a server: what a snapshot saw, keys as literals, conditions that people write."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sluice.errors import ConfigError, DumpRefused
from sluice.model.definitions import ColumnDefinition, IndexDefinition, TableDefinition
from sluice.model.dumps import TableRequest
from sluice.model.exact_values import AS_TYPED
from sluice.model.row_effects import Ran
from sluice.model.tables import TableId
from sluice.postgresql.column_types import neutral_column, neutral_type
from sluice.postgresql.source_words import PostgreSQLWords
from sluice.sources.postgresql.catalog.table import CatalogTable, Index, schema_of
from sluice.sources.postgresql.snapshot.chunk_queries import key_of
from sluice.sources.postgresql.snapshot.condition import rendered
from sluice.sources.postgresql.snapshot.key_text import PostgresKeyText, after, among, upto
from sluice.sources.postgresql.snapshot.watermarks import after_low
from sluice.sources.postgresql.values.decode import decode
from sluice.targets.postgresql.defaults import default_of

TABLE = TableId("shop", "orders")
KEYS = PostgresKeyText()


def rows(*numbers: int | None) -> pa.Table:
    return pa.table({"_gtid": pa.array([None if n is None else str(n) for n in numbers], pa.string())})


def test_a_snapshot_tells_which_changes_came_after_it() -> None:
    found = after_low("100:110:103,105", rows(99, 100, 103, 104, 105, 109, 110, 4_000_000_000, None))
    assert found.tolist() == [False, False, True, False, True, False, True, False, True]
    assert after_low("100:100:", rows()).tolist() == []


def test_numbers_of_transactions_begin_anew() -> None:
    """The log has 32 bits of them, a snapshot 64."""
    epoch = 5 << 32
    low = f"{epoch - 2}:{epoch + 3}:{epoch - 2},{epoch + 1}"
    found = after_low(low, rows(2**32 - 3, 2**32 - 2, 2**32 - 1, 0, 1, 2, 3))
    assert found.tolist() == [False, True, False, False, True, False, True]


def key(words: str, *texts: str, labels: tuple[str, ...] = ()) -> tuple[list[tuple[str, ...]], pa.Array]:
    """The literals of the server's texts, and the values they are read as again."""
    column = neutral_column("c", words, labels)
    data = "".join(texts).encode()
    lengths = np.array([len(text.encode()) for text in texts], np.int32)
    values = decode(column, np.frombuffer(data, np.uint8), np.cumsum(lengths) - lengths, lengths)
    literals = KEYS.literals([column], pa.table({"c": values}))
    again = KEYS.values({"c": column.type}, literals)["c"].combine_chunks()
    assert again.equals(values), (again, values)
    return literals, again


@pytest.mark.parametrize(
    ("words", "text", "literal"),
    [
        ("integer", "-5", "-5"), ("bigint", "9223372036854775807", "9223372036854775807"),
        ("numeric(5,2)", "-1.50", "-1.50"), ("oid", "4294967295", "'4294967295'"), ("boolean", "t", "'true'"),
        ("text", "it's \\", "'it''s \\'"), ("uuid", "0" * 8 + "-0000-0000-0000-" + "0" * 12, None),
        ("bytea", r"\x00ff", r"'\x00ff'"), ("date", "infinity", "'infinity'"), ("date", "0044-03-15 BC", None),
        ("timestamp without time zone", "2024-01-31 12:00:00.5", "'2024-01-31 12:00:00.500000'"),
        ("timestamp with time zone", "2024-01-31 12:00:00+00", "'2024-01-31 12:00:00.000000'"),
        ("double precision", "0.1", "'0.1'"), ("double precision", "Infinity", "'Infinity'"), ("bit(3)", "010", "'010'"),
        ("time without time zone", "24:00:00", "'24:00:00.000000'"), ("inet", "10.0.0.0/8", "'10.0.0.0/8'"),
        ("numeric", "1e-500", "'1e-500'"),
    ],
)  # fmt: skip
def test_a_key_is_a_literal_and_comes_back(words: str, text: str, literal: str | None) -> None:
    [(made,)], _ = key(words, text)
    assert made == (literal or f"'{text}'")


def test_labels_are_texts() -> None:
    assert key("s.mood", "it's", labels=("a", "it's"))[0] == [("'it''s'",)]


def test_a_bound_that_the_type_does_not_have_keeps_its_value() -> None:
    column = neutral_column("c", "numeric(5,1)")
    assert KEYS.values({"c": column.type}, [("1.55",)])["c"].to_pylist() == [Decimal("1.55")]
    odd = KEYS.values({"c": neutral_column("c", "date").type}, [("'tomorrow'",)])["c"]
    assert odd.type == AS_TYPED


@pytest.mark.parametrize(
    ("words", "typed", "literal"),
    [
        ("integer", " 7 ", "7"), ("text", " 7 ", "' 7 '"), ("date", "2024-01-31", "'2024-01-31'"),
        ("timestamp without time zone", "2024-01-31", "'2024-01-31 00:00:00'"), ("bytea", "0x00FF", r"'\x00FF'"),
        ("boolean", "True", "'true'"), ("uuid", "AB" * 4 + "-0000-0000-0000-" + "0" * 12, None),
        ("numeric(5,2)", "NaN", "'NaN'"),
    ],
)  # fmt: skip
def test_what_a_person_types(words: str, typed: str, literal: str | None) -> None:
    assert KEYS.typed(neutral_column("c", words), typed) == (literal or f"'{typed.lower()}'")


@pytest.mark.parametrize(("words", "typed"), [("integer", "abc"), ("date", "31.1.2024")])
def test_what_is_no_value_of_the_key(words: str, typed: str) -> None:
    with pytest.raises(ConfigError, match="is no value of the key column c"):
        KEYS.typed(neutral_column("c", words), typed)


def test_conditions_of_ranges() -> None:
    assert after(["a"], ["1"]) == '"a" > 1'
    assert after(["a", "b"], ["1", "'x'"], included=True) == '("a", "b") >= (1, \'x\')'
    assert upto(["a", "b"], ["1"]) == '"a" <= 1'
    assert after(["a"], []) == ""
    assert among(['a"b'], [("1",), ("2",)]) == '"a""b" IN (1, 2)'
    assert among(["a", "b"], [("1", "2"), ("3", "4")]) == '("a", "b") IN ((1, 2), (3, 4))'


COLUMNS = ("id", "createdAt", "name", "pg_sleep", "user", "date", "left", "in", "e", "regclass")


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("id > 5", '"id" > 5'),
        (
            "ID IN (1,2) and \"createdAt\">=date '2024-01-01'",
            '"id" IN ( 1 , 2 ) AND "createdAt" >= DATE \'2024-01-01\'',
        ),
        ("name like 'a''b%' or not lower(name) = 'x'", "\"name\" LIKE 'a''b%' OR NOT LOWER ( \"name\" ) = 'x'"),
        (
            "date(id) = date '2024-01-01' and date > 1 and left > 2",
            'DATE ( "id" ) = DATE \'2024-01-01\' AND "date" > 1 AND "left" > 2',
        ),
        (
            "left(name, 1) = 'x' and id::numeric(4,1) = 1",
            'LEFT ( "name" , 1 ) = \'x\' AND "id" :: NUMERIC ( 4 , 1 ) = 1',
        ),
        (
            "user = 'x' and pg_sleep in (1) and \"in\" in (2)",
            '"user" = \'x\' AND "pg_sleep" IN ( 1 ) AND "in" IN ( 2 )',
        ),
        ("name = 1 -- x", None),
        ("id = 1 /* x */", None),
    ],
)
def test_a_condition_is_written_anew(text: str, made: str | None) -> None:
    if made is None:
        with pytest.raises(ConfigError):
            rendered(text, TABLE, COLUMNS)
        return
    assert rendered(text, TABLE, COLUMNS) == made


@pytest.mark.parametrize(
    "text",
    [
        "", "id = 1) OR (1 = 1", "id = 1; DROP TABLE x", "pg_sleep(5) = 1", "id = (SELECT 1)", "nme = 'x'",
        "pg_sleep (5) IS NULL", '"pg_sleep"(5) IS NULL', "\"pg_sleep\" 'x'", "regclass 'x' = id", "id::regclass = 1",
        "'x'::\"regclass\" = id", "e'\\''", "left 'x'", "user() = 'x'", "name = E'\\''", "name = $$x$$", "id = 1 UNION ALL", '"Id" = 1', "(id = 1", "name = 'open",
    ],
)  # fmt: skip
def test_a_condition_that_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not understood"):
        rendered(text, TABLE, COLUMNS)


WORDS = PostgreSQLWords()


def test_names_that_a_statement_changes() -> None:
    text = (
        'ALTER TABLE "s"."t" RENAME COLUMN "A""b" TO "c"; ALTER TABLE "s"."t" DROP COLUMN "x", ADD COLUMN "y" text '
        "DEFAULT 'DROP COLUMN \"z\"'"
    )
    found = WORDS.altered_names(Ran(text, "s"))
    assert found is not None
    assert (dict(found.renamed), set(found.dropped)) == ({'a"b': "c"}, {"x"})
    assert WORDS.altered_names(Ran('CREATE TABLE "s"."t" ("a" integer)', "s")) is None


@pytest.mark.parametrize(
    ("words", "default", "value"),
    [
        ("integer", "7", 7), ("integer", "(-7)", -7), ("integer", "'-7'::integer", -7), ("boolean", "true", 1),
        ("text", "'a''b'::text", "a'b"), ("character varying(5)", "NULL::character varying", None),
        ("text", None, None), ("double precision", "'1.5'::double precision", 1.5),
        ("time(3) without time zone", "'24:00:00'::time without time zone", timedelta(days=1)),
        ("time without time zone", "'00:00:01.5'::time without time zone", timedelta(seconds=1.5)),
        ("interval", "'1 day 02:00:00'::interval", "1 day 02:00:00"),
    ],
)  # fmt: skip
def test_constant_defaults(words: str, default: str | None, value: Any) -> None:
    found = WORDS.default_value(ColumnDefinition("c", words, default=default)).value
    assert found is not None
    assert found.as_py() == value


@pytest.mark.parametrize(
    ("words", "default"),
    [
        ("timestamp with time zone", "now()"),
        ("integer", "nextval('s'::regclass)"),
        ("time without time zone", "LOCALTIME"),
    ],
)
def test_defaults_that_are_not_known(words: str, default: str) -> None:
    assert WORDS.default_value(ColumnDefinition("c", words, default=default)).value is None


def test_a_default_is_written_in_the_words_of_the_column() -> None:
    column = ColumnDefinition("c", "boolean", default="true")
    made = neutral_type(column.type)
    assert default_of(column, made, WORDS.default_value(column)).rows == "true"


def live(words: str, *more: Index) -> CatalogTable:
    """A table whose key is one column of this type."""
    definition = TableDefinition(
        TABLE, (ColumnDefinition("id", words, nullable=False),), (IndexDefinition("PRIMARY", (("id", 0),), True),)
    )
    index = Index("orders_pkey", ("id",), primary=True, identity=False, unique=True)
    return CatalogTable(1, schema_of(definition), definition, (), (index, *more), "d", ("id",))


def test_a_key_whose_order_the_session_does_not_know_cuts_no_table() -> None:
    """It would be compared as text, and the index has another order: rows would be in no chunk."""
    assert key_of(live("text"), TableRequest(TABLE)).names == ("id",)
    assert key_of(live("public.citext"), TableRequest(TABLE)).names == ()
    with pytest.raises(DumpRefused, match="whose order is its own"):
        key_of(live("public.citext"), TableRequest(TABLE, index="orders_pkey"))
