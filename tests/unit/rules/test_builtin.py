"""Built-in rules, each through engine.yaml."""

from __future__ import annotations

import datetime as dt
import hashlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.errors import ConfigError, RuleError
from sluice.model.tables import TableId
from sluice.rules import RuleSet, builtin
from tests.support.tables.rule_tables import COMMIT, TABLE, engine, result, row, rows


@pytest.fixture
def use(tmp_path: Path):
    def make(name: str, params: str, extra: str = "") -> RuleSet:
        made = engine(tmp_path, f"  - name: mine\n    builtin: {name}\n    params: {params}\n{extra}")
        made.validate()
        return made

    return make


def applied(rules: RuleSet, *items: dict[str, Any]) -> list[dict[str, Any]]:
    return result(rules.apply(rows(*items), TABLE))


def test_every_builtin_is_documented_and_says_how_it_is_used() -> None:
    page = (Path(__file__).parents[3] / "docs/rules.md").read_text(encoding="utf-8")
    for name in builtin.names():
        assert f"builtin: {name}" in builtin.source(name, "")[1]
        assert f"`{name}`" in page


def test_filter(use) -> None:
    rules = use("filter", "{where: \"paid > 1 AND email LIKE '%@x'\"}")
    items = (
        row(),
        row(id=2, paid=Decimal(0)),
        row("u", {"paid": Decimal(5)}, id=3, paid=Decimal(1)),
        row(id=4, email=None),
    )
    assert [(r["id"], r["_op"]) for r in applied(rules, *items)] == [(1, "i"), (3, "d")]
    rules = use("filter", "{where: paid > 1, keep: false}")
    assert [(r["id"], r["_op"]) for r in applied(rules, *items)] == [(2, "i"), (3, "i")]


def test_rename_takes_types_and_keys_along(use) -> None:
    made = (
        use("rename", "{columns: {id: customer_id, email: mail}}")
        .apply(rows(row("u", {"email": "b"})), TABLE)
        .tables[TABLE]
    )
    assert made.schema.names[:3] == ["customer_id", "mail", "paid"]
    assert made.schema.field("customer_id").metadata == {
        b"sluice.type": b"int",
        b"sluice.kind": b'{"kind":"int"}',
        b"sluice.name": b"customer_id",
        b"sluice.key": b"1",
        b"sluice.required": b"1",
    }
    assert made["_op"].to_pylist() == ["u"]
    assert made["_before"].to_pylist()[0]["mail"] == "b"


@pytest.mark.promise("B25")
@pytest.mark.parametrize(
    ("params", "value", "expected"),
    [
        ("{columns: [email]}", "ann@x.org", "*********"),
        ("{columns: [email], keep_first: 2, keep_last: 3}", "ann@x.org", "an****org"),
        ("{columns: [email], keep_first: 2, keep_last: 3}", "ännöx", "*****"),
        ("{columns: [email], keep_last: 2, length: 3}", "äöüß", "***üß"),
        ("{columns: [email], sign: '#'}", "", ""),
        ("{columns: [email]}", None, None),
    ],
)
def test_mask(use, params: str, value: str | None, expected: str | None) -> None:
    assert applied(use("mask", params), row(email=value))[0]["email"] == expected


