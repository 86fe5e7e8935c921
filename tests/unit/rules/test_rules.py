"""Rules: what they see, what comes back, and errors that name the place."""

from __future__ import annotations

import datetime as dt
import pickle
import traceback
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.config.masking import Masking
from sluice.errors import ConfigError, RuleError
from sluice.merge.compact import merged_schema
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.model.temporal import special_date, special_timestamp
from sluice.rules import RuleSet

COMMIT = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
TABLE = TableId("shop", "customers")
SCHEMA = TableSchema(
    TABLE,
    (
        Column("id", ColumnKind.INT, "int", nullable=False),
        Column("email", ColumnKind.VARCHAR, "varchar(80)", charset="utf8mb4"),
        Column("paid", ColumnKind.DECIMAL, "decimal(10,2)", precision=10, scale=2),
        Column("born", ColumnKind.DATE, "date"),
        Column("seen", ColumnKind.DATETIME, "datetime(6)", fsp=6),
        Column("rest", ColumnKind.TIME, "time(6)", fsp=6),
    ),
    ("id",),
)
ROW = {
    "id": 1,
    "email": "A@x",
    "paid": Decimal("1.50"),
    "born": dt.date(2000, 2, 29),
    "seen": None,
    "rest": dt.timedelta(hours=-3),
}


def row(op: str = "i", before: dict[str, Any] | None = None, **values: Any) -> dict[str, Any]:
    full = {**ROW, **values}
    old = None if before is None else {**full, **before}
    return {**full, "_op": op, "_seq": full["id"], "_commit_ts": COMMIT, "_origin": 7, "_before": old}


def rows(*items: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(items), schema=merged_schema(SCHEMA.arrow_schema))


@pytest.fixture
def rules(tmp_path: Path):
    def make(code: str, **config: Any) -> RuleSet:
        (tmp_path / "rule.py").write_text(code)
        extra = "".join(f"    {key}: {value}\n" for key, value in config.items())
        (tmp_path / "engine.yaml").write_text(f"rules:\n  - name: mine\n    path: rule.py\n{extra}")
        return RuleSet.load(tmp_path / "engine.yaml")

    return make


def applied(rules: RuleSet, *items: dict[str, Any]) -> list[dict[str, Any]]:
    result = rules.apply(rows(*items), TABLE).tables[TABLE]
    return sorted(result.to_pylist(), key=lambda r: (r["id"], r["_op"]))


def test_values_are_true_and_unchanged_rows_come_back_equal(rules) -> None:
    code = """
import datetime as dt
from decimal import Decimal
def transform(row, context):
    assert row["paid"] == Decimal("1.50") and row["born"] == dt.date(2000, 2, 29) and row["rest"] == dt.timedelta(hours=-3)
    assert context.op == "insert" and context.before is None and context.key == ("id",) and context.params == {"a": 1}
    assert context.origin == 7 and context.commit_time == dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
    assert (context.schema, context.table) == ("shop", "customers")
    return row
"""
    table = rows(row(), row(id=2, email=None))
    ruled = rules(code, params="{a: 1}").apply(table, TABLE)
    result, counts = ruled.tables[TABLE], ruled.counts
    assert result.select(merged_schema(SCHEMA.arrow_schema).names).to_pylist() == table.to_pylist()
    assert result.schema.field("id").metadata == table.schema.field("id").metadata
    assert [(c.name, c.rows_in, c.rows_out) for c in counts] == [("mine", 2, 2)]


