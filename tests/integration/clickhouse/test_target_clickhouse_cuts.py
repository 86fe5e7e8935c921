"""The loading process killed at every statement, an old one that comes back, the engine killed in mid-load: each row
once.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from devstack.clickhouse import ClickHouseServer
from sluice.errors import CheckpointError, Fenced
from sluice.model.schema_changes import ChangeKind
from sluice.targets.clickhouse import checkpoint
from sluice.targets.port import SchemaChange
from sluice.testing.targets import Pipe, _definition, _schema_change, new, people
from tests.support.benches.clickhouse_bench import ClickHouseBench
from tests.support.crashes import calls
from tests.support.crashes.deaths import (
    EXPECTED,
    SECOND,
    an_old_writer_comes_back,
    first_delivered,
    killed_at_every_call,
    standing_still,
)
from tests.support.crashes.killed_servers import Kills, load_while_killed
from tests.support.crashes.strikes import children, twice_arrived

children.set_forkserver_preload(["tests.support.crashes.calls", "tests.support.benches.clickhouse_bench"])


def made(
    server: ClickHouseServer, changes: str = "latest", options: dict[str, Any] | None = None
) -> tuple[ClickHouseBench, Any, Pipe]:
    bench = ClickHouseBench(server, changes, options)
    return bench, *first_delivered(bench)


@pytest.mark.parametrize("kind", ["latest", "all"])
def test_killed_at_every_statement(clickhouse: ClickHouseServer, kind: str) -> None:
    killed_at_every_call(calls.clickhouse, lambda: ClickHouseBench(clickhouse, kind), 5)


@pytest.mark.parametrize("kind", ["latest", "all"])
def test_an_old_writer_that_comes_back(clickhouse: ClickHouseServer, kind: str) -> None:
    an_old_writer_comes_back(calls.clickhouse, lambda: ClickHouseBench(clickhouse, kind), 3, 2)


def emptied(pipe: Pipe) -> SchemaChange:
    schema = pipe.bench.schema
    before = _definition(schema, "people")
    sql = f"TRUNCATE TABLE `{schema}`.`people`"
    return _schema_change(pipe, 0, sql, (ChangeKind.TRUNCATE_TABLE,), before, before)


def test_an_old_writer_cannot_bring_rows_back_into_an_emptied_table(clickhouse: ClickHouseServer) -> None:
    """It stands still with an INSERT in its hand, until the newer rows that would win are gone: the table itself
    refuses it.
    """
    bench, table, pipe = made(clickhouse)
    batch = pipe.given([(table, [new(9, "old", 9)])])
    with standing_still(calls.writing_rows_of_clickhouse, bench, batch):
        pipe.epoch = 3
        pipe.write(batch)
        pipe.write(pipe.given([], schema_changes=(emptied(pipe),)))
    assert not bench.select("id", table.table, final=False)
    pipe.deliver((table, [new(9, "new", 1)]))
    assert pipe.state(table) == Counter([(9, "new", 1)])


def test_an_old_process_that_empties_a_table_late_removes_no_newer_rows(clickhouse: ClickHouseServer) -> None:
    bench, table, pipe = made(clickhouse)
    batch = pipe.given([], schema_changes=(emptied(pipe),))
    with standing_still(calls.removing_rows_of_clickhouse, bench, batch):
        pipe.epoch = 3
        pipe.write(batch)
        pipe.deliver((table, [new(1, "new", 1)]))
    assert pipe.state(table) == Counter([(1, "new", 1)])


def test_an_old_change_that_arrives_after_its_token_is_forgotten(clickhouse: ClickHouseServer) -> None:
    """With every change no version decides, and the table remembers one token alone: the constraint of the newer term
    refuses the INSERT.
    """
    bench, table, pipe = made(clickhouse, "all", {"settings": {"non_replicated_deduplication_window": 1}})
    batch = pipe.given([(table, SECOND)])
    with standing_still(calls.writing_rows_of_clickhouse, bench, batch):
        pipe.epoch = 3
        pipe.write(batch)
        for number in range(3):
            pipe.deliver((table, [new(20 + number, "c", 3)]))
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
        assert not bench.appends or not twice_arrived(bench)
