"""Holding a dump back: by a rate, and by what the source and its replicas say of themselves."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pymysql
import structlog

from sluice.config.connections import Endpoint
from sluice.flows.runtime import Runtime
from sluice.model.dumps import Tuning
from sluice.sources.mysql.server.connection import open_connection, rows_of, source_errors

_log = structlog.get_logger()

ASK_EVERY_S = 0.5


class Throttle:
    """Says when a worker has to wait. One a worker; its own connections to the replicas that count."""

    def __init__(self, replicas: Sequence[tuple[Endpoint, Any]]) -> None:
        self._replicas = replicas
        self._asked = 0.0
        self._held = ""

    @classmethod
    @contextmanager
    def open(cls, runtime: Runtime) -> Iterator[Throttle]:
        """With connections to ``dump.replicas``."""
        with ExitStack() as stack:
            endpoints = [runtime.resolver(name) for name in runtime.pipeline.dump.replicas]
            yield cls([(endpoint, stack.enter_context(open_connection(endpoint))) for endpoint in endpoints])

    def hold(self, tuning: Tuning, source: Any) -> str:
        """Why a worker has to wait: the source is too busy, or a replica too far behind; ``""`` if it need not."""
        if not tuning.max_threads_running and not tuning.max_replica_lag_s:
            return ""
        if time.monotonic() - self._asked < ASK_EVERY_S:
            return self._held
        why = ""
        if tuning.max_threads_running:
            running = int(rows_of(source, "SHOW GLOBAL STATUS LIKE 'Threads_running'")[0][1])
            if running > tuning.max_threads_running:
                why = f"{running} statements run at the source"
        if not why and tuning.max_replica_lag_s:
            why = self._lagging(tuning.max_replica_lag_s, source)
        if why and not self._held:
            _log.info("dump_held", because=why)
        self._held, self._asked = why, time.monotonic()
        return why

    def _lagging(self, most_s: float, source: Any) -> str:
        lags = [("the source, itself a replica,", replica_lag_s(source))]
        for endpoint, connection in self._replicas:
            with source_errors(endpoint, "asking a replica how far behind it is"):
                lags.append((f"replica {endpoint.connection_id}", replica_lag_s(connection)))
        for name, lag in lags:
            if lag is not None and lag > most_s:
                return f"{name} is {lag:.0f} s behind" if math.isfinite(lag) else f"{name} does not follow its source"
        return ""

    @staticmethod
    def pause(tuning: Tuning, rows: int, took_s: float) -> float:
        """Seconds to wait after a chunk: the delay, or what the rate leaves of the time a chunk may take."""
        wait = tuning.delay_ms / 1000
        if tuning.max_rows_per_second:
            wait = max(wait, rows * tuning.parallelism / tuning.max_rows_per_second - took_s)
        return wait


def replica_lag_s(connection: Any) -> float | None:
    """How far a server is behind its own source, None if it has none. A replica that has stopped counts as endlessly behind.

    Raises what the driver raises: a server that does not answer is not one without lag.
    """
    with connection.cursor() as cursor:
        try:
            cursor.execute("SHOW REPLICA STATUS")
        except pymysql.err.ProgrammingError:  # a server that knows only the older words
            cursor.execute("SHOW SLAVE STATUS")
        rows = cursor.fetchall()
        names = [d[0].lower() for d in cursor.description or ()]
    lags = []
    for row in rows:
        found = dict(zip(names, row, strict=True))
        value = found.get("seconds_behind_source", found.get("seconds_behind_master"))
        lags.append(float("inf") if value is None else float(value))
    return max(lags) if lags else None


__all__ = ["Throttle", "replica_lag_s"]
