"""Defaults of columns of bytes: information_schema of MySQL prints them up to their first zero."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.config.connections import parse_connection
from sluice.model.tables import TableId
from sluice.mysql.column_defaults import default_value
from sluice.sources.mysql.catalog.information_schema import read_state
from sluice.sources.mysql.server.connection import open_connection, server_info

DEFAULTS = {
    "VARBINARY(4)": ("0x00FF", "0x4100FF", "0x00", "''", "0xFF3F", "'ab'", "0x41004200"),
    "BINARY(4)": ("0x00FF", "0x41004200", "0xFF", "0x00", "''", "'a'", "0x00000041"),
    "VARBINARY(9)": ("'0x00'", "'it''s'", "_binary'a\\0b'", "0x0A00275C", "b'100000000'"),
}


@pytest.mark.parametrize("mode", ["", "NO_BACKSLASH_ESCAPES,ANSI_QUOTES"])
def test_bytes_after_a_zero_are_part_of_the_default(mode: str, mysql_source: Any, fresh_schema: Any) -> None:
    schema = fresh_schema(mysql_source)
    wanted = [(kind, text) for kind, texts in DEFAULTS.items() for text in texts if not (mode and "\\" in text)]
    columns = ", ".join(f"c{number} {kind} DEFAULT {text}" for number, (kind, text) in enumerate(wanted))
    mysql_source.execute(
        f"SET sql_mode = '{mode}'",
        f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, {columns})",
        f"INSERT INTO `{schema}`.t (id) VALUES (1)",
    )
    names = ", ".join(f"HEX(c{number})" for number in range(len(wanted)))
    stored = mysql_source.execute(f"SELECT {names} FROM `{schema}`.t")[0]
    with open_connection(parse_connection("s", mysql_source.connection_json())) as connection:
        found = read_state(connection, server_info(connection)).tables[TableId(schema, "t")]
    for column, (kind, text), there in zip(found.columns[1:], wanted, stored, strict=True):
        value = default_value(column).value
        assert value is not None, (kind, text, column.default)
        assert value.as_py().hex().upper() == there, (kind, text, column.default)
