"""Whether this Airflow's scheduler lives. An installation counts as silent without one.

The triggerer lives on when the scheduler has died, and so does a running task. If they sent heartbeats for the
installation, a standby would never take over, and nothing would be delivered: what a trigger wakes, only the scheduler
starts.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import structlog

log = structlog.get_logger()

LOOK_EVERY_S = 3.0
"""Seconds between two questions of a process."""

SILENCE_S = 90.0
"""Seconds after which an API server that answered once counts as dead: nothing can be started there, either.

Every task asks it.
"""

STUCK_S = 20.0
"""Seconds for which the heartbeat of a scheduler that Airflow calls unhealthy must stand still while it is watched.

On a busy machine the heartbeat of a live scheduler may be rarer than Airflow's threshold (30 s) allows; a dead one has
none.
"""

STUCK_LOOKS = 3
"""Looks that must find the same heartbeat: a process that was stopped itself sees much time pass between two of
them.
"""

_TIMEOUT_S = 10.0


class Answer(Enum):
    """The API server's answer about the scheduler."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Said:
    """An answer, and the scheduler's latest heartbeat as Airflow writes it (only ever compared with another)."""

    answer: Answer
    heartbeat: str = ""


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="scheduler-watch", daemon=True).start()


class SchedulerWatch:
    """Caches for a few seconds what the API server said; any number of threads may ask, and none of them waits for it.

    Args:
        ask: the question to the API server; never raises.
        clock: seconds, only ever rising.
        background: runs the question; by default in its own thread, because a busy API server takes its time.
    """

    def __init__(
        self,
        ask: Callable[[], Said],
        clock: Callable[[], float] = time.monotonic,
        background: Callable[[Callable[[], None]], None] = _in_background,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._in_background = background
        self._asking = threading.Lock()
        self._asked_at = -1e9
        self._known: Answer = Answer.UNKNOWN
        self._known_at = 0.0
        self._beat: str | None = None
        self._beat_at = 0.0
        self._same = 0

    def alive(self) -> bool:
        """Return False once the scheduler is known to be dead or the server stopped answering.

        True while it never answered: that proves nothing.
        """
        if self._clock() - self._asked_at >= LOOK_EVERY_S and self._asking.acquire(blocking=False):
            try:
                self._in_background(self._look)
            except RuntimeError:  # no thread can be started any more because the process ends
                self._asking.release()
        if self._known is Answer.ALIVE:
            return self._clock() - self._known_at < SILENCE_S
        return self._known is Answer.UNKNOWN

    def _look(self) -> None:
        try:
            reply = self._ask()
            self._asked_at = self._clock()
            if reply.answer is not Answer.UNKNOWN:
                answer = self._judged(reply)
                if answer is not self._known:
                    log.info("scheduler_state_changed", state=answer.value)
                self._known, self._known_at = answer, self._asked_at
        finally:
            self._asking.release()

    def _judged(self, reply: Said) -> Answer:
        """Judge an answer: dead only if the heartbeat is too old and stands still.

        A dead scheduler is alive again when Airflow says so.
        """
        if reply.answer is Answer.ALIVE:
            self._beat = None
            return Answer.ALIVE
        if reply.heartbeat != self._beat:
            self._beat, self._beat_at, self._same = reply.heartbeat, self._asked_at, 0
        self._same += 1
        stuck = self._same >= STUCK_LOOKS and self._asked_at - self._beat_at >= STUCK_S
        return Answer.DEAD if stuck else self._known


def ask(addresses: Sequence[str]) -> Said:
    """Ask these API servers in turn and return the first answer.

    Airflow itself decides which heartbeat is too old (``[scheduler] scheduler_health_check_threshold``).
    """
    for address in addresses:
        try:
            with urllib.request.urlopen(  # noqa: S310 - the operator's own settings
                f"{address}/api/v2/monitor/health", timeout=_TIMEOUT_S
            ) as answer:
                health = json.load(answer)
            if health["metadatabase"]["status"] == "healthy":
                scheduler = health["scheduler"]
                alive = Answer.ALIVE if scheduler["status"] == "healthy" else Answer.DEAD
                return Said(alive, str(scheduler.get("latest_scheduler_heartbeat")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return Said(Answer.UNKNOWN)


def addresses() -> list[str]:
    """Return the addresses of the API server: as tasks reach it, then as people do."""
    from airflow.sdk.configuration import conf

    base = conf.get("api", "base_url", fallback="") or "/"
    if base.startswith("/"):  # the executor's own default
        base = f"http://localhost:{conf.get('api', 'port', fallback='8080')}{base}"
    urls = [conf.get("core", "execution_api_server_url", fallback="") or base, base]
    return list(dict.fromkeys(url.rstrip("/").removesuffix("/execution") for url in urls))


_watch: SchedulerWatch | None = None
_making = threading.Lock()


def scheduler_lives() -> bool:
    """Return True while the scheduler lives, see :meth:`SchedulerWatch.alive`. One watch serves the process."""
    global _watch
    with _making:
        if _watch is None:
            known_addresses = addresses()
            _watch = SchedulerWatch(lambda: ask(known_addresses))
    return _watch.alive()
