"""What is kept on disk is used as long as nothing that it was compiled from has changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CALLER = """
from callee import FACTOR, helper
from sluice.kernels import kernel

@kernel
def twice(x):
    return helper(x) * FACTOR
"""
CALLEE = """
from sluice.kernels import kernel
FACTOR = {factor}

@kernel
def helper(x):
    return x + {plus}
"""
RUN = "import caller; print(caller.twice(10), sum(caller.twice.stats.cache_hits.values()))"


def run(folder: Path) -> list[str]:
    """The result, and how often code from disk was used, in a fresh process."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.path.abspath("include")])}
    done = subprocess.run([sys.executable, "-c", RUN], check=True, env=environment, capture_output=True, text=True)
    return done.stdout.split()


@pytest.mark.slow
def test_a_change_of_what_is_called_or_read_compiles_the_caller_anew(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    for factor, plus, wanted in ((2, 1, "22"), (2, 77, "174"), (333, 77, "28971")):
        (tmp_path / "callee.py").write_text(CALLEE.format(factor=factor, plus=plus))
        assert run(tmp_path) == [wanted, "0"]
        assert run(tmp_path) == [wanted, "1"]
