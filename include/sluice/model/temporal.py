"""Dates inside ``date32`` and ``timestamp[us]`` columns that no calendar of the years 1 to 9999 has.

MySQL stores dates that no calendar has: ``0000-00-00``, ``2024-00-15``, ``0000-05-01``, and with ALLOW_INVALID_DATES
``2024-02-31``. They are kept as numbers far below the calendar's range: the day packed as
``year << 9 | month << 5 | day`` (23 bits) on top of a base.

========== ============================ ==========================================
Arrow type calendar values              special values
========== ============================ ==========================================
date32     days since 1970-01-01        ``DATE_BASE + packed``
timestamp  microseconds since 1970      ``TIMESTAMP_BASE + (packed << 37 | microseconds of the day)``
========== ============================ ==========================================

PostgreSQL stores ``infinity`` and ``-infinity`` (the greatest and the least number of the type), years before Christ
and years after 9999 (the numbers that continue the calendar's).

``as_py()`` and ``to_pandas()`` must not see any of them: ask :func:`is_special` first, or use :func:`to_text` /
:func:`to_python`. A target that has the last three asks :func:`is_no_date`.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DATE_BASE = -(1 << 30)
TIMESTAMP_BASE = -(1 << 62)
_DAY_BITS = 23
_MICROS_BITS = 37
_DAY_MICROS = 86_400_000_000
_EPOCH = dt.date(1970, 1, 1)
_DAY = re.compile(r"(\d{4,7})-(\d\d)-(\d\d)", re.ASCII)
BEFORE_CHRIST = " BC"
_INFINITE = {"infinity": True, "-infinity": False}
_CLOCK = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?", re.ASCII)
DATE_LIMIT = DATE_BASE + (1 << _DAY_BITS)
TIMESTAMP_LIMIT = TIMESTAMP_BASE + (1 << (_DAY_BITS + _MICROS_BITS))
DATE_INFINITY, DATE_MINUS_INFINITY = 2**31 - 1, -(2**31)
TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY = 2**63 - 1, -(2**63)
_FIRST_DAY = (dt.date(1, 1, 1) - _EPOCH).days
_LAST_DAY = (dt.date(9999, 12, 31) - _EPOCH).days
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
"""After so many years the calendar repeats."""


def pack_day(year: int, month: int, day: int) -> int:
    """Return ``year << 9 | month << 5 | day``."""
    return year << 9 | month << 5 | day


def unpack_day(packed: int) -> tuple[int, int, int]:
    """Return (year, month, day) of a number that :func:`pack_day` made."""
    return packed >> 9, packed >> 5 & 15, packed & 31


def special_date(year: int, month: int, day: int) -> int:
    """Return the date32 number of a day that no calendar has."""
    return DATE_BASE + pack_day(year, month, day)


def special_timestamp(year: int, month: int, day: int, micros_of_day: int) -> int:
    """Return the timestamp[us] number of a time on a day that no calendar has."""
    return TIMESTAMP_BASE + (pack_day(year, month, day) << _MICROS_BITS | micros_of_day)


def stored_date(year: int, month: int, day: int) -> int:
    """Encode a date as date32, including invalid dates such as 2023-02-31."""
    try:
        return (dt.date(year, month, day) - _EPOCH).days
    except ValueError:
        return special_date(year, month, day)


def stored_timestamp(year: int, month: int, day: int, micros_of_day: int) -> int:
    """Return the timestamp[us] number of a time on a day, whether a calendar has it or not."""
    try:
        return (dt.date(year, month, day) - _EPOCH).days * _DAY_MICROS + micros_of_day
    except ValueError:
        return special_timestamp(year, month, day, micros_of_day)


def is_special(values: pa.Array) -> np.ndarray[Any, Any]:
    """Return a mask (bool, one per value; False for null) of the values that are not in the years 1 to 9999.

    ``values``: date32 or timestamp[us].
    """
    date = pa.types.is_date32(values.type)
    numbers = values.view(pa.int32() if date else pa.int64())
    unit = 1 if date else _DAY_MICROS
    low, high = _FIRST_DAY * unit, (_LAST_DAY + 1) * unit
    outside = pc.or_(pc.less(numbers, low), pc.greater_equal(numbers, high))
    return np.asarray(pc.fill_null(outside, False).to_numpy(zero_copy_only=False))


def is_no_date(values: pa.Array) -> np.ndarray[Any, Any]:
    """Return a mask (bool, one per value; False for null) of the dates that MySQL alone has (``0000-00-00``).

    ``values``: date32 or timestamp[us].
    """
    date = pa.types.is_date32(values.type)
    numbers = values.view(pa.int32() if date else pa.int64())
    limit, infinite = (DATE_LIMIT, DATE_MINUS_INFINITY) if date else (TIMESTAMP_LIMIT, TIMESTAMP_MINUS_INFINITY)
    packed = pc.and_(pc.less(numbers, limit), pc.greater(numbers, infinite))
    return np.asarray(pc.fill_null(packed, False).to_numpy(zero_copy_only=False))


def text_of_special(number: int, *, date: bool, fsp: int = 0) -> str:
    """Return the text that the source prints for a special number, e.g. ``0000-00-00 00:00:00.000``, ``infinity`` or
    ``0044-03-15 BC``.
    """
    if number in ((DATE_INFINITY, DATE_MINUS_INFINITY) if date else (TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY)):
        return "infinity" if number > 0 else "-infinity"
    if number >= (DATE_LIMIT if date else TIMESTAMP_LIMIT):
        days, micros_of_day = (number, 0) if date else divmod(number, _DAY_MICROS)
        year, month, day = _far_day(days)
    elif date:
        (year, month, day), micros_of_day = unpack_day(number - DATE_BASE), 0
    else:
        value = number - TIMESTAMP_BASE
        year, month, day = unpack_day(value >> _MICROS_BITS)
        micros_of_day = value & ((1 << _MICROS_BITS) - 1)
    digits = f"{year:04d}" if year >= 0 else f"{-year:04d}"
    text, era = f"{digits}-{month:02d}-{day:02d}", BEFORE_CHRIST if year < 0 else ""
    if date:
        return text + era
    seconds, micros = divmod(micros_of_day, 1_000_000)
    text += f" {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text + (f".{micros:06d}"[: fsp + 1] if fsp else "") + era


def _far_day(days: int) -> tuple[int, int, int]:
    """Return (year, month, day) of a day outside of the years 1 to 9999; the year 1 BC is -1."""
    cycles = (days - _FIRST_DAY) // _CYCLE_DAYS
    near = _EPOCH + dt.timedelta(days=days - cycles * _CYCLE_DAYS)
    year = near.year + cycles * _CYCLE_YEARS
    return year if year > 0 else year - 1, near.month, near.day


def _far_number(year: int, month: int, day: int) -> int:
    """Return the days since 1970 of a day in a year (1 BC is 0) that Python's calendar does not have."""
    cycles, near = divmod(year - 1, _CYCLE_YEARS)
    return (dt.date(near + 1, month, day) - _EPOCH).days + cycles * _CYCLE_DAYS


