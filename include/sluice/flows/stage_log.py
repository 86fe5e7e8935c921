"""The log lines of stages. A run with hundreds of batches writes one line for several, and the stages are silent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_brief = 0


@contextmanager
def brief() -> Iterator[None]:
    """Log what stages did at debug level only, in all threads of the process, while the context is open."""
    global _brief
    with _lock:
        _brief += 1
    try:
        yield
    finally:
        with _lock:
            _brief -= 1


def log_batch(log: Any, event: str, **fields: Any) -> None:
    """Log that a stage has done a batch."""
    (log.debug if _brief else log.info)(event, **fields)


__all__ = ["brief", "log_batch"]
