"""Dates and times as SQL text spells them, read as the servers read the default of a column.

Raises ValueError for a spelling that this module does not read: whoever asks then says that the value is not known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sluice.model.temporal import special_timestamp, stored_date

_DAY = re.compile(r"^\s*(\d{2}|\d{4})[^\w\s](\d{1,2})[^\w\s](\d{1,2})(?:[ T]+(.*))?$", re.A)
_PLAIN_DAY = re.compile(r"^\s*(\d{2}|\d{4})(\d\d)(\d\d)(?:T?(\d\d)(\d\d)(\d\d)?(?:\.(\d*))?)?$", re.A)
_HOURS = re.compile(r"^\s*(\d{1,2})(?:[^\w\s](\d{1,2})(?:[^\w\s](\d{1,2})(?:\.(\d*))?)?)?\s*$", re.A)
_CLOCK = re.compile(r"^\s*(-?)(?:(\d+) +)?(\d+):(\d+)(?::(\d+)(?:\.(\d*))?)?$", re.A)
_PLAIN_CLOCK = re.compile(r"^\s*(-?)(\d*?)(\d{0,2}?)(\d{1,2})(?:\.(\d*))?$", re.A)
DAY_US = 86_400_000_000
_LONGEST_US = (838 * 3600 + 59 * 60 + 59) * 1_000_000
_PIVOT = 70
"""A year of two digits below it is of this century."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The treatment of a fraction of a second that has more than ``digits``.

    It is rounded, cut, or neither (None), where a digit that is lost is an error.
    """

    digits: int
    rounds: bool | None = None

    def of(self, fraction: str) -> int:
        """Return microseconds, 1,000,000 where they are rounded up to a second. Raises ValueError."""
        if not fraction[self.digits :].strip("0"):
            return int(fraction.ljust(6, "0")[:6])
        if self.rounds is None:
            raise ValueError(fraction)
        step: int = 10 ** (6 - self.digits)
        micros = int(fraction.ljust(6, "0")[:6])
        if not self.rounds:
            return micros // step * step
        micros += fraction[6:7] >= "5"  # the servers keep microseconds first
        return (micros + step // 2) // step * step if step > 1 else micros


def read_year(text: str, number: int, *, quoted: bool) -> int:
    """Read a year: of one or two digits it means 1970 to 2069, and the number 0 is the year 0000."""
    if number < 0:
        raise ValueError(text)
    if number <= 99 and len(text) != 4 and (number or quoted):
        number += 2000 if number < _PIVOT else 1900
    if number and not 1901 <= number <= 2155:
        raise ValueError(text)
    return number


def read_day(text: str) -> tuple[int, tuple[int, int, int], str]:
    """Return (date32 number, (year, month, day), what follows the day)."""
    match = _DAY.match(text)
    rest = ""
    if match is not None:
        rest = (match[4] or "").strip()
    else:
        match = _PLAIN_DAY.match(text)
        if match is None:
            raise ValueError(text)
        if match[4]:
            rest = f"{match[4]}:{match[5]}:{match[6] or '00'}" + (f".{match[7]}" if match[7] else "")
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    if month > 12 or day > 31:
        raise ValueError(text)
    if len(match[1]) == 2 and (year, month, day) != (0, 0, 0):
        year += 2000 if year < _PIVOT else 1900
    return stored_date(year, month, day), (year, month, day), rest


def is_calendar_day(number: int) -> bool:
    """Return False for a date32 number of a day that no calendar has."""
    return number > -(1 << 29)


def read_moment(text: str, precision: Precision) -> tuple[int, bool]:
    """Return (timestamp[us] number of the wall time, whether a calendar has it)."""
    number, day, rest = read_day(text)
    micros = _hours(rest, precision) if rest else 0
    if not is_calendar_day(number):
        if micros >= DAY_US:
            raise ValueError(text)
        return special_timestamp(*day, micros), False
    return number * DAY_US + micros, True


def _hours(text: str, precision: Precision) -> int:
    """Return the microseconds of the day, after a day."""
    match = _HOURS.match(text)
    if match is None:
        raise ValueError(text)
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[:3])
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError(text)
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + precision.of(match[4] or "")


def read_span(text: str, precision: Precision) -> int:
    """Return the microseconds of a TIME."""
    match = _CLOCK.match(text)
    if match is not None:
        days, hours, minutes, seconds, fraction = match[2], match[3], match[4], match[5], match[6]
    else:
        match = _PLAIN_CLOCK.match(text)
        if match is None:
            raise ValueError(text)
        days, hours, minutes, seconds, fraction = None, match[2], match[3], match[4], match[5]
    if int(minutes or 0) > 59 or int(seconds or 0) > 59:
        raise ValueError(text)
    seconds_in_all = ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    micros = seconds_in_all * 1_000_000 + precision.of(fraction or "")
    if micros > _LONGEST_US:
        raise ValueError(text)
    return -micros if match[1] else micros