def to_text(values: pa.Array, *, fsp: int = 0) -> pa.Array:
    """Return the source's text of a date32, timestamp[us] (as UTC) or duration[us] array.

    It has ``fsp`` digits of fraction. Nulls stay null.
    """
    if pa.types.is_duration(values.type):
        return _time_text(values, fsp)
    date = pa.types.is_date32(values.type)
    mask = is_special(values)
    plain = values if not mask.any() else pc.if_else(pa.array(mask), pa.scalar(None, values.type), values)
    if date:
        text = pc.cast(plain, pa.string())
    else:
        text = pc.utf8_slice_codeunits(
            pc.cast(pc.cast(plain, pa.timestamp("us")), pa.string()), 0, 19 + (fsp + 1 if fsp else 0)
        )
    if mask.any():
        numbers = pc.fill_null(values.view(pa.int32() if date else pa.int64()), 0).to_numpy(zero_copy_only=False)
        items = text.to_pylist()
        for i in np.flatnonzero(mask):
            items[i] = text_of_special(int(numbers[i]), date=date, fsp=fsp)
        text = pa.array(items, pa.string())
    return text


def _time_text(values: pa.Array, fsp: int) -> pa.Array:
    out: list[str | None] = [
        None if micros is None else time_text(micros, fsp) for micros in values.view(pa.int64()).to_pylist()
    ]
    return pa.array(out, pa.string())


