"""A load that was ended goes on where it was: work units that the target notes as written are not written again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.flows.load.units import batch_input, run_load_unit
from sluice.targets.sql.target import SqlTarget
from tests.support.pipelines.small_units import small_units
from tests.support.tables.batches import Delivery
from tests.support.tables.people import delete, insert, people, update

ROWS = 400


@pytest.fixture(params=["mysql", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Callable[[], Delivery], str]:
    """(makes a pipeline into the target, the empty schema with table people)."""
    kind = request.param
    server = request.getfixturevalue("mysql_target" if kind == "mysql" else kind)
    schema = (
        request.getfixturevalue("fresh_schema")(server)
        if kind == "mysql"
        else request.getfixturevalue("fresh_pg_schema")()
    )
    server.execute(f"CREATE TABLE {schema}.people (id INT PRIMARY KEY, email VARCHAR(80) UNIQUE, points INT)")

    def make() -> Delivery:
        return Delivery(tmp_path, server, target={"type": kind, "parallelism": 2, "options": {"ack_schema": schema}})

    return make, schema


def rows(pipe: Delivery, schema: str) -> list[tuple[Any, ...]]:
    return sorted(pipe.server.execute(f"SELECT id, email, points FROM {schema}.people"))


def rotated(pipe: Delivery, schema: str) -> Any:
    """A batch after which each row has the next one's unique value, and some are gone."""
    table = people(schema)
    pipe.deliver({table: [insert(i, f"u{i}") for i in range(ROWS)]})
    changes = [update(insert(i, f"u{i}"), email=f"u{(i + 1) % ROWS}") for i in range(ROWS)]
    return pipe.merge(pipe.write({table: [*changes, delete(insert(7, "u8"))]}))


WANTED = [(i, f"u{(i + 1) % ROWS}", None) for i in range(ROWS) if i != 7]


def units_of(pipe: Delivery, changeset: Any) -> list[list[Any]]:
    """What is left to do, without the unit that says what earlier attempts did."""
    found = [[unit for unit in phase if unit.unit.cost] for phase in pipe.plan(changeset)]
    return [phase for phase in found if phase]


def half_loaded(pipe: Delivery, changeset: Any) -> list[list[Any]]:
    """All units of the batch, of which those of the first phase and two of the second are written."""
    pipe.begin(pipe.epoch)
    every = units_of(pipe, changeset)
    for unit in [*every[0], *every[1][:2]]:
        run_load_unit(unit)
    return every


