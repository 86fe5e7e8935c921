"""Rules on the whole way: from a source's log through rules of every kind to the target's rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.errors import RuleError
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from sluice.flows.transform.stages import apply_rule
from sluice.operations.check import check
from sluice.operations.ruledev.scaffold import changes_file, new_rule
from sluice.operations.ruledev.tryout import find_rule, handwritten, try_rule
from sluice.segments.changeset import read_changeset
from tests.support.flows.rule_shop import insert, next_batch, rule_shop, rules, target
from tests.support.pipelines.case import Case


@pytest.fixture
def shop(tmp_path: Path, mysql_source, mysql_target, zookeeper, fresh_schema):
    with rule_shop(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) as made:
        yield made


SAME = {
    "row": ("py", "def transform(row, context):\n    return row\n"),
    "arrow": ("py", "def transform(rows, context):\n    return rows\n"),
    "pandas": ("py", "def transform(frame, context):\n    return frame\n"),
    "sql": ("sql", "SELECT * FROM rows"),
    "spark": ("py", "def transform(frame, context):\n    return frame\n"),
}


@pytest.mark.parametrize("kind", list(SAME))
def test_a_rule_that_changes_nothing_changes_nothing(shop: Case, kind: str) -> None:
    """Every type of the table and special dates through every kind, compared by checksum."""
    suffix, text = SAME[kind]
    shop.source.execute("SET GLOBAL sql_mode = ''")
    rules(shop, f"  - {{name: same, path: same.{suffix}, type: {kind}}}\n", **{f"same__{suffix}": text})
    try:
        insert(shop, *range(1, 40))
        shop.source.execute(
            f"UPDATE `{shop.schema}`.customers SET d = '0000-00-00' WHERE id = 3",
            f"UPDATE `{shop.schema}`.customers SET email = NULL, t = NULL, n = 0, paid = -1 WHERE id = 4",
        )
        shop.run_until_head()
        shop.source.execute(
            f"UPDATE `{shop.schema}`.customers SET d = '2024-00-15', note = 'changed' WHERE id < 9",
            f"DELETE FROM `{shop.schema}`.customers WHERE id IN (1, 20)",
            f"UPDATE `{shop.schema}`.customers SET id = 100 WHERE id = 2",
        )
        shop.run_until_head()
    finally:
        shop.source.execute("SET GLOBAL sql_mode = DEFAULT")
    shop.assert_equal("customers")


@pytest.mark.promise("A22")
def test_shards_go_to_one_table_and_move_between_shards(shop: Case) -> None:
    for i in range(3):
        shop.source.execute(f"CREATE TABLE `{shop.schema}`.orders_{i} (id INT PRIMARY KEY, v INT)")
    shop.target.execute(
        f"CREATE TABLE `{shop.schema}`.orders (id INT, v INT, shard VARCHAR(129), PRIMARY KEY (id, shard))"
    )
    params = f'{{to: "{shop.schema}.orders", shard_column: shard, shard_in_key: true}}'
    rules(shop, f'  - {{name: route, builtin: route, match: {{table: "orders_\\\\d"}}, params: {params}}}\n')
    shop.source.execute(*(f"INSERT INTO `{shop.schema}`.orders_{i} VALUES (1, {i}), (2, {i})" for i in range(3)))
    shop.run_until_head()
    shop.source.execute(
        f"DELETE FROM `{shop.schema}`.orders_0 WHERE id = 1", f"UPDATE `{shop.schema}`.orders_1 SET v = 9 WHERE id = 2"
    )
    shop.run_until_head()
    got = target(shop, "SELECT id, v, RIGHT(shard, 8) FROM {db}.orders ORDER BY 1, 3")
    assert got == [(1, 1, "orders_1"), (1, 2, "orders_2"), (2, 0, "orders_0"), (2, 9, "orders_1"), (2, 2, "orders_2")]


def test_lookups_from_a_file_and_from_a_query(shop: Case) -> None:
    shop.source.execute(
        f"CREATE TABLE `{shop.schema}`.tiers (id INT PRIMARY KEY, tier VARCHAR(9))",
        f"INSERT INTO `{shop.schema}`.tiers VALUES (1, 'gold')",
    )
    shop.yaml = shop.yaml.replace("\\\\..*", "\\\\.customers")
    shop.path.write_text(shop.yaml)
    shop.target.execute(f"ALTER TABLE `{shop.schema}`.customers ADD tier VARCHAR(9), ADD place VARCHAR(9)")
    row = (
        "def transform(row, context):\n    found = context.lookups['tiers'].get(row['id'])\n    return {**row, "
        "'tier': found and found['tier']}\n"
    )
    sql = "SELECT rows.*, place FROM rows LEFT JOIN places ON places.id = rows.id"
    rules(
        shop,
        f"""\
  - name: tier
    path: tier.py
    lookups: {{tiers: {{connection: case_source, query: "SELECT * FROM `{shop.schema}`.tiers", key: id, max_age: 0s}}}}
  - name: place
    path: place.sql
    type: sql
    lookups: {{places: {{file: places.csv, key: id}}}}
