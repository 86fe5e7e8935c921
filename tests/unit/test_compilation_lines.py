"""A person learns that kernels are compiled, and only then."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

KERNEL = """
import sys
from sluice.kernels import kernel

@kernel
def doubled(number):
    return 2 * number
"""
RUN = """
import sluice.sources
from own_kernel import doubled
from sluice.cli.run import _load_kernels

sluice.sources.compile_kernels = lambda kind: [doubled(1), doubled(1.5)]
_load_kernels("mysql")
"""


def test_a_run_says_once_that_it_compiles_kernels_and_a_later_one_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "own_kernel.py").write_text(KERNEL)
    environment = os.environ | {"PYTHONPATH": f"include:{tmp_path}", "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}

    def lines() -> list[str]:
        run = subprocess.run([sys.executable, "-c", RUN], check=True, env=environment, capture_output=True, text=True)
        return [re.sub(r"\d+ s", "N s", line) for line in run.stderr.splitlines()]

    assert lines() == ["compiling the kernels of mysql sources, once on this machine", "compiled the kernels in N s"]
    assert lines() == []
