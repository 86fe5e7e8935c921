"""A fresh process takes compiled kernels from disk, without pandas and without what Numba compiles with."""

from __future__ import annotations

import os
import subprocess
import sys


def test_kernels_on_disk_are_loaded_without_the_compiler(tmp_path):
    code = (
        "import sys; from sluice.binlog.capture import warm_up; warm_up()\n"
        "from sluice.binlog import scan, fill\n"
        "print(len(scan.scan.stats.cache_hits), len(scan.scan.stats.cache_misses), 'numba.np.linalg' in sys.modules, 'pandas' in sys.modules)"
    )
    said = []
    for _ in range(2):
        environment = os.environ | {"PYTHONPATH": "include", "NUMBA_CACHE_DIR": str(tmp_path)}
        said.append(
            subprocess.run(
                [sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True
            ).stdout.split()
        )
    assert said == [["0", "1", "True", "False"], ["1", "0", "False", "False"]]
