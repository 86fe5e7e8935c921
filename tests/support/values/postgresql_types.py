"""Every built-in type of PostgreSQL that a column can have, with values at its borders, as SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Types = Mapping[str, tuple[str, Sequence[str]]]

USERS = (
    "CREATE TYPE mood AS ENUM ('sad', 'o''k', 'Happy', 'happy')",
    "CREATE TYPE addr AS (street text, number int)",
    "CREATE DOMAIN positive AS numeric(12,3) CHECK (VALUE >= 0)",
    "CREATE DOMAIN email AS varchar(60)",
    "CREATE DOMAIN work_email AS email NOT NULL DEFAULT 'x@y'",
    "CREATE TYPE float_range AS RANGE (subtype = float8)",
)
"""Statements that make the user's types, in the search path's first schema."""

BOTH: Types = {
    "bool": ("boolean", ("true", "false")),
    "i2": ("smallint", ("-32768", "32767", "0")),
    "i4": ("integer", ("-2147483648", "2147483647", "0")),
    "i8": ("bigint", ("-9223372036854775808", "9223372036854775807", "0")),
    "oid": ("oid", ("0", "4294967295")),
    "xid": ("xid", ("'0'", "'4294967295'")),
    "xid8": ("xid8", ("'0'", "'18446744073709551615'")),
    "cid": ("cid", ("'0'", "'4294967295'")),
    "tid": ("tid", ("'(0,1)'", "'(4294967295,65535)'")),
    "n_10_2": ("numeric(10,2)", ("-99999999.99", "99999999.99", "0.01", "0")),
    "n_38": ("numeric(38,0)", ("'" + "9" * 38 + "'", "'-" + "9" * 38 + "'")),
    "n_60_30": ("numeric(60,30)", ("'" + "9" * 30 + "." + "9" * 30 + "'", "'-0." + "0" * 29 + "1'")),
    "n_76": ("numeric(76,40)", ("'" + "9" * 36 + "." + "9" * 40 + "'", "'-1'")),
    "n_76_20": ("numeric(76,20)", ("'" + "9" * 56 + "." + "9" * 20 + "'", "'-0." + "0" * 19 + "1'")),
    "n_100": ("numeric(100,2)", ("'" + "9" * 98 + ".99'", "'-0.01'", "'NaN'")),
    "n_neg": ("numeric(3,-2)", ("12345", "-99900")),
    "n": ("numeric", ("'NaN'", "'Infinity'", "'-Infinity'", "1.10", "'1e-500'", "'" + "7" * 1000 + ".5'")),
    "ch": ("character(4)", ("'ab'", "''", "'äöü '", "'    '")),
    "ch_long": ("character(300)", ("'a'",)),
    "vc": ("varchar(6)", ("'ab  '", "''", "'😀😀😀'", r"'\n\t'")),
    "vc_long": ("varchar(20000)", ("repeat('ä', 20000)",)),
    "vc_any": ("varchar", ("'x'", "''")),
    "txt": ("text", ("''", "E'a\\tb\\nc\\\\d''\"e\\u0001'", "repeat('x', 70000)", "'Ünï'")),
    "name": ("name", ("'Some_Name'", "repeat('n', 63)")),
    "qchar": ('"char"', ("'a'", "''", r"'\377'")),
    "by": ("bytea", (r"'\x'", r"'\x00ff5c27'", "decode(repeat('00', 70000), 'hex')")),
    "d": ("date", ("'0001-01-01'", "'1970-01-01'", "'2024-02-29'", "'9999-12-31'")),
    "t": ("time", ("'00:00:00'", "'23:59:59.999999'", "'24:00:00'")),
    "t_3": ("time(3)", ("'12:30:00.125'",)),
    "ttz": ("time with time zone", ("'00:00:00+15:59:59'", "'24:00:00-12:30'", "'12:00:00.000001+00'")),
    "ts": ("timestamp", ("'0001-01-01 00:00:00'", "'1969-12-31 23:59:59.999999'", "'9999-12-31 23:59:59.999999'")),
    "ts_0": ("timestamp(0)", ("'2024-02-29 23:59:59'",)),
    "tsz": ("timestamptz", ("'1901-01-01 00:00:00+05'", "'2024-02-29 12:00:00.5+00'", "'9999-12-31 23:59:59+00'")),
    "iv": (
        "interval",
        ("'-178000000 years -11 mons'", "'1 mon -1 day 00:00:00.000001'", "'0'", "'2562047788:00:54.775807'"),
    ),
    "iv_ym": ("interval year to month", ("'1 year 2 mons'",)),
    "iv_s3": ("interval second(3)", ("'1.125'",)),
    "uuid": ("uuid", ("'00000000-0000-0000-0000-000000000000'", "'FFFFFFFF-ffff-ffff-ffff-0123456789ab'")),
    "js": ("json", ("""' { "b" : [1.50, null], "b": "\\u00e4" }'""", "'null'", "'\"x\"'")),
    "jb": ("jsonb", ("""'{"b": {"c": [1.50, true]}, "a": "ä"}'""", "'[]'", "'-0.5'")),
    "jp": ("jsonpath", ("'$.a[*] ? (@ > 1)'",)),
    "xml": ("xml", ("'<a b=\"c\">d</a>'", "'text'")),
    "b_1": ("bit", ("B'1'", "B'0'")),
    "b_64": ("bit(64)", ("B'" + "1" * 64 + "'", "B'" + "0" * 63 + "1'")),
    "b_70": ("bit(70)", ("B'" + "10" * 35 + "'",)),
    "vb": ("bit varying", ("B''", "B'0101'")),
    "vb_9": ("bit varying(9)", ("B'000000001'",)),
    "inet": ("inet", ("'10.0.0.1'", "'10.0.0.1/8'", "'::1'", "'2001:db8::ff/64'", "'255.255.255.255'")),
    "cidr": ("cidr", ("'10.0.0.0/8'", "'::/0'", "'192.168.1.1/32'")),
    "mac": ("macaddr", ("'08:00:2b:01:02:03'",)),
    "mac8": ("macaddr8", ("'08:00:2b:01:02:03:04:05'",)),
    "money": ("money", ("'-92233720368547758.08'", "'92233720368547758.07'", "'1234.5'")),
    "point": ("point", ("'(1.5,-2)'", "'(1e300,-1e-300)'")),
    "line": ("line", ("'{1,-1,0.1}'",)),
    "lseg": ("lseg", ("'[(0,0),(1,1.5)]'",)),
    "box": ("box", ("'(1,1),(0,0)'",)),
    "path": ("path", ("'[(0,0),(1,1)]'", "'((0,0),(1,1))'")),
    "poly": ("polygon", ("'((0,0),(1,1),(1,0))'",)),
    "circle": ("circle", ("'<(0,0),1.5>'",)),
    "tsv": ("tsvector", ("'a:1A fat:2B,4C ''it''''s'''", "''")),
    "tsq": ("tsquery", ("'fat:AB & (rat | cat)'", "''")),
    "r4": ("int4range", ("'[1,5]'", "'empty'", "'(,)'")),
    "r8": ("int8range", ("'[1,]'",)),
    "rn": ("numrange", ("'(1.5,2.50]'",)),
    "rd": ("daterange", ("'[2024-01-01,infinity)'",)),
    "rts": ("tsrange", ("'[2024-01-01 00:00:00.5,)'",)),
    "rtz": ("tstzrange", ("'[2024-01-01 00:00:00+02,2025-01-01 00:00:00+02)'",)),
    "m4": ("int4multirange", ("'{[1,3),[5,7)}'", "'{}'")),
    "mtz": ("tstzmultirange", ("'{[2024-01-01 00:00:00+02,)}'",)),
    "lsn": ("pg_lsn", ("'0/0'", "'FFFFFFFF/FFFFFFFF'")),
    "snap": ("pg_snapshot", ("'10:20:10,14'",)),
    "a4": ("integer[]", ("'{}'", "'{1,NULL,-3}'", "'[0:1][5:6]={{1,2},{3,4}}'")),
    "at": ("text[]", ("""'{"a,b","c\\"d","NULL",NULL,"",{}}'""".replace(",{}", ""),)),
    "ab": ("boolean[]", ("'{t,f,NULL}'",)),
    "atz": ("timestamptz[]", ("'{\"2024-01-01 00:00:00+02\",infinity,\"0044-03-15 00:00:00+00 BC\"}'",)),
    "an": ("numeric(5,2)[]", ("'{1.50,NaN}'",)),
    "aby": ("bytea[]", ("ARRAY['\\x00ff'::bytea, NULL]",)),
    "ai": ("inet[]", ("'{10.0.0.1,10.0.0.0/8}'",)),
    "aj": ("jsonb[]", ("""ARRAY['{"a": 1}'::jsonb]""",)),
    "reg": ("regclass", ("'pg_class'",)),
    "i2v": ("int2vector", ("'1 2 3'",)),
    "mood": ("mood", ("'sad'", "'o''k'", "'happy'")),
    "moods": ("mood[]", ("'{sad,NULL,happy}'",)),
    "addr": ("addr", ("ROW('a \"b\", c', NULL)", "ROW(NULL, 5)")),
    "pos": ("positive", ("0.125", "999999999.999")),
    "mail": ("work_email", ("'ä@b'",)),
    "fr": ("float_range", ("'[0.1,0.2)'",)),
}  # fmt: skip
"""Name of a column -> type, and values that other kinds of targets have, too."""

BEYOND: Types = {
    "f4": ("real", ("3.4028235e38", "1e-45", "'NaN'", "'-0'", "'-Infinity'", "0.1")),
    "f8": ("double precision", ("1.7976931348623157e308", "5e-324", "'NaN'", "'-0'", "'Infinity'", "0.1")),
    "d_far": ("date", ("'4713-01-01 BC'", "'5874897-12-31'", "'infinity'", "'-infinity'", "'0001-12-31 BC'")),
    "ts_far": (
        "timestamp",
        ("'4713-01-01 00:00:00 BC'", "'294246-12-31 23:59:59.999999'", "'infinity'", "'-infinity'"),
    ),
    "tsz_far": ("timestamptz", ("'0044-03-15 12:00:00+00 BC'", "'infinity'", "'-infinity'", "'20000-01-01 00:00:00+00'")),
}  # fmt: skip
"""Name of a column -> type, and values that PostgreSQL alone has."""


def make(server: Any, schema: str, table: str, types: Types, *more: str) -> int:
    """Make the table with a row for each value, and one of NULLs. Returns the number of rows."""
    columns = ", ".join(f'"{name}" {kind}' for name, (kind, _) in types.items())
    server.execute(f'SET search_path = "{schema}"', f"CREATE TABLE {table} (id int PRIMARY KEY, {columns})", *more)
    return insert(server, schema, table, types)


def insert(server: Any, schema: str, table: str, types: Types, first: int = 0) -> int:
    """Insert a row for each value, the values of all columns side by side, and one of NULLs. Returns their number."""
    count = max(len(values) for _, values in types.values())
    rows = []
    for number in range(count):
        values = [values[number % len(values)] for _, values in types.values()]
        rows.append(f"({first + number}, {', '.join(values)})")
    required = {name: values[0] for name, (kind, values) in types.items() if kind == "work_email"}
    empty = [required.get(name, "NULL") for name in types]
    rows.append(f"({first + count}, {', '.join(empty)})")
    server.execute(f'SET search_path = "{schema}"', f"INSERT INTO {table} VALUES {', '.join(rows)}")
    return count + 1


def texts(
    server: Any, schema: str, table: str, names: Sequence[str], database: str = "postgres"
) -> dict[int, dict[str, str | None]]:
    """The server's own text of each value, by id and column, in a session like the log's."""
    shown = ", ".join(f'CASE WHEN "{name}" IS DISTINCT FROM NULL THEN format(\'%s\', "{name}") END' for name in names)
    settings = (
        "SET timezone = 'UTC'", "SET datestyle = 'ISO,YMD'", "SET intervalstyle = 'postgres'",
        "SET extra_float_digits = 1", "SET bytea_output = 'hex'", "SET lc_monetary = 'C'",
        "SET search_path = pg_catalog",
    )  # fmt: skip
    asked = f'SELECT id, {shown} FROM "{schema}"."{table}" ORDER BY id'
    found = server.execute(*settings, asked, database=database)
    return {row[0]: dict(zip(names, row[1:], strict=True)) for row in found}