@pytest.mark.promise("D13")
def test_a_later_attempt_leaves_out_what_is_written(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    small_units(monkeypatch, 50, most=50)
    make, schema = place
    pipe = make()
    changeset = rotated(pipe, schema)
    before, after = half_loaded(pipe, changeset)
    assert min(len(before), len(after)) > 2
    again = make()
    again.batch, again.epoch = pipe.batch, pipe.epoch + 1
    again.begin(again.epoch)
    assert sum(map(len, units_of(again, changeset))) == len(after) - 2
    told = again.load(changeset)
    assert sum(result.upserted for result in told) == len(WANTED)
    assert rows(again, schema) == WANTED
    again.finish(again.epoch, changeset.manifest.batch, changeset.manifest.last)
    assert again.held == changeset.manifest.batch


def test_another_plan_begins_anew(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its deletes take away rows that units of the first plan had written."""
    make, schema = place
    small_units(monkeypatch, 50, most=50)
    pipe = make()
    changeset = rotated(pipe, schema)
    every = half_loaded(pipe, changeset)
    small_units(monkeypatch, 100, most=100)
    other = units_of(pipe, changeset)
    assert 2 < sum(map(len, other)) < sum(map(len, every))
    for unit in other[0]:
        run_load_unit(unit)
    small_units(monkeypatch, 50, most=50)
    assert [len(phase) for phase in units_of(pipe, changeset)] == [len(phase) for phase in every]
    pipe.load(changeset)
    assert rows(pipe, schema) == WANTED


def test_a_dead_letter_in_between_makes_all_be_written_again(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make, schema = place
    small_units(monkeypatch, 50, most=50)
    pipe = make()
    changeset = rotated(pipe, schema)
    every = half_loaded(pipe, changeset)
    with pipe.target.open(pipe.epoch) as session:
        letter = replace(batch_input(pipe.store, changeset), replay="letter")
        session.begin(letter).plan(1)
    assert [len(phase) for phase in units_of(pipe, changeset)] == [len(phase) for phase in every]


def test_after_a_kill_only_units_on_their_way_are_written_again(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    small_units(monkeypatch, 10, most=10)
    make, schema = place
    pipe = make()
    changeset = rotated(pipe, schema)
    code = "import sys; from tests.integration.load.test_finished_units import loading; loading(*sys.argv[1:])"
    arguments = [
        str(pipe.folder), pipe.config.targets[0].type, pipe.server.connection_json(), schema, str(pipe.batch),
        str(pipe.attempt),
    ]  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        every = int(child.stdout.readline())
        begun, ended = 0, 0
        for line in child.stdout:
            begun, ended = begun + (line == "begin\n"), ended + (line == "end\n")
            if ended == every // 2:
                os.kill(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    assert every > 40
    again = make()
    again.batch, again.attempt, again.epoch = pipe.batch, pipe.attempt, pipe.epoch + 2
    again.begin(again.epoch)
    left = sum(map(len, units_of(again, changeset)))
    assert every - begun <= left <= every - ended
    again.load(changeset)
    assert rows(again, schema) == WANTED


def loading(folder: str, kind: str, connection: str, schema: str, batch: str, attempt: str) -> None:
    """Load the batch that the parent has merged, in a process of its own, and say when a unit begins and has ended."""

    class Server:
        def connection_json(self) -> str:
            return connection

    load = SqlTarget.load

    def telling(self: Any, *arguments: Any, **options: Any) -> Any:
        os.write(1, b"begin\n")
        result = load(self, *arguments, **options)
        os.write(1, b"end\n")
        return result

    patch = pytest.MonkeyPatch()
    patch.setattr(SqlTarget, "load", telling)
    small_units(patch, 10, most=10)
    from sluice.segments.changeset import read_changeset

    pipe = Delivery(Path(folder), Server(), target={"type": kind, "parallelism": 2, "options": {"ack_schema": schema}})
    pipe.batch, pipe.epoch = int(batch), 2
    names = [
        path for path, _ in pipe.store.files(pipe.batch) if path.endswith("manifest.json") and "changeset-" in path
    ]
    changeset = read_changeset(pipe.store, names[0])
    pipe.begin(pipe.epoch)
    print(sum(map(len, units_of(pipe, changeset))), flush=True)
    pipe.load(changeset)


@pytest.mark.promise("D11")
def test_a_schema_is_one_transaction_and_one_unit(
    tmp_path: Path, mysql_target: Any, fresh_schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """consistency: schema.

    Readers see a schema's tables of a batch together, while another schema's are not there yet.
    """
    small_units(monkeypatch, 5, most=5)
    one, other = sorted(fresh_schema(mysql_target) for _ in range(2))  # the order in which they are written
    for schema, name in ((one, "people"), (one, "more"), (other, "people")):
        mysql_target.execute(f"CREATE TABLE {schema}.{name} (id INT PRIMARY KEY, email VARCHAR(80) UNIQUE, points INT)")
    pipe = Delivery(tmp_path, mysql_target, target={"consistency": "schema", "options": {"ack_schema": one}})
    rows = [insert(i, f"u{i}") for i in range(30)]
    changeset = pipe.merge(pipe.write({people(one): rows, people(one, "more"): rows, people(other): rows}))
    pipe.begin(pipe.epoch)
    [units] = pipe.plan(changeset)
    assert len(units) == 2
    seen = []
    for unit in units:
        run_load_unit(unit)
        counts = [
            mysql_target.execute(f"SELECT COUNT(*) FROM {schema}.{name}")[0][0]
            for schema, name in ((one, "people"), (one, "more"), (other, "people"))
        ]
        seen.append(counts)
    assert seen == [[30, 30, 0], [30, 30, 30]]
    assert pipe.load(changeset)
    assert pipe.held == pipe.batch
