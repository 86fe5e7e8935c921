"""What a MySQL target runs for a statement of the source's log: names, policies, cut-overs, repeats; without a
server.
"""

from __future__ import annotations

from typing import Any

import pytest

from sluice.config.pipeline import PipelineConfig
from sluice.errors import LoadError
from sluice.flows.load.schema_changes import plan_ddl
from sluice.model.definitions import ColumnDefinition, IndexDefinition, TableDefinition
from sluice.model.dialects import MYSQL
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.mysql.ddl.catalog import SchemaState, Session
from sluice.mysql.ddl.collations import Collations
from sluice.mysql.ddl.types import Flavour
from sluice.segments.manifest import DdlRecord, SegmentManifest
from sluice.targets.mysql import ddl
from sluice.targets.mysql.column_types import Server
from sluice.targets.mysql.ddl import Words
from sluice.targets.mysql.definitions import create_sql
from sluice.targets.mysql.target import MySQLTarget
from sluice.targets.port import SchemaChange

COLLATIONS = Collations(
    {"utf8mb4_bin": "utf8mb4", "utf8mb4_0900_ai_ci": "utf8mb4"}, {"utf8mb4": "utf8mb4_0900_ai_ci"}, {"utf8mb4": 4}
)
T = "CREATE TABLE t (id INT PRIMARY KEY, a INT, gone INT)"


def steps(
    *statements: str, mapping: Any = (), policy: Any = "apply", exclude: tuple[str, ...] = ()
) -> list[SchemaChange]:
    """The steps of the last statement, the others having made the definitions before it."""
    state = SchemaState(Flavour(False, 90700, COLLATIONS), server_collation="utf8mb4_0900_ai_ci")
    changes: list[Any] = []
    for sql in statements:
        changes = state.fold(sql, "shop", Session())
    record = DdlRecord(
        file="binlog.000001",
        offset=9,
        schema="shop",
        sql=statements[-1],
        seq=0,
        changes=tuple(c.to_json() for c in changes),
    )
    position = Offset.at("u", "binlog.000001", 4)
    manifest = SegmentManifest(
        pipeline="p",
        batch=1,
        epoch=1,
        first=position,
        last=position,
        changes=0,
        transactions=0,
        log_bytes=0,
        files=(),
        ddl=(record,),
    )
    config = PipelineConfig.model_validate({
        "pipeline": "p", "source": {"connection": "s"}, "capture": {"include": ["shop\\..*"], "exclude": list(exclude)},
        "mapping": list(mapping),
        "targets": [{"name": "t", "type": "mysql", "connection": "c", "ddl": policy}],
    })  # fmt: skip
    planned = plan_ddl(manifest, config, config.targets[0], MySQLTarget.CAPABILITIES, MYSQL, lambda *_: ())
    assert not any(change.before_rows for change in planned)
    return list(planned)


def run(found: list[SchemaChange], words: Words | None = None, **there: set[str]) -> list[str]:
    """Statements for a target that has these tables (``schema__table``) with these columns."""
    tables = {TableId(*name.split("__")): columns for name, columns in there.items()}
    return [sql for step in found for sql in ddl.statements_for(step, tables.get, words)]


OLD = {"id", "a", "gone"}


def test_the_text_is_kept_and_its_tables_are_named_as_at_the_target() -> None:
    line = {"from": "shop.*", "to": "copy.*"}
    found = steps(T, "ALTER /* why */ TABLE t ADD b INT DEFAULT 5, ADD KEY (a)", mapping=[line])
    assert run(found, copy__t=OLD) == ["ALTER /* why */ TABLE `copy`.`t` ADD b INT DEFAULT 5, ADD KEY (a)"]
    assert run(found, copy__t={*OLD, "b"}) == []  # somebody was here before
    [made] = run(found)  # a table that was never made
    assert made.startswith("CREATE TABLE `copy`.`t` (`id` int NOT NULL")
    found = steps(
        "CREATE TABLE u LIKE shop.t",
        T,
        "CREATE TABLE v (id INT, FOREIGN KEY (id) REFERENCES shop.t (id))",
        mapping=[line],
    )
    assert run(found) == ["CREATE TABLE `copy`.`v` (id INT, FOREIGN KEY (id) REFERENCES `copy`.`t` (id))"]


