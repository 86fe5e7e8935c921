"""When a table holds every change that was committed before a time.

The rule has two halves. A source says which part of its log is **settled**: no transaction with an earlier commit time
comes after a position (:class:`Settled`). A target **holds** everything up to a position. The table is complete up to
a time once the settled time has reached it, and the target holds the settled position.

So neither idle tables nor an idle source hold an event back: the settled time is that of the source's clock, and does
not wait for a change.

The times themselves are those of a clock: :func:`next_time` says which, also on the days on which clocks are changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from sluice.model.offset import Offset


@dataclass(frozen=True, slots=True)
class Settled:
    """A part of a source's log to which nothing is added: all that was committed before a time is in it.

    Attributes:
        time_us: microseconds since 1970 UTC, by the source's clock. Every transaction whose commit time in the log is
            earlier ends at ``at`` or before it.
        at: the position.
    """

    time_us: int
    at: Offset


_HOUR = timedelta(hours=1)


def next_time(after: datetime, every: timedelta, zone: tzinfo) -> datetime:
    """Return the first time later than ``after`` at which an interval ends, in UTC.

    Intervals end where the clock of ``zone`` shows a multiple of ``every`` since midnight. A time that a clock change
    skips is the moment of the change; one that it repeats counts twice where ``every`` is at most an hour, else at the
    first only. So a day begins with its first moment.
    """
    return min(moment for moment in _times_around(after, every, zone) if moment > after)


def previous_time(before: datetime, every: timedelta, zone: tzinfo) -> datetime:
    """Return the last time earlier than ``before`` at which an interval ends, in UTC; see :func:`next_time`."""
    return max(moment for moment in _times_around(before, every, zone) if moment < before)


def _times_around(moment: datetime, every: timedelta, zone: tzinfo) -> Iterator[datetime]:
    today = moment.astimezone(zone).date()
    for days in (-1, 0, 1):
        yield from _times_of(today + timedelta(days=days), every, zone)


def _times_of(day: date, every: timedelta, zone: tzinfo) -> Iterator[datetime]:
    midnight = datetime.combine(day, time())
    for number in range(timedelta(days=1) // every):
        wall = midnight + number * every
        first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        if first <= second:
            yield first
            if every <= _HOUR:
                yield second
        else:  # no clock shows it: with the offset of before it is after the change, and the other way round
            yield _change_between(second, first, zone)


def _change_between(low: datetime, high: datetime, zone: tzinfo) -> datetime:
    """Return the first moment after ``low`` that has the offset of ``high``."""
    after = high.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
        low, high = (low, middle) if middle.astimezone(zone).utcoffset() == after else (middle, high)
    return high


def held_position(captured: Offset, next_batch: int, acknowledged: Offset, batch: int) -> Offset:
    """Return the position up to which a target holds every change.

    It is the captured one where the target has every batch before ``next_batch``: the log since the last batch holds
    nothing for it. ``captured`` and ``next_batch`` have to be read before ``acknowledged`` and ``batch``.
    """
    return captured if batch >= next_batch - 1 else acknowledged


def is_complete(until_us: int, settled: Settled, position: Offset) -> bool:
    """Return True if all that was committed before ``until_us`` is held. False for positions of different logs."""
    if settled.time_us < until_us or settled.at.log_epoch != position.log_epoch:
        return False
    return not settled.at.follows(position)
