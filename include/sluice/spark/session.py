"""Units on a classic Spark session: inside spark-submit, on any cluster manager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import SparkSession

from sluice.spark.work import new_tag, run_on


class SessionRunner:
    """See :class:`sluice.spark.base.UnitRunner`. Uses the session that spark-submit configured."""

    def __init__(self, session: SparkSession | None = None) -> None:
        self._session = session or SparkSession.builder.appName("sluice").getOrCreate()
        self._tag = ""

    def cancel(self) -> None:
        """Interrupt the job under way."""
        if self._tag:
            self._session.interruptTag(self._tag)

    def run(
        self,
        function: Callable[[Any], Any],
        units: Sequence[Any],
        *,
        parallelism: int = 4,
        description: str = "",
    ) -> list[Any]:
        del description
        self._tag = new_tag()
        return run_on(self._session, function, units, parallelism=parallelism, tag=self._tag)

    def frames(self, tables: Sequence[Any], *, description: str = "") -> list[bytes]:
        del description
        from sluice.spark.frames import run_frames

        return run_frames(self._session, tables)
