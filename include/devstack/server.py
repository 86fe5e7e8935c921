"""The common parts of every server of the stack: a folder, a process, a way to stop it and a way to crash it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from devstack import debian, paths, ports, processes
from devstack.processes import Handle, ServerFailed


@dataclass
class Server:
    """Base of the servers. ``start`` is theirs; data stays in ``folder`` so that a crashed one starts again on it."""

    folder: Path
    name: str = "server"
    handle: Handle | None = None

    def __post_init__(self) -> None:
        self.folder = Path(self.folder).resolve()

    def start(self) -> Self:
        """Start and wait until it answers. Raises ServerFailed with the end of its log."""
        raise NotImplementedError

    def stop(self, grace_s: float = 10.0) -> None:
        """Shut down in an orderly way; after ``grace_s`` by force. Not running is no error."""
        if self.handle is not None:
            processes.stop([self.handle], grace_s=grace_s)
            self.handle = None
        self._stopped()

    def kill(self) -> None:
        """Crash the server by ``kill -9``. ``start`` starts it again on the same port and data."""
        if self.handle is not None:
            processes.kill(self.handle)
            self.handle = None
        self._stopped()

    def restart(self) -> Self:
        """Stop the server in an orderly way and start it again on the same port and data. Raises ServerFailed."""
        self.stop()
        return self.start()

    @property
    def running(self) -> bool:
        """True while the process that was started last runs."""
        return self.handle is not None and self.handle.alive

    @property
    def host(self) -> str:
        """The address that the server binds to: loopback."""
        return ports.LOOPBACK

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop(grace_s=5.0)

    @property
    def log(self) -> Path:
        """The file of what the process prints."""
        return self.folder / f"{self.name}.log"

    def _spawn(self, argv: Sequence[str | os.PathLike[str]], env: Mapping[str, str] | None = None) -> Handle:
        self.handle = processes.spawn(self.name, argv, log=self.log, env=env, cwd=self.folder)
        return self.handle

    def _wait_ready(self, ready: Callable[[], bool], timeout_s: float, poll_s: float = 0.05) -> None:
        """Wait until the process answers; stop one that does not. Raises ServerFailed with the end of its log."""
        assert self.handle is not None
        try:
            processes.wait_ready(self.handle, ready, timeout_s=timeout_s, poll_s=poll_s)
        except BaseException:
            self.stop()
            raise

    def _stopped(self) -> None:
        """Tidy up after the process is gone."""


def copy_template(name: str, initialise: Callable[[Path], None], into: Path, adapt: Callable[[Path], None]) -> None:
    """Make the data directory ``into``: a copy of the template ``name``, which is initialised once, after ``adapt``.

    Raises ServerFailed.
    """
    template = paths.home() / "templates" / name
    with debian.lock(template.parent / f".{name}.lock"):
        if not template.exists():
            scratch = Path(tempfile.mkdtemp(prefix=".init-", dir=template.parent))
            try:
                initialise(scratch / "data")
                (scratch / "data").rename(template)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    partial = into.with_name(f"{into.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(template, partial, symlinks=True)
        adapt(partial)
        partial.rename(into)
    except OSError as error:
        raise ServerFailed(f"cannot make the data directory: {error}", where=str(into)) from error
