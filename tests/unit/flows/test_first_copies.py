"""What is said of a pipeline while its first copy is under way: how far the targets are, and what hinders it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sluice.errors import MappingError
from sluice.flows.capture.drain import drain
from sluice.flows.dump.progress import one_view
from sluice.flows.dump.worker import work
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from sluice.operations.status import Status, status
from sluice.orchestration.page.words import in_words
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import claim, delivering

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(40))"


@pytest.fixture
def shop(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) -> Iterator[Case]:
    schema = fresh_schema(twin_source, twin_target)
    with case(tmp_path, twin_source, twin_target, twin_zookeeper, schema, start="dump") as made:
        made.source.execute(f"USE `{schema}`", TABLE)
        rows = ", ".join(f"({i}, 'v{i}')" for i in range(1, 101))
        made.source.execute(f"USE `{schema}`", f"INSERT INTO t VALUES {rows}")
        yield made


def captured(made: Case) -> int | None:
    """The next batch, captured only."""
    return drain(made.runtime(), claim=claim(made), idle_wait_s=0.05).batch


def said(made: Case) -> tuple[Status, dict[str, str]]:
    found = status(made.runtime())
    dumps = [dump.to_json() for dump in found.dumps]
    return found, in_words({"state": found.state, "dumps": dumps, "warnings": found.warnings})


def delivered(made: Case, batch: int) -> None:
    runtime = made.runtime()
    with runtime.state():
        merge(runtime, batch)
        load(runtime, "copy", batch)
        ack(runtime, "copy", batch)


def test_a_first_copy_that_nobody_reads_is_not_in_step(shop: Case) -> None:
    shop.target.execute(f"USE `{shop.schema}`", TABLE)
    assert captured(shop) is None
    found, words = said(shop)
    assert (found.state, found.lag_ms, words["text"].partition(";")[0]) == ("copying", None, "copying 0 %")
    with shop.runtime().state() as state:
        state.dumps.not_begun("initial", "DAG backfill__case is paused: unpause it")
    found, words = said(shop)
    assert words == {"tone": "warn", "text": "copying 0 %; DAG backfill__case is paused: unpause it", "may_retry": True}
    [warning] = found.warnings
    assert "unpause it" in warning
    assert "Clear" not in warning
    assert "sluice dump work case initial" in warning
    with shop.runtime().state() as state:
        state.dumps.not_begun("initial", "")
    assert "unpause" not in said(shop)[1]["text"]
    with delivering(shop):
        work(shop.runtime(), "initial")
    shop.run_until_head()
    found, words = said(shop)
    assert (found.state, found.lag_ms, words["text"]) == ("idle", 0, "in step")


def read(made: Case) -> int:
    """Read the initial dump and capture it, and deliver nothing; the last batch with rows of it."""
    assert captured(made) is None
    work(made.runtime(), "initial", until_placed=False)
    batch = captured(made)
    assert batch is not None
    return batch


def test_a_copy_is_done_once_every_target_has_it(shop: Case) -> None:
    shop.target.execute(f"USE `{shop.schema}`", TABLE)
    batch = read(shop)
    seen = one_view(shop.runtime(), "initial")
    assert (seen.state, seen.tables[0].state, seen.rows, seen.share) == ("delivering", "delivering", 100, 0.0)
    assert said(shop)[1]["text"] == "copying 0 %"
    delivered(shop, batch)
    seen = one_view(shop.runtime(), "initial")
    assert (seen.state, seen.share) == ("done", 1.0)


@pytest.mark.parametrize("ended", [True, False], ids=["read", "being read"])
def test_a_table_that_was_made_before_its_first_copy_arrived_lacks_nothing(shop: Case, ended: bool) -> None:
    batch = read(shop)
    if ended:
        one_view(shop.runtime(), "initial")  # which notes that everything is placed
    with pytest.raises(MappingError):
        delivered(shop, batch)
    shop.make_missing()
    delivered(shop, batch)
    one_view(shop.runtime(), "initial")
    assert status(shop.runtime()).incomplete == []
    assert [tuple(row) for row in at_target(shop)] == [(100,)]


def at_target(made: Case) -> Any:
    return made.target.execute(f"USE `{made.schema}`", "SELECT COUNT(*) FROM t")
