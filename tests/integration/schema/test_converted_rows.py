"""Rows that an ALTER of the source converts: every kind of target has what SELECT says, or the load stopped and named
the column.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.errors import LoadError
from tests.support.pipelines.case import Case
from tests.support.pipelines.kinds_apart import KINDS, neutral, pipeline


def source_rows(made: Case, table: str) -> dict[Any, Any]:
    with made.source.connect(made.schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT id, v FROM `{table}`")
        return {row[0]: neutral(row[1]) for row in cursor.fetchall()}


def stop_of(made: Case) -> str:
    """Deliver up to the head; the error that stopped the load, "" if none did."""
    try:
        made.run_until_head()
    except LoadError as error:
        return error.message
    return ""


CONVERSIONS = {
    "fewer digits": ("DECIMAL(20,5)", "DECIMAL(10,1)", "'2.25', '-2.25', '2.35', '0', '99999.95'"),
    "fewer digits of a time": ("DATETIME(6)", "DATETIME(2)", "'2024-01-01 23:59:59.995', '1969-07-20 "
    "20:17:40.004999', '1985-01-01 00:00:00.005'"),
    "fewer digits of a moment": ("TIMESTAMP(6) NULL", "TIMESTAMP NULL", "'2024-01-01 23:59:59.5', '1971-07-20 "
    "20:17:40.499999'"),
    "fewer digits of a span": ("TIME(6)", "TIME(1)", "'12:00:00.05', '-12:00:00.05', '-00:00:00.049999', "
    "'00:00:59.96'"),
    "blanks at the end": ("VARCHAR(10)", "CHAR(10)", "'ab  ', ' ', 'x', '  y'"),
    "blanks that are cut": ("VARCHAR(300)", "VARCHAR(3)", "'ab      ', 'abc', ''"),
    "zero bytes": ("VARBINARY(5)", "BINARY(5)", "x'6162', x'', x'6162636465'"),
    "more zero bytes": ("BINARY(3)", "BINARY(5)", "x'6162', x'616263'"),
    "a double with digits": ("DOUBLE", "DOUBLE(9,2)", "1.239, 2.345, -7.125"),
    "a float": ("DOUBLE", "FLOAT", "1.1, 0.123456789"),
    "labels in another order": ("SET('a','b','c')", "SET('c','b','a')", "'a,b', 'a,c', 'b', ''"),
    "labels that come": ("ENUM('a','b')", "ENUM('new','a','b')", "'a', 'b'"),
    "zeros in front": ("INT(5) ZEROFILL", "VARCHAR(10)", "7, 12345"),
    "a year": ("YEAR", "VARCHAR(4)", "2024, 0"),
    "a number as text": ("INT", "VARCHAR(12)", "7, -12345, 0"),
    "a decimal as text": ("DECIMAL(10,3)", "VARCHAR(20)", "'7', '-0.5', '0.001'"),
    "a label by its number": ("INT", "ENUM('a','b')", "1, 2"),
    "a wall time": ("TIMESTAMP NULL", "DATETIME", "'2024-07-01 12:00:00'"),
    "a moment": ("DATETIME", "TIMESTAMP NULL", "'2024-07-01 12:00:00'"),
    "a date": ("DATE", "DATETIME", "'2024-07-01', '1960-01-01'"),
    "wider": ("INT", "BIGINT", "1, -5"),
    "longer": ("VARCHAR(10)", "VARCHAR(20)", "'a', 'ab  '"),
    "a whole number": ("DECIMAL(10,2)", "INT", "'2.5', '-2.5', '3.49'"),
    "narrower": ("BIGINT", "INT", "1, -5"),
    "bytes of a text": ("VARCHAR(10)", "VARBINARY(40)", "'a', 'ä'"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("files", [1, 3])
def test_rows_are_as_at_the_source_or_the_load_stops(tmp_path: Path, request: Any, kind: str, files: int) -> None:
    """Each conversion in a table of its own, loaded by several batches, so that a lake's table has several files."""
    followed = {}
    with pipeline(tmp_path, kind, request, name=f"files{files}") as (made, site):
        names = {name: f"t{number}" for number, name in enumerate(CONVERSIONS)}
        for name, (old, _, _) in CONVERSIONS.items():
            made.source.execute(f"CREATE TABLE {names[name]} (id INT PRIMARY KEY, v {old})", database=made.schema)
        for batch in range(files):
            for name, (_, _, values) in CONVERSIONS.items():
                rows = ", ".join(
                    f"({100 * batch + n}, {value})" for n, value in enumerate([*values.split(", "), "NULL"])
                )
                made.source.execute(
                    "SET time_zone = '+02:00'", f"INSERT INTO {names[name]} VALUES {rows}", database=made.schema
                )
            made.run_until_head()
        for name, (_, new, _) in CONVERSIONS.items():
            table = names[name]
            assert site.rows(made.schema, table) == source_rows(made, table), name
            made.source.execute("SET time_zone = '+02:00'", f"ALTER TABLE {table} MODIFY v {new}", database=made.schema)
            stopped = stop_of(made)
            followed[name] = not stopped
            if stopped:
                assert table in stopped
                assert " v " in stopped
                made.path.write_text(
                    made.yaml.replace(
                        "    connection: case_target\n",
                        "    connection: case_target\n    ddl: {change_column: ignore}\n",
                    )
                )
                made.run_until_head()  # as the hint says
                made.path.write_text(made.yaml)
                continue
            assert site.rows(made.schema, table) == source_rows(made, table), name
    always = {
        "fewer digits", "fewer digits of a time", "fewer digits of a moment", "fewer digits of a span",
        "blanks at the end", "blanks that are cut",
        "zero bytes", "more zero bytes", "labels that come", "wider", "longer", "narrower",
    }  # fmt: skip
    never = {
        "a double with digits", "a float", "zeros in front", "a year", "a label by its number", "a wall time",
        "a moment", "bytes of a text",
    }  # fmt: skip
    assert {name for name in always if not followed[name]} == set()
    assert {name for name in never if followed[name]} == set()