UPDATED = (row(), row(op="u", before={"email": "b@x"}, id=2), row(id=3, email=None), row(op="d", id=4))


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ("return row", 0),
        ("return {**row, 'email': 'B@x' if row['id'] == 2 else row['email']}", 1),
        ("return {**row, 'email': row['email'] and row['email'].lower()}", 3),  # a shadow is no row of its own
        ("return {**row, 'email': row['email'] or 'none'}", 1),
        ("return {**row, 'email': None}", 3),
        ("return {**row, 'id': row['id'] + 10}", 4),
        ("return row if row['id'] != 1 else None", 0),
        ("return {**row, 'email': 'x'} if row['id'] != 1 else None", 3),
        ("return [row, {**row, 'id': row['id'] + 10}]", 4),
        ("return {**row, 'added': 1}", 4),
        ("return {name: value for name, value in row.items() if name != 'rest'}", 4),
        ("return context.to('shop.other', row) if row['id'] < 3 else row", 2),
    ],
)
def test_rows_that_a_rule_changed_are_counted(rules, body: str, changed: int) -> None:
    found = rules(f"def transform(row, context):\n    {body}\n").apply(rows(*UPDATED), TABLE)
    assert [count.changed for count in found.counts] == [changed]


@pytest.mark.parametrize(
    ("query", "changed"),
    [
        ("SELECT * FROM rows", 0),
        ("SELECT * FROM rows ORDER BY id DESC", 0),
        ("SELECT * FROM rows WHERE id > 2", 0),
        ("SELECT * REPLACE (lower(email) AS email) FROM rows WHERE id > 1 ORDER BY id DESC", 2),
    ],
)
def test_rows_that_come_back_in_another_order_are_found_again(tmp_path: Path, query: str, changed: int) -> None:
    (tmp_path / "rule.sql").write_text(query)
    (tmp_path / "engine.yaml").write_text("rules: [{name: mine, path: rule.sql, type: sql}]")
    found = RuleSet.load(tmp_path / "engine.yaml").apply(rows(*UPDATED), TABLE)
    assert [count.changed for count in found.counts] == [changed]


def test_dates_that_no_calendar_has_are_text_both_ways(rules) -> None:
    table = rows(row(op="i"))
    table = table.set_column(
        3, table.schema.field("born"), pa.array([special_date(0, 0, 0)], pa.int32()).cast(pa.date32())
    )
    code = """
def transform(row, context):
    assert row["born"] == "0000-00-00"
    row["seen"] = "2024-00-15 10:00:00.5"
    return row
"""
    result = rules(code).apply(table, TABLE).tables[TABLE]
    assert result["born"].combine_chunks().view(pa.int32())[0].as_py() == special_date(0, 0, 0)
    micros = 36_000_500_000
    assert result["seen"].combine_chunks().view(pa.int64())[0].as_py() == special_timestamp(2024, 0, 15, micros)


FILTER = "def transform(row, context):\n    return row if row['email'] == 'keep' else None\n"


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (row("i", email="keep"), [("i", None)]),
        (row("i", email="no"), []),
        (row("u", {"email": "keep"}, email="keep", paid=Decimal(2)), [("u", "keep")]),
        (row("u", {"email": "keep"}, email="no"), [("d", "keep")]),
        (row("u", {"email": "no"}, email="keep"), [("i", None)]),
        (row("u", {"email": "no"}, email="no"), []),
        (row("d", {"email": "keep"}, email="keep"), [("d", "keep")]),
        (row("d", {"email": "no"}, email="no"), []),
        (row("d", None, email="keep"), [("d", "keep")]),
    ],
)
def test_a_row_that_leaves_a_filter_is_deleted_and_one_that_enters_is_inserted(rules, item, expected) -> None:
    got = applied(rules(FILTER), item)
    assert [(r["_op"], r["_before"] and r["_before"]["email"]) for r in got] == expected


def test_a_rule_that_changes_the_key_moves_the_row(rules) -> None:
    code = "def transform(row, context):\n    row['id'] = len(row['email'])\n    return row\n"
    got = applied(rules(code), row("u", {"email": "12345"}, email="123"))
    assert [(r["id"], r["_op"], r["_before"] is None) for r in got] == [(3, "i", True), (5, "d", False)]


