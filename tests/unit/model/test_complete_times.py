"""The times up to which tables are told to be complete, over the clock changes of all zones of tzdata."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest

from sluice.config.pipeline import CompleteConfig
from sluice.model.completeness import next_time, previous_time

SPANS = [timedelta(minutes=20), *(timedelta(hours=hours) for hours in (1, 3, 24))]
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)


def changes_of(zone: ZoneInfo, year: int) -> Iterator[datetime]:
    """The moments of a year before which and after which clocks differ, to the minute."""
    at = datetime(year, 1, 1, tzinfo=UTC)
    while at.year == year:
        if at.astimezone(zone).utcoffset() != (at + DAY).astimezone(zone).utcoffset():
            low = at
            while low.astimezone(zone).utcoffset() == at.astimezone(zone).utcoffset():
                low += MINUTE
            yield low
        at += DAY


def shown_by_the_clock(zone: ZoneInfo, start: datetime, end: datetime, every: timedelta) -> list[datetime]:
    """Look at the clock of a zone once a minute, as a person would."""
    times: list[datetime] = []
    at, seen = start - 2 * DAY, set[datetime]()
    while at < end:
        wall = at.astimezone(zone).replace(tzinfo=None, fold=0)
        last = (at - MINUTE).astimezone(zone).replace(tzinfo=None, fold=0)
        midnight = wall.replace(hour=0, minute=0)
        passed = [midnight + number * every for number in range(int((wall - midnight) / every) + 1)]
        new = passed[-1] > last or (wall < last and passed[-1] == wall)
        if new and (every <= timedelta(hours=1) or passed[-1] not in seen):
            times.append(at)
        seen.add(passed[-1])
        at += MINUTE
    return [time for time in times if time > start]


@pytest.mark.parametrize("every", SPANS, ids=str)
@pytest.mark.parametrize(
    "name",
    ["Australia/Lord_Howe", "America/Havana", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kathmandu", "Africa/Casablanca",
     "Antarctica/Troll", "Pacific/Apia", "UTC"],
)  # fmt: skip
def test_times_are_those_that_the_clock_shows(name: str, every: timedelta) -> None:
    zone = ZoneInfo(name)
    year = {"America/Sao_Paulo": 2018, "Pacific/Apia": 2011}.get(name, 2026)
    for change in changes_of(zone, year):
        start, end = change - max(every, DAY / 3), change + max(every, DAY / 3)
        times, at = [], start
        while (at := next_time(at, every, zone)) < end:
            times.append(at)
        assert times == shown_by_the_clock(zone, start, end, every)


def test_times_follow_one_another_in_every_zone() -> None:
    """And each has one before and one after it, which Airflow asks for; a change of no zone stops that."""
    for name in sorted(available_timezones()):
        zone = ZoneInfo(name)
        for change in changes_of(zone, 2026):
            for every in (timedelta(minutes=20), timedelta(hours=1), DAY):
                at = change - every - timedelta(minutes=7)
                while at < change + every:
                    following = next_time(at, every, zone)
                    assert at < following <= at + every + timedelta(hours=3), (name, every)
                    assert previous_time(following + timedelta(microseconds=1), every, zone) == following, (name, every)
                    at = following


@pytest.mark.parametrize("text", ["5m", "10m", "15m", "20m", "30m", "1h", "2h", "3h", "4h", "6h", "8h", "12h", "1d"])
def test_the_timetable_reads_the_length_of_an_interval(text: str) -> None:
    timetables = pytest.importorskip("sluice.orchestration.timetable")
    config = CompleteConfig.model_validate({"every": text, "timezone": "Australia/Lord_Howe"})
    timetable = timetables.CompleteTimetable(config.cron, config.timezone)
    assert timetable._every == config.every
    again = timetables.CompleteTimetable.deserialize(timetable.serialize())
    change = datetime(2026, 10, 3, 15, 30, tzinfo=UTC)
    moments = [
        next_time(change - timedelta(minutes=number), config.every, ZoneInfo(config.timezone)) for number in range(90)
    ]
    assert [again._get_next(timetables.pendulum.instance(change - timedelta(minutes=n))) for n in range(90)] == moments
