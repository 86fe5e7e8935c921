"""One drain in a process of its own, told and answered in JSON: ``python -m tests.integration.drain_process '{…}'``.

Asked: connection, start, stop, store, and optionally include, arena_bytes, part_bytes, max_event_bytes, min_free_bytes, wait_s. Answers:
changes, closed_by, files, last, seconds, rss_before and rss_peak (bytes), or error, message.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import psutil

from sluice.binlog.capture import CaptureLimits, Selection, capture, warm_up
from sluice.config.connections import parse_connection
from sluice.config.pipeline import CaptureConfig
from sluice.errors import SluiceError
from sluice.model.positions import Position
from sluice.segments.store import MIN_FREE_BYTES, SegmentStore
from sluice.segments.writer import SegmentWriter


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
    warm_up()
    store = SegmentStore(asked["store"], "test", min_free_bytes=asked.get("min_free_bytes", MIN_FREE_BYTES))
    part_bytes = asked.get("part_bytes", 96 * 2**20)
    stop = Position(**asked["stop"])
    watch = Watch()
    began = time.monotonic()
    try:
        result = capture(
            parse_connection("source", asked["connection"]),
            server_id=asked.get("server_id", 3_000_000_777),
            start=Position(**asked["start"]),
            selection=Selection.compile(CaptureConfig(include=(asked.get("include", ".*"),))),
            limits=CaptureLimits(
                max_wait_s=asked.get("wait_s", 60.0),
                max_event_bytes=asked.get("max_event_bytes", 256 * 2**20),
                stop_at=stop,
            ),
            writer_factory=lambda: SegmentWriter(
                store, 1, 1, part_bytes=part_bytes, direct_bytes=part_bytes // 8, buffer_bytes=2 * part_bytes
            ),
            arena_bytes=asked.get("arena_bytes", 24 * 2**20),
        )
    except SluiceError as error:
        return {
            "error": type(error).__name__,
            "message": str(error),
            "rss_before": watch.before,
            "rss_peak": watch.peak,
        }
    return {
        "changes": result.changes, "closed_by": result.closed_by, "last": result.last.to_json(),
        "files": len(result.manifest.files) if result.manifest else 0, "seconds": time.monotonic() - began,
        "rss_before": watch.before, "rss_peak": watch.peak,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