def test_one_row_becomes_many(rules) -> None:
    code = (
        "def transform(row, context):\n    return [{**row, 'id': row['id'] * 10 + i} for i in "
        "range(int(row['paid']))]\n"
    )
    got = applied(rules(code), row("u", {"paid": Decimal(3)}, paid=Decimal(2)))
    assert [(r["id"], r["_op"]) for r in got] == [(10, "u"), (11, "u"), (12, "d")]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("row", "def transform(row, context):\n    return [row, {**row, 'email': 'b'}]\n"),
        (
            "arrow",
            "import pyarrow as pa\ndef transform(rows, context):\n    index = rows.schema.get_field_index('email')\n"
            "    other = rows.set_column(index, rows.schema.field(index), pa.array(['b'] * rows.num_rows))\n"
            "    return pa.concat_tables([rows, other])\n",
        ),
    ],
)
def test_two_rows_of_one_key_are_refused_not_one_of_them_lost(rules, kind: str, code: str) -> None:
    with pytest.raises(
        RuleError, match=r"'mine' made several rows of one key of shop.customers out of one row: id=1"
    ) as caught:
        applied(rules(code, type=kind), row(id=1), row("d", {}, id=2))
    assert "emits" in (caught.value.hint or "")


def test_the_same_row_twice_is_that_row(rules) -> None:
    code = "def transform(row, context):\n    return [row, dict(row)]\n"
    assert [r["id"] for r in applied(rules(code), row(id=1), row(id=2))] == [1, 2]


def test_columns_are_added_and_taken_away(rules) -> None:
    code = (
        "def transform(row, context):\n    del row['paid']\n    return {**row, 'len': len(row['email']), '_op': "
        "'mine'}\n"
    )
    result = rules(code).apply(rows(row(), row("u", {"email": "B@xx"}, id=2)), TABLE).tables[TABLE]
    assert "paid" not in result.schema.names
    assert result["len"].to_pylist() == [3, 3]
    assert result["_before"].to_pylist()[1]["len"] == 4
    assert result["$_op"].to_pylist() == ["mine", "mine"]
    assert result["_op"].to_pylist() == ["i", "u"]


def test_only_matching_events_and_changed_columns(rules) -> None:
    code = "def transform(row, context):\n    row['email'] = context.op\n    return row\n"
    both = (row("i"), row("u", {"paid": Decimal(9)}, id=2), row("u", {"email": "old"}, id=3))
    assert [r["email"] for r in applied(rules(code, match="{events: [insert]}"), *both)] == ["insert", "A@x", "A@x"]
    assert [r["email"] for r in applied(rules(code, match="{columns: [em.*]}"), *both)] == ["insert", "A@x", "update"]


def test_matching_tables(rules) -> None:
    found = rules(FILTER, match="{schema: sh.p, table: cust}")
    assert not found.matching(TABLE).rules
    assert rules(FILTER, match="{schema: sh.p, table: cust.*}").matching(TABLE).rules


def test_before_is_visible(rules) -> None:
    code = """
def transform(row, context):
    if context.image == "after" and context.before:
        row["paid"] = context.before["paid"]
    return row
"""
    assert applied(rules(code), row("u", {"paid": Decimal(7)}, paid=Decimal(8)))[0]["paid"] == Decimal(7)


def test_arrow_and_pandas_rules(rules) -> None:
    arrow = (
        "import pyarrow.compute as pc\ndef transform(rows, context):\n    return "
        "rows.filter(pc.equal(rows['email'], 'keep'))\n"
    )
    item = row("u", {"email": "keep"}, email="no")
    assert [r["_op"] for r in applied(rules(arrow, type="arrow"), item)] == ["d"]
    pandas = "def transform(frame, context):\n    return frame[frame['email'] == 'keep'].assign(x=1)\n"
    got = applied(rules(pandas, type="pandas"), item, row("i", email="keep", id=2))
    assert [(r["id"], r["_op"], r["x"]) for r in got] == [(1, "d", 1), (2, "i", 1)]
    assert got[1]["paid"] == Decimal("1.50")


