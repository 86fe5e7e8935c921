"""A rule that comes after the first copy reaches the rows that are there: a dump deletes what it leaves out at the target,
a verification counts it as only at the target, and a repair deletes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sluice.errors import ConfigError
from sluice.flows.dump.start import start
from sluice.operations.verify.result import VerifyResult
from sluice.operations.verify.verify import VerifySpec, verify
from tests.support.pipelines.case import REPOSITORY, Case, case
from tests.support.pipelines.dumping import begin, both, delivering, dumped

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))"
LAST = "ORDER BY id"

ROW = "def transform(row, context):\n    return None if row['note'].endswith('@test') else row\n"
SQL = "SELECT * FROM rows WHERE note NOT LIKE '%@test'"
NOTHING = "def transform(row, context):\n    return None\n"
ARROW = (
    "import pyarrow.compute as pc\n\ndef transform(rows, context):\n"
    "    return rows.filter(pc.invert(pc.ends_with(rows['note'], '@test')))\n"
)

LATER = {
    "row": ("{name: hide, path: hide.py, type: row, match: {table: t}}", {"hide.py": ROW}),
    "arrow": ("{name: hide, path: hide.py, type: arrow, match: {table: t}}", {"hide.py": ARROW}),
    "sql": ("{name: hide, path: hide.sql, type: sql, match: {table: t}}", {"hide.sql": SQL}),
    "own task": ("{name: hide, path: hide.sql, type: sql, task: own, match: {table: t}}", {"hide.sql": SQL}),
    "filter": ("{name: hide, builtin: filter, match: {table: t}, params: {where: \"note NOT LIKE '%@test'\"}}", {}),
    "others": (
        "{name: first, builtin: truncate, order: 1, match: {table: t}, params: {columns: {note: 30}}}, "
        "{name: hide, path: hide.py, type: row, order: 2, match: {table: t}}, "
        "{name: own, path: own.sql, type: sql, task: own, order: 3, match: {table: t}}, "
        "{name: last, builtin: soft_delete, order: 4, match: {table: other}}",
        {"hide.py": ROW, "own.sql": "SELECT * FROM rows WHERE version >= 0"},
    ),
}
"""Rules that leave out the rows whose note ends with @test."""


@pytest.fixture
def shop(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) -> Iterator[Case]:
    schema = fresh_schema(twin_source, twin_target)
    with case(tmp_path, twin_source, twin_target, twin_zookeeper, schema, extra="rules: engine.yaml") as made:
        rules(made, "", {})
        both(made, TABLE)
        begin(made)
        yield made


def rules(made: Case, text: str, files: dict[str, str]) -> None:
    for name, content in files.items():
        (made.folder / "rules" / name).write_text(content, encoding="utf-8")
    (made.folder / "rules/engine.yaml").write_text(f"rules: [{text}]\n", encoding="utf-8")


def at(server: Any, made: Case, *statements: str) -> Any:
    return server.execute(f"USE `{made.schema}`", *statements)


def copied(made: Case) -> None:
    """Nine rows, of which a later rule leaves out two; one of these is stale at the target."""
    values = ", ".join(f"({i}, {i}, 'n{i}{'@test' if i in (3, 7) else ''}')" for i in range(1, 10))
    at(made.source, made, f"INSERT INTO t VALUES {values}")
    made.run_until_head()


def ids(made: Case) -> list[int]:
    return [row[0] for row in at(made.target, made, f"SELECT id FROM t {LAST}")]


def verified(made: Case, **asked: Any) -> VerifyResult:
    with delivering(made):
        return verify(made.runtime(), VerifySpec(most=1000, **asked))


@pytest.mark.parametrize("kind", LATER)
def test_a_dump_deletes_what_a_later_rule_leaves_out(shop: Case, kind: str) -> None:
    copied(shop)
    rules(shop, *LATER[kind])
    at(shop.source, shop, "UPDATE t SET version = 70 WHERE id = 7", "INSERT INTO t VALUES (10, 1, 'b@test')")
    shop.run_until_head()
    assert ids(shop) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    with delivering(shop):
        dumped(shop)
    assert ids(shop) == [1, 2, 4, 5, 6, 8, 9]


@pytest.mark.parametrize("kind", LATER)
def test_verify_counts_it_as_extra_and_a_repair_deletes_it(shop: Case, kind: str) -> None:
    copied(shop)
    rules(shop, *LATER[kind])
    result = verified(shop)
    [table] = result.tables
    assert (result.outcome, table.extra, table.missing, table.different) == ("different", 2, 0, 0), table
    assert {(one.key, one.kind) for one in table.differences} == {(("3",), "extra"), (("7",), "extra")}
    repaired = verified(shop, repair=True)
    assert (repaired.outcome, repaired.tables[0].repaired) == ("equal", 2), repaired.tables
    assert ids(shop) == [1, 2, 4, 5, 6, 8, 9]


def test_a_rule_that_leaves_out_a_table_empties_it(shop: Case) -> None:
    copied(shop)
    rules(shop, "{name: hide, path: hide.py, type: row}", {"hide.py": NOTHING})
    with delivering(shop):
        dumped(shop)
    assert ids(shop) == []


def test_a_row_that_changes_or_goes_while_it_is_copied_is_deleted_too(shop: Case) -> None:
    copied(shop)
    rules(shop, *LATER["row"])
    dump = start(shop.runtime(), tables=[f"{shop.schema}.t"])
    at(shop.source, shop, "UPDATE t SET version = 30 WHERE id = 3", "DELETE FROM t WHERE id = 7")
    with delivering(shop):
        dumped(shop)
    assert dump.id
    assert 3 not in ids(shop)


def test_a_rule_that_changes_keys_deletes_nothing_under_the_old_ones(shop: Case) -> None:
    """Row 12 of the target is row 2 of the source; the source's own row 12 is left out."""
    copied(shop)
    at(shop.source, shop, "INSERT INTO t VALUES (12, 1, 'b@test')")
    at(shop.target, shop, "DELETE FROM t")
    code = "def transform(row, context):\n    return None if '@' in row['note'] else {**row, 'id': row['id'] + 10}\n"
    rules(shop, "{name: hide, path: hide.py, type: row}", {"hide.py": code})
    with delivering(shop):
        dumped(shop)
    assert ids(shop) == [11, 12, 14, 15, 16, 18, 19]
    assert verified(shop).outcome == "equal"


