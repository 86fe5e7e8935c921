"""A fresh process takes compiled kernels from disk, without pandas and without what Numba compiles with."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_kernels_on_disk_are_loaded_without_the_compiler():
    code = (
        "import sys; from sluice.sources.mysql.reader.warm_up import compile_kernels; compile_kernels()\n"
        "from sluice.sources.mysql.decoder import column_kernels, scan_kernel\n"
        "stats = scan_kernel.scan.stats; heavy = [name in sys.modules for name in ('numba.np.linalg', 'pandas')]\n"
        "print(len(stats.cache_hits), len(stats.cache_misses), *heavy)"
    )
    environment = os.environ | {"PYTHONPATH": "include"}
    for _ in range(2):  # the first compiles what is not on disk yet
        run = subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True)
    assert run.stdout.split() == ["1", "0", "False", "False"]


def test_a_run_and_a_status_begin_without_heavy_packages():
    code = (
        "import sys, sluice.flows.run, sluice.operations.status, sluice.sources.mysql.source, "
        "sluice.sources.postgresql.source, sluice.targets.mysql.target, devstack.processes; "
        "print(*(name in sys.modules for name in ('pandas', 'pyspark', 'airflow', 'duckdb', 'numba', 'pymongo', 'redis')))"
    )
    environment = os.environ | {"PYTHONPATH": "include"}
    done = subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["False"] * 7