# errors
# ----------------------------------------------------------------------------------------------------------------


def raised(rules: RuleSet, *items: dict[str, Any]) -> RuleError:
    with pytest.raises(RuleError) as caught:
        applied(rules, *(items or (row(),)))
    return pickle.loads(pickle.dumps(caught.value))


def test_an_exception_names_rule_line_table_and_key(rules) -> None:
    error = raised(
        rules("def helper(row):\n    return row['nope']\n\ndef transform(row, context):\n    return helper(row)\n")
    )
    assert error.where is not None
    assert error.where.endswith("rule.py:2")
    assert "'mine' failed on insert of shop.customers id=1: KeyError: 'nope'" in error.message


FAILING = (
    "def transform(row, context):\n    if row['email'] == 'bad':\n        raise ValueError('bad')\n    return row\n"
)


@pytest.mark.parametrize("kind", ["row", "arrow"])
@pytest.mark.parametrize("on_error", ["skip_row", "dead_letter"])
def test_rows_that_fail_are_left_out_with_all_their_images(rules, kind: str, on_error: str) -> None:
    code = FAILING
    if kind == "arrow":
        code = (
            "def transform(rows, context):\n    if 'bad' in rows['email'].to_pylist():\n        raise "
            "ValueError('bad')\n    return rows\n"
        )
    items = (
        row("i", id=1), row("i", id=2, email="bad"), row("u", {"email": "good"}, id=3, email="bad"),
        row("u", {"email": "bad"}, id=4), row("d", {"email": "bad"}, id=5, email="bad"), row("u", {"email": "x"}, id=6),
    )  # fmt: skip
    ruled = rules(code, type=kind, on_error=on_error).apply(rows(*items), TABLE)
    got = sorted((r["id"], r["_op"]) for r in ruled.tables[TABLE].to_pylist())
    assert got == [(1, "i"), (4, "i"), (6, "u")]  # what was bad before was never at the target: 4 comes as new
    assert [(c.rows_in, c.errors) for c in ruled.counts] == [(6, 3)]
    if on_error == "dead_letter":
        (rejected,) = ruled.rejected
        assert rejected.rows["id"].to_pylist() == [2, 3, 5]
        assert all("ValueError: bad" in reason for reason in rejected.reasons)
        assert all(":" in place for place in rejected.places)
    else:
        assert ruled.rejected == []


def test_too_many_failures_stop(rules) -> None:
    items = [row("i", id=i, email="bad") for i in range(5)]
    assert rules(FAILING, on_error="skip_row", max_errors=5).apply(rows(*items), TABLE).counts[0].errors == 5
    error = raised(rules(FAILING, on_error="skip_row", max_errors=4), *items)
    assert "more than max_errors" in error.message


def test_values_of_masked_columns_are_withheld(rules) -> None:
    masking = Masking((r"shop\.customers\.email",))
    code = "def transform(row, context):\n    raise ValueError('cannot ' + row['email'])\n"
    with pytest.raises(RuleError, match=r"ValueError \(its text is withheld") as caught:
        rules(code).apply(rows(row(email="sec" + "ret")), TABLE, masking=masking)
    assert "id=1" in caught.value.message
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_a_syntax_error_names_the_line(rules) -> None:
    found = rules("x = 1\ndef transform(row, context)\n    return row\n")
    with pytest.raises(RuleError, match="not valid Python") as caught:
        found.validate()
    assert str(caught.value.where).endswith("rule.py:2")


def test_no_function(rules) -> None:
    with pytest.raises(RuleError, match=r"no function transform\(row, context\)"):
        rules("x = 1\n").validate()


