"""Child processes that outlive their starter and are stopped without ever hitting a stranger.

A process id is recycled by the kernel, so it is recorded together with the process's start time and a random token
that the process and everything it starts carry in their environment. A process is ours only if its environment shows
that token and it is not older than the process we started; the process we started must also have the recorded id and
start time. A process whose environment cannot be read, or shows no token, is never touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import structlog

from devstack import paths
from sluice.errors import ConfigError, RetryableError

_log = structlog.get_logger()
TOKEN_VARIABLE = "SLUICE_STACK_TOKEN"  # noqa: S105  names the variable; the token marks processes, it opens nothing


class ServerFailed(RetryableError):
    """A server of the development stack did not start, or stopped by itself."""


_TOKEN = re.compile(r"[0-9a-f]{16,}")
_EXEC_S = 2.0
"""Longest time for which the environment of a running process is expected to be empty, on a busy machine."""
_START_TOLERANCE_S = 0.05  # the kernel counts start times in ticks of 10 ms


@dataclass(frozen=True)
class Handle:
    """One started process: enough to find it again from another process, and to be sure it is the same one.

    Raises ConfigError for a token that is not the one of :func:`spawn`: an empty token would match every process.
    """

    name: str
    pid: int
    started_s: float  # seconds since the epoch, as psutil gives it
    token: str
    log: str

    def __post_init__(self) -> None:
        if not (isinstance(self.token, str) and _TOKEN.fullmatch(self.token)):
            raise ConfigError(f"the record of process {self.pid} ({self.name}) has no valid token; it is not used")

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a state file has them."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Handle:
        """Read what :meth:`to_json` returned. Raises ConfigError for an invalid token, TypeError for other fields."""
        return cls(**data)

    def process(self) -> psutil.Process | None:
        """Return the process itself; None when it is gone or its id belongs to another process now."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started_s) > _START_TOLERANCE_S:
                return None
        except psutil.NoSuchProcess:
            return None
        return process if _settled_token_of(process) == self.token else None

    @property
    def alive(self) -> bool:
        """True while exactly this process runs."""
        return self.process() is not None


