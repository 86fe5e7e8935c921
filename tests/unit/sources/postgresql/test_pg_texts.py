"""The server's texts as Arrow values: what comes in comes out again."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.errors import DecodeError, UnsupportedValue
from sluice.model import decimals
from sluice.model.tables import Column
from sluice.model.temporal import to_text
from sluice.postgresql.column_types import neutral_column
from sluice.sources.postgresql.values.decode import decode
from tests.support.suite.examples import examples


def decoded(words: str, *texts: str | None, labels: tuple[str, ...] = ()) -> pa.Array:
    """The texts as the log has them, with other bytes between them."""
    column = neutral_column("c", words, labels)
    return decode_as(column, texts)


def decode_as(column: Column, texts: Any) -> pa.Array:
    data, starts, lengths = b"#", [], []
    for text in texts:
        starts.append(len(data))
        lengths.append(-1 if text is None else len(text.encode()))
        data += (text or "").encode() + b"#"
    found = decode(column, np.frombuffer(data, np.uint8), np.array(starts, np.int64), np.array(lengths, np.int32))
    (decimals.without_nan(found)[0] if column.kind == "decimal" else found).validate(full=True)
    assert found.type == column.arrow_type
    return found


@pytest.mark.parametrize(
    ("words", "texts", "values"),
    [
        ("boolean", ("t", "f", None, "true", "false"), [1, 0, None, 1, 0]),
        ("smallint", ("-32768", "32767", "0", None), [-32768, 32767, 0, None]),
        ("integer", ("-2147483648", "2147483647"), [-(2**31), 2**31 - 1]),
        ("bigint", ("-9223372036854775808", "9223372036854775807", None), [-(2**63), 2**63 - 1, None]),
        ("oid", ("4294967295", "0"), [2**32 - 1, 0]),
        ("xid8", ("18446744073709551615",), [2**64 - 1]),
        ("real", ("1.5", "-0", "3.4028235e+38", None), [1.5, -0.0, 3.4028234663852886e38, None]),
        ("double precision", ("0.1", "Infinity", "-Infinity", "5e-324"), [0.1, float("inf"), float("-inf"), 5e-324]),
        ("numeric(5,2)", ("-999.99", "0.05", None), [Decimal("-999.99"), Decimal("0.05"), None]),
        ("numeric", ("NaN", "1e5", "0.000000000000000000001"), ["NaN", "1e5", "0.000000000000000000001"]),
        ("bit(3)", ("101", "000", None), [5, 0, None]),
        ("bit(64)", ("1" * 64,), [2**64 - 1]),
        ("bit varying", ("101", ""), ["101", ""]),
        ("bytea", (r"\x00ff", r"\x", None, r"\xDEad"), [b"\0\xff", b"", None, b"\xde\xad"]),
        ("character(4)", ("ab  ", "", None, "ä   "), ["ab", "", None, "ä"]),
        ("character varying(4)", ("ab  ",), ["ab  "]),
        ("text", ("", None, "😀 \n"), ["", None, "😀 \n"]),
        ("int4range[]", ('{"[1,3)",NULL}',), ['{"[1,3)",NULL}']),
        ("public.addr", ('(1,"a b")',), ['(1,"a b")']),
    ],
)
def test_values_of_a_type(words: str, texts: tuple[str | None, ...], values: list[Any]) -> None:
    assert decoded(words, *texts).to_pylist() == values


def test_a_float_that_is_no_number() -> None:
    [value] = decoded("real", "NaN").to_pylist()
    assert value != value


def test_labels() -> None:
    found = decoded("public.mood", "sad", None, labels=("happy", "sad"))
    assert found.to_pylist() == ["sad", None]


DATES = (
    "1970-01-01", "2024-02-29", "0001-01-01", "9999-12-31", "0001-12-31 BC", "0044-03-15 BC", "4713-01-01 BC",
    "10000-01-01", "5874897-12-31", "infinity", "-infinity",
)  # fmt: skip


def test_dates_that_other_calendars_lack() -> None:
    assert to_text(decoded("date", *DATES, None)).to_pylist() == [*DATES, None]


TIMES = (
    "1969-12-31 23:59:59.999999", "2024-02-29 00:00:00.500000", "0044-03-15 12:00:00.000000 BC",
    "4713-01-01 00:00:00.000000 BC", "294246-12-31 23:59:59.999999", "infinity", "-infinity",
)  # fmt: skip


def test_times_that_other_calendars_lack() -> None:
    assert to_text(decoded("timestamp without time zone", *TIMES, None), fsp=6).to_pylist() == [*TIMES, None]


def test_points_in_time_are_in_utc() -> None:
    found = decoded("timestamp(3) with time zone", "2024-01-31 12:00:00.25+00", "0044-03-15 12:00:00+00 BC")
    assert to_text(found, fsp=3).to_pylist() == ["2024-01-31 12:00:00.250", "0044-03-15 12:00:00.000 BC"]


def test_times_of_a_day() -> None:
    found = decoded("time without time zone", "00:00:00", "24:00:00", "23:59:59.999999", None)
    assert found.cast(pa.int64()).to_pylist() == [0, 86_400_000_000, 86_399_999_999, None]


def written(number: int, scale: int) -> str:
    """A decimal with its digits behind the point, as the server prints it."""
    digits = str(abs(number)).zfill(scale + 1)
    point = len(digits) - scale
    return ("-" if number < 0 else "") + digits[:point] + ("." + digits[point:] if scale else "")


@settings(max_examples=examples(0.5))
@given(st.lists(st.none() | st.integers(-(10**76) + 1, 10**76 - 1), max_size=20), st.integers(0, 76))
def test_decimals_of_any_width(numbers: list[int | None], scale: int) -> None:
    column = neutral_column("c", f"numeric(76,{scale})")
    texts = [None if number is None else written(number, scale) for number in numbers]
    assert decode_as(column, texts).to_pylist() == [None if text is None else Decimal(text) for text in texts]


def test_a_value_that_cannot_be_kept_is_named() -> None:
    with pytest.raises(UnsupportedValue) as error:
        decoded("timestamp without time zone", "2024-01-01 00:00:00", "294276-12-31 00:00:00")
    assert "294276-12-31" in error.value.message
    assert error.value.hint


@pytest.mark.parametrize("precision", range(1, 77))
def test_nan_of_every_precision(precision: int) -> None:
    """It is no other value, survives Parquet and a wider column, and is above all numbers."""
    column = neutral_column("c", f"numeric({precision},1)")
    texts = ["NaN", "0.9", None, "-0.9", "NaN"]
    kept = pa.BufferOutputStream()
    pq.write_table(pa.table({"c": decode_as(column, texts)}), kept)
    read = pq.read_table(pa.BufferReader(kept.getvalue()))["c"].combine_chunks()
    for values in (read, decimals.cast(read, pa.decimal256(76, 1))):
        assert decimals.to_text(values).to_pylist() == texts
        assert decimals.is_nan(values.slice(1)).tolist() == [False, False, False, True]
        assert pc.max_element_wise(values, values.take(pa.array([1] * 5))).equals(
            values.take(pa.array([0, 1, 1, 1, 4]))
        )
    assert decimals.from_python(decimals.to_python(read), read.type).equals(read)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("integer", "1x"), ("integer", ""), ("bytea", "abc"), (r"bytea", r"\x0"), ("bytea", r"\xzz"), ("bit(3)", "12"),
        ("date", "2024-13-01"), ("date", "2024-01-01x"), ("timestamp without time zone", "2024-01-01"),
        ("timestamp with time zone", "2024-01-01 00:00:00+02"), ("time without time zone", "12"),
        ("numeric(5,2)", "1.234"), ("double precision", "one"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_value_stops(words: str, text: str) -> None:
    with pytest.raises(DecodeError):
        decoded(words, text)


def test_the_longest_types_are_not_known_to_be_short() -> None:
    """A type that nobody told us of is text without a limit, as are arrays, and numbers without digits."""
    for words in ("public.hstore", "numeric", "numeric(100,2)", "numeric(3,-2)", "text[]", "bit varying(9)"):
        column = neutral_column("c", words)
        assert (str(column.arrow_type), column.sql_type, column.native) == ("string", "longtext", words)
