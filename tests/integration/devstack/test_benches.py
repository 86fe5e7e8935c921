"""The benches run: each to its end, with little to measure, and stores nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).resolve().parents[3]
BENCHES = (
    "bench_capture", "bench_peers", "bench_postgresql", "bench_postgresql_flows", "bench_postgresql_slots", "bench_scale",
    "bench_subscribe", "bench_target_postgresql", "bench_target_redis",
)  # fmt: skip
"""Those that take their size from SLUICE_BENCH_SCALE and need neither Airflow nor Spark."""


@pytest.mark.parametrize("bench", BENCHES)
def test_a_bench_runs_to_its_end(bench: str) -> None:
    results = {path: path.read_bytes() for path in (REPOSITORY / "tests/bench/results").glob("*.json")}
    environment = {**os.environ, "SLUICE_BENCH_SCALE": "0.01", "SLUICE_BENCH_DRY": "1"}
    done = subprocess.run(
        [sys.executable, f"tests/bench/{bench}.py"],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "ratio" in done.stdout or "CPU s" in done.stdout, done.stdout[-2000:]
    assert {path: path.read_bytes() for path in results} == results
