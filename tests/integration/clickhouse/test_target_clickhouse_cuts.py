"""The loading process killed at every statement, an old one that comes back, the engine killed in mid-load: each row
once.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from devstack.clickhouse import ClickHouseServer
from sluice.errors import CheckpointError, Fenced
from sluice.model.schema_changes import ChangeKind
from sluice.targets.clickhouse import checkpoint
from sluice.testing.targets import Pipe, _definition, _schema_change, changed, gone, new, people
from tests.support.benches.clickhouse_bench import ClickHouseBench
from tests.support.crashes import clickhouse_child
from tests.support.crashes.killed_servers import Kills, load_while_killed
from tests.support.crashes.strikes import At, children, stands_still, start, twice_arrived

children.set_forkserver_preload(["tests.support.crashes.clickhouse_child", "tests.support.benches.clickhouse_bench"])
FIRST = [new(n, "a", 0) for n in range(4)]
SECOND = [changed((0, "a", 0), (7, "b", 1)), gone(1, "a", 0), *(changed((n, "a", 0), (n, "b", 1)) for n in (2, 3))]
EXPECTED = Counter([(7, "b", 1), (2, "b", 1), (3, "b", 1)])


def made(
    server: ClickHouseServer, changes: str = "latest", options: dict[str, Any] | None = None
) -> tuple[ClickHouseBench, Any, Pipe]:
    bench = ClickHouseBench(server, changes, options)
    table = people(bench.schema)
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, FIRST))
    return bench, table, pipe


def once(bench: ClickHouseBench) -> bool:
    return not bench.appends or not twice_arrived(bench)


@pytest.mark.parametrize("kind", ["latest", "all"])
def test_killed_at_every_statement(clickhouse: ClickHouseServer, kind: str) -> None:
    step = 1 if os.environ.get("SLUICE_CUTS") == "1" else 5
    point, deaths, calls = 0, 0, [""]
    while True:
        bench, table, pipe = made(clickhouse, kind)
        batch = pipe.given([(table, SECOND)])
        child, said = start(clickhouse_child.load, bench, batch, 2, At(point // 2, point % 2 == 1, signal.SIGKILL))
        child.join(120)
        if child.exitcode == 0:
            calls, error = said.get()
            assert not error
            break
        assert child.exitcode == -signal.SIGKILL
        deaths += 1
        assert pipe.held < batch.number or pipe.state(table) == EXPECTED, "the checkpoint is ahead of the rows"
        pipe.epoch = 3
        if pipe.checkpoints.take_over(3).batch < batch.number:
            pipe.write(batch)
        assert pipe.state(table) == EXPECTED
        assert pipe.held == batch.number
        assert once(bench)
        point += step
    assert deaths == -(-2 * len(calls) // step)


@pytest.mark.parametrize("kind", ["latest", "all"])
def test_an_old_writer_that_comes_back(clickhouse: ClickHouseServer, kind: str) -> None:
    """It stands still at each statement in turn; a newer one delivers the batch and the next; then the old one goes
    on and changes nothing.
    """
    stopped, call = 0, 3
    while True:
        bench, table, pipe = made(clickhouse, kind)
        batch = pipe.given([(table, SECOND)])
        child, said = start(clickhouse_child.load, bench, batch, 2, At(call, False, signal.SIGSTOP))
        if not stands_still(child):
            break
        stopped += 1
        pipe.epoch = 3
        again = pipe.checkpoints.take_over(3).batch < batch.number
        if again:
            pipe.write(batch)
        pipe.deliver((table, [new(9, "z", 9), changed((2, "b", 1), (2, "c", 2))]))
        after = EXPECTED - Counter([(2, "b", 1)]) + Counter([(9, "z", 9), (2, "c", 2)])
        os.kill(child.pid, signal.SIGCONT)
        _, error = said.get()
        child.join(60)
        assert error.startswith("Fenced") or not again, (error, call)
        assert pipe.state(table) == after
        assert pipe.held == 3
        assert once(bench)
        call += 2
    assert stopped >= 3


def test_an_old_writer_cannot_bring_rows_back_into_an_emptied_table(clickhouse: ClickHouseServer) -> None:
    """It stands still with an INSERT in its hand, until the newer rows that would win are gone: the table itself
    refuses it.
    """
    bench, table, pipe = made(clickhouse)
    batch = pipe.given([(table, [new(9, "old", 9)])])
    child, said = start(
        clickhouse_child.load_counting, bench, batch, 2, At(0, False, signal.SIGSTOP), "writing rows of"
    )
    assert stands_still(child)
    pipe.epoch = 3
    pipe.write(batch)
    before = _definition(bench.schema, "people")
    empties = _schema_change(
        pipe, 0, f"TRUNCATE TABLE `{bench.schema}`.`people`", (ChangeKind.TRUNCATE_TABLE,), before, before
    )
    pipe.write(pipe.given([], schema_changes=(empties,)))
    os.kill(child.pid, signal.SIGCONT)
    _, error = said.get()
    child.join(60)
    assert error.startswith("Fenced"), error
    assert not bench.select("id", table.table, final=False)
    pipe.deliver((table, [new(9, "new", 1)]))
    assert pipe.state(table) == Counter([(9, "new", 1)])


def test_an_old_process_that_empties_a_table_late_removes_no_newer_rows(clickhouse: ClickHouseServer) -> None:
    bench, table, pipe = made(clickhouse)
    before = _definition(bench.schema, "people")
    empties = _schema_change(
        pipe, 0, f"TRUNCATE TABLE `{bench.schema}`.`people`", (ChangeKind.TRUNCATE_TABLE,), before, before
    )
    batch = pipe.given([], schema_changes=(empties,))
    child, said = start(
        clickhouse_child.load_counting, bench, batch, 2, At(0, False, signal.SIGSTOP), "removing rows of"
    )
    assert stands_still(child)
    pipe.epoch = 3
    pipe.write(batch)
    pipe.deliver((table, [new(1, "new", 1)]))
    os.kill(child.pid, signal.SIGCONT)
    _, error = said.get()
    child.join(60)
    assert error.startswith("Fenced"), error
    assert pipe.state(table) == Counter([(1, "new", 1)])


def test_an_old_change_that_arrives_after_its_token_is_forgotten(clickhouse: ClickHouseServer) -> None:
    """With every change no version decides, and the table remembers one token alone: the constraint of the newer term
    refuses the INSERT.
    """
    bench, table, pipe = made(clickhouse, "all", {"settings": {"non_replicated_deduplication_window": 1}})
    batch = pipe.given([(table, SECOND)])
    child, said = start(
        clickhouse_child.load_counting, bench, batch, 2, At(0, False, signal.SIGSTOP), "writing rows of"
    )
    assert stands_still(child)
    pipe.epoch = 3
    pipe.write(batch)
    for number in range(3):
        pipe.deliver((table, [new(20 + number, "c", 3)]))
    os.kill(child.pid, signal.SIGCONT)
    _, error = said.get()
    child.join(60)
    assert error.startswith("Fenced"), error
    assert not twice_arrived(bench)
    assert pipe.state(table) == EXPECTED + Counter((20 + number, "c", 3) for number in range(3))


def test_of_two_processes_that_read_the_same_checkpoint_one_changes_it(
    clickhouse: ClickHouseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The insert of the second one is dropped, as its token is known, and it starts again with what the first one
    wrote.
    """
    _, _, pipe = made(clickhouse)
    inserted, late = checkpoint._insert, []

    def insert(*given: Any) -> None:
        if not late:
            late.append(True)
            pipe.checkpoints.take_over(9)
        inserted(*given)

    monkeypatch.setattr(checkpoint, "_insert", insert)
    with pytest.raises(Fenced, match="epoch 9 took this target over from epoch 5"):
        pipe.checkpoints.take_over(5)
    found = pipe.checkpoints.read()
    assert found is not None
    assert (found.epoch, found.batch) == (9, 1)


