"""Commands that a plan or an error prints are run as printed, and afterwards both sides hold the same rows."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import SluiceError
from sluice.flows.capture.drain import drain
from tests.support.pipelines.case import Case
from tests.support.running.waiting import beside
from tests.support.tables.numbered import deliver, insert, numbered_pipeline, rows, sluice


@pytest.fixture
def made(tmp_path: Path, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    with numbered_pipeline(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) as one:
        yield one


def at_source(made: Case, *statements: str) -> None:
    made.source.execute(f"USE `{made.schema}`", *statements)


def stops(made: Case) -> SluiceError:
    """The error that the pipeline stops with."""
    with pytest.raises(SluiceError) as raised:
        made.run_until_head()
    return raised.value


def commands(made: Case, text: str | None) -> list[list[str]]:
    """The commands in a hint or in a plan, with the table that they leave to the reader."""
    found = re.findall(r"`sluice ([^`]+)`", " ".join((text or "").split()))
    assert found, text
    return [one.replace("PIPELINE", "case").replace("SCHEMA.TABLE", f"{made.schema}.t").split() for one in found]


def command(made: Case, text: str | None, *words: str) -> list[str]:
    """The one that begins with these words."""
    [found] = {tuple(one) for one in commands(made, text) if one[: len(words)] == list(words)}
    return list(found)


@contextmanager
def delivering(made: Case) -> Iterator[None]:
    """The pipeline goes on beside."""

    def run(over: threading.Event) -> None:
        while not over.is_set():
            made.run_until_head()

    with beside(run):
        yield


def with_the_pipeline(made: Case, words: list[str]) -> None:
    """A command that the running pipeline helps with; then both sides are equal."""
    with delivering(made):
        sluice(made, *words)
    made.run_until_head()
    made.assert_equal("t")


def test_a_batch_that_was_lost_is_passed_and_its_table_copied(made: Case) -> None:
    """Deletes of the batch are lost, too: the copy removes their rows."""
    deliver(made, 1, 2)
    at_source(made, "DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (3, 'c')")
    batch = drain(made.runtime(), claim="test:a:b", idle_wait_s=5).batch
    shutil.rmtree(made.folder / f"store/case/batch={batch:010d}")
    skip = command(made, stops(made).hint, "skip")
    plan = sluice(made, *(word.replace("TARGET", "copy").replace("BATCH", str(batch)) for word in skip), "--dry-run")
    sluice(made, *(word.replace("TARGET", "copy").replace("BATCH", str(batch)) for word in skip), "--yes")
    deliver(made, 4)
    assert rows(made, made.target) == [1, 2, 4]
    with_the_pipeline(made, [*command(made, plan, "dump", "start"), "--yes"])


def stale_rows(made: Case) -> None:
    """The target was put back to a state of before, with a row that the source has no more; nothing says which."""
    made.target.execute(
        f"DELETE FROM `{made.schema}`.t", f"INSERT INTO `{made.schema}`.t VALUES (77, 'old'), (1, 'other')"
    )
    made.target.store.checkpoints.clear()


def test_a_reset_and_the_copy_that_its_plan_prints(made: Case) -> None:
    deliver(made, 1, 2)
    stale_rows(made)
    insert(made, 3)
    reset = command(made, stops(made).hint, "adopt", "case", "copy", "--reset")
    plan = sluice(made, *reset, "--dry-run")
    sluice(made, *reset, "--yes")
    made.run_until_head()
    with_the_pipeline(made, [*command(made, plan, "dump", "start"), "--yes"])


def test_a_copy_that_an_error_prints_for_a_target_without_a_checkpoint(made: Case) -> None:
    deliver(made, 1, 2)
    stale_rows(made)
    insert(made, 3)
    hint = stops(made).hint
    copies = [one for one in commands(made, hint) if one[:2] == ["dump", "start"]]
    reset = command(made, hint, "adopt", "case", "copy", "--reset")
    sluice(made, *reset, "--yes")
    made.run_until_head()
    assert copies == [["dump", "start", "case", "--target", "copy", "--replace"]]
    with_the_pipeline(made, [*copies[0], "--yes"])


def test_a_target_that_was_emptied_gets_its_batches_again(made: Case) -> None:
    deliver(made, 1, 2)
    made.target.execute(f"DELETE FROM `{made.schema}`.t")
    made.target.store.checkpoints.clear()
    insert(made, 3)
    sluice(made, *command(made, stops(made).hint, "redeliver", "case", "copy"), "--yes")
    made.run_until_head()
    made.assert_equal("t")
