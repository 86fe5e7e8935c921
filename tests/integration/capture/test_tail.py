"""`sluice tail` in each format: every value of every document is what the server's own SELECT says, whatever the row
image.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import random
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from devstack.mariadb import MariaDBServer
from sluice.flows.capture.drain import drain
from sluice.model.batches import BatchNumber
from sluice.model.temporal import time_text
from sluice.operations.stored import tail
from tests.support.capture.capturing import _HEX, printed, server_text
from tests.support.pipelines.case import case
from tests.support.values.random_values import MODE, create, groups, insert, types_of

ROWS = 10
IMAGES = ("FULL", "MINIMAL", "NOBLOB")
FORMATS = ("debezium-json", "maxwell-json", "canal-json", "cloudevents-json")
SPATIAL = {"geometry", "point"}


def word(sql_type: str) -> str:
    return sql_type.split("(")[0].split()[0].lower()


def digits(sql_type: str) -> int:
    return int(sql_type.partition("(")[2].partition(")")[0] or 0)


def expressions(column: str, sql_type: str) -> list[str]:
    """What is asked of the server about a column: its text, its number (ENUM, SET), its text as geometry."""
    kind = word(sql_type)
    number = f"CAST(CAST(`{column}` AS UNSIGNED) AS CHAR)" if kind in {"enum", "set"} else "NULL"
    return [printed(column, sql_type), number, f"ST_AsText({{0}}(`{column}`))" if kind in SPATIAL else "NULL"]


def answers(
    server: Any, cursor: Any, table: str, columns: list[str], types: dict[str, Any]
) -> dict[int, dict[str, list[str | None]]]:
    """Row by row and column by column what the server says."""
    plain = "" if isinstance(server, MariaDBServer) else "SPATIAL"
    listing = []
    for column in columns:
        for expression in expressions(column, types[column][0]):
            # x and y as they are stored, not latitude first
            shown = expression.replace("{0}(", "ST_SRID(" if plain else "(").replace(
                "`))", "`, 0))" if plain else "`))"
            )
            listing.append(shown)
    cursor.execute(f"SELECT id, {', '.join(listing)} FROM {table}")
    found = {}
    for row in cursor.fetchall():
        texts = [server_text(value, types[columns[i // 3]][0]) for i, value in enumerate(row[1:])]
        found[row[0]] = {column: texts[3 * i : 3 * i + 3] for i, column in enumerate(columns)}
    return found


def moment(micros: int, fsp: int) -> str:
    when = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=micros)
    text = f"{when.year:04d}-{when:%m-%d %H:%M:%S}"
    return text + (f".{when.microsecond:06d}"[: fsp + 1] if fsp else "")


def real(text: str | None) -> bool:
    """False for a date that no calendar has: Debezium's connector has no value for it."""
    try:
        dt.date.fromisoformat((text or "")[:10])
    except ValueError:
        return False
    return True


def of_debezium(value: Any, sql_type: str, said: list[str | None], json_type: bool) -> bool:
    kind, wanted = word(sql_type), said[0]
    if kind in {"date", "datetime", "timestamp"} and not real(wanted):
        return value is None
    if value is None or wanted is None:
        return value is wanted
    if kind == "date":
        day = dt.date.fromordinal(dt.date(1970, 1, 1).toordinal() + value)
        return wanted == f"{day.year:04d}-{day:%m-%d}"
    if kind == "datetime":
        return wanted == moment(value if digits(sql_type) > 3 else value * 1000, digits(sql_type))
    if kind == "timestamp":
        return bool(value.endswith("Z")) and wanted == value[:-1].replace("T", " ")
    if kind == "time":
        return wanted == time_text(value, digits(sql_type))
    if kind == "decimal":
        scale = int(re.findall(r"\d+", sql_type)[1])
        number = int.from_bytes(base64.b64decode(value), "big", signed=True)
        text = f"{abs(number):0{scale + 1}d}"
        text = ("-" if number < 0 else "") + (f"{text[:-scale]}.{text[-scale:]}" if scale else text)
        return wanted == text
    if kind == "bit":
        if digits(sql_type) == 1:
            return wanted == str(int(value)) and isinstance(value, bool)
        data = base64.b64decode(value)
        return wanted == str(int.from_bytes(data, "little")) and len(data) == (digits(sql_type) + 7) // 8
    if kind == "vector":
        return wanted == struct.pack(f"<{len(value)}f", *value).hex().upper()
    if kind in SPATIAL:
        stored = (value["srid"] or 0).to_bytes(4, "little") + base64.b64decode(value["wkb"])
        point = kind != "point" or (value["x"], value["y"]) == struct.unpack_from("<dd", stored, 9)
        return wanted == stored.hex().upper() and point
    return of_common(value, sql_type, said)


