"""Holding a dump back: by a rate, and by what the source and its replicas say of themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import structlog

from sluice.binlog.connection import open_connection, rows_of
from sluice.errors import SourceUnavailable
from sluice.flows.runtime import Runtime
from sluice.model.dumps import Tuning

_log = structlog.get_logger()

ASK_EVERY_S = 0.5


class Throttle:
    """Says when a worker has to wait. One a worker; its own connections to the replicas that count."""

    def __init__(self, replicas: list[Any]) -> None:
        self._replicas = replicas
        self._asked = 0.0
        self._held = ""

    @classmethod
    @contextmanager
    def open(cls, runtime: Runtime) -> Iterator[Throttle]:
        """With connections to ``dump.replicas``."""
        with ExitStack() as stack:
            names = runtime.pipeline.dump.replicas
            yield cls([stack.enter_context(open_connection(runtime.resolver(name))) for name in names])

    def hold(self, tuning: Tuning, source: Any) -> bool:
        """True if the source is too busy, or a replica too far behind."""
        if not tuning.max_threads_running and not tuning.max_replica_lag_s:
            return False
        if time.monotonic() - self._asked < ASK_EVERY_S:
            return bool(self._held)
        why = ""
        if tuning.max_threads_running:
            running = int(rows_of(source, "SHOW GLOBAL STATUS LIKE 'Threads_running'")[0][1])
            if running > tuning.max_threads_running:
                why = f"{running} statements run at the source"
        if not why and tuning.max_replica_lag_s:
            for server in (source, *self._replicas):
                lag = replica_lag_s(server)
                if lag is not None and lag > tuning.max_replica_lag_s:
                    why = f"a replica is {lag:.0f} s behind"
        if why and not self._held:
            _log.info("dump_held", because=why)
        self._held, self._asked = why, time.monotonic()
        return bool(why)

    @staticmethod
    def pause(tuning: Tuning, rows: int, took_s: float) -> float:
        """Seconds to wait after a chunk: the delay, or what the rate leaves of the time a chunk may take."""
        wait = tuning.delay_ms / 1000
        if tuning.max_rows_per_second:
            wait = max(wait, rows * tuning.parallelism / tuning.max_rows_per_second - took_s)
        return wait


def replica_lag_s(connection: Any) -> float | None:
    """How far a server is behind its own source, None if it has none. A replica that has stopped counts as endlessly behind."""
    try:
        with connection.cursor() as cursor:
            for sql in ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS"):
                try:
                    cursor.execute(sql)
                    break
                except Exception as error:  # the words changed
                    if sql.startswith("SHOW SLAVE"):
                        raise SourceUnavailable(f"asking for the lag of a replica: {error}") from error
            rows = cursor.fetchall()
            names = [d[0].lower() for d in cursor.description or ()]
    except SourceUnavailable:
        return None
    lags = []
    for row in rows:
        found = dict(zip(names, row, strict=True))
        value = found.get("seconds_behind_source", found.get("seconds_behind_master"))
        lags.append(float("inf") if value is None else float(value))
    return max(lags) if lags else None


__all__ = ["Throttle", "replica_lag_s"]
