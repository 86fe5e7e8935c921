"""Rules of type sql: what they see, what comes back unchanged, and errors that name the line."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.errors import RuleError
from sluice.model.tables import TableId
from sluice.model.temporal import special_date, special_timestamp
from sluice.rules import RuleSet
from sluice.rules import sql as queries
from tests.support.tables.rule_tables import MERGED, TABLE, engine, result, row, rows


@pytest.fixture
def sql(tmp_path: Path):
    def make(text: str, extra: str = "") -> RuleSet:
        return engine(tmp_path, f"  - {{name: mine, path: r.sql, type: sql{extra}}}\n", r__sql=text)

    return make


def with_special_dates(table: pa.Table) -> pa.Table:
    born = pa.array([special_date(0, 0, 0)] * table.num_rows, pa.int32()).cast(pa.date32())
    seen = pa.array([special_timestamp(2024, 0, 15, 36_000_500_000)] * table.num_rows, pa.int64()).cast(
        pa.timestamp("us")
    )
    return table.set_column(3, table.schema.field("born"), born).set_column(4, table.schema.field("seen"), seen)


def test_a_query_that_changes_nothing_changes_nothing(sql) -> None:
    table = with_special_dates(
        rows(row(), row("u", {"email": "b"}, id=2), row("i", id=3, email=None, big=None, raw=None, n=0))
    )
    same = sql("SELECT * FROM rows").apply(table, TABLE).tables[TABLE]
    assert same.select(MERGED.names).equals(table) or same.select(MERGED.names).drop_columns(["_before"]).equals(
        table.drop_columns(["_before"])
    )
    assert same["_before"].is_valid().to_pylist() == [False, True, False]
    assert same.schema.field("id").metadata == table.schema.field("id").metadata


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (row("i", email="keep"), ["i"]),
        (row("i", email="no"), []),
        (row("u", {"email": "keep"}, email="no"), ["d"]),
        (row("u", {"email": "no"}, email="keep"), ["i"]),
        (row("u", {"paid": Decimal(9)}, email="keep"), ["u"]),
        (row("d", {"email": "keep"}, email="keep"), ["d"]),
        (row("d", {"email": "no"}, email="no"), []),
    ],
)
def test_where_is_a_filter_that_rows_enter_and_leave(sql, item: dict[str, Any], expected: list[str]) -> None:
    got = result(sql("SELECT * FROM rows WHERE email = 'keep'").apply(rows(item), TABLE))
    assert [r["_op"] for r in got] == expected


def test_a_worker_whose_folder_is_gone_runs_queries(sql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark removes the folder of a session that has ended, and uses its Python workers again."""
    gone = tmp_path / "gone"
    gone.mkdir()
    rules = sql("SELECT * FROM rows")
    monkeypatch.setattr(queries, "_free", [])
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert rules.apply(rows(row()), TABLE).tables[TABLE].num_rows == 1


def test_columns_are_replaced_added_and_left_out(sql) -> None:
    text = (
        "SELECT * EXCLUDE (raw) REPLACE (lower(email) AS email), paid * 2 AS twice, [1, 2] AS list, born IS NULL "
        "AS flag FROM rows"
    )
    made = sql(text).apply(rows(row()), TABLE).tables[TABLE]
    assert "raw" not in made.schema.names
    assert made.schema.field("email").metadata[b"sluice.type"] == b"varchar(80)"
    got = made.to_pylist()[0]
    assert (got["email"], got["twice"], got["list"], got["flag"]) == ("a@x", Decimal("3.00"), "[1, 2]", 0)


def test_before_operation_and_changed_columns_are_visible(sql) -> None:
    text = (
        "SELECT * REPLACE (CASE WHEN _op = 'u' AND _before.paid > paid THEN 'cheaper' ELSE email END AS email) "
        "FROM rows"
    )
    got = result(sql(text).apply(rows(row("u", {"paid": Decimal(7)}), row("i", id=2)), TABLE))
    assert [r["email"] for r in got] == ["cheaper", "A@x"]


def test_one_row_becomes_many_and_none(sql) -> None:
    text = "SELECT * REPLACE (id * 10 + i AS id) FROM rows, range(CAST(paid AS INT)) AS r(i)"
    got = result(
        sql(text).apply(rows(row("u", {"paid": Decimal(3)}, paid=Decimal(2)), row(id=5, paid=Decimal(0))), TABLE)
    )
    assert [(r["id"], r["_op"]) for r in got] == [(10, "u"), (11, "u"), (12, "d")]


def test_rows_go_to_another_table_with_its_own_key(sql) -> None:
    text = """
    SELECT * FROM rows
    UNION ALL BY NAME
    SELECT _row, 'audit' AS _table, id, email, 'changed' AS what FROM rows WHERE _image = 'after'
    """
    extra = (
        ", emits: {shop.audit: {key: [id, what], columns: [id, email, what]}, shop.customers: {columns: [id, "
        "email, paid]}}"
    )
    ruled = sql(text, extra).apply(rows(row("u", {"email": "old"})), TABLE)
    audit = ruled.tables[TableId("shop", "audit")]
    assert audit.schema.names[:3] == ["id", "email", "what"]
    assert audit.schema.field("what").metadata[b"sluice.key"] == b"2"
    assert [(r["_op"], r["what"]) for r in audit.to_pylist()] == [("i", "changed")]
    assert [(r["_op"], r["email"]) for r in result(ruled)] == [("u", "A@x")]


def test_parameters_have_types_and_defaults(sql) -> None:
    text = (
        "-- param floor: decimal = 1.5   \n-- param names: list[str] = [a, b]\nSELECT * FROM rows WHERE paid >= "
        "$floor AND len($names) = 2"
    )
    assert len(result(sql(text).apply(rows(row()), TABLE))) == 1
    assert len(result(sql(text, ", params: {floor: 2}").apply(rows(row()), TABLE))) == 0
    with pytest.raises(RuleError, match=r"params\.floor: .*valid decimal") as caught:
        sql(text, ", params: {floor: much}").validate()
    assert str(caught.value.where).endswith("engine.yaml:2")
    assert "floor: Decimal = " in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("SELECT *\nFRM rows", "not valid SQL: ParserException", 2),
        ("SELECT *\nFROM rows\nWHERE nope = 1", '"nope" not found', 3),
        ("SELECT 1; SELECT 2", "one SELECT; it is 2 statements", 1),
        ("DELETE FROM rows", "has to be a SELECT", 1),
        ("SELECT id FROM rows", "lost the column _row", 1),
        ("SELECT 99 AS _row", "changed the values of column _row", 1),
        ("SELECT * REPLACE ('x' AS id) FROM rows", "column 'id' of shop.customers that does not fit", 1),
        ("SELECT * EXCLUDE (id) FROM rows", "removed the key column 'id' of", 1),
        ("SELECT *,\n CAST(email AS INT) AS x FROM rows", "Could not convert string 'A@x'", 2),
        ("\n\nSELECT * FROM rows WHERE id = $id", r"uses \$id, which is no parameter", 3),
        ("-- param x\nSELECT * FROM rows", "write -- param name: type = default", 1),
        ("SELECT * FROM read_csv('/etc/passwd')", "file system operations are disabled", 1),
    ],
)
def test_errors_name_the_line(sql, text: str, words: str, line: int) -> None:
    def check_and_run() -> None:
        made = sql(text)
        made.validate()
        made.apply(rows(row()), TABLE)

    with pytest.raises(RuleError, match=words) as caught:
        check_and_run()
    assert str(caught.value.where).endswith(f"r.sql:{line}")
    assert "'mine'" in caught.value.message
