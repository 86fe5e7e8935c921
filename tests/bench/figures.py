"""Figures as they are kept: one line a measurement, with a baseline of the same run; sizes of a run; processor time of
servers.

``SLUICE_BENCH_SCALE=0.05`` makes the benches of targets that much smaller, to see that they work;
``SLUICE_BENCH_DRY=1`` writes no results.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

Line = dict[str, Any]


def size(default: int) -> int:
    """How many rows, or tables: the first argument of the program, else the default times SLUICE_BENCH_SCALE."""
    return int(sys.argv[1]) if len(sys.argv) > 1 else scaled(default)


def scaled(default: int) -> int:
    """``default`` times SLUICE_BENCH_SCALE, at least 1."""
    return max(1, int(default * float(os.environ.get("SLUICE_BENCH_SCALE", "1"))))


def figure(
    measure: str, workload: str, value: float, unit: str, baseline: str = "", baseline_value: float = 0.0, **more: Any
) -> Line:
    """A line, which is printed.

    ``ratio``: how many times better than the baseline (rates: larger is better; seconds: smaller).
    """
    ratio = None
    if baseline_value and value:
        better = value / baseline_value if unit.endswith("/s") else baseline_value / value
        ratio = float(f"{better:.3g}")
    beside = f"; {baseline}: {_short(baseline_value)}, ratio {ratio}" if baseline else ""
    print(f"{measure}: {_short(value)} {unit}{beside} ({workload})", flush=True)
    return {
        "measure": measure, "workload": workload, "value": _short(value), "unit": unit, "baseline": baseline or None,
        "baseline_value": _short(baseline_value) or None, "ratio": ratio, **more, "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def save(path: Path, lines: Sequence[Line]) -> None:
    """Merge figures into ``path``: one that is measured again replaces its old line."""
    if os.environ.get("SLUICE_BENCH_DRY"):
        return
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    new = {(line["measure"], line.get("variant")): line for line in [*old, *lines]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(list(new.values()), indent=1) + "\n", encoding="utf-8")


def keep(path: Path, lines: Sequence[Line]) -> None:
    """Print figures beside their baselines and goals, and write them over ``path`` unless SLUICE_BENCH_KEEP is 0."""
    for one in lines:
        beside = f"{one['baseline']}: {one['baseline_value']:,}  ratio {one['ratio']}  ({one['wanted']})"
        print(f"{one['measure']:16} {one['value']:>12,} {one['unit']:7} {beside}")
    if os.environ.get("SLUICE_BENCH_KEEP", "1") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


def processor_s(pid: int) -> float:
    """Processor time of a process and its children, those that have ended too, in seconds."""
    leader = psutil.Process(pid)
    own = leader.cpu_times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in leader.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            total += times.user + times.system
    return float(total)


def measured(pid: int, rows: int, work: Callable[[], None]) -> tuple[float, float]:
    """Rows a second, and seconds of processor time for a million rows: of this process and of the server ``pid``."""
    theirs, mine, began = processor_s(pid), time.process_time(), time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    used = time.process_time() - mine + processor_s(pid) - theirs
    return rows / seconds, used / rows * 1e6


def _short(value: float) -> float:
    return round(value) if abs(value) >= 1000 else round(value, 3)
