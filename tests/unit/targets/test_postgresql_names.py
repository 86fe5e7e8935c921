"""What a PostgreSQL target calls things: names folded as the server folds them, collations of the source in ICU's
words.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError, MappingError
from sluice.mapping import Mapping as Routes
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.dialects import MYSQL
from sluice.model.offset import Offset
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.tables import TableId
from sluice.targets.port import BatchInput, NoFacts, SchemaChange, SourceStatement
from sluice.targets.postgresql.collations import Collations, clause, locale_of
from sluice.targets.postgresql.target import PostgreSQLTarget
from sluice.targets.sql.name_clashes import refuse_clashes
from sluice.targets.sql.names import Naming, Route

NOWHERE = Offset.at("u", "binlog.000001", 4)
READS_NOTHING: Any = None


@dataclass
class Known(NoFacts):
    """Tables that the source has."""

    tables: Mapping[TableId, TableId]

    def captured_tables(self) -> Mapping[TableId, TableId]:
        return self.tables


def plan(table: str) -> PlannedTable:
    return PlannedTable(TableId("Shop", table), TableId("Shop", table), (PlannedColumn("OrderÄId", key=1),))


def test_names_are_folded_as_the_server_does() -> None:
    """Of letters beyond ASCII it leaves the case, as in UTF-8 the server does."""
    folded = Naming(True).plan(plan("Orders"))
    assert (folded.target, folded.source, folded.key) == (
        TableId("shop", "orders"),
        TableId("Shop", "Orders"),
        ("orderÄid",),
    )
    assert Naming(False).plan(plan("Orders")) == plan("Orders")


def test_columns_that_would_become_one_are_refused() -> None:
    """A source has none; mapping and rules can make them."""
    columns = (PlannedColumn("Id", key=1), PlannedColumn("Total"), PlannedColumn("total"))
    made = PlannedTable(TableId("Shop", "Orders"), TableId("Shop", "Orders"), columns)
    assert Naming(False).plan(made) == made
    with pytest.raises(
        MappingError, match=r"the columns 'Total' and 'total' of Shop\.Orders are one column at the target"
    ):
        Naming(True).plan(made)


def routes(*names: str) -> list[Route]:
    return [Route(TableId("Shop", name), TableId("Shop", name)) for name in names]


def test_tables_that_would_become_one_are_refused() -> None:
    """Several sources of one target table are none; and whether others clash that nothing is written to is not
    asked.
    """
    naming = Naming(True)
    naming.refuse_clash(routes("Orders", "Orders", "other"), routes("Orders", "third"), "p")
    naming.refuse_clash(routes("other"), routes("Orders", "ORDERS"), "p")
    naming.refuse_clash(routes("Orders"), [Route(TableId("Blog", "x"), TableId("Shop", "Orders"))], "p")
    Naming(False).refuse_clash(routes("Orders", "ORDERS"), (), "p")
    for written, known in (
        (("Orders", "ORDERS"), ()),
        (("ORDERS",), ("other", "Orders")),
        (("Orders",), ("Orders", "ORDERS")),
    ):
        with pytest.raises(
            MappingError, match=r"Shop\.ORDERS and Shop\.Orders are one table at the target, shop\.orders"
        ) as found:
            naming.refuse_clash(routes(*written), routes(*known), "p")
        assert "sluice rollback p" in str(found.value.hint)


def created(name: str) -> TableChange:
    return TableChange(TableId("Shop", name), (ChangeKind.CREATE_TABLE,))


def dropped(name: str) -> TableChange:
    return TableChange(TableId("Shop", name), (ChangeKind.DROP_TABLE,))


def renamed(name: str, to: str) -> TableChange:
    return TableChange(TableId("Shop", name), (ChangeKind.RENAME_TABLE,), renamed_to=TableId("Shop", to))


@pytest.mark.parametrize(
    ("known", "changes", "refused"),
    [
        (("Orders",), [[created("ORDERS")]], True),
        (("Orders",), [[created("Other")]], False),
        (("Orders",), [[dropped("Orders")], [created("ORDERS")]], False),
        (("Orders",), [[renamed("Orders", "ORDERS")]], False),
        (("Orders", "Other"), [[renamed("Other", "ORDERS")]], True),
        (("Orders", "New"), [[renamed("Orders", "Old"), renamed("New", "ORDERS")]], False),
        (("Orders", "ORDERS"), [[dropped("ORDERS")]], True),
        (("Orders",), [[renamed("Orders", "_ghost"), renamed("_new", "Orders")]], False),
    ],
)
def test_statements_that_make_two_tables_one(
    known: tuple[str, ...], changes: list[list[TableChange]], refused: bool
) -> None:
    """Tables that the source had before the batch, carried forward by its statements in their order."""
    batch = BatchInput(
        7,
        NOWHERE,
        6,
        READS_NOTHING,
        schema_changes=tuple(
            SchemaChange(
                number,
                "f:1",
                SourceStatement(MYSQL, "…"),
                tuple(tables),
                Routes.compile(()),
                not_captured=frozenset({TableId("Shop", "_ghost"), TableId("Shop", "_new")}),
            )
            for number, tables in enumerate(changes)
        ),
        facts=Known(dict(routes(*known))),
    )
    with pytest.raises(MappingError, match="are one table at the target") if refused else nullcontext():
        refuse_clashes(Naming(True), batch, "p")


@pytest.mark.parametrize(
    ("collation", "locale"),
    [
        ("utf8mb4_0900_ai_ci", "und-u-ks-level1"),
        ("utf8mb4_0900_as_ci", "und-u-ks-level2"),
        ("utf8mb4_0900_as_cs", "und-u-ks-level3"),
        ("utf8mb4_general_ci", "und-u-ks-level1"),
        ("utf8mb3_unicode_520_ci", "und-u-ks-level1"),
        ("utf8mb4_uca1400_nopad_as_ci", "und-u-ks-level2"),
        ("utf8mb4_uca1400_swedish_ai_ci", "sv-u-ks-level1"),
        ("latin1_swedish_ci", "sv-u-ks-level1"),
        ("latin1_general_ci", "und-u-ks-level2"),
        ("latin1_general_cs", "und-u-ks-level3"),
        ("utf8mb4_de_pb_0900_as_cs", "de-u-co-phonebk-ks-level3"),
        ("utf8mb4_es_trad_0900_ai_ci", "es-u-co-trad-ks-level1"),
        ("utf8mb4_0900_bin", ""),
        ("utf8mb4_bin", ""),
        ("binary", ""),
        ("sjis_japanese_ci", ""),
        ("utf8mb4_ja_0900_as_cs_ks", ""),
        ("utf8mb4_uca1400_ai_cs", ""),
        ("", ""),
    ],
)
def test_collations_have_a_locale_of_icu(collation: str, locale: str) -> None:
    assert locale_of(collation) == locale


def test_which_columns_get_one() -> None:
    """Texts of the tables that are named, but not keys; what has no counterpart is said."""
    text = ColumnType(ColumnKind.VARCHAR, length=9, collation="utf8mb4_0900_ai_ci")
    named = Collations("acks", frozenset({"shop.one", "blog.*"}))
    wanted = ' COLLATE "acks"."utf8mb4_0900_ai_ci"'
    assert clause(named.of(TableId("shop", "one"), text, key=False)) == wanted
    assert clause(named.of(TableId("blog", "any"), text, key=False)) == wanted
    assert clause(None) == ""
    for table, kind, key in (("two", text, False), ("one", text, True), ("one", ColumnType(ColumnKind.INT), False)):
        assert named.of(TableId("shop", table), kind, key=key) is None
    odd = ColumnType(ColumnKind.VARCHAR, length=9, collation="sjis_japanese_ci")
    assert "no counterpart of sjis_japanese_ci" in named.lost(TableId("shop", "one"), odd, key=False)
    exact = ColumnType(ColumnKind.VARCHAR, length=9, collation="utf8mb4_bin")
    assert not named.lost(TableId("shop", "one"), exact, key=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"identifiers": "folded", "foreign_keys": "ordered"}, "not offered with identifiers: folded"),
        ({"identifiers": "lower"}, "identifiers"),
        ({"icu_collations": ["orders"]}, "icu_collations"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], said: str) -> None:
    config = TargetConfig.model_validate({"name": "t", "type": "postgresql", "connection": "c", "options": options})
    with pytest.raises(ConfigError, match=said):
        PostgreSQLTarget(config, Endpoint("c", "postgres", "localhost"), "p")
