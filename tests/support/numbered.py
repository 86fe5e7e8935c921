"""A table of numbered rows, a batch each, and the command line inside this process."""

from __future__ import annotations

from typing import Any

from tests.support.command_line import printed
from tests.support.pipelines import Case


def insert(made: Case, number: int) -> None:
    made.source.execute(f"INSERT INTO `{made.schema}`.t VALUES ({number}, 'n{number}')")


def deliver(made: Case, *numbers: int) -> None:
    """A batch each."""
    for number in numbers:
        insert(made, number)
        made.run_until_head()


def sluice(made: Case, *command: str) -> str:
    """A command line, in this process; what it printed."""
    return printed(command, made.environment)


def rows(made: Case, server: Any) -> list[int]:
    return [row[0] for row in server.execute(f"SELECT id FROM `{made.schema}`.t ORDER BY id")]
