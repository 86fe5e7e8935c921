"""Literals that name their own charset in statements, from sessions of every kind of charset: the default and the old
rows are the source's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines.case import Case, case

SESSIONS = ("utf8mb4", "latin1", "cp1251", "sjis", "gbk", "big5")
WORD = "中é".encode()
COLUMNS = {
    "utf8": (b"VARCHAR(50) CHARACTER SET utf8mb4", b"_utf8mb4'" + WORD + b"'"),
    "apart": (b"VARCHAR(50) CHARACTER SET utf8mb4", b"_UTF8MB4  '" + WORD + b"'"),
    "national": (b"VARCHAR(50) CHARACTER SET utf8mb4", b"N'" + WORD + b"'"),
    "quotes": (b"VARCHAR(50) CHARACTER SET utf8mb4", b"_utf8mb4'it''s \\'" + WORD + b"\\\\\\n'"),
    "western": (b"VARCHAR(50) CHARACTER SET utf8mb4", b"_latin1'\xe9\xe8'"),
    "cyrillic": (b"VARCHAR(50) CHARACTER SET cp1251", b"_cp1251'\xcf\xf0\xe8'"),
    "japanese": (b"VARCHAR(50) CHARACTER SET utf8mb4", b"_sjis x'835C835C'"),
    "hexadecimal": (b"VARCHAR(50) CHARACTER SET utf8mb4", b"_latin1 x'e9'"),
    "wide": (b"VARCHAR(50) CHARACTER SET utf8mb4", b"_ucs2 x'4E2D'"),
    "bytes": (b"VARBINARY(50)", b"_binary'\xff\xfe\x80A'"),
    "padded": (b"BINARY(6)", b"_binary'\xc3\x28'"),
}


@pytest.fixture(params=["mysql", "mariadb"])
def made(request: Any, tmp_path: Path, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Any:
    source = request.getfixturevalue("mysql_source" if request.param == "mysql" else "mariadb")
    target = mysql_target if request.param == "mysql" else source
    schema = fresh_schema(source, options="CHARACTER SET utf8mb4")
    there = fresh_schema(target, options="CHARACTER SET utf8mb4")
    with case(tmp_path, source, target, zookeeper, schema) as built:
        path = f"\nmapping: [{{from: {schema}.*, to: {there}.*}}]\n"
        built.path.write_text(built.yaml + path)
        built.run_until_head()
        yield built, schema, there


def values(server: Any, schema: str, table: str) -> list[Any]:
    names = ", ".join(f"HEX({name}), HEX(CONVERT({name} USING utf8mb4))" for name in COLUMNS)
    return list(server.execute(f"SELECT id, {names} FROM `{schema}`.`{table}` ORDER BY id"))


def test_the_default_and_the_old_rows_are_the_sources(made: tuple[Case, str, str]) -> None:
    one, schema, there = made
    with one.source.connect(schema) as connection, connection.cursor() as cursor:
        for name in SESSIONS:
            cursor.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY)")
            cursor.execute(f"INSERT INTO {name} VALUES (1)")
    one.run_until_head()
    for name in SESSIONS:
        with one.source.connect(schema, charset=name) as connection:
            added = [b"ADD %s %s DEFAULT %s" % (column.encode(), *words) for column, words in COLUMNS.items()]
            connection.query(b"ALTER TABLE %s %s" % (name.encode(), b", ".join(added)))
            connection.query(f"INSERT INTO {name} (id) VALUES (2)")
    one.run_until_head()
    for name in SESSIONS:
        assert values(one.target, there, name) == values(one.source, schema, name), name
        one.target.execute(f"INSERT INTO `{there}`.{name} (id) VALUES (3)")
        one.source.execute(f"INSERT INTO `{schema}`.{name} (id) VALUES (3)")
        assert values(one.target, there, name) == values(one.source, schema, name), name
