"""Defaults that are known from what stands in the definition, and those that are refused since they are not."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from sluice.errors import UnsupportedType
from sluice.model.column_types import ColumnKind
from sluice.model.definitions import ColumnDefinition
from sluice.model.labels import labels_of
from sluice.model.schema_changes import StatementSession
from sluice.model.tables import Column
from sluice.mysql.column_defaults import Statement, default_scalar
from sluice.mysql.type_loss import SqlType

K = ColumnKind
DIGITS = "12345678901234567890123456789012345.678901234567890123456789012345"


def default(text: str | None, kind: ColumnKind, **values: Any) -> Any:
    definition = ColumnDefinition("c", kind.value, nullable=text is not None, default=text)
    return default_scalar(definition, Column("c", kind, kind.value, **values).type).as_py()


@pytest.mark.parametrize(
    ("text", "kind", "values", "expected"),
    [
        (DIGITS, K.DECIMAL, {"precision": 65, "scale": 30}, Decimal(DIGITS)),
        (f"'-{DIGITS}'", K.DECIMAL, {"precision": 65, "scale": 30}, Decimal(f"-{DIGITS}")),
        ("'1'", K.DECIMAL, {"precision": 30, "scale": 28}, Decimal("1." + "0" * 28)),
        ("0x41", K.DECIMAL, {"precision": 65, "scale": 30}, Decimal("65." + "0" * 30)),
        ("0x", K.VARBINARY, {}, b""),
        ("0x00FF", K.BINARY, {"length": 4}, b"\0\xff\0\0"),
        ("b'100000001'", K.VARBINARY, {}, b"\1\1"),
        ("b'1000001'", K.CHAR, {"charset": "utf8mb4"}, "A"),
        ("x'e9'", K.VARCHAR, {"charset": "latin1"}, "é"),
        ("' pad '", K.CHAR, {"charset": "utf8mb4"}, " pad"),
        ("'q,P,q'", K.SET, {"labels": ("p", "q")}, "p,q"),
        ("'A'", K.ENUM, {"labels": ("a", "b")}, "a"),
        ("'0'", K.YEAR, {}, 2000),
        ("0", K.YEAR, {}, 0),
        ("70", K.YEAR, {}, 1970),
        ("'A'", K.BIT, {"length": 8}, 65),
        ("21", K.BIT, {"length": 8}, 21),
        ("0.1", K.FLOAT, {}, pytest.approx(0.1)),
        ("'3.4028234663852886e38'", K.FLOAT, {}, 3.4028234663852886e38),
        ("'3.14159'", K.DOUBLE, {}, 3.14159),
        (None, K.BIT, {"length": 8}, 0),
        (None, K.YEAR, {}, 0),
        (None, K.JSON, {}, "null"),
        (None, K.INET6, {}, "::"),
    ],
)
def test_a_default_that_is_known(text, kind, values, expected) -> None:
    assert default(text, kind, **values) == expected


@pytest.mark.parametrize(
    ("text", "kind", "values", "why"),
    [
        ("'3.40282e38'", K.FLOAT, {}, "more digits than the six"),
        ("16777200", K.FLOAT, {}, "more digits than the six"),
        ("'what?'", K.VARCHAR, {"charset": "utf8mb4"}, "other characters"),
        ("'a?'", K.VARBINARY, {}, "other characters"),
        ("x'3132'", K.DECIMAL, {"precision": 10, "scale": 2}, "text to MariaDB"),
        ("'11:12:13.6'", K.TIME, {}, "not understood"),
        ("uuid()", K.CHAR, {"charset": "utf8mb4"}, "an expression"),
        ("'2020-01-01 00:00:01'", K.TIMESTAMP, {}, "time zone"),
        (None, K.GEOMETRY, {}, "no default"),
    ],
)
def test_a_default_that_nobody_knows_is_refused(text, kind, values, why) -> None:
    with pytest.raises(UnsupportedType, match=why):
        default(text, kind, **values)


UTC = StatementSession(1_718_454_896_789_012, "+00:00")


@pytest.mark.parametrize("text", ["'2020-01-01 00:00:01'", "CURRENT_TIMESTAMP"])
def test_the_time_zone_of_the_machine_is_named_with_the_way_on(text: str) -> None:
    """TIMESTAMP literals and DATETIME clocks mean the session's time zone; SYSTEM is one that only the machine
    knows.
    """
    sql_type = "datetime" if text == "CURRENT_TIMESTAMP" else "timestamp"
    made = SqlType.parse(sql_type).neutral()
    assert made is not None
    statement = Statement(False, 0, StatementSession(UTC.timestamp_us, "SYSTEM"))
    with pytest.raises(UnsupportedType, match=r"time_zone = SYSTEM; SET GLOBAL time_zone = '\+00:00'"):
        default_scalar(ColumnDefinition("c", sql_type, default=text), made, statement)


@pytest.mark.parametrize(
    ("sql_type", "text", "mysql", "mariadb"),
    [
        ("double", "'-0.0'", "-0.0", "0.0"),
        ("int", "2.5e0", "2", "2"),
        ("int", "2.5", "3", "3"),
        ("decimal(10,2)", "x'3132'", "12594.00", "12.00"),
        ("enum('x','y')", "2", None, "y"),
        ("set('x','y')", "3", None, "x,y"),
        ("datetime(3)", "'2024-01-01 00:00:00.1239'", "2024-01-01 00:00:00.124000", "2024-01-01 00:00:00.123000"),
        ("timestamp", "'2024-01-01 02:00:00'", "2024-01-01 02:00:00+00:00", "2024-01-01 02:00:00+00:00"),
        ("datetime(6)", "CURRENT_TIMESTAMP(6)", "2024-06-15 12:34:56.789012", "2024-06-15 12:34:56.789012"),
        ("date", "'2024-02-31'", None, None),
        ("tinyint", "300", None, None),
        ("varchar(3)", "'abcd'", None, None),
    ],
)
def test_what_a_statement_means_by_a_default_depends_on_its_server(sql_type, text, mysql, mariadb) -> None:
    definition = ColumnDefinition("c", sql_type, default=text, labels=labels_of(sql_type))
    made = SqlType.parse(sql_type, "utf8mb4").neutral("utf8mb4_bin")
    assert made is not None
    for server, wanted in ((False, mysql), (True, mariadb)):
        statement = Statement(server, 0, UTC)
        if wanted is None:
            with pytest.raises(UnsupportedType):
                default_scalar(definition, made, statement)
        else:
            assert str(default_scalar(definition, made, statement).as_py()) == wanted
