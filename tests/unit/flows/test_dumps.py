"""Dumps beside the log: whatever writers do meanwhile, the target ends equal, and no row of it ever goes back to an
older value.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sluice.coordination.dumps import DumpStates
from sluice.flows.dump.start import start
from sluice.flows.dump.worker import work
from sluice.model.dumps import DumpState, Tuning
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import Watcher, Writers, begin, both, delivering, fill
from tests.support.running.waiting import counted, ended, wait_until
from tests.support.twins.servers import TwinTarget


@pytest.fixture
def shop(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) -> Iterator[Case]:
    schema = fresh_schema(twin_source, twin_target)
    with case(tmp_path, twin_source, twin_target, twin_zookeeper, schema) as made:
        yield made


@pytest.fixture
def quiet(shop: Case) -> Case:
    """A pipeline that stands at the head, small chunks."""
    shop.yaml += "\ndump: {chunk_rows: 50, parallelism: 2}\n"
    shop.path.write_text(shop.yaml, encoding="utf-8")
    return shop


def test_a_target_that_joins_gets_its_copy_and_no_other_target_does(
    tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema
) -> None:
    other = TwinTarget()
    schema = fresh_schema(twin_source, twin_target, other)
    with case(tmp_path, twin_source, twin_target, twin_zookeeper, schema, start="dump") as made:
        create = "CREATE TABLE t (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))"
        both(made, create)
        other.execute(f"USE `{schema}`", create)
        fill(made, "t", 200)
        made.run_until_head()
        made.assert_equal("t")
        made.target.execute(f"DELETE FROM `{schema}`.t WHERE id < 10")  # a dump for the first target would mend it
        made.connections["case_second"] = other.connection_json()
        second = "  - {name: second, type: memory, connection: case_second}\n"
        made.path.write_text(made.yaml.rstrip() + "\n" + second, encoding="utf-8")
        made.run_until_head()
        assert other.execute(f"SELECT COUNT(*) FROM `{schema}`.t") == [(200,)]
        assert made.target.execute(f"SELECT COUNT(*) FROM `{schema}`.t") == [(190,)]
        made.source.execute(f"UPDATE `{schema}`.t SET note = 'both'")
        made.run_until_head()
        for server, rows in ((made.target, 200), (other, 200)):
            assert server.execute(f"SELECT COUNT(*) FROM `{schema}`.t WHERE note = 'both'") == [(rows,)]
    other.forget()


STEPS = ["claimed", "low", "selected", "stored", "high", "marked"]


@pytest.mark.promise("C7")
@pytest.mark.parametrize("step_", STEPS)
def test_a_worker_that_dies_at_any_step(quiet: Case, step_: str) -> None:
    """The dead worker's session ends with it; the next one takes its chunk over. Nothing is lost, nothing goes back."""

    class Dead(BaseException):
        pass

    both(quiet, "CREATE TABLE t (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))")
    fill(quiet, "t", 200)
    begin(quiet)

    def die(at: str, chunk: Any) -> None:
        if at == step_ and chunk.id.number == 2 and chunk.attempt == 1:
            raise Dead

    with Watcher(quiet, "t") as watcher, Writers(quiet, "t", 120, seed=3), delivering(quiet):
        dump = start(quiet.runtime())
        with pytest.raises(Dead):
            work(quiet.runtime(), dump.id, hook=die)
        done = work(quiet.runtime(), dump.id)
        assert done.state is DumpState.DONE
    quiet.run_until_head()
    quiet.assert_equal("t")
    assert watcher.back == []


