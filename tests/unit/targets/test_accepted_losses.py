"""Columns that lose values: an error until the pipeline file names them, with the line that does."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from sluice.config.pipeline import PipelineConfig, TargetConfig
from sluice.errors import MappingError
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.losses import Loss, together
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import TableId
from sluice.mysql.type_loss import SqlType, loss
from sluice.postgresql.type_names import pg_type
from sluice.targets.accepted_losses import accepting_line, judged, require_accepted
from sluice.targets.clickhouse.column_types import held_type
from sluice.targets.clickhouse.column_types import lost as lost_by_clickhouse
from sluice.targets.clickhouse.column_types import own_type as clickhouse_own
from sluice.targets.lake.types import lost as lost_by_lake
from sluice.targets.lake.types import own_type as lake_own
from sluice.targets.mongodb.column_types import Form, form_of, loses
from sluice.targets.mysql.column_types import lost as lost_by_mysql
from sluice.targets.mysql.table_info import ColumnInfo
from sluice.targets.oracle.column_types import lost as lost_by_oracle
from sluice.targets.oracle.column_types import oracle_type
from sluice.targets.oracle.column_types import own_type as oracle_own
from sluice.targets.port import TableFinding, about_values
from sluice.targets.postgresql.column_types import lost as lost_by_postgresql
from sluice.targets.postgresql.column_types import own_type as postgresql_type

K = ColumnKind
ORDERS, ODD = TableId("shop", "orders"), TableId("o'dd", "a.b*")
ROUNDED = Loss("fractions are rounded to 2 digits")
ALTER = "ALTER TABLE `shop`.`orders` MODIFY COLUMN `price` decimal(12,4)"
PLANS = [PlannedTable(ORDERS, TableId("app", "orders"), ()), PlannedTable(ODD, TableId("app", "odd"), ())]
FOUND = [
    about_values(ORDERS, "price", "decimal(12,4) -> decimal(10,2)", ROUNDED, ALTER),
    about_values(ORDERS, "name", "varchar(40) -> varchar(20)", "text longer than 20 characters is refused"),
    about_values(ODD, "c'1 [x]", "double -> float", Loss("a double becomes a float: 15 digits become 6")),
]


def target(name: str = "copy", *accepted: str) -> TargetConfig:
    return TargetConfig(name=name, type="memory", connection="t", accept_loss=accepted)


def line_of(finding: TableFinding) -> str:
    found = re.search(r"write under (?:target copy|snapshot): (accept_loss: \[.*?\]);", finding.hint)
    assert found, finding.hint
    return found[1]


def test_a_loss_is_an_error_until_the_printed_line_is_in_the_file() -> None:
    price, name, odd = judged(target(), PLANS, FOUND)
    assert (price.severity, name.severity, odd.severity) == ("error", "warning", "error")
    assert name is FOUND[1]
    assert price.why == "values would be lost: decimal(12,4) -> decimal(10,2): fractions are rounded to 2 digits"
    assert price.statement == ""  # `check --apply` does not run it
    assert ALTER in price.hint
    line = line_of(price)
    assert line == line_of(odd)
    accepted = target("copy", *yaml.safe_load(line)["accept_loss"])
    assert judged(accepted, PLANS, FOUND) == FOUND
    require_accepted(accepted, PLANS, FOUND)


def test_a_load_stops_at_the_first_column_and_names_its_source() -> None:
    first = target("copy", r"shop\.orders\..*")
    with pytest.raises(MappingError, match="values would be lost: double -> float") as raised:
        require_accepted(first, PLANS, FOUND)
    assert raised.value.where == "app.odd"
    assert "'shop\\.orders\\..*', " in (raised.value.hint or "")  # what is accepted already stays in the line


def test_patterns_match_whole_names_at_the_target() -> None:
    for pattern in (r"shop\.orders\.pric", r"hop\.orders\.price", r"app\.orders\.price"):
        assert judged(target("copy", pattern), PLANS, FOUND)[0].severity == "error"


def test_many_columns_have_a_line_each() -> None:
    many = [about_values(ORDERS, f"c{n}", "double -> float", Loss("digits")) for n in range(30)]
    assert [line_of(one) for one in judged(target(), PLANS, many)] == [
        accepting_line([rf"shop\.orders\.c{n}"]) for n in range(30)
    ]


def test_what_the_mapping_loses_counts_at_every_kind_of_target() -> None:
    column = PlannedColumn("at", "datetime", wanted="timestamp", loses=Loss("the first is taken"))
    plan = PlannedTable(ORDERS, ORDERS, (column, PlannedColumn("id", "int", 1)))
    [found] = judged(target(), [plan], [])
    assert (found.column, found.severity) == ("at", "error")
    assert [one.severity for one in judged(target("copy", r".*\.at"), [plan], [])] == ["warning"]


def test_the_snapshot_has_the_key_itself() -> None:
    given: dict[str, Any] = {
        "pipeline": "one", "source": {"connection": "s"},
        "targets": [{"name": "copy", "type": "memory", "connection": "t"}],
        "snapshot": {"uri": "/lake", "accept_loss": [r"shop\.orders\.price"]},
    }  # fmt: skip
    config = PipelineConfig.model_validate(given).target("snapshot")
    price, _, odd = judged(config, PLANS, FOUND)
    assert (price.severity, odd.severity) == ("warning", "error")
    assert len(yaml.safe_load(line_of(odd))["accept_loss"]) == 2


def test_losses_stay_losses_when_they_are_joined() -> None:
    assert isinstance(together("", "x is refused", ROUNDED), Loss)
    assert not isinstance(together("x is refused", ""), Loss)
    assert together("a", Loss("b"), "") == "a; b"


def of_mysql(declared: str, held: str) -> str:
    return loss(SqlType.parse(declared), SqlType.parse(held))


def into_mysql(made: ColumnType, held: str) -> str:
    return lost_by_mysql(PlannedColumn("c", type=made), ColumnInfo("c", False, False, held), made)


DOUBLE, TEXT, CHAR = ColumnType(K.DOUBLE), ColumnType(K.TEXT), ColumnType(K.CHAR, length=4)
JSON, TYPED = ColumnType(K.JSON, native="json"), ColumnType(K.JSON, native="jsonb")
MICROS = ColumnType(K.DATETIME, digits=6)
CHANGES = {
    "fractions": of_mysql("decimal(12,4)", "decimal(14,2)"), "float": of_mysql("double", "float"),
    "digits of integers": of_mysql("bigint", "double"), "digits of decimals": of_mysql("decimal(20,2)", "double"),
    "seconds": of_mysql("datetime(6)", "datetime"), "time of day": of_mysql("datetime", "date"),
    "date": of_mysql("time", "datetime"), "zero bytes": of_mysql("varbinary(4)", "binary(4)"),
    "jsonb to MySQL": into_mysql(TYPED, "json"), "blanks": lost_by_postgresql(TEXT, pg_type("character(4)")),
    "Oracle's blanks": lost_by_oracle(TEXT, oracle_type("CHAR(4)")),
    "ClickHouse's JSON": lost_by_clickhouse(ColumnType(K.JSON), held_type("JSON")),
    "doubles": loses(ColumnType(K.DECIMAL, 20, 4), Form.DOUBLE), "milliseconds": loses(MICROS, Form.DATE),
    "text of JSON": loses(JSON, Form.DOCUMENT),
}  # fmt: skip
KEEPS = {
    "refused": of_mysql("bigint", "int"), "longer": of_mysql("varchar(40)", "varchar(39)"),
    "text": of_mysql("int", "varchar(10)"), "UTC": of_mysql("datetime", "timestamp"),
    "infinity": into_mysql(ColumnType(K.DOUBLE, native="double precision"), "double"),
    "digits are refused": lost_by_postgresql(ColumnType(K.DECIMAL, 12, 4), pg_type("numeric(10,2)")),
    "NUL": lost_by_postgresql(TEXT, pg_type("text")), "CHAR": lost_by_postgresql(CHAR, pg_type("character(4)")),
    "zero dates": lost_by_postgresql(MICROS, pg_type("timestamp without time zone")),
    "labels": lost_by_postgresql(ColumnType(K.ENUM, labels=("a",)), pg_type("text")),
    "empty": lost_by_oracle(ColumnType(K.VARCHAR, length=4), oracle_type("VARCHAR2(4 CHAR)")),
    "ClickHouse's text": lost_by_clickhouse(ColumnType(K.JSON), held_type("String")),
    "documents": loses(ColumnType(K.JSON), Form.DOCUMENT), "jsonb documents": loses(TYPED, Form.DOCUMENT),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_value_is_a_loss(name: str) -> None:
    assert isinstance(CHANGES[name], Loss), CHANGES[name]


@pytest.mark.parametrize("name", KEEPS)
def test_a_refused_value_or_another_form_is_none(name: str) -> None:
    assert KEEPS[name]
    assert not isinstance(KEEPS[name], Loss), KEEPS[name]


TIMED = {K.DATETIME, K.TIMESTAMP, K.TIME}
MADE = [
    ColumnType(kind, precision=20, scale=4, digits=6 if kind in TIMED else 0, length=8, labels=("a", "b")) for kind in K
]


@pytest.mark.parametrize("made", MADE, ids=str)
def test_what_sluice_makes_for_mysql_needs_no_word(made: ColumnType) -> None:
    """The types that are proposed for a source's own lose no value: `make demo` with any target needs no line."""
    said = {
        "postgresql": lost_by_postgresql(made, pg_type(postgresql_type(made))),
        "oracle": lost_by_oracle(made, oracle_type(oracle_own(made))),
        "clickhouse": lost_by_clickhouse(made, held_type(clickhouse_own(made))),
        "mongodb": loses(made, form_of(made, {}, "")),
        "lake": lost_by_lake(made, lake_own(made)),
    }
    assert {name: words for name, words in said.items() if isinstance(words, Loss)} == {}