""",
        tier__py=row,
        place__sql=sql,
        places__csv="id,place\n1,Bonn\n2,Kiel\n",
    )
    insert(shop, 1, 2)
    shop.run_until_head()
    assert target(shop, "SELECT id, tier, place FROM {db}.customers ORDER BY id") == [
        (1, "gold", "Bonn"),
        (2, None, "Kiel"),
    ]
    shop.source.execute(f"INSERT INTO `{shop.schema}`.tiers VALUES (2, 'new')")
    insert(shop, 3)
    shop.source.execute(f"UPDATE `{shop.schema}`.customers SET paid = 9 WHERE id = 2")
    shop.run_until_head()
    assert target(shop, "SELECT id, tier FROM {db}.customers ORDER BY id") == [(1, "gold"), (2, "new"), (3, None)]


def test_check_names_what_is_wrong_with_a_rule(shop: Case) -> None:
    def found() -> list[tuple[str, str, str]]:
        return [(f.severity, f.value, f.why) for f in check(shop.runtime()).findings if f.part == "rules"]

    entry = "  - name: cut\n    builtin: truncate\n    params:\n      colums: {note: 3}\n"
    rules(shop, entry)
    ((severity, where, why),) = found()
    assert severity == "error"
    assert where.endswith("engine.yaml:5")
    assert "params.colums: the rule has no such parameter; it has columns" in why
    lookups = "    lookups: {places: {file: places.csv, key: id}}\n"
    rules(shop, entry.replace("colums", "columns") + lookups)
    assert "there is no file" in found()[0][2]
    (shop.folder / "rules/places.csv").write_text("id,place\n1,Bonn\n")
    assert [(severity, value) for severity, value, _ in found()] == [("ok", "engine.yaml"), ("ok", "1 rows")]


# tasks of their own
# ------------------------------------------------------------------------------------------------------


SPARK = """
from pyspark.sql import functions as F


class Params:
    suffix: str = "!"


def transform(frame, context):
    twice = F.udf(lambda text: None if text is None else text + text, "string")
    frame = frame.withColumn("note", F.concat("note", F.lit(context.params.suffix))).withColumn("email", twice("email"))
    return frame.where("paid > 1 AND _origin = 101").repartition(3)
"""
SPARK_RULES = """\
  - {name: before, path: before.sql, type: sql, order: 1}
  - {name: frame, path: frame.py, type: spark, order: 2, match: {table: customers, events: [insert, update]}, params: {suffix: "?"}}
  - {name: after, path: after.sql, type: sql, order: 3}
