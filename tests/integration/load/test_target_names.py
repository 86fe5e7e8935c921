"""A target that folds the case of names (MariaDB: MySQL has to be initialised for it): a table is found under any
spelling.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from devstack.mariadb import MariaDBServer
from sluice.config.connections import parse_connection
from sluice.model.tables import TableId
from sluice.targets.mysql.compatibility import read_triggers
from sluice.targets.mysql.connection import connect
from sluice.targets.mysql.foreign_keys import read_references
from sluice.targets.mysql.tables import read_tables
from sluice.targets.sql.tables import Reference


@pytest.mark.parametrize("fold", [0, 1])
def test_what_is_asked_about_a_table_is_found_under_the_servers_spelling(tmp_path: Path, fold: int) -> None:
    customers, orders = TableId("Shop", "Customers"), TableId("Shop", "Orders")
    with MariaDBServer(tmp_path / "folding", server_id=901, options={"lower_case_table_names": fold}) as server:
        server.execute(
            "CREATE DATABASE Shop",
            "CREATE TABLE Shop.Customers (id INT PRIMARY KEY)",
            "CREATE TABLE Shop.Orders (id INT PRIMARY KEY, of_whom INT, FOREIGN KEY (of_whom) REFERENCES Customers "
            "(id))",
            "CREATE TRIGGER Shop.watch AFTER INSERT ON Shop.Orders FOR EACH ROW SET @seen = 1",
        )
        with (
            connect(parse_connection("folding", server.connection_json())) as connection,
            connection.cursor() as cursor,
        ):
            found = read_tables(cursor, [customers, orders])
            assert [column.name for column in found[orders].columns] == ["id", "of_whom"]
            assert found[orders].unique_keys == (("id",),)
            assert read_triggers(cursor, [customers, orders]) == {orders: ["watch"]}
            for asked in ([customers, orders], [customers], [orders]):
                [found_key] = read_references(cursor, asked)
                lower = [TableId("shop", "customers"), TableId("shop", "orders")]
                ends = [
                    mine if mine in asked or not fold else low
                    for mine, low in zip([customers, orders], lower, strict=True)
                ]
                assert found_key == Reference(
                    "orders_ibfk_1" if fold else "Orders_ibfk_1", ends[1], ("of_whom",), ends[0], ("id",)
                )
            lowered = TableId("shop", "orders")
            assert (lowered in read_tables(cursor, [lowered])) == bool(fold)
