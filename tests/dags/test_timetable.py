"""Runs of a continuous pipeline: each has a logical date, and the dates rise."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from airflow.timetables.base import DataInterval, TimeRestriction
from hypothesis import given
from hypothesis import strategies as st
from pendulum import instance

from sluice.orchestration import timetable as timetables
from sluice.orchestration.timetable import SluiceTimetable

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Clock:
    """Stands in for Airflow's timezone module."""

    coerce_datetime = staticmethod(instance)

    def __init__(self, now: datetime = NOW) -> None:
        self.now = now

    def utcnow(self) -> datetime:
        return self.now


ANY_TIME = TimeRestriction(earliest=None, latest=None, catchup=False)


@given(st.lists(st.integers(-3_600_000_000, 3_600_000_000), min_size=2, max_size=20))
def test_logical_dates_rise_whatever_the_clock_does(jumps_us: list[int]) -> None:
    timetable, last, dates = SluiceTimetable(), None, []
    with pytest.MonkeyPatch.context() as patch:
        for jump in jumps_us:
            patch.setattr(timetables, "timezone", Clock(NOW + timedelta(microseconds=jump)))
            info = timetable.next_dagrun_info(last_automated_data_interval=last, restriction=ANY_TIME)
            assert info is not None
            dates.append(info.logical_date)
            last = info.data_interval
    assert all(a < b for a, b in itertools.pairwise(dates))


def test_the_first_run_is_now_and_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timetables, "timezone", Clock())
    start = TimeRestriction(earliest=instance(NOW - timedelta(days=700)), latest=None, catchup=False)
    info = SluiceTimetable().next_dagrun_info(last_automated_data_interval=None, restriction=start)
    assert info is not None
    assert info.logical_date == NOW
    assert info.run_after < NOW


def test_no_run_after_the_end_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timetables, "timezone", Clock())
    ended = TimeRestriction(earliest=None, latest=instance(NOW - timedelta(days=1)), catchup=False)
    assert SluiceTimetable().next_dagrun_info(last_automated_data_interval=None, restriction=ended) is None


def test_run_ids_differ_within_a_microsecond() -> None:
    from airflow.utils.types import DagRunType

    timetable, at = SluiceTimetable(), instance(NOW)
    later = at.add(microseconds=1)
    ids = {
        timetable.generate_run_id(run_type=DagRunType.SCHEDULED, run_after=at, data_interval=DataInterval.exact(moment))
        for moment in (at, later)
    }
    assert len(ids) == 2
