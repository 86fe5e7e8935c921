"""Progress of work units that copy files which rows name: a small file in the segment store for each that takes
long.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import structlog

from sluice.errors import SluiceError
from sluice.row_files.copy_pool import FileTotals
from sluice.segments.store import SegmentStore

_log = structlog.get_logger()

EVERY_S = 5.0
_FOLDER = "file-progress"


class FileProgress:
    """The progress of one work unit. ``files``: how many it has to copy."""

    def __init__(
        self,
        store: SegmentStore,
        batch: int,
        unit: str,
        files: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._batch, self._files, self._clock = store, batch, files, clock
        self._path = f"{_folder(batch)}/{unit}.json"
        self._next = clock() + EVERY_S

    def __call__(self, totals: FileTotals) -> None:
        """Say how far it has come, at most every :data:`EVERY_S` seconds."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + EVERY_S
        _log.info(
            "files_in_progress",
            pipeline=self._store.pipeline,
            batch=self._batch,
            files=totals.files,
            of=self._files,
            size_bytes=totals.size_bytes,
            bytes_per_s=totals.bytes_per_s,
        )
        self._store.write_bytes(self._path, json.dumps({**asdict(totals), "of": self._files}).encode())


def read_progress(store: SegmentStore, batch: int) -> dict[str, Any]:
    """Return the sums over the units that copy files of ``batch``; {} if none has said anything.

    Keys: files, of, size_bytes, bytes_per_s.
    """
    totals, of, speed = FileTotals(), 0, 0
    for path in store.list_files(_folder(batch)):
        try:
            data = json.loads(store.read_bytes(path))
            of += data.pop("of")
            unit_totals = FileTotals(**data)
        except (SluiceError, ValueError, TypeError, KeyError):
            continue  # its unit has just ended
        totals, speed = totals + unit_totals, speed + unit_totals.bytes_per_s
    return {"files": totals.files, "of": of, "size_bytes": totals.size_bytes, "bytes_per_s": speed} if of else {}


def forget_progress(store: SegmentStore, batch: int) -> None:
    """Remove what the units of ``batch`` said."""
    if store.list_files(_folder(batch)):
        store.delete_folder(_folder(batch))


def _folder(batch: int) -> str:
    return f"{_FOLDER}/batch={batch:010d}"


__all__ = ["FileProgress", "forget_progress", "read_progress"]
