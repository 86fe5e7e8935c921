"""Every column type with random values: what is in the segment equals what the server's own SELECT says."""

from __future__ import annotations

import datetime as dt
import json
import random
import string
from typing import Any

import pytest

from tests.integration.capturing import draining, printed, server_text, texts

ROWS = 300


def integer(bits: int, unsigned: bool):
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return lambda r: str(r.choice([low, high, 0, 1, r.randint(low, high), r.randint(-100 if not unsigned else 0, 100)]))


def decimal(precision: int, scale: int):
    def value(r: random.Random) -> str:
        whole, fraction = precision - scale, scale
        digits = "".join(r.choice(string.digits) for _ in range(r.randint(0, whole)))
        tail = "".join(r.choice(string.digits) for _ in range(r.randint(0, fraction)))
        return f"{r.choice(['-', ''])}{digits or 0}{'.' + tail if tail else ''}"

    return value


def text(alphabet: str, length: int):
    def value(r: random.Random) -> str:
        chars = "".join(r.choice(alphabet) for _ in range(r.choice([0, 1, length, r.randint(0, length)])))
        return "'" + chars.replace("\\", "\\\\").replace("'", "''") + "'"

    return value


def binary(length: int):
    def value(r: random.Random) -> str:
        data = bytes(
            r.choice([0, 0, 32, r.randrange(256)]) for _ in range(r.choice([0, 1, length, r.randint(0, length)]))
        )
        return f"x'{data.hex()}'"

    return value


def date(r: random.Random) -> str:
    special = [
        "0000-00-00",
        "2024-00-00",
        "2024-05-00",
        "0000-05-07",
        "2023-02-29",
        "1000-01-01",
        "9999-12-31",
        "0001-01-01",
        "1969-12-31",
    ]
    day = dt.date.fromordinal(r.randint(1, 3652059))
    return f"'{r.choice([*special, day, day, day])}'"


def datetime(digits: int):
    def value(r: random.Random) -> str:
        fraction = "." + "".join(r.choice(string.digits) for _ in range(digits)) if digits else ""
        return f"'{date(r)[1:-1]} {r.randint(0, 23):02d}:{r.randint(0, 59):02d}:{r.randint(0, 59):02d}{fraction}'"

    return value


def timestamp(digits: int):
    def value(r: random.Random) -> str:
        if r.random() < 0.1:
            return "'0000-00-00 00:00:00'"
        moment = dt.datetime(1970, 1, 1, 0, 0, 1) + dt.timedelta(seconds=r.randint(0, 2**31 - 3))
        fraction = "." + "".join(r.choice(string.digits) for _ in range(digits)) if digits else ""
        return f"'{moment}{fraction}'"

    return value


def time(digits: int):
    def value(r: random.Random) -> str:
        fraction = "." + "".join(r.choice(string.digits) for _ in range(digits)) if digits else ""
        hours = r.choice([0, 0, r.randint(0, 837)])
        minutes, seconds = r.choice([(0, 0), (r.randint(0, 59), r.randint(0, 59))])
        return f"'{r.choice(['-', ''])}{hours}:{minutes}:{seconds}{fraction}'"

    return value


def json_value(r: random.Random) -> str:
    def make(depth: int) -> Any:
        kind = r.randint(0, 9 if depth < 4 else 6)
        if kind == 0:
            return r.choice([None, True, False])
        if kind == 1:
            return r.choice([
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
                2**63 - 1,
                -(2**63),
                2**64 - 1,
            ])
        if kind == 2:
            return r.choice([
                0.5,
                -1.25,
                1e20,
                1e-7,
                1.5e300,
                3.0,
                100000000000000000000.0,
                0.1,
                r.random() * 10 ** r.randint(-20, 20),
                0.0,
            ])
        if kind <= 6:
            return "".join(r.choice('aZ é中😀"\\/\b\n\t\x01{}[]') for _ in range(r.randint(0, r.choice([3, 200]))))
        if kind == 7:
            return [make(depth + 1) for _ in range(r.randint(0, 5))]
        return {f"k{r.randint(0, 99)}{r.choice(['', 'é', '😀'])}": make(depth + 1) for _ in range(r.randint(0, 6))}

    if r.random() < 0.25:
        return r.choice([
            "JSON_OBJECT('d', CAST(12.50 AS DECIMAL(10,3)), 'n', CAST(-0.001 AS DECIMAL(20,10)))",
            "JSON_ARRAY(CAST('2024-05-06 01:02:03.5' AS DATETIME(6)), CAST('2024-05-06' AS DATE), CAST('-12:30:01.25' AS TIME(6)))",
            "JSON_ARRAY(CAST(x'0102ff' AS BINARY), b'101', ST_GeomFromText('POINT(1 2)'))",
            "CAST(CAST('11:22:33' AS TIME) AS JSON)",
            'CAST(\'{"big": [' + ",".join(["12345678901"] * 9000) + "]}' AS JSON)",
        ])
    document = json.dumps(make(0), ensure_ascii=r.random() < 0.5)
    return "'" + document.replace("\\", "\\\\").replace("'", "''") + "'"


