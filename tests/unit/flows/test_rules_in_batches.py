"""Rules on the whole way: from a source's log through rules of every kind to the target's rows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from sluice.errors import RuleError
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from sluice.flows.transform.stages import apply_rule
from sluice.segments.changeset import read_changeset
from tests.support.flows.rule_shop import insert, next_batch, rule_shop, rules, target
from tests.support.pipelines.case import Case


@pytest.fixture
def shop(tmp_path: Path, twin_source, twin_target, twin_zookeeper, fresh_schema):
    with rule_shop(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) as made:
        yield made


@pytest.mark.promise("A19", "B25")
def test_builtin_rules_end_to_end(shop: Case) -> None:
    shop.target.execute(
        f"ALTER TABLE `{shop.schema}`.customers DROP COLUMN note, RENAME COLUMN paid TO amount, MODIFY n VARCHAR(30), "
        "ADD deleted TINYINT NOT NULL DEFAULT 0, ADD deleted_at TIMESTAMP(6) NULL, ADD origin VARCHAR(9), ADD phone "
        "VARCHAR(9)"
    )
    rules(
        shop,
        """\
  - {name: only, builtin: filter, order: 1, params: {where: id < 100}}
  - {name: hide, builtin: hash, order: 2, params: {columns: [email], length: 40}}
  - {name: less, builtin: drop_column, order: 3, params: {columns: [note]}}
  - {name: name, builtin: rename, order: 4, params: {columns: {paid: amount}}}
  - {name: text, builtin: cast, order: 5, params: {columns: {n: varchar(30)}}}
  - {name: more, builtin: add, order: 6, params: {constants: {origin: shop, phone: "0171123"}}}
  - {name: mask, builtin: mask, order: 7, params: {columns: [phone], keep_last: 2}}
  - {name: cut, builtin: truncate, order: 8, params: {columns: {origin: 2}}}
  - {name: keep, builtin: soft_delete, order: 9, params: {at: deleted_at}}
""",
    )
    insert(shop, 1, 2, 3, 100)
    shop.run_until_head()
    shop.source.execute(
        f"DELETE FROM `{shop.schema}`.customers WHERE id = 2",
        f"UPDATE `{shop.schema}`.customers SET id = 200 WHERE id = 3",
        f"UPDATE `{shop.schema}`.customers SET paid = 7 WHERE id = 1",
    )
    shop.run_until_head()
    hashed = hashlib.sha256(b"Ann@X.org").hexdigest()[:40]
    got = target(
        shop, "SELECT id, email, amount, n, origin, phone, deleted, deleted_at IS NULL FROM {db}.customers ORDER BY id"
    )
    assert [(r[0], r[1], str(r[2]), r[3], r[4], r[5], r[6], r[7]) for r in got] == [
        (1, hashed, "7.00", str(2**64 - 2), "sh", "*****23", 0, 1),
        (2, hashed, "1.50", str(2**64 - 3), "sh", "*****23", 1, 0),
        (3, hashed, "1.50", str(2**64 - 4), "sh", "*****23", 1, 0),
    ]
    insert(shop, 2)
    shop.run_until_head()
    assert target(shop, "SELECT deleted, deleted_at IS NULL FROM {db}.customers WHERE id = 2") == [(0, 1)]


def test_rows_to_another_table_go_through_later_rules_and_mapping(shop: Case) -> None:
    shop.yaml += (
        f"mapping:\n  - {{from: {shop.schema}.audit, to: {shop.schema}.trail, columns: {{rename: {{what: event}}}}}}\n"
    )
    shop.path.write_text(shop.yaml)
    shop.target.execute(
        f"CREATE TABLE `{shop.schema}`.trail (id INT PRIMARY KEY, event VARCHAR(20), origin VARCHAR(9))"
    )
    code = """
def transform(row, context):
    if context.image == "before" or context.op == "delete":
        return row
    return [row, context.to("audit", {"id": row["id"], "what": context.op})]
"""
    rules(
        shop,
        """\
  - {name: trail, path: trail.py, order: 1, match: {table: customers}}
  - {name: more, builtin: add, order: 2, match: {table: audit}, params: {constants: {origin: shop}}}
""",
        trail__py=code,
    )
    insert(shop, 1, 2)
    shop.run_until_head()
    shop.source.execute(f"UPDATE `{shop.schema}`.customers SET paid = 2 WHERE id = 1")
    shop.run_until_head()
    shop.assert_equal("customers")
    assert target(shop, "SELECT * FROM {db}.trail ORDER BY id") == [(1, "update", "shop"), (2, "insert", "shop")]


# tasks of their own
# ------------------------------------------------------------------------------------------------------

OWN = """\
  - {name: first, path: first.sql, type: sql, order: 1}
  - {name: second, path: second.py, type: row, order: 2, task: own}
  - {name: third, path: third.sql, type: sql, order: 3}
  - {name: fourth, path: fourth.sql, type: sql, order: 4, task: own}
