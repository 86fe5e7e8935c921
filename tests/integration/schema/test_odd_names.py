"""Columns and tables whose names mean something to a library or a tool on the way."""

from __future__ import annotations

import json
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pymysql
import pytest

from sluice.config.connections import Endpoint
from sluice.errors import PreflightError
from tests.support.pipelines.case import case

NAMES = [".id", "[0]", "a.b", "a", "_op", "$x", "_before", "['q']", "..", "a`b", "a b", "\\x", "*"]


@pytest.mark.parametrize("extra", ["rows", "changed_columns"])
def test_a_column_of_any_name_in_and_beside_the_key(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, extra: str
) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    q = ["`" + name.replace("`", "``") + "`" for name in NAMES]
    definitions = ", ".join(f"{name} VARCHAR(20) NOT NULL" for name in q)
    tables = {"keyed": ", ".join(q), "first": q[0], "second": q[1], "third": q[2], "heap": ""}
    lines = [
        f"  - {{from: {schema}.{table}, to: {schema}.{table}, send: {extra}, columns: {{rename: {{'.id': '.id'}}}}}}"
        for table in tables
        if table != "heap"
    ]
    with case(
        tmp_path, mysql_source, mysql_target, zookeeper, schema, start="dump", extra="mapping:\n" + "\n".join(lines)
    ) as made:
        for table, key in tables.items():
            sql = f"CREATE TABLE `{schema}`.{table} ({definitions}{f', PRIMARY KEY ({key})' if key else ''})"
            mysql_source.execute(sql)
            mysql_target.execute(sql)
            if key:
                values = ", ".join(f"'v{n}'" for n in range(len(q)))
                mysql_source.execute(f"INSERT INTO `{schema}`.{table} VALUES ({values})")
        made.run_until_head()
        made.assert_equal()
        for table in tables:
            rows = ", ".join("(" + ", ".join(f"'{chr(97 + n)}{i}'" for n in range(len(q))) + ")" for i in range(6))
            mysql_source.execute(
                f"INSERT INTO `{schema}`.{table} VALUES {rows}",
                *(
                    f"UPDATE `{schema}`.{table} SET {name} = CONCAT({name}, 'z') WHERE {q[0]} LIKE 'a{i}%'"
                    for i, name in enumerate(q[:5])
                ),
                f"DELETE FROM `{schema}`.{table} WHERE {q[0]} LIKE 'a5%'",
            )
        made.run_until_head()
        made.assert_equal()


def test_tables_named_as_those_of_an_online_schema_change(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    tables = ("_x_old", "_log_new", "_orders_del", "_a_gho", "plain")
    sql = [f"CREATE TABLE `{schema}`.{table} (id INT PRIMARY KEY)" for table in tables]
    mysql_source.execute(*sql)
    mysql_target.execute(*sql)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        said = json.loads(made.cli("check", str(made.path), "--json").stdout)
        [warned] = [f for f in said["findings"] if f["setting"] == "capture.shadow_tables"]
        assert all(f"{schema}.{table}" in warned["value"] for table in tables[:4])
        assert "plain" not in warned["value"]
        made.path.write_text(made.yaml.replace("capture:\n", "capture:\n  shadow_tables: capture\n"))
        assert "capture.shadow_tables" not in made.cli("check", str(made.path), "--json").stdout
        made.run_until_head()
        mysql_source.execute(*(f"INSERT INTO `{schema}`.{table} VALUES (1)" for table in tables))
        made.run_until_head()
        made.assert_equal()


def test_a_server_that_asks_for_a_file_gets_an_error_of_ours() -> None:
    from sluice.sources.mysql.server.connection import open_connection, rows_of

    def packet(number: int, body: bytes) -> bytes:
        return struct.pack("<I", len(body))[:3] + bytes([number]) + body

    def answer(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer:
            hello = b"\x0a8.0.0\x00" + struct.pack("<I", 1) + b"a" * 8 + b"\x00" + struct.pack("<H", 0xF7FF & ~0x800)
            hello += (
                bytes([33])
                + struct.pack("<H", 2)
                + struct.pack("<H", 0x0088)
                + bytes([21])
                + b"\x00" * 10
                + b"b" * 12
                + b"\x00"
            )
            peer.sendall(packet(0, hello + b"mysql_native_password\x00"))
            peer.recv(65536)
            peer.sendall(packet(2, b"\x00\x00\x00\x02\x00\x00\x00"))
            while peer.recv(65536):
                peer.sendall(packet(1, b"\xfb/etc/passwd"))

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        endpoint = Endpoint(
            "rogue", "mysql", "127.0.0.1", server.getsockname()[1], "u", "p", extra={"ssl_mode": "disabled"}
        )
        with pytest.raises(PreflightError, match="asked for a file") as caught, open_connection(endpoint) as connection:
            rows_of(connection, "SELECT 1")
        assert not isinstance(caught.value.__cause__, RuntimeError)
        assert isinstance(caught.value.__cause__, pymysql.err.MySQLError)
