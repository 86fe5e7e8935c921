"""What every server of the stack has in common: a folder, a process, a way to stop it and a way to crash it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from devstack import ports, processes
from devstack.processes import Handle


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
        """``kill -9``: a crash. ``start`` starts it again on the same port and data."""
        if self.handle is not None:
            processes.kill(self.handle)
            self.handle = None
        self._stopped()

    def restart(self) -> Self:
        self.stop()
        return self.start()

    @property
    def running(self) -> bool:
        return self.handle is not None and self.handle.alive

    @property
    def host(self) -> str:
        return ports.LOOPBACK

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop(grace_s=5.0)

    def _stopped(self) -> None:
        """Tidy up after the process is gone."""
