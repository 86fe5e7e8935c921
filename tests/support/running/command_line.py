"""The command line inside this process: what a shell would see of it, without two seconds of imports for each
command.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import structlog
from click.testing import CliRunner

from sluice.cli import all_commands, main
from sluice.errors import SluiceError


def command_line(
    arguments: Sequence[str], *, environment: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """``sluice ARGUMENTS`` without a terminal; its exit code and what it printed.

    The variables, the working directory, the streams, signal handlers and the configuration of logging are those of
    before after it. An exception for which the command line has no exit code is raised: a shell would see a traceback.
    """
    printed, said, code = _stream(), _stream(), 0
    with _as_before(), contextlib.chdir(folder):
        _set(environment)
        sys.argv, sys.stdin, sys.stdout, sys.stderr = ["sluice", *arguments], io.StringIO(), printed, said
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return subprocess.CompletedProcess(["sluice", *arguments], code, _text(printed), _text(said))


def printed(command: Sequence[str], environment: Mapping[str, str], *, codes: Collection[int] = (0,)) -> str:
    """Return what ``sluice COMMAND`` prints, which ends with one of ``codes``. Raises its SluiceError."""
    done = CliRunner().invoke(all_commands(), list(command), env=dict(environment), catch_exceptions=True)
    if isinstance(done.exception, SluiceError):
        raise done.exception
    assert done.exit_code in codes, done.output
    return done.output


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    written: bytes = stream.buffer.getvalue()  # type: ignore[attr-defined]
    return written.decode("utf-8")


@contextlib.contextmanager
def _as_before() -> Iterator[None]:
    variables, streams = dict(os.environ), (sys.argv, sys.stdin, sys.stdout, sys.stderr)
    logging = structlog.get_config() if structlog.is_configured() else None
    handles = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if handles else {}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if logging is None:
            structlog.reset_defaults()
        else:
            structlog.configure(**logging)
        sys.argv, sys.stdin, sys.stdout, sys.stderr = streams
        _set(variables)


def _set(variables: Mapping[str, str]) -> None:
    """Only what differs: other threads read them meanwhile."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in variables.items() if os.environ.get(name) != value})