def time_text(micros: int, fsp: int) -> str:
    """Return MySQL's text of a TIME: ``-838:59:59.000001``."""
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text + f".{fraction:06d}"[: fsp + 1] if fsp else text


def time_of(text: str) -> dt.timedelta:
    """Parse a TIME as :func:`time_text` prints it. Raises ValueError."""
    clock, _, fraction = text.removeprefix("-").partition(".")
    hours, minutes, seconds = map(int, clock.split(":"))
    micros = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int(fraction.ljust(6, "0"))
    return dt.timedelta(microseconds=-micros if text.startswith("-") else micros)


def date_number(text: str) -> int:
    """Return the stored number of a date that :func:`to_text` printed. Raises ValueError."""
    if text in _INFINITE:
        return DATE_INFINITY if _INFINITE[text] else DATE_MINUS_INFINITY
    year, month, day = _day_of(text.removesuffix(BEFORE_CHRIST))
    if text.endswith(BEFORE_CHRIST) or year > 9999:
        return _far_number(1 - year if text.endswith(BEFORE_CHRIST) else year, month, day)
    return stored_date(year, month, day)


def timestamp_number(text: str) -> int:
    """Return the stored number of a date and time that :func:`to_text` printed; midnight if there is only a date.

    Raises ValueError.
    """
    if text in _INFINITE:
        return TIMESTAMP_INFINITY if _INFINITE[text] else TIMESTAMP_MINUS_INFINITY
    date, _, clock = text.removesuffix(BEFORE_CHRIST).partition(" ")
    time = _CLOCK.fullmatch(clock or "00:00:00")
    if time is None:
        raise ValueError(f"{text!r} is no date and time")
    hours, minutes, seconds = map(int, time.groups()[:3])
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError(f"{text!r} is no date and time")
    micros = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int((time[4] or "").ljust(6, "0"))
    year, month, day = _day_of(date)
    if text.endswith(BEFORE_CHRIST) or year > 9999:
        days = _far_number(1 - year if text.endswith(BEFORE_CHRIST) else year, month, day)
        return days * _DAY_MICROS + micros
    return stored_timestamp(year, month, day, micros)


def _day_of(text: str) -> tuple[int, int, int]:
    match = _DAY.fullmatch(text)
    if match is None or int(match[2]) > 12 or int(match[3]) > 31:
        raise ValueError(f"{text!r} is no date")
    return int(match[1]), int(match[2]), int(match[3])


def to_python(values: pa.Array) -> list[Any]:
    """Return a list of date / datetime / timedelta objects; special values become the source's text of them."""
    if pa.types.is_duration(values.type):
        return [None if v is None else dt.timedelta(microseconds=v) for v in values.view(pa.int64()).to_pylist()]
    date = pa.types.is_date32(values.type)
    mask = is_special(values)
    if not mask.any():
        return values.to_pylist()  # type: ignore[no-any-return]
    plain = pc.if_else(pa.array(mask), pa.scalar(None, values.type), values).to_pylist()
    numbers = pc.fill_null(values.view(pa.int32() if date else pa.int64()), 0).to_numpy(zero_copy_only=False)
    for i in np.flatnonzero(mask):
        plain[i] = text_of_special(int(numbers[i]), date=date, fsp=0 if date else 6)
    return plain  # type: ignore[no-any-return]
