"""Units on a classic Spark session: inside spark-submit, on any cluster manager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from sluice.spark.work import UnderWay, run_on, run_statement


class SessionRunner:
    """See :class:`sluice.spark.base.UnitRunner`. Uses the session that spark-submit configured."""

    def __init__(self, session: SparkSession | None = None) -> None:
        self._session = session or SparkSession.builder.appName("sluice").getOrCreate()
        self._under_way = UnderWay()

    def cancel(self) -> None:
        """Interrupt the jobs under way."""
        self._under_way.interrupt()

    def run(
        self,
        function: Callable[[Any], Any],
        units: Sequence[Any],
        *,
        parallelism: int = 4,
        description: str = "",
    ) -> list[Any]:
        """Run the function on each unit as a Spark job."""
        del description
        with self._under_way.job(self._session) as tag:
            return run_on(self._session, function, units, parallelism=parallelism, tag=tag)

    def statement(
        self, text: str, settings: Mapping[str, str], required: Mapping[str, str], *, description: str = ""
    ) -> None:
        """Run one SQL statement in a session of its own."""
        session = self._session.newSession()
        with self._under_way.job(session) as tag:
            run_statement(session, text, settings, required, tag=tag, description=description)

    def frames(self, tables: Sequence[Any], *, description: str = "") -> list[bytes]:
        """Run a rule on Spark frames and return its reports."""
        del description
        from sluice.spark.frames import run_frames

        return run_frames(self._session, tables)
