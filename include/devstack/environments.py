"""Environments of their own, for programs whose pins and the pipeline's do not agree."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

from devstack import paths
from devstack.debian import FetchFailed


def environment(name: str, requirements: Path) -> Path:
    """Return the folder of an environment: made at the first call, and again when its pinned file changes.

    ``requirements`` lists every package. Raises FetchFailed.
    """
    folder = paths.home() / name
    python, stamp = folder / "bin/python", folder / "requirements.txt"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not python.exists() or not stamp.exists() or stamp.read_bytes() != requirements.read_bytes():
            uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
            if uv is None:
                raise FetchFailed(f"the environment {name} cannot be made: there is no uv", where=str(folder))
            pinned = ["--no-deps", "--require-hashes", "-r", str(requirements)]
            try:
                _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)])
                _run([uv, "pip", "install", "--quiet", "--python", str(python), *pinned])
            except (OSError, subprocess.CalledProcessError) as error:
                raise FetchFailed(f"the environment {name} cannot be made: {error}", where=str(folder)) from error
            shutil.copyfile(requirements, stamp)
    return folder


def _run(argv: list[str]) -> None:
    subprocess.run(argv, check=True)