"""


@pytest.mark.parametrize("mode", ["local", "connect"])
def test_a_rule_of_type_spark(shop: Case, mode: str, spark_connect) -> None:
    shop.connections["spark_connect_default"] = spark_connect.connection_json()
    before, after = (f"SELECT * REPLACE (note || {more} AS note) FROM rows" for more in ("'.'", "_origin"))
    rules(shop, SPARK_RULES, before__sql=before, after__sql=after, frame__py=SPARK)
    insert(shop, 1, 2, email="a")
    insert(shop, 3, paid="1")
    insert(shop, 4)
    shop.run_until_head(mode)
    shop.source.execute(
        f"UPDATE `{shop.schema}`.customers SET paid = 1 WHERE id = 1",
        f"UPDATE `{shop.schema}`.customers SET paid = 2 WHERE id = 3",
        f"DELETE FROM `{shop.schema}`.customers WHERE id = 4",
    )
    shop.run_until_head(mode)
    got = target(shop, "SELECT id, email, note, n FROM {db}.customers ORDER BY id")
    assert got == [(2, "aa", "note 2.?101", 2**64 - 3), (3, "Ann@X.orgAnn@X.org", "note 3.?101", 2**64 - 4)]
    with shop.runtime().state() as state:
        changeset = read_changeset(
            shop.runtime().store, state.batches.require(state.batches.numbers()[-1]).changeset or ""
        )
    assert [(r.name, r.rows_in, r.rows_out) for r in changeset.manifest.rules] == [
        ("before", 3, 3),
        ("frame", 2, 1),
        ("after", 3, 3),
    ]


@pytest.mark.parametrize(
    ("code", "words", "line"),
    [
        ("def transform(frame, context):\n    return frame.nope()\n", "nope", 2),
        ("def transform(frame, context):\n    return frame.select('id')\n", "lost the column _op", 1),
        ("def transform(frame, context):\n    return 5\n", "returned no DataFrame", 1),
        (
            "from pyspark.sql import functions as F\ndef boom(x):\n    raise ValueError('bad ' + x)\n"
            "def transform(frame, context):\n    return frame.withColumn('note', F.udf(boom, 'string')('note'))\n",
            "ValueError: bad note 1",
            3,
        ),
    ],
)
def test_what_is_wrong_with_a_rule_of_type_spark(shop: Case, code: str, words: str, line: int) -> None:
    rules(shop, "  - {name: frame, path: frame.py, type: spark}\n", frame__py=code)
    insert(shop, 1)
    batch, runtime = next_batch(shop), shop.runtime()
    merge(runtime, batch)
    with pytest.raises(RuleError, match=words) as caught:
        apply_rule(runtime, batch, "frame")
    assert str(caught.value.where).endswith(f"frame.py:{line}")


def test_the_starter_of_type_spark_works_at_once(tmp_path: Path) -> None:
    new_rule("spark", "mine", tmp_path, table="shop.customers")
    samples = handwritten(changes_file(tmp_path, "mine"))
    tried = list(try_rule(find_rule("mine", tmp_path), samples))
    assert [(t.op, t.right, [out.row == t.row for out in t.out]) for t in tried] == [
        ("insert", True, [True]), ("update", True, [True]), ("delete", True, [True]),
    ]  # fmt: skip
    engine = tmp_path / "engine.yaml"
    engine.write_text(engine.read_text() + "    params: {shout: true}\n")
    assert next(t.out[0].row["email"] for t in try_rule(find_rule("mine", tmp_path), samples)) == "ANN@EXAMPLE.ORG"
    (tmp_path / "mine.py").write_text("def transform(frame, context):\n    return frame.nope\n")
    assert all("'mine' failed" in str(t.error) for t in try_rule(find_rule("mine", tmp_path), samples))


def test_the_number_of_spark_jobs_does_not_follow_the_tables(shop: Case) -> None:
    from sluice.spark.frames import local_session

    rules(
        shop,
        "  - {name: frame, path: frame.py, type: spark}\n",
        frame__py="def transform(frame, context):\n    return frame\n",
    )
    count = 12
    for server in (shop.source, shop.target):
        server.execute(*(f"CREATE TABLE `{shop.schema}`.t{i} (id INT PRIMARY KEY, c{i} INT)" for i in range(count)))
    shop.run_until_head()
    shop.source.execute(*(f"INSERT INTO `{shop.schema}`.t{i} VALUES (1, {i})" for i in range(count)))
    batch, runtime = next_batch(shop), shop.runtime()
    merge(runtime, batch)
    context = local_session().sparkContext
    context.setJobGroup("counted", "")
    assert apply_rule(runtime, batch, "frame").rows_out == count
    assert len(context.statusTracker().getJobIdsForGroup("counted")) == 1
    load(runtime, "copy", batch)
    shop.assert_equal(*(f"t{i}" for i in range(count)))
