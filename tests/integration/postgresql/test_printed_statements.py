"""Statements and commands that an error prints for a PostgreSQL table are run as printed; then both sides hold the same
rows.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.errors import MappingError
from sluice.operations.status import status
from tests.support.pipelines.case import Case
from tests.support.pipelines.kinds_apart import pipeline

_numbers = itertools.count(1)
"""Numbers for names of pipelines: the server keeps the checkpoint of each."""


@pytest.fixture
def made(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Case]:
    with pipeline(tmp_path, "postgresql", request, name=f"printed{next(_numbers)}") as (one, _):
        one.source.execute(
            f"CREATE TABLE `{one.schema}`.t (id INT PRIMARY KEY, v VARCHAR(20) NOT NULL DEFAULT 'x', n INT)",
            f"INSERT INTO `{one.schema}`.t VALUES (1, 'a', 1), (2, 'b', 2)",
        )
        one.run_until_head()
        yield one


def target(made: Case, statement: str) -> None:
    made.target.execute(statement.replace("{t}", f'"{made.schema}".t'))


def stops(made: Case, number: int) -> str:
    """Rows come and go; the hint of the error that the load stops with."""
    made.source.execute(
        f"INSERT INTO `{made.schema}`.t VALUES ({number}, 'more', {number})",
        f"DELETE FROM `{made.schema}`.t WHERE id = 2",
    )
    return stops_again(made)


def stops_again(made: Case) -> str:
    with pytest.raises(MappingError) as raised:
        made.run_until_head()
    assert raised.value.hint
    return raised.value.hint


def statement_in(hint: str) -> str:
    found = re.search(r"(?:CREATE|ALTER) TABLE [^;]*", hint)
    assert found, hint
    return found[0]


def same(made: Case) -> bool:
    return bool(
        made.source.execute(f"SELECT id, v, n FROM `{made.schema}`.t ORDER BY id")
        == made.target.execute(f'SELECT id, v, n FROM "{made.schema}".t ORDER BY id')
    )


def copied(made: Case, hint: str) -> None:
    """The second command of the hint; then nothing is said to be missing."""
    [command] = re.findall(r"`sluice (dump start [^`]*)`", hint)
    assert any(f"`sluice {command}`" in said for said in status(made.runtime()).incomplete)
    with ThreadPoolExecutor(1) as beside:
        copying = beside.submit(made.cli, *command.split())
        while not copying.done():
            made.run_until_head()
        assert copying.result().returncode == 0, copying.result()
    made.run_until_head()
    assert same(made)
    assert status(made.runtime()).incomplete == []


def test_a_table_that_is_missing(made: Case) -> None:
    target(made, "DROP TABLE {t}")
    hint = stops(made, 3)
    made.target.execute(statement_in(hint))
    made.run_until_head()
    assert not same(made)
    copied(made, hint)


def test_a_column_that_the_target_computes(made: Case) -> None:
    target(made, "ALTER TABLE {t} DROP COLUMN n, ADD COLUMN n INT GENERATED ALWAYS AS (id * 100) STORED")
    made.target.execute(statement_in(stops(made, 3)))
    hint = stops_again(made)
    made.target.execute(statement_in(hint))
    made.run_until_head()
    assert not same(made)
    copied(made, hint)


def test_a_key_that_is_missing(made: Case) -> None:
    target(made, "ALTER TABLE {t} DROP CONSTRAINT t_pkey")
    made.target.execute(statement_in(stops(made, 3)))
    made.run_until_head()
    assert same(made)


@pytest.mark.parametrize("way", ["SET DEFAULT", "DROP NOT NULL"])
def test_a_column_of_the_target_alone_that_needs_a_value(made: Case, way: str) -> None:
    target(made, "ALTER TABLE {t} ADD COLUMN own INT NOT NULL DEFAULT 7")
    target(made, "ALTER TABLE {t} ALTER COLUMN own DROP DEFAULT")
    hint = stops(made, 3)
    [statement] = [one for one in re.findall(r"ALTER TABLE [^;,]*", hint) if way in one]
    made.target.execute(statement.partition(", or ")[0].replace("…", "0"))
    made.run_until_head()
    assert same(made)