@pytest.mark.promise("C6", "C7")
def test_pause_tune_resume_cancel(quiet: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice.errors import OutOfOrder
    from sluice.flows.dump import progress

    both(quiet, "CREATE TABLE t (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))")
    fill(quiet, "t", 400)
    begin(quiet)
    runtime = quiet.runtime()
    dump = start(runtime)
    seen: list[int] = []
    pausing = threading.Lock()  # no other worker goes on until the dump is paused

    def hook(at: str, chunk: Any) -> None:
        if at == "claimed":
            with pausing:
                seen.append(chunk.id.number)
                if len(seen) == 2:
                    progress.pause(quiet.runtime(), dump.id, by="tester")

    stop = threading.Event()
    monkeypatch.setattr("sluice.flows.dump.worker.PAUSED_LOOK_EVERY_S", 0.05)
    with delivering(quiet), counted(DumpStates, "require") as looks:
        worker = threading.Thread(target=lambda: work(quiet.runtime(), dump.id, hook=hook, stop=stop), daemon=True)
        worker.start()
        wait_until(lambda: progress.one_view(runtime, dump.id).state == "paused", "the pause")
        looks.more(2, lambda name: name.startswith("dump-"))  # what was under way has ended
        count = len(seen)
        assert count <= 3
        looks.more(5, lambda name: name.startswith("dump-"))
        assert len(seen) == count
        stop.set()  # the process that worked on it goes, the pause stays
        ended(worker)
        assert progress.tune(runtime, dump.id, by="tester", chunk_rows=7, parallelism=1).tuning.chunk_rows == 7
        progress.resume(runtime, dump.id, by="tester")
        work(quiet.runtime(), dump.id)
    assert progress.one_view(runtime, dump.id).tables[0].chunks > 30
    quiet.assert_equal("t")
    with pytest.raises(OutOfOrder):
        progress.pause(runtime, dump.id, by="tester")
    again = start(runtime)
    assert progress.cancel(runtime, again.id, by="tester").state == "cancelled"
    assert work(quiet.runtime(), again.id).state is DumpState.CANCELLED


def test_a_replacing_dump_that_is_refused_asks_nothing(quiet: Case) -> None:
    both(quiet, "CREATE TABLE t (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))")
    begin(quiet)
    words = [quiet.cli("dump", "start", str(quiet.path), "--table", f"{quiet.schema}.{name}", "--replace").stderr
             for name in ("missing", "t")]  # fmt: skip
    assert [f"{quiet.schema}.missing" in words[0], "--yes" in words[0], "--yes" in words[1]] == [True, False, True]


@pytest.mark.promise("C6")
def test_a_delay_that_is_set_while_it_runs_holds_the_next_chunk(quiet: Case) -> None:
    """The delay is an hour, so that a worker that reads another chunk has ignored it."""
    from sluice.flows.dump import progress

    both(quiet, "CREATE TABLE t (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))")
    fill(quiet, "t", 400)
    begin(quiet)
    dump = start(quiet.runtime(), tuning=Tuning(chunk_rows=50, parallelism=1))
    claimed: list[int] = []

    def tune_in_the_second(step: str, chunk: Any) -> None:
        if step == "claimed":
            claimed.append(chunk.id.number)
            if len(claimed) == 2:
                progress.tune(quiet.runtime(), dump.id, by="tester", delay_ms=3_600_000)

    stop = threading.Event()
    with delivering(quiet), counted(DumpStates, "require") as looks:
        worker = threading.Thread(
            target=lambda: work(quiet.runtime(), dump.id, hook=tune_in_the_second, stop=stop), name="dump", daemon=True
        )
        worker.start()
        wait_until(lambda: len(claimed) >= 3, "a chunk that began after the change")
        looks.more(20, lambda name: name == "dump")
        assert len(claimed) == 3
        stop.set()
        ended(worker)
        progress.tune(quiet.runtime(), dump.id, by="tester", delay_ms=0)
        work(quiet.runtime(), dump.id)
    quiet.assert_equal("t")


@pytest.mark.parametrize("busy", [False, True])
def test_a_table_without_a_key_is_copied_once(
    busy: bool, tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema
) -> None:
    """Its rows are counted, so a copy that held a row twice would show: duplicates, deletes and updates while it is
    copied.
    """
    schema = fresh_schema(twin_source, twin_target)
    with case(tmp_path, twin_source, twin_target, twin_zookeeper, schema, start="dump") as made:
        both(made, "CREATE TABLE log (a INT, b VARCHAR(20))")
        values = ",".join(f"({i % 50}, 'x{i % 7}')" for i in range(400))
        made.source.execute(f"USE `{schema}`", f"INSERT INTO log VALUES {values}, (NULL, NULL), (NULL, NULL)")
        stop = threading.Event()

        def write() -> None:
            with made.source.connect(schema) as connection, connection.cursor() as cursor:
                for i in range(60):
                    cursor.execute("INSERT INTO log VALUES (%s, 'new'), (1, 'x1')", (i,))
                    cursor.execute("DELETE FROM log WHERE a = %s LIMIT 2", (i % 50,))
                    cursor.execute("UPDATE log SET b = 'upd' WHERE a = %s LIMIT 1", ((i + 3) % 50,))
                    if stop.wait(0.02 if i < 40 else 0.15):
                        return

        writer = threading.Thread(target=write, daemon=True)
        if busy:
            writer.start()
        made.run_until_head()
        if busy:
            ended(writer)
        made.source.execute(
            f"USE `{schema}`", "INSERT INTO log VALUES (7, 'x1')", "DELETE FROM log WHERE a IS NULL LIMIT 1"
        )
        made.run_until_head()
        rows = [sorted(map(str, s.execute(f"SELECT a, b FROM `{schema}`.log"))) for s in (made.source, made.target)]
        assert rows[0] == rows[1]
