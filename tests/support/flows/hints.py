"""Hints of errors, done word for word."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sluice.cli import all_commands
from sluice.errors import SluiceError
from tests.support.pipelines.case import Case, case_of

ORDERS = "CREATE TABLE `{db}`.orders (id INT PRIMARY KEY, note VARCHAR(40), total INT)"
ASKS = {"seek", "skip", "rollback", "redeliver"}
"""Commands that show a plan and ask."""


def at_source(made: Case, *statements: str) -> None:
    """Run statements in one session, in the schema."""
    made.source.execute(f"USE `{made.schema}`", *statements)


def stops(made: Case, *words: str) -> SluiceError:
    """The error that the pipeline stops with, and stops with again."""
    for _ in range(2):
        with pytest.raises(SluiceError) as raised:
            made.run_until_head()
        for word in words:
            assert word in raised.value.message, raised.value
    assert raised.value.hint
    return raised.value


def commands(made: Case, error: SluiceError, **words: str) -> list[list[str]]:
    """The commands in a hint, with what it leaves to the reader: which pipeline, table, target, batch."""
    found = re.findall(r"`sluice ([^`]+)`", error.hint or "")
    assert found, error.hint
    given = {"PIPELINE": "case", "SCHEMA.TABLE": f"{made.schema}.orders", **words}
    return [[given.get(word, word) for word in one.split()] for one in found]


def does(made: Case, command: list[str]) -> str:
    """Run it in this process, by the command line's own parser; returns what it printed."""
    asks = command[0] in ASKS or "--replace" in command or "--repair" in command
    command = [*command, "--yes"] if asks else command
    done = CliRunner().invoke(all_commands(), command, env=dict(os.environ))
    assert done.exit_code == 0, (command, done.output, done.exception)
    return done.output


@contextmanager
def orders_to_hint_at(
    folder: Path,
    source: Any,
    target: Any,
    zookeeper: Any,
    fresh_schema: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Case]:
    """A pipeline whose environment this process has."""
    with case_of(folder, source, target, zookeeper, fresh_schema, ORDERS) as made:
        made.run_until_head()
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made