AGAIN = {
    "another type": ("VARCHAR(20)", "DATE", "'2024-07-01', '2024-07-02'", "'1999-01-01'"),
    "a moment": ("DATETIME", "TIMESTAMP NULL", "'2024-07-01 12:00:00', '2024-01-01 12:00:00'", "'2024-07-05 00:00:00'"),
    "a float": ("DOUBLE", "DOUBLE(9,2)", "1.239, -7.125", "3.14159"),
    "a label by its number": ("INT", "ENUM('a','b')", "1, 2", "'b'"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_copied_again_where_its_rows_cannot_be_converted(tmp_path: Path, request: Any, kind: str) -> None:
    """Also with later changes before the copy arrives, and with a key that was converted: old rows do not stay under
    their old keys.
    """
    with pipeline(tmp_path, kind, request, "on_conversion: copy", name="again") as (made, site):
        for number, (old, _, values, _) in enumerate(AGAIN.values()):
            rows = ", ".join(f"({n}, {value})" for n, value in enumerate(values.split(", ")))
            made.source.execute(
                "SET time_zone = '+02:00'", f"CREATE TABLE t{number} (id INT PRIMARY KEY, v {old})",
                f"INSERT INTO t{number} VALUES {rows}",
                database=made.schema,
            )  # fmt: skip
        made.source.execute(
            "CREATE TABLE k (id DOUBLE PRIMARY KEY, v INT)",
            "INSERT INTO k VALUES (1.239, 1), (2.345, 2), (3.1, 3)",
            database=made.schema,
        )
        made.run_until_head()
        for number, (_, new, _, later) in enumerate(AGAIN.values()):
            made.source.execute(
                "SET time_zone = '+02:00'", f"ALTER TABLE t{number} MODIFY v {new}", f"UPDATE t{number} SET v = "
                f"{later} WHERE id = 1",
                f"INSERT INTO t{number} VALUES (7, {later}), (8, NULL)", f"DELETE FROM t{number} WHERE id = 0",
                database=made.schema,
            )  # fmt: skip
        made.source.execute(
            "ALTER TABLE k MODIFY id DOUBLE(9,2)",
            "UPDATE k SET v = 9 WHERE v = 1",
            "DELETE FROM k WHERE v = 2",
            database=made.schema,
        )
        made.run_until_head()
        made.run_until_head()  # what was read last arrives
        for number, name in enumerate(AGAIN):
            assert site.rows(made.schema, f"t{number}") == source_rows(made, f"t{number}"), name
        assert sorted(site.rows(made.schema, "k").values()) == [3, 9]
        with made.runtime().state() as state:
            assert {dump.reason for dump in map(state.dumps.require, state.dumps.ids())} == {"converted rows"}
            assert len(state.dumps.ids()) == len(AGAIN) + 1


KEYS = {
    "more bytes": ("VARBINARY(5)", "BINARY(5)", ("x'6162'", "x'6163'", "x'64'")),
    "blanks": ("VARCHAR(9)", "CHAR(9)", ("'ab  '", "'c'", "' d '")),
    "fewer digits": ("DECIMAL(20,5)", "DECIMAL(10,1)", ("2.25", "-7.04", "9")),
    "fewer digits of a time": ("DATETIME(6)", "DATETIME", ("'2024-01-01 23:59:59.5'", "'2023-05-05 00:00:00.4'",
        "'2022-01-01 00:00:00'")),
    "another zone": ("DATETIME", "TIMESTAMP", ("'2024-07-01 12:00:00'", "'2024-01-01 12:00:00'",
        "'2023-03-03 03:00:00'")),
    "back": ("TIMESTAMP", "DATETIME", ("'2024-07-01 12:00:00'", "'2024-01-01 12:00:00'", "'2023-03-03 03:00:00'")),
    "a double with digits": ("DOUBLE", "DOUBLE(9,2)", ("1.239", "2.345", "3.5")),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_are_converted_find_their_rows_or_the_load_stops(tmp_path: Path, request: Any, kind: str) -> None:
    """An UPDATE and a DELETE after it name rows by their new keys. Sessions have a time zone of their own."""
    zone, stops = "SET time_zone = '+02:00'", set()
    with pipeline(tmp_path, kind, request, name="keys") as (made, site):
        for number, (name, (old, new, values)) in enumerate(KEYS.items()):
            table = f"k{number}"
            rows = ", ".join(f"({value}, {v})" for v, value in enumerate(values))
            made.source.execute(
                zone,
                f"CREATE TABLE {table} (id {old} PRIMARY KEY, v INT)",
                f"INSERT INTO {table} VALUES {rows}",
                database=made.schema,
            )
            made.run_until_head()
            made.source.execute(
                zone, f"ALTER TABLE {table} MODIFY id {new}", f"UPDATE {table} SET v = 9 WHERE v = 1",
                f"DELETE FROM {table} WHERE v = 2",
                database=made.schema,
            )  # fmt: skip
            stopped = stop_of(made)
            if not stopped:
                assert keyed(site.rows(made.schema, table)) == keyed(source_rows(made, table)), name
                continue
            stops.add(name)
            assert f"{made.schema}.{table}" in stopped
            assert "column id " in stopped
            assert sorted(site.rows(made.schema, table).values()) == [0, 1, 2], name
            made.source.execute(f"DROP TABLE {table}", database=made.schema)
            made.path.write_text(
                made.yaml.replace("    connection: case_target\n", "    connection: case_target\n    ddl: ignore\n")
            )
            made.run_until_head()
            made.path.write_text(made.yaml)
    assert {"another zone", "back", "a double with digits"} <= stops


def keyed(rows: dict[Any, Any]) -> dict[Any, Any]:
    return {neutral(key): value for key, value in rows.items()}
