"""JSON on a real server: the stored text is what its SELECT prints, for whole values and for partial updates."""

from __future__ import annotations

import json
import os
import random

import pytest

from sluice.errors import DecodeError
from tests.support.capture.capturing import draining

DOCUMENTS = max(int(os.environ.get("SLUICE_TEST_VALUES", "1000")) // 100, 1) * 100
_TEXTS = 'aZ é中😀"\\/\b\n\t\r\f\x01\x1f\x7f{}[]'
_INTEGERS = [
    0,
    -1,
    127,
    32767,
    -32768,
    32768,
    65535,
    65536,
    2**31 - 1,
    -(2**31),
    2**31,
    2**32,
    2**53,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
]
_DOUBLES = [
    0.0, -0.0, 0.5, -1.25, 1e15, 1e16, 123456789012345678.0, 1e20, 1e-4, 1e-14, 1e-15, 1.5e300, 5e-324,
    1.7976931348623157e308, 3.0, 0.1, 2.5e-7,
]  # fmt: skip
_CASTS = (
    "JSON_OBJECT('d', CAST(12.50 AS DECIMAL(10,3)), 'n', CAST(-0.001 AS DECIMAL(20,10)), 'w', CAST(REPEAT('9', 60) AS "
    "DECIMAL(65,5)))",
    "JSON_ARRAY(CAST('2024-05-06 01:02:03.5' AS DATETIME(6)), CAST('2024-05-06' AS DATE), CAST('-12:30:01.25' AS "
    "TIME(6)))",
    "JSON_ARRAY(CAST(x'0102ff' AS BINARY), b'101', ST_GeomFromText('POINT(1 2)'), CAST(2024 AS YEAR))",
    "JSON_ARRAY(CAST('1000-01-01 00:00:00' AS DATETIME), CAST('838:59:59' AS TIME), 1.25, CAST(1.5 AS FLOAT))",
    'CAST(\'{"big": [' + ",".join(["12345678901"] * 9000) + "]}' AS JSON)",
    "JSON_OBJECT('long', REPEAT('x', 70000), 'é', NULL)",
    "CAST('null' AS JSON)",
)  # fmt: skip


def document(r: random.Random, depth: int = 0):
    kind = r.randint(0, 9 if depth < 5 else 6)
    if kind == 0:
        return r.choice([None, True, False])
    if kind == 1:
        return r.choice([*_INTEGERS, r.randint(-(2**63), 2**64 - 1), r.randint(-1000, 1000)])
    if kind == 2:
        return r.choice([
            *_DOUBLES,
            r.random(),
            r.random() * 10 ** r.randint(-320, 308),
            round(r.uniform(-1e6, 1e6), r.randint(0, 6)),
        ])
    if kind <= 6:
        return "".join(r.choice(_TEXTS) for _ in range(r.choice([0, 1, 5, 130, 200])))
    if kind == 7:
        return [document(r, depth + 1) for _ in range(r.randint(0, 5))]
    return {
        r.choice(["a", "b", "cc", "k1", "a b", 'q"', "é", "😀", "$", "0"]) + r.choice(["", "1", "x"]): document(
            r, depth + 1
        )
        for _ in range(r.randint(0, 6))
    }


def literal(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def texts(stored, column: str, struct: str | None = None):
    values = stored.column(struct).combine_chunks().field(column) if struct else stored.column(column)
    return values.to_pylist()


def test_every_document_is_what_select_prints(mysql_source, tmp_path, fresh_schema):
    db = fresh_schema(mysql_source)
    r = random.Random(11)
    with (
        mysql_source.connect(db) as connection,
        connection.cursor() as cursor,
        draining(mysql_source, tmp_path, db) as drain,
    ):
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, j JSON)")
        drain.all()
        for first in range(0, DOCUMENTS, 100):
            values = [
                r.choice(_CASTS)
                if r.random() < 0.05
                else literal(json.dumps(document(r), ensure_ascii=r.random() < 0.5))
                for _ in range(100)
            ]
            values[0] = "NULL"
            cursor.execute("INSERT INTO t VALUES " + ",".join(f"({first + i}, {v})" for i, v in enumerate(values)))
        deep = "[" * 99 + "1" + "]" * 99
        cursor.execute(f"INSERT INTO t VALUES (-1, '{deep}'), (-2, '{{}}'), (-3, '[]'), (-4, '[{{}}, [], {{}}]')")
        cursor.execute("SELECT id, CAST(j AS CHAR) FROM t")
        wanted = dict(cursor.fetchall())
        stored = drain.table(drain.all(), "t")
    found = dict(zip(stored.column("id").to_pylist(), texts(stored, "j"), strict=True))
    assert len(found) == DOCUMENTS + 4
    wrong = [(i, found[i], wanted[i]) for i in wanted if found[i] != wanted[i]]
    assert not wrong, wrong[:3]


def paths_of(node, path="$"):
    yield path
    if isinstance(node, dict):
        for key, child in node.items():
            yield from paths_of(child, f"{path}.{json.dumps(key, ensure_ascii=False)}")
    elif isinstance(node, list):
        for i, child in enumerate(node):
            yield from paths_of(child, f"{path}[{i}]")


def change(r: random.Random, column: str, now) -> str:
    """An expression that the server may log as differences."""
    expression = f"`{column}`"
    for _ in range(r.randint(1, 3)):
        known = list(paths_of(now))
        path = r.choice(known)
        value = f"CAST({literal(json.dumps(document(r, 3), ensure_ascii=False))} AS JSON)"
        kind = r.randint(0, 3)
        if kind == 0 and path != "$":
            expression = f"JSON_REMOVE({expression}, {literal(path)})"
            break
        if kind == 1:
            path += r.choice([".new", "[99]", '."x y"', "[0]"])
        expression = f"{r.choice(['JSON_SET', 'JSON_REPLACE'])}({expression}, {literal(path)}, {value})"
    return expression


def test_partial_updates_are_what_select_prints(mysql_source, tmp_path, fresh_schema):
    db = fresh_schema(mysql_source)
    r = random.Random(5)
    columns = [f"j{i}" for i in range(10)]
    rows = max(DOCUMENTS // 100, 10)
    with (
        mysql_source.connect(db) as connection,
        connection.cursor() as cursor,
        draining(mysql_source, tmp_path, db) as drain,
    ):
        cursor.execute("SET binlog_row_value_options = 'PARTIAL_JSON'")
        cursor.execute(
            f"CREATE TABLE t (id INT PRIMARY KEY, n INT, {', '.join(f'{c} JSON' for c in columns)}, v VARCHAR(9))"
        )
        for i in range(rows):
            values = [
                "NULL"
                if r.random() < 0.1
                else literal(json.dumps({"a": document(r), "b": [document(r), {}], "pad": "x" * 300}))
                for _ in columns
            ]
            cursor.execute(f"INSERT INTO t VALUES ({i}, 0, {', '.join(values)}, 'v')")
        drain.all()
        select = "SELECT id, " + ", ".join(f"CAST({c} AS CHAR)" for c in columns) + " FROM t WHERE id = %s"
        expected = []
        for step in range(rows * 12):
            cursor.execute(select, (step % rows,))
            before = cursor.fetchone()[1:]
            some = r.sample(range(len(columns)), r.randint(1, 3))
            changes = [f"{columns[c]} = {change(r, columns[c], json.loads(before[c] or 'null'))}" for c in some]
            changes += [f"n = n + {r.randint(0, 1)}"]
            cursor.execute(f"UPDATE t SET {', '.join(changes)} WHERE id = {step % rows}")
            cursor.execute(select, (step % rows,))
            after = cursor.fetchone()[1:]
            if cursor.rowcount and after != before:
                expected.append((before, after))
        cursor.execute("SHOW BINARY LOGS")
        file = cursor.fetchall()[-1][0]
        cursor.execute(f"SHOW BINLOG EVENTS IN '{file}' FROM {drain.position.offset}")
        assert sum(row[2] == "Update_rows_partial" for row in cursor.fetchall()) > rows * 6
        stored = drain.table(drain.all(), "t")
    before = list(zip(*[texts(stored, c, "_before") for c in columns], strict=True))
    after = list(zip(*[texts(stored, c) for c in columns], strict=True))
    changed = [(b, a) for b, a in zip(before, after, strict=True) if b != a]
    assert changed == expected


def test_differences_without_their_before_image_stop(mysql_source, tmp_path, fresh_schema):
    db = fresh_schema(mysql_source)
    with (
        mysql_source.connect(db) as connection,
        connection.cursor() as cursor,
        draining(mysql_source, tmp_path, db) as drain,
    ):
        cursor.execute("SET binlog_row_value_options = 'PARTIAL_JSON', binlog_row_image = 'MINIMAL'")
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, j JSON)")
        cursor.execute("""INSERT INTO t VALUES (1, '{"a": 1, "b": "some text that is long enough"}')""")
        drain.all()
        cursor.execute("UPDATE t SET j = JSON_SET(j, '$.a', 2)")
        with pytest.raises(DecodeError, match="without the value") as caught:
            drain.all()
        assert "binlog_row_image" in (caught.value.hint or "")
