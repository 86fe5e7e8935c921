"""Standard output that is closed, full, or a pipe whose reader has gone: no traceback, and an exit code that says
so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running.command_line import command_line

REPOSITORY = Path(__file__).resolve().parents[3]


def shell(line: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "include"), "SLUICE": f"{sys.executable} -m sluice.cli"}
    return subprocess.run(
        ["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["skip", "p", "copy", "first"], "Invalid value for 'batch': a whole number is expected"),
        (["restart", "p", "--grace", "soon"], "Invalid value for '--grace': a number is expected"),
        (
            ["dump", "start", "p", "--chunk-rows", "many"],
            "Invalid value for '--chunk-rows': a whole number is expected",
        ),
    ],
)
def test_a_wrong_argument_is_said_as_a_wrong_key_of_a_file_is(command: list[str], why: str, tmp_path: Path) -> None:
    done = command_line(command, environment=dict(os.environ), folder=tmp_path)
    assert done.returncode == 2
    assert why in " ".join(done.stderr.replace("│", "").split())


@pytest.mark.parametrize(
    ("command", "where"), [("targets list", ">&-"), ("targets list --json", ">/dev/full"), ("--help", ">/dev/full")]
)
def test_output_that_cannot_be_written(command: str, where: str) -> None:
    done = shell(f"$SLUICE {command} {where}")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode == 74, done.stderr
    assert "standard output cannot be written" in done.stderr


@pytest.mark.parametrize("where", ["2>/dev/full", ">&- 2>&-"])
def test_no_standard_error(where: str) -> None:
    done = shell(f"$SLUICE status there_is_no_such_pipeline {where}")
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode in {1, 74}


def test_a_command_that_prints_nothing_needs_no_output() -> None:
    done = shell("$SLUICE status there_is_no_such_pipeline >&-")
    assert done.returncode == 1
    assert "there_is_no_such_pipeline" in done.stderr


def test_a_reader_that_has_gone() -> None:
    done = shell("set -o pipefail; $SLUICE targets list --json | true")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["dump", "start", "p", "--where", ""],
        ["dump", "start", "p", "--table", ""],
        ["dump", "start", "p", "--table", "a.b", "--since", ""],
        ["dump", "start", "p", "--target", " "],
        ["dump", "start", "p", "--key", ""],
        ["dump", "start", "p", "--index", ""],
        ["verify", "p", "--where", ""],
        ["verify", "p", "--table", ""],
    ],
)
def test_an_empty_shell_variable_asks_for_nothing(command: list[str], tmp_path: Path) -> None:
    done = command_line(command, environment={**os.environ, "SLUICE_PIPELINES": str(tmp_path)}, folder=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "is empty: nothing was done" in done.stderr
