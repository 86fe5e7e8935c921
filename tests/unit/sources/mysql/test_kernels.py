"""A fresh process takes compiled kernels from disk, without pandas and without what Numba compiles with."""

from __future__ import annotations

import os
import subprocess
import sys


def test_kernels_on_disk_are_loaded_without_the_compiler():
    code = (
        "import sys; from sluice.sources.mysql.reader.batch_reader import warm_up; warm_up()\n"
        "from sluice.binlog import scan, fill\n"
        "print(len(scan.scan.stats.cache_hits), len(scan.scan.stats.cache_misses), 'numba.np.linalg' in sys.modules, 'pandas' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": "include"}
    for _ in range(2):  # the first compiles what is not on disk yet
        run = subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True)
    assert run.stdout.split() == ["1", "0", "False", "False"]


def test_a_run_begins_without_pandas_spark_and_airflow():
    code = "import sys, sluice.flows.run; print(*(name in sys.modules for name in ('pandas', 'pyspark', 'airflow', 'duckdb')))"
    environment = os.environ | {"PYTHONPATH": "include"}
    done = subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["False"] * 4
