"""Which commits to Iceberg tables stay in the thread that asks for them, and that errors of their jobs come out."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.utils.concurrent import ExecutorFactory

from sluice.targets.iceberg.own_thread import MOST_FILES, MOST_ROWS, in_own_thread


def table(said: dict[str, str] | None) -> Any:
    last = None if said is None else SimpleNamespace(summary=SimpleNamespace(additional_properties=said))
    return SimpleNamespace(metadata=SimpleNamespace(current_snapshot=lambda: last))


def threads_of_a_job() -> tuple[str, str]:
    """(this thread, the thread of a job of the library)."""
    found = ExecutorFactory.get_or_create().map(lambda _: threading.current_thread().name, [1])
    return threading.current_thread().name, *found  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("said", "rows", "own"),
    [
        (None, 1, True),
        ({"total-data-files": "3", "total-delete-files": "2"}, MOST_ROWS, True),
        ({"total-data-files": "3"}, MOST_ROWS + 1, False),
        ({"total-data-files": str(MOST_FILES), "total-delete-files": "1"}, 1, False),
        ({}, 1, False),
    ],
    ids=["empty", "small", "many rows", "many files", "nothing said"],
)
def test_only_small_commits_stay_in_their_thread(said: dict[str, str] | None, rows: int, own: bool) -> None:
    with in_own_thread(table(said), rows):
        mine, of_job = threads_of_a_job()
        assert (of_job == mine) is own
    mine, of_job = threads_of_a_job()
    assert of_job != mine


def test_the_error_of_a_job_is_its_result() -> None:
    with in_own_thread(table(None), 1):
        asked = ExecutorFactory.get_or_create().submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        asked.result()