def test_rows_of_the_checkpoint_that_a_person_removed(clickhouse: ClickHouseServer) -> None:
    """The server still knows the tokens of the removed rows, so that their numbers are used up; the target begins
    anew.
    """
    bench, _, pipe = made(clickhouse)
    clickhouse.query(f"DELETE FROM `{bench.options['checkpoint_database']}`.`_sluice_checkpoints` WHERE 1")
    assert pipe.checkpoints.read() is None
    assert pipe.checkpoints.take_over(1, 7).batch == 7
    assert pipe.checkpoints.take_over(2).batch == 7


def test_a_checkpoint_that_somebody_edited_stops_the_load(clickhouse: ClickHouseServer) -> None:
    bench, table, pipe = made(clickhouse)
    place = f"`{bench.options['checkpoint_database']}`.`_sluice_checkpoints`"
    edited = "replaceRegexpOne(record, '\"batch\": 1', '\"batch\": 7')"
    clickhouse.query(
        f"INSERT INTO {place} (owner, revision, nonce, record) SELECT owner, revision + 50, 'x', {edited} FROM {place} ORDER BY revision DESC LIMIT 1"
    )
    held = pipe.checkpoints.read()
    assert held is not None
    assert (held.batch, held.edited) == (7, True)
    batch = pipe.given([(table, SECOND)])
    with pytest.raises((CheckpointError, Fenced)):
        pipe.write(batch)
    assert pipe.state(table) == Counter((n, "a", 0) for n in range(4))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["latest", "all"])
def test_the_engine_is_killed_in_mid_load(tmp_path: Path, kind: str) -> None:
    """Batches are loaded and tried again meanwhile: at the end each row is there, and each change once."""
    seed = int(os.environ.get("SLUICE_FAULT_SEED", "1"))
    with ClickHouseServer(tmp_path / "server") as server:
        bench = ClickHouseBench(server, kind, {"insert_rows": 500, "retry_for": "2s"})
        table = people(bench.schema)
        bench.create_table(table)
        pipe = Pipe(bench)  # a start takes longer than a batch, so that the kills have an end
        kills = Kills(rows=2000, batches=5, least=2, pauses_s=(0.5, 3.0), within_s=700, start_s=300, most=3)
        number, rows = load_while_killed(server, pipe, table, kills, seed)
        assert pipe.held == number
        assert pipe.state(table) == rows
        assert once(bench)
