"""A command starts with what it needs: help, completion and the version import no library of the data path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sluice import __version__, cli
from sluice.cli import all_commands
from sluice.cli.command_list import COMMANDS

HEAVY = (
    "pyarrow", "numpy", "numba", "duckdb", "pymysql", "kazoo", "structlog", "sluice.flows", "sluice.config.pipeline",
    "markdown_it", "pygments",
)  # fmt: skip
LOOK = """
import sys
sys.argv = ["sluice", *sys.argv[1:]]
from sluice.cli import main
try:
    main()
except SystemExit:
    pass
print("imported:", *(name for name in sys.modules), sep="\\n")
"""


@pytest.mark.parametrize(
    "command",
    [["--version"], ["--help"], ["pause", "--help"], ["status", "--help"], ["verify", "--help"], ["serve", "--help"]],
    ids=" ".join,
)
def test_help_and_version_import_no_library_of_the_data_path(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", LOOK, *command], capture_output=True, text=True, check=True)
    imported = set(done.stdout.partition("imported:")[2].split())
    assert "sluice.cli" in imported
    assert [name for name in HEAVY if name in imported] == []


def test_a_command_imports_no_module_of_a_stack_that_does_not_run(tmp_path: Path) -> None:
    """They bring the clients of all servers along."""
    unset = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_CONN_")}
    done = subprocess.run(
        [sys.executable, "-c", LOOK, "rules", "list"],
        capture_output=True, text=True, check=True, env={**unset, "SLUICE_HOME": str(tmp_path)},
    )  # fmt: skip
    imported = set(done.stdout.partition("imported:")[2].split())
    assert "sluice.cli.rules" in imported
    assert [name for name in ("devstack.commands", "redis", "pymongo", "pika") if name in imported] == []


def test_a_shell_completes_commands_without_them() -> None:
    words = {"_SLUICE_COMPLETE": "complete_bash", "COMP_WORDS": "sluice sta", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", LOOK.replace("*sys.argv[1:]", "")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **words})
    completed, _, imported = done.stdout.partition("imported:")
    assert "status" in completed.split()
    assert [name for name in HEAVY if name in imported.split()] == []


def test_every_command_can_be_made_and_stands_in_a_panel() -> None:
    commands = all_commands().commands  # type: ignore[attr-defined]
    assert [name for name in commands if name in COMMANDS] == list(COMMANDS)
    assert all(commands[name].rich_help_panel == "Control" for name in commands if name not in COMMANDS)
    for name, (panel, _) in COMMANDS.items():
        assert commands[name].rich_help_panel == panel


def test_the_version() -> None:
    assert CliRunner().invoke(all_commands(), ["--version"]).output == f"sluice {__version__}\n"  # type: ignore[arg-type]


def test_a_name_that_is_no_command_is_corrected() -> None:
    done = CliRunner().invoke(all_commands(), ["statsu"])  # type: ignore[arg-type]
    assert done.exit_code == 2
    assert "status" in done.output


@pytest.mark.parametrize(
    ("words", "variables", "has_own"),
    [
        (["status"], {}, False),
        (["channel", "new", "shop"], {}, False),
        (["new", "mysql://a/shop", "mysql://b/shop"], {}, True),
        (["--env-file", "sluice.env", "status"], {}, True),
        (["--env-file=sluice.env", "status"], {}, True),
        (["status"], {"SLUICE_STATE": "sqlite:///positions.db"}, True),
    ],
)
def test_a_running_stack_is_adopted_where_nothing_else_says_where_positions_are(
    words: list[str], variables: dict[str, str], has_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", "SLUICE_STATE", "SLUICE_ENV_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["sluice", *words])
    assert cli._has_own_connections() is has_own
