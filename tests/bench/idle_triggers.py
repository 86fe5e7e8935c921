"""A triggerer's work without Airflow around it: the real triggers of many pipelines in one process.

Started by bench_pipelines.py.

``python tests/bench/idle_triggers.py FOLDER SECONDS``: prints a line of JSON once all wait, and one after SECONDS with
the CPU seconds it took.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import threading
import time
from pathlib import Path


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def main() -> None:
    from sluice.orchestration.triggers import LogMovedTrigger

    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    began = _used()
    paths = sorted(folder.glob("*.yaml"))
    tasks = []
    for at, path in enumerate(paths):
        tasks.append(asyncio.ensure_future(anext(LogMovedTrigger(str(path)).run())))
        if at % 20 == 19:
            await asyncio.sleep(1.0)  # as they come to a triggerer that starts
    await asyncio.sleep(20.0)
    print(json.dumps({"waiting": sum(not task.done() for task in tasks), "opening_cpu_s": _used() - began}), flush=True)
    at, cpu = time.monotonic(), _used()
    await asyncio.sleep(seconds)
    took = time.monotonic() - at
    print(
        json.dumps({
            "waiting": sum(not task.done() for task in tasks),
            "cpu": (_used() - cpu) / took,
            "threads": threading.active_count(),
            "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }),
        flush=True,
    )


if __name__ == "__main__":
    asyncio.run(main())