"""


def own(made: Case) -> None:
    rules(
        made,
        OWN,
        first__sql="SELECT * REPLACE (note || '1' AS note) FROM rows",
        second__py="def transform(row, context):\n    return {**row, 'note': row['note'] + '2'}\n",
        third__sql="SELECT * REPLACE (note || '3' AS note) FROM rows",
        fourth__sql="SELECT * REPLACE (note || '4' AS note) FROM rows WHERE id <> 2",
    )


def test_rules_with_tasks_of_their_own_pass_a_batch_on(shop: Case) -> None:
    own(shop)
    insert(shop, 1, 2, 3)
    batch, runtime = next_batch(shop), shop.runtime()
    assert merge(runtime, batch).changeset == ""
    assert apply_rule(runtime, batch, "second").rows_out == 3
    assert apply_rule(runtime, batch, "second").already
    assert (apply_rule(runtime, batch, "fourth").rows_in, apply_rule(runtime, batch, "fourth").already) == (3, True)
    load(runtime, "copy", batch)
    assert target(shop, "SELECT id, note FROM {db}.customers ORDER BY id") == [(1, "note 11234"), (3, "note 31234")]
    with runtime.state() as state:
        changeset = read_changeset(runtime.store, state.batches.require(batch).changeset or "")
    assert [(r.name, r.rows_in, r.rows_out) for r in changeset.manifest.rules] == [
        ("first", 3, 3), ("second", 3, 3), ("third", 3, 3), ("fourth", 3, 2),
    ]  # fmt: skip


def test_without_airflow_the_same_stages_run(shop: Case) -> None:
    own(shop)
    insert(shop, 1, 2)
    shop.run_until_head()
    shop.source.execute(
        f"UPDATE `{shop.schema}`.customers SET note = 'x' WHERE id = 1",
        f"UPDATE `{shop.schema}`.customers SET id = 5 WHERE id = 2",
    )
    shop.run_until_head()
    assert target(shop, "SELECT id, note FROM {db}.customers ORDER BY id") == [(1, "x1234"), (5, "note 21234")]


def test_a_file_that_changes_counts_from_the_next_batch_and_a_mended_one_at_once(shop: Case) -> None:
    own(shop)
    second = shop.folder / "rules/second.py"
    insert(shop, 1)
    batch, runtime = next_batch(shop), shop.runtime()
    merge(runtime, batch)
    second.write_text("def transform(row, context):\n    return row['nope']\n")
    assert apply_rule(runtime, batch, "second").rows_out == 1
    load(runtime, "copy", batch)
    assert target(shop, "SELECT note FROM {db}.customers") == [("note 11234",)]
    insert(shop, 7)
    batch = next_batch(shop)
    merge(runtime, batch)
    for _ in range(2):
        with pytest.raises(
            RuleError, match=r"'second' failed on insert of .*customers id=7: KeyError: 'nope'"
        ) as caught:
            apply_rule(runtime, batch, "second")
        assert str(caught.value.where).endswith("second.py:2")
    second.write_text("def transform(row, context):\n    return {**row, 'note': 'mended'}\n")
    apply_rule(runtime, batch, "second")
    load(runtime, "copy", batch)
    assert target(shop, "SELECT note FROM {db}.customers WHERE id = 7") == [("mended34",)]


def test_a_rule_that_leaves_engine_yaml_while_a_batch_is_under_way_is_still_applied(shop: Case) -> None:
    own(shop)
    insert(shop, 1)
    batch, runtime = next_batch(shop), shop.runtime()
    merge(runtime, batch)
    rules(shop, "[]")
    load(runtime, "copy", batch)
    assert target(shop, "SELECT note FROM {db}.customers") == [("note 11234",)]


def test_the_totals_are_in_the_manifest_and_in_the_status(shop: Case) -> None:
    own(shop)
    insert(shop, 1, 2)
    shop.run_until_head()
    shown = json.loads(shop.cli("status", "case", "--json").stdout)
    assert [(r["name"], r["rows_in"], r["rows_out"], r["errors"]) for r in shown["rules"]] == [
        ("first", 2, 2, 0), ("second", 2, 2, 0), ("third", 2, 2, 0), ("fourth", 2, 1, 0),
    ]  # fmt: skip