def test_import_that_fails_names_the_line(rules) -> None:
    with pytest.raises(RuleError, match="could not be loaded: ModuleNotFoundError") as caught:
        rules("\nimport no_such_module_anywhere\n").validate()
    assert str(caught.value.where).endswith("rule.py:2")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("return 5", "returned int"),
        ("return {**row, 'id': 'x'}", "column 'id'.*'x' \\(str\\) does not fit int32"),
        ("return {**row, 'paid': 1.23456}", "column 'paid'"),
        ("return {**row, 'born': 'yesterday'}", "column 'born'.*YYYY-MM-DD"),
        ("row.pop('id'); return row", "removed the key column 'id' of"),
        ("return [row, {'id': 5}]", "without column 'email'"),
        ("return {**row, 'new': [object()]}", "."),
    ],
)
def test_what_does_not_fit_names_the_column(rules, code: str, words: str) -> None:
    error = raised(rules(f"def transform(row, context):\n    {code}\n"))
    assert error.where is not None
    import re

    assert re.search(words, error.message), error.message
    assert "shop.customers" in error.message


def test_contents_are_those_of_planning_and_reload_between_batches(rules, tmp_path: Path) -> None:
    first = rules("def transform(row, context):\n    return {**row, 'email': 'one'}\n")
    (tmp_path / "rule.py").write_text("def transform(row, context):\n    return {**row, 'email': 'two'}\n")
    assert applied(pickle.loads(pickle.dumps(first)), row())[0]["email"] == "one"
    assert applied(RuleSet.load(tmp_path / "engine.yaml"), row())[0]["email"] == "two"


def test_a_file_is_loaded_once_a_process_and_again_when_it_changes(rules, tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'loads')!r}, 'a').write('x')\ndef transform(row, context):\n    return row\n"
    for _ in range(3):
        found = rules(code)
        applied(pickle.loads(pickle.dumps(found)), row())
    assert (tmp_path / "loads").read_text() == "x"
    applied(rules(code + "\n# changed\n"), row())
    assert (tmp_path / "loads").read_text() == "xx"


def test_parameters_of_a_python_rule(rules) -> None:
    code = """
from dataclasses import dataclass
class Params:
    size: int
    names: list[str] = ["a"]
@dataclass
class Held:
    value: int
def transform(row, context):
    return {**row, "email": context.params.names[0] * Held(context.params.size).value}
"""
    assert applied(rules(code, params="{size: 3}"), row())[0]["email"] == "aaa"
    for params, words in (
        ("{}", r"params\.size: this parameter is required"),
        ("{size: big}", r"params\.size: .*a whole number is expected"),
    ):
        with pytest.raises(RuleError, match=words) as caught:
            rules(code, params=params).validate()
        assert "engine.yaml:" in str(caught.value.where)
        assert "size: int; names: list[str] = ['a']" in str(caught.value.hint)
    for declared, words in (
        ("x = 1", "Params.x has no type"),
        ("items: int = 1", "cannot be called 'items'"),
        ("x: Nope = 1", "Nope"),
    ):
        with pytest.raises(RuleError, match=words):
            rules(f"class Params:\n    {declared}\ndef transform(row, context):\n    return row\n").validate()


def test_an_operation_may_be_a_regular_expression(rules) -> None:
    code = "def transform(row, context):\n    return {**row, 'email': context.op}\n"
    items = (row("i", id=1), row("u", {"email": "x"}, id=2), row("d", {}, id=3))
    got = applied(rules(code, match="{operation: insert|upd.*}"), *items)
    assert [r["email"] for r in got] == ["insert", "update", "A@x"]


@pytest.mark.parametrize("match", ["{columns: [email]}", "{events: [insert]}", "{operation: update|delete}"])
@pytest.mark.parametrize("builtin", ["mask", "hash"])
def test_what_hides_values_has_to_see_every_row(tmp_path: Path, builtin: str, match: str) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text(f"rules: [{{name: hide, builtin: {builtin}, match: {match}, params: {{columns: [email]}}}}]\n")
    with pytest.raises(ConfigError, match=f"{builtin} must see every insert and update"):
        RuleSet.load(path)
    path.write_text(
        f"rules: [{{name: hide, builtin: {builtin}, match: {{events: [insert, update]}}, params: {{columns: "
        "[email]}}]\n"
    )
    assert len(RuleSet.load(path)) == 1


