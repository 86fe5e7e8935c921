"""Random values of every column type, as SQL literals."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import os
import random
import string
import uuid
from typing import Any

from devstack.mariadb import MariaDBServer

SPELLINGS = [
    "a", "A", "á", "Á", "a ", "A  ", "ß", "ss", "SS", "b", "B ", "ö", "o", "Ö", "\u3042", "\u30a2", "e\u0301", "é",
]  # fmt: skip
"""Words of which collations hold some for equal."""

ROWS = int(os.environ.get("SLUICE_TEST_VALUES", "80"))
"""Values of each type; the whole proof takes a thousand."""
MODE = "SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00', NAMES utf8mb4"


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
        "0000-00-00", "2024-00-00", "2024-05-00", "0000-05-07", "2023-02-29", "1000-01-01", "9999-12-31", "0001-01-01",
        "1969-12-31",
    ]  # fmt: skip
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
    value = r.choice([
        None,
        r.randint(-9, 10**12),
        round(r.random(), 4),
        'é😀"',
        [1, "x", {}],
        {"b": [1.5, True], "a": {"c": None}},
    ])
    return "'" + json.dumps(value, ensure_ascii=False).replace("\\", "\\\\") + "'"


def inet6(r: random.Random) -> str:
    groups = [r.choice([0, 0, 0xFFFF, r.randrange(2**16)]) for _ in range(8)]
    special = [
        "::", "::1", "::ffff:1.2.3.4", "::1.2.3.4", "2001:db8::ff00:42:8329", "64:ff9b::102:304", "1::", "0:0:1::",
    ]  # fmt: skip
    return f"'{r.choice([*special, *[str(ipaddress.IPv6Address(b''.join(g.to_bytes(2) for g in groups)))] * 9])}'"


LATIN = "abcXYZ äöüÿéñ£€ß'\\"
EMOJI = "ab é中文😀👍\u0301ß'\\\""
TYPES: dict[str, tuple[str, Any]] = {
    **{f"i{b}": (f"{n}", integer(b, False)) for n, b in (("tinyint", 8), ("smallint", 16), ("mediumint", 24),
        ("int", 32), ("bigint", 64))},
    **{f"un{b}": (f"{n} unsigned", integer(b, True)) for n, b in (("tinyint", 8), ("smallint", 16), ("mediumint", 24),
        ("int", 32), ("bigint", 64))},
    "zf": ("int(7) unsigned zerofill", integer(32, True)),
    "b1": ("tinyint(1)", integer(8, False)),
    **{f"dec{p}_{s}": (f"decimal({p},{s})", decimal(p, s)) for p,
        s in ((1, 0), (9, 9), (10, 2), (18, 4), (19, 0), (20, 10), (38, 20), (39, 1), (65, 30), (65, 0), (30, 30),
            (14, 4))},
    "fl": ("float", lambda r: repr(r.choice([0.0, 1.5, -2.25, r.uniform(-1e30, 1e30), 3.4e38, 1e-30]))),
    "db": ("double", lambda r: repr(r.choice([0.0, 1.5, r.uniform(-1, 1) * 10 ** r.randint(-300, 300), 1.7e308,
        5e-324]))),
    **{f"bit{n}": (f"bit({n})", lambda r, n=n: str(r.choice([0, 2**n - 1, r.randrange(2**n)]))) for n in (1, 3, 8, 9,
        17, 33, 63, 64)},
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
    "st64": ("set(" + ",".join(f"'m{i}'" for i in range(64)) + ")",
        lambda r: "'" + ",".join(f"m{i}" for i in range(64) if r.random() < 0.3) + "'"),
    "js": ("json", json_value),
    "geo": ("geometry", lambda r: r.choice([f"ST_GeomFromText('POINT({r.randint(-9, 9)} {r.random()})')",
        "ST_GeomFromText('LINESTRING(0 0,1 1,2 5)')", "ST_GeomFromText('POLYGON((0 0,4 0,4 4,0 0))', 4326)"])),
    "pt": ("point", lambda r: f"ST_GeomFromText('POINT({r.randint(-9, 9)} 1)', 4326)"),
    "vec": ("vector(5)",
        lambda r: f"STRING_TO_VECTOR('[{','.join(str(r.uniform(-9, 9)) for _ in range(r.randint(1, 5)))}]')"),
}  # fmt: skip


MARIADB_TYPES: dict[str, tuple[str, Any]] = {
    "uu": ("uuid",
        lambda r: f"'{r.choice([uuid.UUID(int=r.getrandbits(128), version=r.randint(1, 5)), uuid.UUID(int=r.getrandbits(64) << 64)])}'"),
    "i4": ("inet4",
        lambda r: f"'{ipaddress.IPv4Address(r.choice([0, 2**32 - 1, r.getrandbits(32), r.getrandbits(16) << 16]))}'"),
    "i6": ("inet6", inet6),
    "b16": ("binary(16)", binary(16)),
    "b4": ("binary(4)", binary(4)),
    "vcz": ("varchar(400) compressed", text(EMOJI, 400)),
    "lz": ("varchar(300) compressed character set latin1", text(LATIN, 300)),
    "tz": ("mediumtext compressed", text(EMOJI, 3000)),
    "bz": ("blob compressed", binary(3000)),
    "vbz": ("varbinary(300) compressed", binary(300)),
}  # fmt: skip
OLD_TYPES: dict[str, tuple[str, Any]] = {
    **{f"otm{n}": (f"time({n})", time(n)) for n in range(7)},
    **{f"odt{n}": (f"datetime({n})", datetime(n)) for n in range(7)},
    **{f"ots{n}": (f"timestamp({n}) null", timestamp(n)) for n in range(7)},
}
"""As MariaDB stored them before 10.1, and does with ``mysql56_temporal_format=OFF``."""
_MYSQL_ONLY = {"vec", "gb18030"}


def types_of(server: Any) -> dict[str, tuple[str, Any]]:
    """Every type that this server has: name -> (SQL type, a function of ``random.Random`` that gives a literal)."""
    if not isinstance(server, MariaDBServer):
        return TYPES
    return {name: kind for name, kind in TYPES.items() if name not in _MYSQL_ONLY} | MARIADB_TYPES


def groups(types: dict[str, Any], size: int = 12) -> list[list[str]]:
    """Names in groups that fit into a row."""
    names = list(types)
    return [names[i : i + size] for i in range(0, len(names), size)]


def create(table: str, columns: list[str], types: dict[str, tuple[str, Any]]) -> str:
    """CREATE TABLE with a key, these columns, and a virtual, a stored and an invisible one."""
    definition = ", ".join(f"`{c}` {types[c][0]}" for c in columns)
    more = "gv INT AS (id * 2) VIRTUAL, gs VARCHAR(30) AS (CONCAT('g', id)) STORED, inv INT INVISIBLE DEFAULT 7"
    return f"CREATE TABLE `{table}` (id INT PRIMARY KEY, {definition}, {more}) CHARACTER SET utf8mb4"


def insert(table: str, rows: range, columns: list[str], types: dict[str, tuple[str, Any]], r: random.Random) -> str:
    """INSERT of random values, some of them NULL."""
    names = ", ".join(f"`{c}`" for c in columns)
    values = (", ".join(r.choice(["NULL", *[types[c][1](r)] * 6]) for c in columns) for _ in rows)
    return f"INSERT INTO `{table}` (id, {names}) VALUES " + ", ".join(
        f"({i}, {v})" for i, v in zip(rows, values, strict=True)
    )
