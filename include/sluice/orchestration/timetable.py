"""The timetable that opens runs of a sync DAG."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pendulum
from airflow.sdk import timezone
from airflow.timetables.base import DagRunInfo, DataInterval
from airflow.timetables.interval import CronDataIntervalTimetable
from airflow.timetables.simple import ContinuousTimetable

from sluice.model.completeness import next_time, previous_time

if TYPE_CHECKING:
    from airflow.timetables.base import TimeRestriction
    from pendulum import DateTime

_CLOCK_GRAIN = timedelta(seconds=1)
_STEP = timedelta(microseconds=1)
_KEY_FORMAT = "%Y-%m-%dT%H:%M:%S"
"""A partition key, as Airflow's own timetables write it and its mappers read it by default."""


class SluiceTimetable(ContinuousTimetable):  # type: ignore[misc]
    """Keeps the window full: as soon as a run ends, the next opens, up to the DAG's ``max_active_runs``.

    Airflow's own continuous timetable allows one run at a time, because its runs would race each other. Ours don't:
    ``drain``, ``load`` and ``ack`` depend on their own past. That works only if every run has a logical date (Airflow
    ignores ``depends_on_past`` silently without one), and only if these dates rise, which is what this class is for:

    - a run's logical date is the time at which it was planned, strictly later than that of the run before it, also when
      the clock was set back or two runs are planned in the same microsecond;
    - the first run's date is the time at which the DAG was enabled, not the DAG's start date, so that no two
      installations ever open runs with the same id.

    Runs are due one second early: SQLite compares ``run_after`` with a clock that has no fractions, and a run would
    otherwise start up to a second late.
    """

    description = "Always: keeps the pipeline's window of runs open; the first of them waits for changes."
    active_runs_limit = None

    @property
    def summary(self) -> str:
        """The schedule, as Airflow shows it."""
        return "continuous"

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Return a run that is due now, after the interval of the last one."""
        at = timezone.coerce_datetime(timezone.utcnow())
        if restriction.earliest is not None and restriction.earliest > at:
            at = restriction.earliest
        if last_automated_data_interval is not None and last_automated_data_interval.end >= at:
            at = last_automated_data_interval.end + _STEP
        if restriction.latest is not None and at > restriction.latest:
            return None
        return DagRunInfo.exact(at)._replace(run_after=at - _CLOCK_GRAIN)

    def generate_run_id(
        self, *, run_type: Any, run_after: Any, data_interval: DataInterval | None, **extra: Any
    ) -> str:
        """Return ``scheduled__{logical date}``, which is unique because logical dates are."""
        moment = data_interval.start if data_interval is not None else run_after
        return str(run_type.generate_run_id(suffix=moment.isoformat()))


class BackfillTimetable(CronDataIntervalTimetable):  # type: ignore[misc]
    """An hour is an interval, and none comes by itself: runs are asked for, by *Trigger* or by Airflow's own
    *Backfill*.

    Backfill needs a timetable with data intervals, and asks for all of a range, past runs or not (``catchup``); the
    scheduler of a DAG without catch-up doesn't.
    """

    description = "When somebody asks for it; Backfill takes an hour a run."

    def __init__(self, cron: str = "0 * * * *", timezone: Any = "UTC") -> None:
        super().__init__(cron, timezone)

    @property
    def summary(self) -> str:
        """The schedule, as Airflow shows it."""
        return "on request"

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Return an interval only to a backfill, which asks with ``catchup``."""
        if not restriction.catchup:
            return None
        return super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )

    def serialize(self) -> dict[str, Any]:
        """Return nothing: the timetable has no settings."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> BackfillTimetable:
        """Create the timetable; it has no settings."""
        return cls()


class CompleteTimetable(CronDataIntervalTimetable):  # type: ignore[misc]
    """An interval ends at each time up to which tables are told to be complete, and none is left out.

    The first run is that of the last time before the DAG was enabled; after a pause, those of all times since come.

    Args:
        cron: as :attr:`sluice.config.pipeline.CompleteConfig.cron` has it: the length of an interval. Airflow's own
            arithmetic with it fails where a clock change is shorter than an hour.
        timezone: name of a time zone.
        partitioned: a run has the begin of its interval as its partition key, and so have the events of its tasks. It
            keeps its interval, unlike runs of Airflow's own partitioned timetables.
    """

    description = "At each time of complete: in the pipeline file."

    def __init__(self, cron: str, timezone: Any, *, partitioned: bool = False) -> None:
        super().__init__(cron, timezone)
        self.partitioned = partitioned
        minutes, hours = (part.removeprefix("*/") for part in cron.split()[:2])
        self._every = timedelta(minutes=int(minutes)) if hours == "*" else timedelta(hours=int(hours) or 24)

    def _get_next(self, current: DateTime) -> DateTime:
        return pendulum.instance(next_time(current, self._every, self._timezone))

    def _get_prev(self, current: DateTime) -> DateTime:
        return pendulum.instance(previous_time(current, self._every, self._timezone))

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Return the interval that follows the last one; the newest one if there is none yet."""
        if last_automated_data_interval is not None:
            restriction = restriction._replace(earliest=None, catchup=True)
        info = super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )
        return self._with_partition(info.data_interval) if info is not None and self.partitioned else info

    def _with_partition(self, interval: DataInterval) -> DagRunInfo:
        start = interval.start
        return DagRunInfo(interval.end, interval, start, start.in_timezone(self._timezone).strftime(_KEY_FORMAT))

    def run_info_from_dag_run(self, *, dag_run: Any) -> DagRunInfo:
        """Return the interval of a run: Airflow gives none for one with a partition key."""
        if dag_run.partition_key is None or dag_run.data_interval_start is None:
            return super().run_info_from_dag_run(dag_run=dag_run)
        start, end = map(pendulum.instance, (dag_run.data_interval_start, dag_run.data_interval_end))
        return self._with_partition(DataInterval(start, end))

    def iter_partition_dagrun_infos(self, *, earliest: datetime, latest: datetime) -> Iterator[DagRunInfo]:
        """Yield the runs of a backfill: one for each interval that begins between two moments."""
        earliest, latest = self.localize_partition_datetime(earliest), self.localize_partition_datetime(latest)
        start = self._align_to_next(earliest)
        while start <= latest:
            end = self._get_next(start)
            yield self._with_partition(DataInterval(start, end))
            start = end

    def _decode_partition_date(self, partition_key: str) -> datetime:
        return datetime.strptime(partition_key, _KEY_FORMAT).replace(tzinfo=self._timezone)

    def serialize(self) -> dict[str, Any]:
        """Return what :meth:`deserialize` takes."""
        stored: dict[str, Any] = super().serialize()
        return stored | {"partitioned": True} if self.partitioned else stored

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> CompleteTimetable:
        """Create the timetable from what is stored."""
        timetable: CompleteTimetable = super().deserialize(data)
        timetable.partitioned = data.get("partitioned", False)
        return timetable
