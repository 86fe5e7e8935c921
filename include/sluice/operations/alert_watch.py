"""Alerts of a process that works without Airflow: it looks at its own pipeline from time to time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from sluice.errors import SluiceError

_log = structlog.get_logger()

EVERY_S = 10.0
"""Seconds between two looks, also of Airflow's tasks and triggerer."""
_END_S = 15.0
"""Seconds that the last look may take."""


@contextmanager
def alerting(pipeline: str, look: Callable[[], object]) -> Iterator[None]:
    """Call ``look`` every ten seconds inside of the block, in a thread of its own, and once at its end: a run of a
    second that a timer starts, and one that fails, tell as well.

    ``look`` raises the alerts, see :func:`sluice.operations.alerts.check_lag`. An error of it gives a log line.
    """
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(pipeline, look, over), name="alerts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_END_S)


def _watch(pipeline: str, look: Callable[[], object], over: threading.Event) -> None:
    ended = False
    while not ended:
        ended = over.wait(EVERY_S)
        try:
            look()
        except SluiceError as error:
            _log.warning("alert_check_failed", pipeline=pipeline, error=str(error))


__all__ = ["alerting"]