LATIN = "abcXYZ äöüÿéñ£€ß'\\"
EMOJI = "ab é中文😀👍\u0301ß'\\\""
TYPES: dict[str, tuple[str, Any]] = {
    **{f"i{b}": (f"{n}", integer(b, False)) for n, b in (("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32), ("bigint", 64))},
    **{f"u{b}": (f"{n} unsigned", integer(b, True)) for n, b in (("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32), ("bigint", 64))},
    "zf": ("int(7) unsigned zerofill", integer(32, True)),
    "b1": ("tinyint(1)", integer(8, False)),
    **{f"dec{p}_{s}": (f"decimal({p},{s})", decimal(p, s)) for p, s in ((1, 0), (9, 9), (10, 2), (18, 4), (19, 0), (20, 10), (38, 20), (39, 1), (65, 30), (65, 0), (30, 30), (14, 4))},  # noqa: E501
    "fl": ("float", lambda r: repr(r.choice([0.0, 1.5, -2.25, r.uniform(-1e30, 1e30), 3.4e38, 1e-30]))),
    "db": ("double", lambda r: repr(r.choice([0.0, 1.5, r.uniform(-1, 1) * 10 ** r.randint(-300, 300), 1.7e308, 5e-324]))),
    **{f"bit{n}": (f"bit({n})", lambda r, n=n: str(r.choice([0, 2**n - 1, r.randrange(2**n)]))) for n in (1, 3, 8, 9, 17, 33, 63, 64)},
    "dt": ("date", date),
    **{f"dtm{n}": (f"datetime({n})", datetime(n)) for n in range(7)},
    **{f"ts{n}": (f"timestamp({n}) null", timestamp(n)) for n in range(7)},
    **{f"tm{n}": (f"time({n})", time(n)) for n in range(7)},
    "yr": ("year", lambda r: str(r.choice([0, 1901, 2155, r.randint(1901, 2155)]))),
    "ch": ("char(60)", text(EMOJI, 60)),
    "vc": ("varchar(40)", text(EMOJI, 40)),
    "vcl": ("varchar(300)", text(EMOJI, 300)),
    "l1": ("varchar(50) character set latin1", text(LATIN, 50)),
    "l2": ("char(20) character set latin2", text("abcáéíóúł", 20)),
    "cp1251": ("varchar(20) character set cp1251", text("abcдежзЯ", 20)),
    "gbk": ("varchar(20) character set gbk", text("abc中文字", 20)),
    "sjis": ("varchar(20) character set sjis", text("abcあいう漢", 20)),
    "u16": ("varchar(20) character set utf16", text(EMOJI, 20)),
    "u16le": ("varchar(20) character set utf16le", text(EMOJI, 20)),
    "u32": ("varchar(20) character set utf32", text(EMOJI, 20)),
    "ucs2": ("varchar(20) character set ucs2", text("abcé中", 20)),
    "gb18030": ("varchar(20) character set gb18030", text(EMOJI, 20)),
    "koi8r": ("varchar(20) character set koi8r", text("abcДЖ", 20)),
    "greek": ("varchar(20) character set greek", text("abcαβγ", 20)),
    "tt": ("tinytext", text("ab é😀", 50)),
    "tx": ("text", text(EMOJI, 3000)),
    "mt": ("mediumtext", text("ab é😀", 500)),
    "lt": ("longtext character set latin1", text(LATIN, 500)),
    "bn": ("binary(20)", binary(20)),
    "bn255": ("binary(255)", binary(255)),
    "vb": ("varbinary(30)", binary(30)),
    "vbl": ("varbinary(300)", binary(300)),
    "tb": ("tinyblob", binary(200)),
    "bl": ("blob", binary(3000)),
    "mb": ("mediumblob", binary(500)),
    "lb": ("longblob", binary(500)),
    "en": ("enum('a','bé','','it''s')", lambda r: r.choice(["'a'", "'bé'", "''", "'it''s'"])),
    "en2": ("enum('x','y')", lambda r: r.choice(["'x'", "'y'", "'nonsense'"])),
    "enb": ("enum(" + ",".join(f"'v{i}'" for i in range(300)) + ")", lambda r: f"'v{r.randrange(300)}'"),
    "st": ("set('p','q','ré','s')", lambda r: r.choice(["''", "'p'", "'p,q,s'", "'ré,p'"])),
    "st64": ("set(" + ",".join(f"'m{i}'" for i in range(64)) + ")", lambda r: "'" + ",".join(f"m{i}" for i in range(64) if r.random() < 0.3) + "'"),
    "js": ("json", json_value),
    "geo": ("geometry", lambda r: r.choice([f"ST_GeomFromText('POINT({r.randint(-9, 9)} {r.random()})')", "ST_GeomFromText('LINESTRING(0 0,1 1,2 5)')", "ST_GeomFromText('POLYGON((0 0,4 0,4 4,0 0))', 4326)"])),  # noqa: E501
    "pt": ("point", lambda r: f"ST_GeomFromText('POINT({r.randint(-9, 9)} 1)', 4326)"),
    "vec": ("vector(5)", lambda r: f"STRING_TO_VECTOR('[{','.join(str(r.uniform(-9, 9)) for _ in range(r.randint(1, 5)))}]')"),
}  # fmt: skip


def types_of(server_kind: str) -> dict[str, tuple[str, Any]]:
    if server_kind == "mysql_source":
        return TYPES
    left_out = {"js", "vec", "gb18030", "geo", "pt"}
    return {name: t for name, t in TYPES.items() if name not in left_out}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_every_type_is_what_select_says(kind, request, tmp_path, fresh_schema):
    server = request.getfixturevalue(kind)
    db = fresh_schema(server)
    types = types_of(kind)
    r = random.Random(7)
    names = list(types)
    with server.connect(db) as connection, connection.cursor() as cursor, draining(server, tmp_path, db) as drain:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00', NAMES utf8mb4")
        tables = [names[i : i + 12] for i in range(0, len(names), 12)]
        for number, columns in enumerate(tables):
            definition = ", ".join(f"`{c}` {types[c][0]}" for c in columns)
            cursor.execute(f"CREATE TABLE t{number} (id INT PRIMARY KEY, {definition}) CHARACTER SET utf8mb4")
        drain.all()
        inserted, updated = {}, {}
        for number, columns in enumerate(tables):
            for i in range(ROWS):
                values = [r.choice(["NULL", *[types[c][1](r)] * 6]) for c in columns]
                cursor.execute(f"INSERT INTO t{number} VALUES ({i}, {', '.join(values)})")
            inserted[number] = select(cursor, number, columns, types)
            for i in range(0, ROWS, 3):
                column = r.choice(columns)
                cursor.execute(
                    f"UPDATE t{number} SET `{column}` = {types[column][1](r)}, id = id + {r.choice([0, 100000])} WHERE id = {i}"
                )
            updated[number] = select(cursor, number, columns, types)
            cursor.execute(f"DELETE FROM t{number}")
        manifests = drain.all()
    wrong: list[str] = []
    for number, columns in enumerate(tables):
        stored = drain.table(manifests, f"t{number}")
        ops = stored.column("_op").to_pylist()
        ids = stored.column("id").to_pylist()
        for column in columns:
            sql_type = types[column][0].removesuffix(" null")
            after = texts(stored, column, sql_type)
            before = texts(stored.column("_before").combine_chunks(), column, sql_type)
            at = columns.index(column)
            for position, op in enumerate(ops):
                row = ids[position]
                if op == "u":
                    found, wanted = before[position], inserted[number][row % 100000][at]
                else:
                    found, wanted = after[position], (inserted if op == "i" else updated)[number][row][at]
                if found != wanted:
                    wrong.append(f"{column} {sql_type}, row {row}, {op}: {found!r}, and the server says {wanted!r}")
        assert ops.count("i") == ops.count("d") == ROWS
    assert not wrong, f"{len(wrong)} values, e.g.\n" + "\n".join(wrong[:: max(len(wrong) // 15, 1)])


def select(
    cursor: Any, number: int, columns: list[str], types: dict[str, tuple[str, Any]]
) -> dict[int, list[str | None]]:
    listing = ", ".join(printed(c, types[c][0]) for c in columns)
    cursor.execute(f"SELECT id, {listing} FROM t{number}")
    return {
        row[0]: [server_text(v, types[c][0]) for v, c in zip(row[1:], columns, strict=True)]
        for row in cursor.fetchall()
    }