def test_rows_of_another_table_under_the_same_key_stay(shop: Case) -> None:
    both(shop, "CREATE TABLE u (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))")
    shop.yaml += f"mapping:\n  - {{from: {shop.schema}.u, to: {shop.schema}.t}}\n"
    shop.path.write_text(shop.yaml, encoding="utf-8")
    copied(shop)
    rules(shop, *LATER["row"])
    at(shop.source, shop, "INSERT INTO u VALUES (3, 3, 'of u')")
    shop.run_until_head()
    with delivering(shop):
        dumped(shop)
    assert 3 in ids(shop)


def test_replace_is_refused_with_the_way_out(shop: Case) -> None:
    copied(shop)
    rules(shop, *LATER["row"])
    with pytest.raises(ConfigError, match="sluice verify run case --repair") as caught:
        start(shop.runtime(), tables=[f"{shop.schema}.t"], replace=True)
    assert "without `replace`" in str(caught.value)


def test_the_commands_of_the_page_apply_its_rule_to_what_is_there(shop: Case) -> None:
    both(shop, "CREATE TABLE customers (id INT PRIMARY KEY, email VARCHAR(80))")
    values = ", ".join(f"({i}, 'p{i}@{'test.example' if i % 10 == 0 else 'x.org'}')" for i in range(1, 101))
    at(shop.source, shop, f"INSERT INTO customers VALUES {values}")
    shop.run_until_head()
    page = (REPOSITORY / "docs/rules.md").read_text(encoding="utf-8")
    rule = page.partition("**2. Write it**")[2].partition("```python\n")[2].partition("```")[0]
    rules(shop, "{name: hide_tests, path: hide_tests.py, match: {table: customers}}", {"hide_tests.py": rule})
    section = page.partition("## Apply a rule to what is there")[2].partition("\n## ")[0]
    copy, look, repair = (
        line.removeprefix("$ sluice ").partition("#")[0].split()
        for line in section.splitlines()
        if line.startswith("$ sluice ")
    )

    def called(words: list[str], *more: str) -> Any:
        table = {"shop_to_reporting": str(shop.path), "shop.customers": f"{shop.schema}.customers"}
        with delivering(shop):
            return shop.cli(*(table.get(word, word) for word in words), *more)

    differs = called(look)
    assert (differs.returncode, "10 differ" in differs.stdout) == (3, True), differs
    done = called(copy)
    assert done.returncode == 0, done
    assert at(shop.target, shop, "SELECT COUNT(*) FROM customers WHERE email LIKE '%test%'") == [(0,)]
    assert at(shop.target, shop, "SELECT COUNT(*) FROM customers") == [(90,)]
    equal = called(look)
    assert equal.returncode == 0, equal
    at(shop.target, shop, "INSERT INTO customers VALUES (10, 'p10@test.example')")
    repaired = called(repair, "--yes")
    assert repaired.returncode == 0, repaired
    assert at(shop.target, shop, "SELECT COUNT(*) FROM customers") == [(90,)]


def test_what_deletes_rows_asks_first(shop: Case) -> None:
    copied(shop)
    at(shop.target, shop, "INSERT INTO t VALUES (50, 1, 'extra')")
    name, table = str(shop.path), f"{shop.schema}.t"
    for words in (
        ("dump", "start", name, "--table", table, "--replace", "--detach"),
        ("verify", "run", name, "--repair"),
    ):
        refused = shop.cli(*words)
        assert refused.returncode == 1, refused
        assert "--yes" in refused.stderr
    assert shop.cli("dump", "list", name, "--json").stdout.strip() == "[]"
    assert 50 in ids(shop)
    assert shop.cli("dump", "start", name, "--table", table, "--replace", "--dry-run").returncode == 0
    with delivering(shop):
        assert shop.cli("verify", "run", name, "--repair", "--yes").returncode == 0
    assert 50 not in ids(shop)
