"""One drain in a process of its own, told and answered in JSON:
``python -m tests.support.capture.drain_process '{…}'``.

Asked: connection, start, stop, store, and optionally include, arena_bytes, part_bytes, max_event_bytes, min_free_bytes,
wait_s, max_changes, max_bytes, readers, cores (it is bound to so many), runs (the median of all but the first counts).
Answers: changes, closed_by, files, last, seconds, rss_before and rss_peak (bytes), or error, message.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from typing import Any

import psutil

from sluice.config.connections import parse_connection
from sluice.config.pipeline import CaptureConfig
from sluice.errors import SluiceError
from sluice.model.offset import Offset
from sluice.segments.manifest import SegmentManifest
from sluice.segments.store import MIN_FREE_BYTES, SegmentStore
from sluice.segments.writer import SegmentWriter
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.reader.batch_reader import capture
from sluice.sources.mysql.reader.log_part import Backlog, LogReading
from sluice.sources.mysql.reader.warm_up import compile_kernels
from sluice.sources.port import StreamLimits, StreamResult
from sluice.sources.table_filter import Selection
from tests.support.capture.capturing import log_files


class Watch(threading.Thread):
    """The largest resident set since the start of the watch."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process()
        self.before = self.peak = self._process.memory_info().rss
        self.start()

    def run(self) -> None:
        while True:
            self.peak = max(self.peak, self._process.memory_info().rss)
            time.sleep(0.01)


def main(asked: dict[str, Any]) -> dict[str, Any]:
    if "cores" in asked:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked["cores"]])
    compile_kernels()
    watch = Watch()
    try:
        results = [drain(asked, f"{asked['store']}{run or ''}") for run in range(asked.get("runs", 1))]
    except SluiceError as error:
        return {
            "error": type(error).__name__,
            "message": str(error),
            "rss_before": watch.before,
            "rss_peak": watch.peak,
        }
    result, _ = results[-1]
    return {
        "changes": result.changes, "closed_by": result.closed_by, "last": result.last.to_json(),
        "files": len(result.manifest.files) if result.manifest else 0,
        "seconds": statistics.median(seconds for _, seconds in results[1:] or results),
        "rss_before": watch.before, "rss_peak": watch.peak,
    }  # fmt: skip


def drain(asked: dict[str, Any], uri: str) -> tuple[StreamResult[SegmentManifest], float]:
    """(what came of it, seconds)."""
    store = SegmentStore(uri, "test", min_free_bytes=asked.get("min_free_bytes", MIN_FREE_BYTES))
    part_bytes = asked.get("part_bytes", 96 * 2**20)
    endpoint = parse_connection("source", asked["connection"])
    readers = asked.get("readers", 1)
    logs = log_files(endpoint) if readers > 1 else ()
    began = time.monotonic()
    limits = StreamLimits(
        max_changes=asked.get("max_changes", 2_000_000),
        max_bytes=asked.get("max_bytes", 2**40),
        max_wait_s=asked.get("wait_s", 60.0),
        max_event_bytes=asked.get("max_event_bytes", 256 * 2**20),
        stop_at=Offset.from_json(asked["stop"]),
    )
    selection = Selection.compile(CaptureConfig(include=(asked.get("include", ".*"),)))
    arena_bytes = asked.get("arena_bytes", 24 * 2**20)
    result = capture(
        LogReading(endpoint, 3_000_000_777, selection, limits, arena_bytes=arena_bytes),
        Position.of(Offset.from_json(asked["start"])),
        lambda: SegmentWriter(
            store, 1, 1, part_bytes=part_bytes, direct_bytes=part_bytes // 8, buffer_bytes=2 * part_bytes
        ),
        backlog=Backlog(readers, logs),
    )
    return result, time.monotonic() - began


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