def test_tables_that_are_there_or_gone_already() -> None:
    assert run(steps(T), shop__t=OLD) == []
    assert run(steps(T, "DROP TABLE t")) == []
    assert run(steps(T, "DROP TABLE t"), shop__t=OLD) == ["DROP TABLE IF EXISTS `shop`.`t`"]
    assert run(steps(T, "TRUNCATE t"), shop__t=OLD) == ["TRUNCATE TABLE `shop`.`t`"]


def test_renames_in_a_chain_and_in_a_ring() -> None:
    found = steps(T, "RENAME TABLE t TO old, old TO other")
    assert run(found, shop__t=OLD) == ["RENAME TABLE `shop`.`t` TO `shop`.`old`, `shop`.`old` TO `shop`.`other`"]
    assert run(found, shop__other=OLD) == []
    found = steps(T, "CREATE TABLE o (id INT)", "RENAME TABLE t TO x, o TO t, x TO o")
    assert run(found, shop__t=OLD, shop__o={"id"}) == [
        "RENAME TABLE `shop`.`t` TO `shop`.`x`, `shop`.`o` TO `shop`.`t`, `shop`.`x` TO `shop`.`o`"
    ]


GHOST = (
    "CREATE TABLE _t_gho LIKE t",
    "ALTER TABLE _t_gho ADD b VARCHAR(9) NOT NULL DEFAULT 'f' AFTER id, MODIFY a BIGINT",
)


def test_a_cut_over_is_an_alter() -> None:
    found = steps(T, *GHOST, "RENAME TABLE t TO _t_del, _t_gho TO t")
    [sql] = run(found, shop__t=OLD)
    assert sql.startswith("ALTER TABLE `shop`.`t` ")
    assert {
        "ADD COLUMN `b` varchar(9) NOT NULL DEFAULT 'f' AFTER `id`",
        "MODIFY COLUMN `a` bigint NULL",
    } == set(sql.removeprefix("ALTER TABLE `shop`.`t` ").split(", "))


@pytest.mark.parametrize("alter", ["CHANGE gone b BIGINT", "DROP COLUMN gone, ADD b VARCHAR(9)"])
def test_a_cut_over_that_adds_and_drops_columns_may_have_renamed_one(alter: str) -> None:
    """The definitions are alike; the values of a renamed column stay, also if it got another type."""
    found = steps(T, GHOST[0], f"ALTER TABLE _t_gho {alter}", "RENAME TABLE t TO _t_del, _t_gho TO t")
    with pytest.raises(LoadError, match="may have been renamed, or dropped and added"):
        run(found, shop__t=OLD)
    assert run(found, shop__t=OLD - {"gone"} | {"b"}) == []  # a person made the change


def test_a_cut_over_beside_a_rename() -> None:
    found = steps(T, "CREATE TABLE o (id INT)", *GHOST, "RENAME TABLE t TO _t_del, _t_gho TO t, o TO n")
    alter, rename = run(found, shop__t=OLD, shop__o={"id"})
    assert alter.startswith("ALTER TABLE `shop`.`t` ")
    assert rename == "RENAME TABLE `shop`.`o` TO `shop`.`n`"


def test_captured_tables_that_swap_their_names_by_one_that_is_not_captured() -> None:
    found = steps(T, "CREATE TABLE o (id INT)", "RENAME TABLE t TO _t_old, o TO t, _t_old TO o")
    assert run(found, shop__t=OLD, shop__o={"id"}) == [
        "RENAME TABLE `shop`.`t` TO `shop`.`_t_old`, `shop`.`o` TO `shop`.`t`, `shop`.`_t_old` TO `shop`.`o`"
    ]


def test_a_table_that_another_replaces() -> None:
    found = steps(T, "CREATE OR REPLACE TABLE t (id INT)")
    assert run(found, shop__t=OLD) == ["DROP TABLE IF EXISTS `shop`.`t`", "CREATE OR REPLACE TABLE `shop`.`t` (id INT)"]


