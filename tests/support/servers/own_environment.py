"""Environments of their own, for programs whose pins and the pipeline's do not agree."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from devstack import paths


def environment(name: str, requirements: Path) -> Path:
    """Its folder; made at the first call, and again when the pinned file changes.

    Raises OSError, CalledProcessError.
    """
    folder = paths.home() / name
    python, stamp = folder / "bin/python", folder / "requirements.txt"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not python.exists() or not stamp.exists() or stamp.read_bytes() != requirements.read_bytes():
            uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
            if uv is None:
                raise FileNotFoundError("there is no uv to install it with")
            subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True)
            install = [
                uv,
                "pip",
                "install",
                "--quiet",
                "--python",
                str(python),
                "--require-hashes",
                "-r",
                str(requirements),
            ]
            subprocess.run(install, check=True)
            shutil.copyfile(requirements, stamp)
    return folder