def of_maxwell(value: Any, sql_type: str, said: list[str | None], json_type: bool) -> bool:
    kind, wanted = word(sql_type), said[0]
    if json_type and wanted is not None:  # the JSON itself: its null looks like NULL
        return bool(value == json.loads(wanted, parse_float=Decimal))
    if value is None or wanted is None:
        return value is wanted
    if kind == "decimal":
        return isinstance(value, Decimal | int) and wanted == (str(value) if isinstance(value, int) else f"{value:f}")
    if kind == "bit":
        return wanted == str(value)
    if kind == "set":
        return wanted == ",".join(value)
    if kind in SPATIAL:
        squeezed = [re.sub(r"(?<=[,A-Z]) ", "", text) for text in (value, said[2])]
        return squeezed[0] == squeezed[1]
    return of_common(value, sql_type, said)


def of_canal(value: Any, sql_type: str, said: list[str | None], json_type: bool) -> bool:
    kind, wanted = word(sql_type), said[0]
    if value is None or wanted is None:
        return value is wanted
    assert isinstance(value, str)
    if kind in {"enum", "set"}:
        return said[1] == value
    if kind in _HEX:
        return wanted == value.encode("latin-1").hex().upper()
    if kind in {"float", "double"}:
        return of_common(float(value), sql_type, said)
    return wanted == value


def of_common(value: Any, sql_type: str, said: list[str | None]) -> bool:
    """Numbers, text, base64."""
    kind, wanted = word(sql_type), said[0]
    if kind == "year":
        return wanted == f"{value:04d}"
    if kind == "float":
        return wanted == repr(float(np.float32(float(value))))
    if kind == "double":
        return wanted == repr(float(value))
    if kind in _HEX:
        return wanted == base64.b64decode(value).hex().upper()
    return wanted == str(value)


READ: dict[str, Callable[[Any, str, list[str | None], bool], bool]] = {
    "debezium-json": of_debezium,
    "maxwell-json": of_maxwell,
    "canal-json": of_canal,
    "cloudevents-json": of_debezium,
}


def images(name: str, document: dict[str, Any]) -> tuple[str, str, dict[str, Any] | None, dict[str, Any] | None]:
    """(table, kind, before, after) of a document; ``before`` only of columns that changed where the format has no
    more.
    """
    if name == "debezium-json":
        return document["source"]["table"], document["op"], document["before"], document["after"]
    if name == "cloudevents-json":
        return (
            document["iodebeziumtable"],
            document["iodebeziumop"],
            document["data"]["before"],
            document["data"]["after"],
        )
    if name == "maxwell-json":
        kind = {"insert": "c", "update": "u", "delete": "d"}[document["type"]]
        data = document["data"]
        return (
            document["table"],
            kind,
            document.get("old") if kind == "u" else data if kind == "d" else None,
            None if kind == "d" else data,
        )
    kind = {"INSERT": "c", "UPDATE": "u", "DELETE": "d"}[document["type"]]
    (data,) = document["data"]
    old = (document["old"] or [{}])[0]
    return document["table"], kind, old if kind == "u" else data if kind == "d" else None, None if kind == "d" else data


@pytest.fixture(params=["mysql_source", "mariadb"])
def piped(request, tmp_path, mysql_target, zookeeper, fresh_schema):
    source = request.getfixturevalue(request.param)
    schema = fresh_schema(source, mysql_target, options="CHARACTER SET utf8mb4")
    with case(tmp_path, source, mysql_target, zookeeper, schema) as made:
        yield made


def printed_lines(made, name: str) -> list[str]:
    return list(tail(made.runtime(), fmt=name, from_batch=1, follow=False))


def parsed(lines: list[str]) -> list[dict[str, Any]]:
    documents = [json.loads(line, parse_float=Decimal) for line in lines]
    return [d for d in documents if ("ddl" not in d and "sql" not in d) or d.get("isDdl") is False]


