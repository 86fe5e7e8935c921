"""The stages of a pipeline in processes of their own, as an Airflow task runs them, and the most memory that one takes
(PSS).
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tests.support.pipelines.case import Case

STEP = """
import json, logging, sys, time
from pathlib import Path
import structlog
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
from sluice.config.connections import from_environment
from sluice.config.loading import load_pipeline
from sluice.flows.load.ack import ack
from sluice.flows.capture.drain import drain
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from sluice.flows.runtime import Runtime
step, path, mode, batch = sys.argv[1:]
runtime = Runtime.build(load_pipeline(Path(path)), resolver=from_environment, runner=mode)
began = time.perf_counter()
with runtime.state():
    if step == "drain":
        print(drain(runtime, claim="bench:1", idle_wait_s=5.0).batch)
    elif step == "merge":
        print(merge(runtime, int(batch)).rows)
    else:
        print(load(runtime, "copy", int(batch)).upserts)
        ack(runtime, "copy", int(batch))
print(time.perf_counter() - began)
"""


def pss_mb(pid: int) -> float:
    """Megabytes of a process: what is its own, and its share of what it has in common with others; 0 if it is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        return 0.0
    return 0.0


class Peak(threading.Thread):
    """The largest of the processes that ``pids`` names, each by itself, until it is stopped."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        super().__init__(daemon=True)
        self._pids, self._done = pids, threading.Event()
        self.mb = 0.0
        self.start()

    def run(self) -> None:
        while not self._done.wait(0.02):
            for pid in self._pids():
                self.mb = max(self.mb, pss_mb(pid))

    def stop(self) -> float:
        self._done.set()
        self.join()
        return self.mb


def step(made: Case, name: str, mode: str, batch: int, workers: Callable[[], list[int]]) -> tuple[str, float, float]:
    """(what the step says, peak MB of one process, seconds)."""
    child = subprocess.Popen(
        [sys.executable, "-c", STEP, name, str(made.path), mode, str(batch)],
        env=made.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    peak = Peak(lambda: [child.pid, *workers()])
    out, _ = child.communicate()
    mb = peak.stop()
    if child.returncode:
        raise RuntimeError(f"{name} failed")
    said, seconds = out.split()[-2:]
    return said, mb, float(seconds)