def test_engine_errors_name_file_and_line(tmp_path: Path) -> None:
    engine = tmp_path / "engine.yaml"
    engine.write_text("rules:\n  - name: a\n    path: nowhere.py\n")
    with pytest.raises(ConfigError, match=r"nowhere\.py: No such file") as caught:
        RuleSet.load(engine)
    assert str(caught.value.where).endswith("engine.yaml:3")
    engine.write_text("rules:\n  - name: a\n    path: b.py\n    tpye: row\n")
    with pytest.raises(ConfigError, match=r"engine\.yaml:4: .*did you mean 'type'"):
        RuleSet.load(engine)


def test_sample_rule() -> None:
    sample = RuleSet.load(Path(__file__).parents[3] / "include/rules/engine.yaml").matching(TABLE)
    assert applied(sample, row(email=" Ann@Example.ORG "))[0]["email"] == "ann@example.org"


_BY_ORIGIN = {
    "row": ("py", "def transform(row, context):\n    return row if context.origin != 9 else None\n"),
    "arrow": (
        "py",
        "import pyarrow.compute as pc\ndef transform(rows, context):\n    return "
        "rows.filter(pc.not_equal(rows['_origin'], 9))\n",
    ),
    "pandas": ("py", "def transform(frame, context):\n    return frame[frame['_origin'] != 9]\n"),
    "sql": ("sql", "SELECT * FROM rows WHERE _origin <> 9"),
}


@pytest.mark.parametrize("kind", _BY_ORIGIN)
def test_a_rule_sees_who_made_a_change(tmp_path: Path, kind: str) -> None:
    """Whatever the operation; and what it leaves over still says so, for the rules after it."""
    suffix, code = _BY_ORIGIN[kind]
    (tmp_path / f"mine.{suffix}").write_text(code)
    last = "def transform(row, context):\n    return {**row, 'email': str(context.origin)}\n"
    (tmp_path / "last.py").write_text(last)
    (tmp_path / "engine.yaml").write_text(
        f"rules:\n  - {{name: mine, path: mine.{suffix}, type: {kind}}}\n  - {{name: last, path: last.py, order: 2}}\n"
    )
    changed = {"email": "b"}
    items = [row(id=1), row("u", changed, id=2), row("d", {}, id=3)]
    others = [
        {**item, "id": item["id"] + 10, "_origin": 9}
        for item in (row(id=1), row("u", changed, id=2), row("d", {}, id=3))
    ]
    got = applied(RuleSet.load(tmp_path / "engine.yaml"), *items, *others)
    assert [(r["id"], r["_op"]) for r in got] == [(1, "i"), (2, "u"), (3, "d")]
    assert [r["email"] for r in got[:2]] == ["7", "7"]


def test_rows_of_no_log_have_the_origin_0(rules) -> None:
    """A verification reads rows."""
    code = "def transform(row, context):\n    assert context.origin == 0\n    return row\n"
    merged = rows(row()).drop_columns(["_origin"])
    out = rules(code).apply(merged, TABLE).tables[TABLE]
    assert out.schema.names == merged.schema.names


@pytest.mark.parametrize("default", ["!!python/name:os.system", "2020-99-99", "[", "&a [*a]x", "'", "%YAML 9", "{a"])
def test_a_default_in_sql_that_is_no_value_names_its_line(tmp_path, default: str) -> None:
    (tmp_path / "r.sql").write_text(f"-- a comment\n-- param a: str = {default}\nSELECT * FROM rows")
    (tmp_path / "engine.yaml").write_text("rules: [{name: r, path: r.sql, type: sql}]")
    with pytest.raises(RuleError, match=r"line 2: .* is no value"):
        RuleSet.load(tmp_path / "engine.yaml").validate()