def test_hash_is_salted_sha256_and_fits_the_column(use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALT", "pepper")
    got = applied(use("hash", "{columns: [email], salt_env: SALT, length: 40}"), row(email="ä"), row(id=2, email=None))
    assert [r["email"] for r in got] == [hashlib.sha256("pepperä".encode()).hexdigest()[:40], None]
    monkeypatch.delenv("SALT")
    with pytest.raises(RuleError, match="SALT of this worker is empty or not set"):
        applied(use("hash", "{columns: [email], salt_env: SALT}"), row())
    with pytest.raises(RuleError, match="'raw' holds 20 characters: set length to 20 or less"):
        applied(use("hash", "{columns: [raw]}"), row())


def test_truncate(use) -> None:
    got = applied(use("truncate", "{columns: {email: 2, raw: 1}}"), row(email="äöü"))[0]
    assert (got["email"], got["raw"]) == ("äö", b"\x00")
    with pytest.raises(RuleError, match="only text and binary"):
        applied(use("truncate", "{columns: {paid: 1}}"), row())


def test_cast_changes_type_and_declaration(use) -> None:
    made = (
        use("cast", '{columns: {paid: "varchar(20)", email: bigint, id: "bigint unsigned"}}')
        .apply(rows(row(email=" 12 ")), TABLE)
        .tables[TABLE]
    )
    assert made.schema.field("paid").metadata[b"sluice.type"] == b"varchar(20)"
    assert made.schema.field("id").metadata[b"sluice.key"] == b"1"
    assert made.schema.field("id").type == pa.uint64()
    got = made.to_pylist()[0]
    assert (got["paid"], got["email"]) == ("1.50", 12)


@pytest.mark.parametrize(
    ("columns", "value", "words"),
    [
        ("{email: int}", "x", "a value of column 'email' does not fit int"),
        ("{paid: int}", "x", "does not fit int"),
        ('{email: "varchar(2)"}', "abc", "longer than varchar"),
        ("{email: blurb}", "x", "not a type that a rule can make"),
    ],
)
def test_cast_never_cuts(use, columns: str, value: str, words: str) -> None:
    with pytest.raises(RuleError, match=words) as caught:
        applied(use("cast", f"{{columns: {columns}}}"), row(email=value))
    assert str(caught.value.where).endswith("engine.yaml:4")


def test_add_constants_and_metadata(use) -> None:
    text = (
        "{constants: {origin: shop, live: true, rate: 1.5, none: null}, metadata: {t: table, s: schema, op: op, "
        "at: commit_time, who: origin}}"
    )
    got = applied(use("add", text), row("u", {"email": "b"}))[0]
    assert (got["origin"], got["live"], got["rate"], got["none"]) == ("shop", 1, 1.5, None)
    assert (got["s"], got["t"], got["op"], got["at"], got["who"]) == ("shop", "customers", "update", COMMIT, 7)


def test_soft_delete_keeps_the_row_as_the_target_has_it(use) -> None:
    rules = use("soft_delete", "{column: gone, at: gone_at}")
    items = (
        row(),
        row("u", {"email": "b"}, id=2),
        row("d", {"email": "first"}, id=3, email="last"),
        row("d", None, id=4),
    )
    got = applied(rules, *items)
    assert [(r["id"], r["_op"], r["gone"], r["email"]) for r in got] == [
        (1, "i", 0, "A@x"), (2, "u", 0, "A@x"), (3, "u", 1, "first"), (4, "i", 1, "A@x"),
    ]  # fmt: skip
    assert [r["gone_at"] for r in got] == [None, None, COMMIT, COMMIT]
    assert got[2]["_before"]["gone"] == 0


def test_shards_go_to_one_table(use) -> None:
    extra = "    match: {schema: shop.*, table: cust.*}\n"
    ruled = use("route", "{to: all.customers}", extra).apply(rows(row(), row("d", {}, id=2)), TABLE)
    assert ruled.tables[TABLE].num_rows == 0
    assert [(r["id"], r["_op"]) for r in result(ruled, TableId("all", "customers"))] == [(1, "i"), (2, "d")]
    params = "{to: 'all.\\2', pattern: '(\\w+)\\.(cust).*', shard_column: shard, shard_in_key: true}"
    made = use("route", params, extra).apply(rows(row()), TABLE).tables[TableId("all", "cust")]
    assert made.schema.field("shard").metadata[b"sluice.key"] == b"2"
    assert made["shard"].to_pylist() == ["shop.customers"]


def test_later_rules_see_routed_rows_where_they_are(tmp_path: Path) -> None:
    rules = engine(
        tmp_path,
        "  - {name: route, builtin: route, order: 1, match: {table: customers}, params: {to: all.people}}\n"
        "  - {name: old, builtin: drop_column, order: 2, match: {table: customers}, params: {columns: [email]}}\n"
        "  - {name: new, builtin: drop_column, order: 2, match: {schema: all}, params: {columns: [raw]}}\n",
    )
    ruled = rules.apply(rows(row()), TABLE)
    names = ruled.tables[TableId("all", "people")].schema.names
    assert "email" in names
    assert "raw" not in names
    assert [(c.name, c.rows_in, c.rows_out) for c in ruled.counts] == [("route", 1, 1), ("old", 0, 0), ("new", 1, 1)]


def test_drop_column(use) -> None:
    assert "raw" not in applied(use("drop_column", "{columns: [raw]}"), row("u", {}))[0]
    with pytest.raises(RuleError, match="'id' is part of the key"):
        applied(use("drop_column", "{columns: [id]}"), row())


def test_mistakes_guess_what_was_meant(use) -> None:
    with pytest.raises(RuleError, match="no column 'emial'; did you mean 'email'") as caught:
        applied(use("mask", "{columns: [emial]}"), row())
    assert "'mine' failed on shop.customers" in caught.value.message
    with pytest.raises(ConfigError, match="no built-in rule 'maks'; did you mean 'mask'") as wrong:
        use("maks", "{}")
    assert str(wrong.value.where).endswith("engine.yaml:3")
    with pytest.raises(RuleError, match=r"params\.colums: the rule has no such parameter; it has columns") as unknown:
        use("drop_column", "{columns: [], colums: []}")
    assert str(unknown.value.where).endswith("engine.yaml:4")
    with pytest.raises(RuleError, match=r"params\.columns: this parameter is required"):
        use("drop_column", "{}")


def test_dates(use) -> None:
    got = applied(use("cast", "{columns: {email: date}}"), row(email="2024-02-29"))[0]
    assert got["email"] == dt.date(2024, 2, 29)


NATURAL = {
    "row": "def transform(row, context):\n"
    "    return row if context.op != 'update' or row['paid'] != context.before['paid'] else None\n",
    "arrow": "import pyarrow.compute as pc\n"
    "def transform(rows, context):\n"
    "    was = pc.struct_field(rows['_before'], 'paid')\n"
    "    return rows.filter(pc.or_kleene(pc.not_equal(rows['_op'], 'u'), pc.not_equal(rows['paid'], was)))\n",
    "pandas": "def transform(frame, context):\n"
    "    was = [b['paid'] if isinstance(b, dict) else None for b in frame['_before']]\n"
    "    return frame[(frame['_op'] != 'u') | (frame['paid'] != was)]\n",
    "sql": "SELECT * FROM rows WHERE _op <> 'u' OR paid IS DISTINCT FROM _before.paid",
    "filter": "_op <> 'u' OR paid IS DISTINCT FROM _before.paid",
    "only_changes": "",
}


@pytest.mark.parametrize("kind", NATURAL)
@pytest.mark.parametrize("each", [False, True], ids=["merged", "each"])
def test_a_rule_that_looks_for_changes_leaves_out_the_change_and_not_the_row(tmp_path, kind: str, each: bool) -> None:
    if kind in {"filter", "only_changes"}:
        params = "{columns: [paid]}" if kind == "only_changes" else f'{{where: "{NATURAL[kind]}"}}'
        rules = engine(tmp_path, f"  - name: mine\n    builtin: {kind}\n    params: {params}\n")
    else:
        suffix = "sql" if kind == "sql" else "py"
        (tmp_path / f"mine.{suffix}").write_text(NATURAL[kind])
        rules = engine(tmp_path, f"  - {{name: mine, path: mine.{suffix}, type: {kind}}}\n")
    items = (
        row(),
        row("u", {"email": "other"}, id=2),  # paid as it was
        row("u", {"paid": Decimal(9)}, id=3),
        row("d", {}, id=4),
    )
    ruled = rules.apply(rows(*items), TABLE, each=each)
    kept = [(r["id"], "d" if r["_op"] == "d" else "put") for r in result(ruled)]
    assert sorted(kept) == [(1, "put"), (3, "put"), (4, "d")]


def test_only_changes_counts_the_key_and_keeps_the_old_one(tmp_path) -> None:
    rules = engine(tmp_path, "  - {name: mine, builtin: only_changes, params: {columns: [paid]}}\n")
    moved = row("u", {"id": 2}, id=3)
    [left, one] = result(rules.apply(rows(moved), TABLE))
    assert (one["id"], one["_op"], left["id"], left["_op"]) == (3, "i", 2, "d")
    after = engine(
        tmp_path,
        "  - {name: new, builtin: rename, order: 1, params: {columns: {paid: price}}}\n"
        "  - {name: mine, builtin: only_changes, order: 2, params: {columns: [price]}}\n",
    )
    with pytest.raises(RuleError, match=r"column 'price' is of an earlier rule: let only_changes run before"):
        after.apply(rows(row("u", {"paid": Decimal(2)}, id=1)), TABLE)
