"""Primary keys that MySQL makes by itself, on a server that does not show them."""

from __future__ import annotations

from typing import Any

from tests.support.pipelines.case import case


def test_a_hidden_key_is_known(
    tmp_path: Any, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    setting = "show_gipk_in_create_table_and_information_schema"
    for server in (mysql_source, mysql_target):
        server.execute(f"SET GLOBAL {setting} = OFF")
    try:
        create = f"CREATE TABLE {schema}.t (v INT)"
        mysql_source.execute(
            "SET sql_generate_invisible_primary_key = ON", create, f"INSERT INTO {schema}.t VALUES (1)"
        )
        mysql_target.execute("SET sql_generate_invisible_primary_key = ON", create)
        with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, start="dump") as made:
            made.run_until_head()
            mysql_source.execute(
                f"USE {schema}",
                "INSERT INTO t VALUES (2), (2)",
                "UPDATE t SET v = 3 WHERE v = 1",
                "DELETE FROM t WHERE v = 2 LIMIT 1",
            )
            made.run_until_head()
            columns = f"SELECT my_row_id, v FROM {schema}.t ORDER BY my_row_id"
            assert mysql_target.execute(columns) == mysql_source.execute(columns)
            assert len(mysql_source.execute(columns)) == 2
    finally:
        for server in (mysql_source, mysql_target):
            server.execute(f"SET GLOBAL {setting} = ON")
