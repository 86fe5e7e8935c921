"""A disk that can be filled: a small file system of its own where the kernel allows it, else a limit on the size of
files.

The small one is a tmpfs in a mount namespace that a sleeping process holds; whoever shall see it is started with
:meth:`Disk.inside`. A full one refuses writes with ENOSPC. Where namespaces are forbidden, a limit on file size (EFBIG)
of each process has to do.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

SIZE_MB = 256


class Disk:
    """``folder``: the path that processes inside see."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._holder: subprocess.Popen[bytes] | None = self._hold()

    def _hold(self) -> subprocess.Popen[bytes] | None:
        ready = f"mount -t tmpfs -o size={SIZE_MB}m tmpfs '{self.folder}' && echo ready && exec sleep 1000000"
        try:
            holder = subprocess.Popen(
                ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", ready],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            return None
        assert holder.stdout is not None
        if holder.stdout.readline().strip() == b"ready":
            return holder
        holder.kill()
        holder.wait()
        holder.stdout.close()
        return None

    @property
    def own(self) -> bool:
        """It is a file system of its own."""
        return self._holder is not None

    def inside(self, argv: list[str]) -> list[str]:
        """The command that runs ``argv`` where the disk is seen."""
        if self._holder is None:
            return argv
        return [
            "nsenter", f"--target={self._holder.pid}", "--user", "--mount", "--preserve-credentials",
            f"--wd={os.getcwd()}", *argv,
        ]  # fmt: skip

    @property
    def path(self) -> Path:
        """The folder as this process reaches it."""
        return self.folder if self._holder is None else Path(f"/proc/{self._holder.pid}/root{self.folder}")

    def fill(self, pids: Iterable[int]) -> None:
        """No room any more, for the processes of ``pids`` at least."""
        if self._holder is None:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, hard))
            return
        with (self.path / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:  # until the kernel says that nothing is left
                ballast.write(b"x" * (1 << 20))

    def empty(self, pids: Iterable[int]) -> None:
        """Room again."""
        if self._holder is None:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
            return
        (self.path / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()
            if self._holder.stdout:
                self._holder.stdout.close()
            time.sleep(0.05)
