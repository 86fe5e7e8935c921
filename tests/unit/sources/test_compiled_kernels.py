"""``make kernels`` compiles what a capture of any kind would wait for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import importlib, pkgutil, sluice.sources
from sluice.kernels import Deferred, Kernel

sluice.sources.compile_kernels()
kernels, called = {}, set()
for found in pkgutil.walk_packages(sluice.sources.__path__, "sluice.sources."):
    for name, value in vars(importlib.import_module(found.name)).items():
        if isinstance(value, Kernel) and value.py_func.__module__ == found.name:
            kernels[value] = f"{found.name}.{name}"
            function = value.py_func
            values = map(function.__globals__.get, function.__code__.co_names)
            called |= {id(value._target if isinstance(value, Deferred) else value) for value in values}
assert len(kernels) > 40, kernels
print(*(name for kernel, name in kernels.items() if not kernel.signatures and id(kernel) not in called))
"""


@pytest.mark.slow
def test_every_kernel_that_no_other_calls_is_compiled() -> None:
    environment = os.environ | {"PYTHONPATH": "include"}
    done = subprocess.run([sys.executable, "-c", CODE], check=False, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