def stack_environment() -> dict[str, str]:
    """Return the running stack's variables (connections, store, pipelines); empty when none runs.

    It reads the state file alone: the modules of the stack import the clients of all servers.
    """
    try:
        data: dict[str, Any] = json.loads(paths.stack_file(paths.demo_folder()).read_text(encoding="utf-8"))
        handles = [Handle.from_json(value) for name, value in data["handles"].items() if name != "supervisor"]
        return dict(data["environment"]) if any(handle.alive for handle in handles) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def spawn(
    name: str,
    argv: Sequence[str | os.PathLike[str]],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Handle:
    """Start ``argv`` in a session of its own, output appended to ``log`` (mode 0600).

    ``env`` replaces the environment.
    """
    token = secrets.token_hex(8)
    environment = dict(os.environ if env is None else env)
    environment[TOKEN_VARIABLE] = token
    environment["SPT_NOENV"] = "1"  # setproctitle (Airflow) must not write over the environment that holds the token
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled modules halve the start of every Airflow process
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        child = subprocess.Popen(
            [os.fspath(part) for part in argv],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        raise ConfigError(f"cannot start {name}: {error}", where=os.fspath(argv[0])) from error
    finally:
        os.close(descriptor)
    _children[child.pid] = child
    try:
        started = psutil.Process(child.pid).create_time()
    except psutil.NoSuchProcess:
        started = 0.0
    _log.debug("server_started", server=name, pid=child.pid)
    handle = Handle(name, child.pid, started, token, str(log))
    if _reaper is not None and _reaper.stdin is not None:
        _reaper.stdin.write(json.dumps(handle.to_json()).encode() + b"\n")
        _reaper.stdin.flush()
    return handle


_children: dict[int, subprocess.Popen[bytes]] = {}
_reaper: subprocess.Popen[bytes] | None = None


def tether() -> None:
    """Make everything that this process starts from now on end with it, however it ends (a small watcher waits)."""
    global _reaper
    if _reaper is None:
        path = os.pathsep.join([
            str(Path(__file__).resolve().parents[1]),
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ])
        _reaper = subprocess.Popen(
            [sys.executable, "-m", "devstack.reaper", str(os.getpid()), str(psutil.Process().create_time())],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )


def _reap(pid: int, timeout_s: float = 0.0) -> None:
    child = _children.get(pid)
    if child is None:
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(
            timeout_s
        )  # a JVM's first thread may be gone while others still end: then it is no zombie to reap yet
        _children.pop(pid, None)


def family(handle: Handle) -> list[psutil.Process]:
    """Return the process and everything that came from it and still lives."""
    _reap(handle.pid)
    return families([handle])[handle]


def families(handles: Iterable[Handle]) -> dict[Handle, list[psutil.Process]]:
    """Return the :func:`family` of each of many, in one walk over the process table."""
    by_token = {handle.token: handle for handle in handles}
    found: dict[Handle, list[psutil.Process]] = {handle: [] for handle in by_token.values()}
    me = os.getpid()
    for process in psutil.process_iter():
        handle = by_token.get(_token_of(process))
        if handle is None or process.pid == me:
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if process.create_time() >= handle.started_s - _START_TOLERANCE_S:
                found[handle].append(process)
    for handle, group in found.items():  # one that executes another program just now has no token for an instant
        if handle.pid not in {process.pid for process in group} and (leader := handle.process()) is not None:
            group.append(leader)
    return found


def _token_of(process: psutil.Process) -> str:
    """Return the token in the environment of a running process; empty if none can be read."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        return process.environ().get(TOKEN_VARIABLE, "")
    except (psutil.Error, OSError, ValueError):
        return ""


def _settled_token_of(process: psutil.Process) -> str:
    """Return the :func:`_token_of` a process whose id and start time are known.

    While it executes another program its environment reads as empty, so this waits.
    """
    end = time.monotonic() + _EXEC_S
    while not (token := _token_of(process)) and lives(process) and time.monotonic() < end:
        time.sleep(0.001)
    return token


def stop(handles: Iterable[Handle], *, grace_s: float = 10.0) -> None:
    """End the processes and all they started: SIGTERM, ``grace_s`` seconds, SIGKILL. Gone ones are no error."""
    wanted = list(handles)
    members = families(wanted)
    leaders = [leader for handle in wanted if (leader := handle.process()) is not None]
    for leader in leaders:
        with contextlib.suppress(psutil.Error):
            leader.send_signal(signal.SIGTERM)
    everyone = {process.pid: process for group in members.values() for process in group}
    led = {leader.pid for leader in leaders}
    _wait_gone(leaders, grace_s)
    for group in families(wanted).values():  # what was forked meanwhile
        everyone.update({process.pid: process for process in group})
    rest = [process for process in everyone.values() if process.is_running()]
    for process in rest:
        if process.pid not in led:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGTERM)
    _wait_gone([p for p in rest if p.pid not in led], min(grace_s, 2.0))
    for process in rest:
        with contextlib.suppress(psutil.Error):
            process.kill()
    _wait_gone(rest, 5.0)
    for handle in wanted:
        _reap(handle.pid, 5.0)


def end_alone(handle: Handle, *, grace_s: float = 30.0) -> None:
    """End this one process, and none of those that it started."""
    leader = handle.process()
    if leader is None:
        return
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(psutil.Error):
            leader.send_signal(number)
        _wait_gone([leader], patience_s)
        if not lives(leader):
            break
    _reap(handle.pid, 5.0)


def kill(handle: Handle) -> None:
    """Send ``kill -9`` to the process and all it started, at once: what a crash looks like."""
    members = family(handle)
    for process in members:
        with contextlib.suppress(psutil.Error):
            process.kill()
    _wait_gone(members, 10.0)
    _reap(handle.pid, 5.0)


def _wait_gone(processes: Sequence[psutil.Process], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    waiting = list(processes)
    while waiting and time.monotonic() < end:
        for process in waiting:
            _reap(process.pid)
        waiting = [process for process in waiting if lives(process)]
        if waiting:
            time.sleep(0.05)


def lives(process: psutil.Process) -> bool:
    """Return True if it still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


_abort = threading.Event()


def abort_waits(on: bool) -> None:
    """Make every :func:`wait_ready` of this process give up now (or no more): the start as a whole has failed."""
    if on:
        _abort.set()
    else:
        _abort.clear()


def wait_ready(handle: Handle, ready: Callable[[], bool], *, timeout_s: float, poll_s: float = 0.1) -> None:
    """Wait until ``ready()``. Raises ServerFailed, with the end of the log, when the process ends or time is up."""
    end = time.monotonic() + timeout_s
    while True:
        if ready():
            return
        if _abort.is_set():
            raise ServerFailed(f"{handle.name} is not waited for any more")
        if not handle.alive:
            _reap(handle.pid)
            raise ServerFailed(
                f"{handle.name} stopped while it started:\n{log_tail(Path(handle.log))}", where=handle.log
            )
        if time.monotonic() > end:
            raise ServerFailed(
                f"{handle.name} was not ready after {timeout_s:.0f} s:\n{log_tail(Path(handle.log))}", where=handle.log
            )
        time.sleep(poll_s)


def log_tail(path: Path, lines: int = 12) -> str:
    """Return the last lines of a log file, indented, for an error message."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return "    (no log)"
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:]) or "    (the log is empty)"