def test_every_value_is_what_the_server_says(piped) -> None:
    source, types = piped.source, types_of(piped.source)
    dice = random.Random(5)
    said: dict[str, list[dict[int, dict[str, list[str | None]]]]] = {}
    changes: dict[tuple[str, int], str] = {}
    tables = {f"t{i}_{image.lower()}": (names, image) for image in IMAGES for i, names in enumerate(groups(types, 24))}
    with source.connect(piped.schema) as connection, connection.cursor() as cursor:
        cursor.execute(MODE)
        for table, (columns, _) in tables.items():
            cursor.execute(create(table, columns, types))
        drain(piped.runtime(), claim="test:begin:1", idle_wait_s=0)  # the pipeline begins here
        for table, (columns, image) in tables.items():
            cursor.execute(f"SET SESSION binlog_row_image = '{image}'")
            cursor.execute(insert(table, range(ROWS), columns, types, dice))
            said[table] = [answers(source, cursor, table, columns, types)]
            for i in range(0, ROWS, 2):
                column = dice.choice(columns)
                changes[table, i] = column
                cursor.execute(f"UPDATE {table} SET `{column}` = {types[column][1](dice)} WHERE id = {i}")
            said[table].append(answers(source, cursor, table, columns, types))
            cursor.execute(f"DELETE FROM {table}")
    assert drain(piped.runtime(), claim="test:all:1", idle_wait_s=60) is not None
    wrong: list[str] = []
    for name, agrees in READ.items():
        lines = printed_lines(piped, name)
        documents = parsed(lines)
        counts = dict.fromkeys("cud", 0)
        for document in documents:
            table, kind, before, after = images(name, document)
            if table not in tables:
                continue
            counts[kind] += 1
            columns, image = tables[table]
            row = int(((before if kind == "d" else after) or {})["id"])  # every row image carries the key
            first, last = (said[table][i][row] for i in (0, 1))
            for shown, truth in ((before, last if kind == "d" else first), (after, last if kind == "u" else first)):
                if shown is None:
                    continue
                for column in columns:
                    if column not in shown:
                        assert (image, kind) != ("FULL", "u") or shown is before, (name, table, column)
                        assert kind != "c", f"{name}: an insert without {column}"
                        continue
                    sql_type = types[column][0].removesuffix(" null")
                    json_type = word(sql_type) == "json" and not isinstance(source, MariaDBServer)
                    if not agrees(shown[column], sql_type, truth[column], json_type):
                        wrong.append(f"{name} {table}.{column} {sql_type} {kind}: {shown[column]!r}, {truth[column]!r}")
        assert counts["c"] == counts["d"] == ROWS * len(tables)
        assert counts["u"] > 0
    assert not wrong, f"{len(wrong)} values, e.g.\n" + "\n".join(wrong[:: max(len(wrong) // 15, 1)])


def test_statements_stand_at_their_place_in_the_log(piped) -> None:
    """As whole documents of the real log: a CREATE, an ALTER between changes, a key change, and a DROP at the end."""
    source, schema = piped.source, piped.schema
    drain(piped.runtime(), claim="test:begin:1", idle_wait_s=0)
    steps = (
        "CREATE TABLE s (id INT PRIMARY KEY)",
        "INSERT INTO s VALUES (1)",
        "ALTER TABLE s ADD COLUMN v DECIMAL(40,2) DEFAULT 1.5",
        "UPDATE s SET id = 2, v = 2.25",
        "DROP TABLE s",
    )
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in FORMATS}
    first = 1
    for number, step in enumerate(steps):
        source.execute(step, database=schema)
        outcome = drain(piped.runtime(), claim=f"test:{number}:1", idle_wait_s=30)
        assert outcome.batch is not None
        for name in FORMATS:
            lines = tail(piped.runtime(), fmt=name, from_batch=outcome.batch, follow=False)
            found[name] += [json.loads(line, parse_float=Decimal) for line in lines]
        with piped.runtime().state() as state, state.consumer("copy"):  # as if delivered: the window stays open
            state.acks.begin("copy", BatchNumber(0), outcome.position)
            state.acks.acknowledge("copy", state.batches.require(outcome.batch))
        first = outcome.batch + 1
    assert first == len(steps) + 1
    debezium, maxwell, canal, _ = (found[name] for name in FORMATS)
    assert [d.get("op") or d["tableChanges"][0]["type"] for d in debezium] == ["CREATE", "c", "ALTER", "d", "c", "DROP"]
    assert {d["source"]["name"] for d in debezium} == {"case"}
    assert [c["name"] for c in debezium[2]["tableChanges"][0]["table"]["columns"]] == ["id", "v"]
    assert debezium[3]["before"] == {"id": 1, "v": "AJY="}
    assert (debezium[4]["after"], debezium[4]["before"]) == ({"id": 2, "v": "AOE="}, None)
    kinds = ["table-create", "insert", "table-alter", "update", "table-drop"]
    assert [d["type"] for d in maxwell] == kinds
    assert [c["name"] for c in maxwell[2]["old"]["columns"]] == ["id"]
    assert maxwell[2]["def"]["columns"][1] == {"type": "decimal", "name": "v"}
    assert (maxwell[3]["data"], maxwell[3]["old"]) == ({"id": 2, "v": Decimal("2.25")}, {"id": 1, "v": Decimal("1.50")})
    assert [(d["type"], d["isDdl"]) for d in canal] == [
        ("CREATE", True), ("INSERT", False), ("ALTER", True), ("UPDATE", False), ("ERASE", True),
    ]  # fmt: skip
    assert canal[2]["sql"] == steps[2]
    assert canal[3]["old"] == [{"id": "1", "v": "1.50"}]
