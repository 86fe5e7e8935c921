"""The sample shop and its workload, on a real MySQL."""

from __future__ import annotations

from collections.abc import Callable

from devstack.demo import shop
from devstack.demo.workload import Workload, seed
from devstack.mysql import MySQLServer


def test_the_workload_changes_every_table_and_keeps_its_bounds(
    mysql_source: MySQLServer, fresh_schema: Callable[..., str]
) -> None:
    schema = fresh_schema(mysql_source, prefix="shop")
    shop.create_tables(mysql_source, schema)
    tally = seed(mysql_source.connect, schema, customers=50, products=30, orders=60)
    assert tally.lost_races == 0
    before = shop.checksums(mysql_source, schema)
    assert shop.counts(mysql_source, schema)["customers"] == 50
    done = Workload(mysql_source.connect, schema, connections=4, changes=3000, number=7).run()
    assert done.changes >= 3000
    assert min(done.inserts, done.updates, done.deletes) > 100
    assert done.lost_races < done.transactions
    after = shop.checksums(mysql_source, schema)
    assert all(before[table] != after[table] for table in shop.TABLES)


def test_the_log_holds_exactly_the_changes_that_were_counted(
    mysql_source: MySQLServer, fresh_schema: Callable[..., str]
) -> None:
    schema = fresh_schema(mysql_source, prefix="shop")
    shop.create_tables(mysql_source, schema)
    tally = seed(mysql_source.connect, schema, customers=20, products=20, orders=20)
    tally.add(Workload(mysql_source.connect, schema, connections=1, changes=500, number=3).run())
    counts = shop.counts(mysql_source, schema)
    assert sum(counts.values()) == tally.inserts - tally.deletes


def test_the_same_seed_gives_the_same_shop(
    mysql_source: MySQLServer, mysql_target: MySQLServer, fresh_schema: Callable[..., str]
) -> None:
    schema = fresh_schema(mysql_source, mysql_target, prefix="shop")
    for server in (mysql_source, mysql_target):
        shop.create_tables(server, schema)
        seed(server.connect, schema, customers=20, products=20, orders=20)
    left, right = (shop.checksums(server, schema) for server in (mysql_source, mysql_target))
    same = ("products", "orders", "order_lines")  # customers.created_at is the server's clock
    assert {table: left[table] for table in same} == {table: right[table] for table in same}
