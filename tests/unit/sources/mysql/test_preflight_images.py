"""What the pre-flight says of servers that log little: MySQL 5.7, bare metadata, partial row images.

No such server is needed for it.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest

from sluice.config.pipeline import PipelineConfig
from sluice.errors import DecodeError
from sluice.model.definitions import ColumnDefinition, IndexDefinition, TableDefinition
from sluice.model.dialects import MARIADB, MYSQL, Dialect
from sluice.model.tables import TableId
from sluice.sources.mysql.catalog.complete_table_map import complete
from sluice.sources.mysql.events.query_status import parse_status
from sluice.sources.mysql.events.table_map import parse_table_map
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.server.connection import ServerInfo
from sluice.sources.mysql.server.preflight import _log_settings, _row_image


def server(dialect: Dialect = MYSQL, version: tuple[int, ...] = (5, 7, 44), **variables: str) -> ServerInfo:
    settings = {
        "log_bin": "ON",
        "binlog_format": "ROW",
        "binlog_row_image": "FULL",
        "server_id": "1",
        "binlog_checksum": "CRC32",
    } | variables
    return ServerInfo(
        dialect=dialect,
        version=".".join(map(str, version)),
        numbers=version,
        server_uuid="uuid",
        server_id=1,
        head=Position("uuid", "binlog.000001", 4),
        binary_logs=(),
        variables=settings,
    )


def pipeline(**more: Any) -> PipelineConfig:
    return PipelineConfig.model_validate({
        "pipeline": "p",
        "source": {"connection": "c"},
        "targets": [{"name": "t", "type": "mysql", "connection": "c"}],
        **more,
    })


def test_mysql_57_is_taken() -> None:
    assert [f for f in _log_settings(server()) if f.severity == "error"] == []
    assert _row_image(server(), pipeline()) == []


@pytest.mark.parametrize("metadata", ["MINIMAL", "NO_LOG", "FULL"])
def test_any_metadata_is_taken(metadata: str) -> None:
    assert [
        f for f in _log_settings(server(version=(9, 7, 4), binlog_row_metadata=metadata)) if f.severity == "error"
    ] == []


def test_partial_images_are_taken_with_a_word_where_they_fall_short() -> None:
    assert _row_image(server(binlog_row_image="MINIMAL"), pipeline()) == []
    (rules,) = _row_image(server(binlog_row_image="NOBLOB"), pipeline(rules="engine.yaml"))
    assert (rules.severity, rules.setting) == ("warning", "binlog_row_image")
    (replace,) = _row_image(server(MARIADB, (10, 11, 5), binlog_row_image="MINIMAL"), pipeline())
    assert "REPLACE" in replace.why


# A table map as MySQL 5.7 writes it: INT, VARCHAR(40 bytes), ENUM of one byte, BIGINT, TEXT; no optional fields.
OLD = (
    (7).to_bytes(6, "little") + b"\1\0" + b"\1d\0" + b"\1t\0" + b"\5" + bytes([3, 15, 254, 8, 252]) + bytes([5, 40, 0,
        247, 1, 2]) + bytes([0b11110])
)  # fmt: skip
DEFINITION = TableDefinition(
    TableId("d", "t"),
    (
        ColumnDefinition("id", "int(10) unsigned", nullable=False),
        ColumnDefinition("v", "varchar(10)", charset="utf8mb4", collation="utf8mb4_bin"),
        ColumnDefinition("e", "enum('a','b')", charset="latin1", collation="latin1_swedish_ci", labels=("a", "b")),
        ColumnDefinition("n", "bigint(20)"),
        ColumnDefinition("x", "text", charset="utf8mb4", collation="utf8mb4_bin"),
    ),
    (IndexDefinition("PRIMARY", (("id", 0),), unique=True),),
)
IDS = {"utf8mb4_bin": 46, "latin1_swedish_ci": 8}


def test_a_bare_table_map_is_completed() -> None:
    found = complete(parse_table_map(OLD), DEFINITION, IDS)
    assert [c.name for c in found.columns] == ["id", "v", "e", "n", "x"]
    assert [c.unsigned for c in found.columns][0::3] == [True, False]
    assert [c.collation for c in found.columns] == [None, 46, 8, None, 46]
    assert found.columns[2].labels == ("a", "b")
    assert found.primary_key == (0,)


@pytest.mark.parametrize(
    ("column", "change", "said"),
    [
        (0, ColumnDefinition("id", "bigint(20)", nullable=False), "bigint"),
        (0, ColumnDefinition("id", "int(11)"), "not null"),
        (1, ColumnDefinition("v", "varchar(11)", charset="utf8mb4", collation="utf8mb4_bin"), "metadata 40"),
        (2, ColumnDefinition("e", "enum", labels=tuple(map(str, range(300)))), "metadata 1"),
        (4, ColumnDefinition("x", "mediumtext", charset="utf8mb4", collation="utf8mb4_bin"), "metadata 2"),
    ],
)
def test_a_history_that_contradicts_the_log_is_told(column: int, change: ColumnDefinition, said: str) -> None:
    from dataclasses import replace

    columns = list(DEFINITION.columns)
    columns[column] = change
    with pytest.raises(DecodeError, match=said):
        complete(parse_table_map(OLD), replace(DEFINITION, columns=tuple(columns)), IDS)
    with pytest.raises(DecodeError, match="5 columns"):
        complete(parse_table_map(OLD), replace(DEFINITION, columns=tuple(columns[:4])), IDS)


def test_what_a_session_says_of_itself() -> None:
    data = (
        b"\0"
        + bytes(4)
        + b"\1"
        + (4 | 1 << 20).to_bytes(8, "little")
        + b"\6\3std"
        + b"\x83\2"
        + struct.pack("<HHHH", 33, 2048, 45, 2304)
        + b"\4"
        + bytes([8, 0, 8, 0, 45, 0])
        + b"\x0c\1d\0"
        + b"\x10\0"
    )
    found = parse_status(data)
    assert (found.sql_mode, found.client_collation, found.server_collation) == (4 | 1 << 20, 8, 45)
    assert found.timestamps_explicit is False
    assert found.default_collations == ((33, 2048), (45, 2304))
    for cut in range(len(data)):
        parse_status(data[:cut])
