"""A loop keeps the source's connections: what changes at the source meanwhile is noticed all the same, and no change is
lost or read twice.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.flows.capture import drain as drain_flow
from sluice.flows.capture import kept_source
from sluice.flows.capture.drain import drain
from sluice.flows.capture.kept_source import KeptSource
from sluice.flows.job import MicrobatchOutcome, run_microbatches
from sluice.flows.stage_sums import DeliveredBatch
from sluice.sources.mysql import source as sources
from sluice.sources.mysql.source import MySQLSession, MySQLSource
from tests.support.pipelines.case import Case, case


@pytest.fixture(params=["mysql_source", "mariadb"])
def made(
    request: pytest.FixtureRequest, tmp_path: Path, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> Iterator[Case]:
    source = request.getfixturevalue(request.param)
    schema = fresh_schema(source, mysql_target)
    for server in (source, mysql_target):
        server.execute(
            f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, note VARCHAR(40)) CHARSET utf8mb4 COLLATE utf8mb4_bin"
        )
    with case(tmp_path, source, mysql_target, zookeeper, schema) as one:
        one.yaml = one.yaml.replace("max_wait: 200ms", "max_wait: 20ms, max_changes: 7")
        one.path.write_text(one.yaml)
        one.run_until_head()
        yield one


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was opened and asked: a word for each time."""
    said: list[str] = []

    def told(owner: type, name: str) -> None:
        own = getattr(owner, name)

        def telling(*args: Any, **named: Any) -> Any:
            said.append(name)
            return own(*args, **named)

        monkeypatch.setattr(owner, name, telling)

    told(MySQLSource, "open")
    told(MySQLSession, "require_ready")
    told(MySQLSession, "confirm")
    told(sources, "server_info")  # type: ignore[arg-type]
    return said


def write(made: Case, first: int, rows: int) -> None:
    for number in range(first, first + rows):
        made.source.execute(
            f"REPLACE INTO `{made.schema}`.t (id, note) VALUES ({number}, 'n{number}'), ({number % 5}, 'again "
            f"{number}')"
        )


def go(made: Case, at: int = 0, do: Callable[[], object] = lambda: None) -> MicrobatchOutcome:
    told: list[DeliveredBatch] = []

    def tell(carried: DeliveredBatch) -> None:
        told.append(carried)
        if len(told) == at:
            do()

    return run_microbatches(made.runtime(), claim=f"test:kept:{random.random()}", idle_wait_s=1, on_delivered=tell)


def same_rows(made: Case) -> bool:
    sides = [s.execute(f"SELECT * FROM `{made.schema}`.t ORDER BY id") for s in (made.source, made.target)]
    return list(sides[0]) == list(sides[1])


def test_batches_of_a_loop_are_read_over_one_connection(made: Case, opened: list[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(kept_source, "CHECKED_S", 300.0)
    write(made, 10, 60)
    outcome = go(made)
    assert len(outcome.delivered) > 8
    assert {word: opened.count(word) for word in opened} == {
        "open": 1,
        "require_ready": 1,
        "confirm": 1,
        "server_info": 1,
    }
    assert same_rows(made)


def test_a_backlog_that_comes_up_in_mid_loop_is_seen(made: Case, monkeypatch: Any) -> None:
    """Batches grow with it: how far the log has got is asked for each batch, though the pre-flight is not made
    again.
    """
    seen: list[int] = []

    def patience_s(max_wait_s: float, behind_bytes: int) -> float:
        seen.append(behind_bytes)
        return max_wait_s

    monkeypatch.setattr(kept_source, "CHECKED_S", 300.0)
    monkeypatch.setattr(drain_flow, "patience_s", patience_s)
    write(made, 10, 4)
    go(made, 1, lambda: write(made, 100, 60))
    assert max(seen[1:]) > 5_000 > seen[0]
    assert same_rows(made)


def test_the_settings_are_looked_at_again(made: Case, opened: list[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(kept_source, "CHECKED_S", 0.0)
    write(made, 10, 30)
    outcome = go(made)
    assert opened.count("open") == opened.count("confirm") == 1
    assert opened.count("require_ready") == opened.count("server_info") >= len(outcome.delivered)
    assert same_rows(made)


def test_new_log_files_and_definitions_in_mid_loop(made: Case) -> None:
    """A rotation is read over the same connection; a change of definitions ends a loop, and what was planned before it
    does not count.
    """
    write(made, 10, 10)
    made.source.execute("FLUSH BINARY LOGS")
    write(made, 30, 10)
    made.source.execute(f"ALTER TABLE `{made.schema}`.t ADD COLUMN more INT NOT NULL DEFAULT 7")
    write(made, 50, 10)
    made.source.execute("FLUSH BINARY LOGS")
    write(made, 70, 10)
    assert go(made).ended_by == "a change of definitions"
    made.run_until_head()
    assert same_rows(made)


def test_a_definition_that_changes_between_two_drains(made: Case) -> None:
    """The two share a kept session, without a loop."""
    runtime = made.runtime()
    with runtime.state(), KeptSource() as kept:
        for number in range(4):
            write(made, 100 * number + 10, 2)
            batch = drain(runtime, claim=f"test:a:{number}", idle_wait_s=5, another=number > 0, kept=kept)
            assert batch.batch is not None
            if batch.closed_by == "ddl":
                batch = drain(runtime, claim=f"test:a:{number}", idle_wait_s=5, another=True, kept=kept)
            made.source.execute(f"ALTER TABLE `{made.schema}`.t ADD COLUMN c{number} INT NOT NULL DEFAULT {number}")
            made.run_until_head()
    assert same_rows(made)


def test_connections_that_break_end_a_loop_and_the_next_one_goes_on(made: Case) -> None:
    def hang_up() -> None:
        for number, user in made.source.execute("SELECT id, command FROM information_schema.processlist"):
            if "Binlog Dump" in str(user):
                made.source.execute(f"KILL {number}")

    write(made, 10, 60)
    outcome = go(made, 2, hang_up)
    assert outcome.last.batch is not None
    made.run_until_head()
    assert same_rows(made)


@pytest.mark.promise("B3")
def test_a_batch_stays_open_while_who_delivers_it_is_busy(made: Case) -> None:
    made.path.write_text(made.yaml.replace("max_changes: 7", "max_changes: 1000"))
    runtime, busy = made.runtime(), threading.Event()
    looks: list[int] = []

    def stays_open() -> bool:
        looks.append(1)
        if len(looks) == 20:
            write(made, 200, 3)
            busy.set()
        return not busy.is_set()

    write(made, 10, 3)
    with runtime.state():
        batch = drain(runtime, claim="test:a:1", idle_wait_s=5, stays_open=stays_open)
    assert len(looks) >= 20
    assert batch.closed_by == "time"
    made.run_until_head()
    assert same_rows(made)
