"""The timetable that opens runs of a sync DAG."""

from __future__ import annotations

from datetime import timedelta
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
    """

    description = "At each time of complete: in the pipeline file."

    def __init__(self, cron: str, timezone: Any) -> None:
        super().__init__(cron, timezone)
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
        return super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )
