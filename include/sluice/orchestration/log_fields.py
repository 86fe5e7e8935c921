"""Log fields that Airflow cannot carry."""

from __future__ import annotations

from typing import Any

import structlog

_RESERVED = {"target": "target_name", "msg": "message"}
"""Event keys of Airflow 3.3's supervisor, and the names used instead.

The supervisor passes the fields of a task's log event on as keyword arguments, together with its own of these names:
such an event kills the supervisor, and with it the task, without a word in the task's log.
"""


def rename_reserved(_logger: Any, _method: str, event: Any) -> Any:
    """Rename event keys that Airflow's log reader takes for its own; a structlog processor."""
    for name, instead in _RESERVED.items():
        if name in event:
            event[instead] = event.pop(name)
    return event


def make_safe() -> None:
    """Put :func:`rename_reserved` before all other processors of this process, also for loggers that already exist."""
    processors = structlog.get_config()["processors"]
    if isinstance(processors, list) and rename_reserved not in processors:
        processors.insert(0, rename_reserved)