def test_other_texts_for_defaults_stand_in_their_places() -> None:
    """In the recorded text, where comments and strings look alike; in an ALTER made from definitions; and at a
    cut-over.
    """
    words = Words(defaults={(TableId("shop", "t"), "b"): "'it''s'"})
    alter = "ALTER TABLE t ADD a2 INT DEFAULT 3, ADD B INT COMMENT 'DEFAULT 3' /* DEFAULT 3 */ DEFAULT\n 3 NOT NULL"
    assert run(steps(T, alter), words, shop__t=OLD) == [
        "ALTER TABLE `shop`.`t` ADD a2 INT DEFAULT 3, ADD B INT COMMENT 'DEFAULT 3' /* DEFAULT 3 */ DEFAULT\n 'it''s' "
        "NOT NULL"
    ]
    line = {"from": "shop.t", "to": "shop.t", "columns": {"rename": {"a": "other"}}}
    [sql] = run(steps(T, alter, mapping=[line]), words, shop__t={"id", "other", "gone"})
    assert "`B` int NOT NULL DEFAULT 'it''s' COMMENT" in sql
    [sql] = run(steps(T, *GHOST, "RENAME TABLE t TO _t_del, _t_gho TO t"), words, shop__t=OLD)
    assert "DEFAULT 'it''s' AFTER" in sql


@pytest.mark.parametrize(
    "statement",
    ["RENAME TABLE t TO fresh", "ALTER TABLE t RENAME TO fresh", "ALTER TABLE t ADD b INT, RENAME TO fresh"],
)
def test_a_table_from_outside_has_rows_that_nobody_saw(statement: str) -> None:
    found = steps(T, statement, exclude=("shop\\.t",))
    with pytest.raises(LoadError, match="never seen"):
        run(found)
    assert run(found, shop__fresh=OLD) == []


def test_columns_by_other_names_and_left_out() -> None:
    line = {"from": "shop.t", "to": "shop.t", "columns": {"exclude": ["gone"], "rename": {"a": "amount"}}}
    found = steps(T, "ALTER TABLE t MODIFY a BIGINT, MODIFY gone BIGINT, ADD b INT", mapping=[line])
    [sql] = run(found, shop__t={"id", "amount"})
    assert "MODIFY COLUMN `amount` bigint NULL" in sql
    assert "ADD COLUMN `b` int NULL" in sql
    assert "gone" not in sql


def test_policies() -> None:
    assert steps(T, "DROP TABLE t", policy={"drop_table": "ignore"}) == []
    [step] = steps(T, "ALTER TABLE t MODIFY a TINYINT", policy="widen_only")
    assert step.check_only
    [step] = steps(T, "ALTER TABLE t MODIFY a BIGINT, ADD b INT", policy="widen_only")
    assert not step.check_only
    [step] = found = steps(T, "ALTER TABLE t ADD b INT, ADD KEY (a)", policy={"indexes": "ignore"})
    assert run(found, shop__t=OLD) == ["ALTER TABLE `shop`.`t` ADD COLUMN `b` int NULL"]
    [step] = steps(T, "ALTER TABLE t DROP COLUMN gone", policy="stop")
    assert step.check_only


def test_shards_are_altered_once_and_never_dropped() -> None:
    line = {"from": "shop\\.t\\d*", "to": "shop.all"}
    found = steps(T, "ALTER TABLE t ADD b INT", mapping=[line])
    assert run(found, shop__all=OLD) == ["ALTER TABLE `shop`.`all` ADD COLUMN `b` int NULL"]
    assert run(found, shop__all={*OLD, "b"}) == []
    with pytest.raises(LoadError, match="several tables"):
        steps(T, "DROP TABLE t", mapping=[line])


def test_a_key_of_vectors_is_left_out_at_a_server_without_one() -> None:
    table = TableDefinition(
        TableId("shop", "t"), (ColumnDefinition("id", "int"), ColumnDefinition("v", "vector(3)")),
        (IndexDefinition("v", (("v", 0),), kind="vector"),),
    )  # fmt: skip
    made = [create_sql(table.table, table, str, Server(mariadb=mariadb)) for mariadb in (False, True)]
    assert ["KEY" in one for one in made] == [False, True]
    assert "VECTOR KEY `v` (`v`)" in made[1]
