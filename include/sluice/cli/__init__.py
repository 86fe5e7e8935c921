"""The ``sluice`` command: the flows, for people and for scripts (``--json``)."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from io import StringIO, TextIOWrapper
from typing import Any

import typer
import typer.main

from sluice.cli.channel import channel_app
from sluice.cli.check import check
from sluice.cli.console import err, log_to_stderr, print_error
from sluice.cli.control import adopt, audit, failover, pause, redeliver, restart, resume, rollback, seek, skip
from sluice.cli.dump import dump_app
from sluice.cli.letters import letters_app
from sluice.cli.recover import recover
from sluice.cli.rules import rules_app
from sluice.cli.run import run
from sluice.cli.schema import schema_app
from sluice.cli.serve import serve
from sluice.cli.snapshot import snapshot_app
from sluice.cli.stack import stack_app
from sluice.cli.status import status
from sluice.cli.stored import segments, tail
from sluice.cli.subscriptions import subscriptions_app
from sluice.cli.targets import targets_app
from sluice.cli.verify import verify_app
from sluice.errors import SluiceError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
for command in (
    check,
    run,
    status,
    segments,
    tail,
    serve,
    pause,
    resume,
    restart,
    rollback,
    skip,
    redeliver,
    adopt,
    recover,
    failover,
    seek,
    audit,
):
    app.command()(command)
_HAS_STACK = importlib.util.find_spec("devstack") is not None
"""The development stack is in the repository, not in the installed package."""

for name, group in {
    **({"stack": stack_app} if _HAS_STACK else {}), "rules": rules_app, "dump": dump_app, "dead-letters": letters_app,
    "schema": schema_app,
    "targets": targets_app, "verify": verify_app, "channel": channel_app, "snapshot": snapshot_app,
    "subscriptions": subscriptions_app,
}.items():  # fmt: skip
    app.add_typer(group, name=name)


_OUTPUT_LOST = 74
"""Exit code where what was to be printed could not be written (EX_IOERR)."""


class _Closed(StringIO):
    """Stands for a standard output that is closed."""

    lost = False

    def write(self, text: str) -> int:
        """Keep nothing."""
        self.lost = self.lost or bool(text)
        return len(text)


@functools.cache
def all_commands() -> Callable[..., Any]:
    """Return all commands.

    To make them of their functions takes longer than most of them work, so that it is done once in a process.
    """
    return typer.main.get_command(app)


def main() -> None:
    """Run the command line.

    Each SluiceError becomes one clear message and exit code 1 (retryable: 75, output that cannot be written: 74).
    """
    if sys.stdout is None:
        sys.stdout = _Closed()
    if sys.stderr is None:
        sys.stderr = _Closed()
    if _HAS_STACK and "AIRFLOW_CONN_ZOOKEEPER_DEFAULT" not in os.environ:
        _adopt_stack_environment()
    log_to_stderr(False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may hold what the terminal's encoding lacks
    code = _OUTPUT_LOST
    try:
        code = _command()
        sys.stdout.flush()
        if isinstance(sys.stdout, _Closed) and sys.stdout.lost:
            _say_lost("it is closed")
            code = code or _OUTPUT_LOST
    except BrokenPipeError:
        _drop_output()
        code = 0
    except OSError as error:
        if not _is_output(error):
            raise
        _say_lost(os.strerror(error.errno or 0))
        _drop_output()
        code = _OUTPUT_LOST
    sys.exit(code)


def _command() -> int:
    """Run the command of the command line. Returns its exit code."""
    try:
        all_commands()()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except SluiceError as error:
        print_error(error)
        return 75 if error.retryable else 1
    except KeyboardInterrupt:
        err.print("stopped")
        return 130
    return 0


def _is_output(error: OSError) -> bool:
    """Return True if standard output itself refuses what is written; it then refuses a further write, too."""
    if error.filename is not None:
        return False
    try:
        sys.stdout.write(" ")
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _say_lost(why: str) -> None:
    with suppress(OSError):
        err.print(
            f"[bold red]error[/] standard output cannot be written: {why}; what the command did is done",
            highlight=False,
        )


def _drop_output() -> None:
    """Let nothing more be written: the interpreter would try again when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _adopt_stack_environment() -> None:
    """Set the connections of a running development stack, so that any shell of the repository has them."""
    from devstack.commands import stack_environment

    for name, value in stack_environment().items():
        os.environ.setdefault(name, value)


__all__ = ["app", "main"]
