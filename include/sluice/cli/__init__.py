"""The ``sluice`` command: the flows, for people and for scripts (``--json``)."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main

from sluice import __version__
from sluice.cli import service
from sluice.cli.command_list import Commands, LazyGroup
from sluice.cli.console import err, log_to_stderr, out, print_error
from sluice.cli.help_start import leave_out_unused
from sluice.config.env_file import ENV_FILE, read_env_file
from sluice.errors import ConfigError, SluiceError

app = typer.Typer(
    cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)  # fmt: skip
_HAS_STACK = "stack" in Commands()


def _print_version(show_version: bool) -> None:
    if show_version:
        out.print(f"sluice {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
    env_file: Annotated[
        Path | None,
        typer.Option(
            "--env-file",
            envvar="SLUICE_ENV_FILE",
            help="File of variables NAME=VALUE with the connections, as `sluice new` writes it; what is set counts.",
        ),
    ] = None,
    api: Annotated[
        str,
        typer.Option(
            "--api",
            envvar="SLUICE_API",
            help="URL of an Airflow with Sluice's page, or the id of a connection to it: act through its API, where "
            "ZooKeeper cannot be reached. The token is in SLUICE_API_TOKEN, or the connection's password.",
        ),
    ] = "",
    api_allow_http: Annotated[
        bool,
        typer.Option(
            "--api-allow-http",
            envvar="SLUICE_API_ALLOW_HTTP",
            help="Send the token without encryption to an http:// URL of another host.",
        ),
    ] = False,
) -> None:
    """Keep other data stores in step with MySQL, MariaDB and PostgreSQL."""
    if env_file is not None:
        for name, value in read_env_file(env_file).items():
            os.environ.setdefault(name, value)
    if {"--help", "-h"}.isdisjoint(sys.argv):
        service.choose(api, allow_http=api_allow_http)


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
    """Return all commands; each is made when it is first asked for, once in a process."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command line.

    Each SluiceError becomes one clear message and exit code 1 (retryable: 75, output that cannot be written: 74).
    """
    if sys.stdout is None:
        sys.stdout = _Closed()
    if sys.stderr is None:
        sys.stderr = _Closed()
    if {"--help", "-h", "--version"}.isdisjoint(sys.argv) and "_SLUICE_COMPLETE" not in os.environ:
        if _HAS_STACK and not _has_own_connections():
            _adopt_stack_environment()
        log_to_stderr(False)
    else:  # these need neither, and are there in half the time
        leave_out_unused()
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
        if _is_of(error, sys.stdout):
            _say_lost(os.strerror(error.errno or 0))
            _drop_output()
        elif not _is_of(error, sys.stderr):
            raise
        code = _OUTPUT_LOST
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        _drop(sys.stderr)
    sys.exit(code)


def _command() -> int:
    """Run the command of the command line. Returns its exit code."""
    try:
        all_commands()()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except SluiceError as error:
        print_error(error)
        if isinstance(error, ConfigError) and Path(ENV_FILE).is_file() and "SLUICE_PIPELINES" not in os.environ:
            err.print(f"  [dim]next[/] sluice --env-file {ENV_FILE} ...: its variables are not set", highlight=False)
        return 75 if error.retryable else 1
    except KeyboardInterrupt:
        err.print("stopped")
        return 130
    return 0


def _is_of(error: OSError, stream: Any) -> bool:
    """Return True if the stream itself refuses what is written; it then refuses a further write, too."""
    if error.filename is not None:
        return False
    try:
        stream.write(" ")
        stream.flush()
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
    """Let nothing more be written to standard output."""
    _drop(sys.stdout)


def _drop(stream: Any) -> None:
    """Let nothing more be written: the interpreter would try again when it ends, and exit with 120."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _has_own_connections() -> bool:
    """Return True if the command line, or its environment, says where positions are kept; `sluice new` says it, too."""
    positions = {"AIRFLOW_CONN_ZOOKEEPER_DEFAULT", "SLUICE_STATE", "SLUICE_ENV_FILE"}
    has_file = any(word.startswith("--env-file") for word in sys.argv)
    return has_file or sys.argv[1:2] == ["new"] or not positions.isdisjoint(os.environ)


def _adopt_stack_environment() -> None:
    """Set the connections of a running development stack, so that any shell of the repository has them."""
    from devstack.processes import stack_environment

    for name, value in stack_environment().items():
        os.environ.setdefault(name, value)


__all__ = ["app", "main"]
