"""A table of numbered rows, a batch each, and the command line inside this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sluice.sources.mysql.reader.warm_up import compile_kernels
from tests.support.pipelines.case import Case, case
from tests.support.running.command_line import printed
from tests.support.twins.servers import Twin


@contextmanager
def numbered_pipeline(
    folder: Path, source: Any, target: Any, zookeeper: Any, fresh_schema: Callable[..., str], *, begin: bool = True
) -> Iterator[Case]:
    """A pipeline with the table at both sides.

    ``begin``: it has been drained once, so that what is inserted from now on is delivered.
    """
    if not isinstance(source, Twin):
        compile_kernels()
    schema = fresh_schema(source, target)
    for server in (source, target):
        server.execute(f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, note VARCHAR(40))")
    with case(folder, source, target, zookeeper, schema) as made:
        if begin:
            made.run_until_head()
        yield made


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
