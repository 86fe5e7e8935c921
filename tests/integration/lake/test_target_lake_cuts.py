"""The loading process killed at every call of its client and at any time, an old one that comes back: each row, and
each change once.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import Fenced
from sluice.targets.bundles import joined
from sluice.targets.lake.changelog import changes_by_table
from sluice.testing.targets import Pipe, _Crash, _crash_at, changed, gone, new, people

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from tests.support.benches.delta_bench import DeltaBench
from tests.support.benches.iceberg_bench import IcebergBench
from tests.support.benches.lake_bench import LakeBench
from tests.support.crashes import calls as calls_of
from tests.support.crashes.strikes import At, children, stands_still, start, twice_arrived
from tests.support.servers.s3.lake import delta_on, iceberg_on, s3_lake
from tests.support.servers.s3.server import S3Server

children.set_forkserver_preload([
    "tests.support.crashes.calls",
    "tests.support.benches.delta_bench",
    "tests.support.benches.iceberg_bench",
])
KINDS = {
    "delta": (DeltaBench, calls_of.delta),
    "iceberg": (IcebergBench, calls_of.iceberg),
    "iceberg-rest": (IcebergBench, calls_of.iceberg),
    "delta-s3": (DeltaBench, calls_of.delta),
    "iceberg-s3": (IcebergBench, calls_of.iceberg),
}
IN_FOLDERS = ("delta", "iceberg")
COMMITS = {
    ("delta", "latest"): {"__init__", "set_table_properties", "execute"},
    ("delta", "all"): {"__init__", "set_table_properties", "write_deltalake"},
    ("iceberg", "latest"): {"load_table", "commit_table", "write_file"},
    ("iceberg", "all"): {"load_table", "commit_table", "write_file"},
    ("iceberg-rest", "latest"): {"load_table", "commit_table", "write_file"},
}  # fmt: skip
"""Calls of the client at which the loading process is killed."""
FIRST = [new(n, "a", 0) for n in range(4)]
SECOND = [changed((n, "a", 0), (n, "b", 1)) for n in range(3)] + [gone(3, "a", 0), new(4, "b", 1)]
EXPECTED = Counter([*((n, "b", 1) for n in range(3)), (4, "b", 1)])

Made = Callable[..., LakeBench]


@pytest.fixture(scope="module")
def s3(server_folder: Path) -> Iterator[S3Server]:
    with s3_lake(server_folder / "s3-cuts") as server:
        yield server


@pytest.fixture
def made(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> Made:
    """``made(changes, folder)``: a bench of ``kind`` without any table."""
    if kind == "iceberg-rest":
        server = request.getfixturevalue("iceberg_rest")
        return lambda changes="latest", _="": IcebergBench.of_rest(server, changes)
    if kind.endswith("-s3"):
        s3 = request.getfixturevalue("s3")
        if kind == "delta-s3":
            return lambda changes="latest", folder="": delta_on(s3, f"{tmp_path.name}-{folder}", changes)
        return lambda changes="latest", folder="": iceberg_on(s3, tmp_path / folder, changes)
    return lambda changes="latest", folder="": KINDS[kind][0](tmp_path / folder, changes)


def two_tables(made: Made, changes: str, point: int) -> tuple[Any, list[Any], Pipe]:
    """A bench, two tables in it that have their first rows, and the pipeline."""
    bench = made(changes, str(point))
    tables = [people("shop", name) for name in ("one", "two")]
    for table in tables:
        bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver(*((table, FIRST) for table in tables))
    return bench, tables, pipe


@pytest.mark.parametrize(("kind", "changes"), COMMITS)
def test_killed_at_every_call(made: Made, changes: str, kind: str) -> None:
    """Of two tables: each opening of a table, each commit, before and after; take over and checkpoint alike."""
    point, deaths = 0, 0
    step = 1 if os.environ.get("SLUICE_CUTS") == "1" else 5 if kind == "iceberg-rest" else 3
    while True:
        bench, tables, pipe = two_tables(made, changes, point)
        batch = pipe.given([(table, SECOND) for table in tables])
        child, said = start(KINDS[kind][1], bench, [batch], 2, At(point // 2, point % 2 == 1, signal.SIGKILL))
        child.join(120)
        if child.exitcode == 0:
            calls, error = said.get()
            assert not error
            break
        assert child.exitcode == -signal.SIGKILL
        deaths += 1
        whole = [pipe.state(table) == EXPECTED for table in tables]
        assert pipe.held < batch.number or all(whole), "the checkpoint is ahead of the rows"
        pipe.epoch = 3
        if pipe.checkpoints.take_over(3).batch < batch.number:
            pipe.write(batch)
        assert [pipe.state(table) for table in tables] == [EXPECTED] * 2
        assert pipe.held == batch.number
        if bench.appends:
            assert not twice_arrived(bench)
            assert len(bench.received()) == 2 * (len(FIRST) + len(SECOND))
        point += step
    assert deaths == -(-2 * len(calls) // step)
    assert COMMITS[kind, changes] <= set(calls)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", ["latest", "all"])
def test_killed_while_batches_are_written_together(made: Made, changes: str, kind: str) -> None:
    """At every few calls; then fewer of the batches are written together, or more of them."""
    point, step = 0, 1 if os.environ.get("SLUICE_CUTS") == "1" else 3 if kind in IN_FOLDERS else 9
    while True:
        bench, tables, pipe = two_tables(made, changes, point)
        batches = [
            pipe.given([(table, SECOND) for table in tables]),
            pipe.given([(tables[0], [changed((0, "b", 1), (0, "c", 2)), gone(4, "b", 1)])]),
            pipe.given([(table, [changed((1, "b", 1), (1, "c", 3)), new(5, "c", 3)]) for table in tables]),
        ]
        child, said = start(
            KINDS[kind][1], bench, [joined(batches[:2])], 2, At(point // 2, point % 2 == 1, signal.SIGKILL)
        )
        child.join(120)
        if child.exitcode == 0:
            _, error = said.get()
            assert not error
            break
        assert child.exitcode == -signal.SIGKILL
        pipe.epoch = 3
        held = pipe.checkpoints.take_over(3).batch
        left = [one for one in batches if one.number > held]
        for run in filter(None, [left] if point % 8 < 4 else [left[:1], left[1:]]):
            pipe.write(joined(run))
        both = Counter([(1, "c", 3), (2, "b", 1), (5, "c", 3)])
        assert [pipe.state(table) for table in tables] == [
            both + Counter([(0, "c", 2)]),
            both + Counter([(0, "b", 1), (4, "b", 1)]),
        ]
        assert pipe.held == 4
        if bench.appends:
            assert not twice_arrived(bench)
            assert len(bench.received()) == 2 * (len(FIRST) + len(SECOND) + 2) + 2
        point += step


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", ["latest", "all"])
@pytest.mark.parametrize("again", [3, 1], ids=["more", "fewer"])
def test_a_death_between_two_commits_of_batches_that_are_written_together(
    made: Made, changes: str, kind: str, again: int
) -> None:
    """The table that has them gets what is new, and nothing twice; the other one all of it."""
    bench = made(changes)
    tables = [people("shop", name) for name in ("one", "two")]
    for table in tables:
        bench.create_table(table)
    pipe = Pipe(bench)
    batches = [
        pipe.given([(table, [new(1, "a", 1), new(2, "a", 1)]) for table in tables]),
        pipe.given([(table, [changed((1, "a", 1), (1, "b", 2)), gone(2, "a", 1)]) for table in tables]),
        pipe.given([(table, [new(2, "c", 3)]) for table in tables]),
    ]
    pipe.take_over()
    writer: Any = pipe.writer(joined(batches[:2]))
    unit = next(one for phase in writer.plan(1) for one in phase)
    if bench.appends:
        unit.append(tables[0].table, changes_by_table(unit.reader)[tables[0].table])
    else:
        unit.write()
    assert [sum(pipe.state(table).values()) for table in tables] in ([1, 0], [0, 1])
    pipe.epoch = 2
    for run in (batches[:again], batches[again:]):
        if run:
            pipe.write(joined(run))
    assert [pipe.state(table) for table in tables] == [Counter([(1, "b", 2), (2, "c", 3)])] * 2
    if bench.appends:
        assert not twice_arrived(bench)
        assert len(bench.received()) == 2 * 5


@pytest.mark.parametrize("kind", IN_FOLDERS)
@pytest.mark.parametrize("changes", ["latest", "all"])
def test_killed_at_any_time(made: Made, changes: str, kind: str) -> None:
    """Also between a data file and its commit, which no call of ours separates."""
    bench = made(changes)
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    batches = [pipe.given([(table, [new(n, "a", 0) for n in range(40)])])]
    for number in range(1, 12):
        steps = [changed((n, "a", number - 1), (n, "a", number)) for n in range(40)]
        batches.append(pipe.given([(table, steps)]))
    chosen = random.Random(7)
    deaths, held, longest = 0, 0, 0.4
    for epoch in range(1, 200):
        child, said = start(KINDS[kind][1], bench, batches, epoch, None)
        if epoch % 4:  # else while it begins
            said.get()
        time.sleep(chosen.uniform(0.0, longest))
        child.kill()
        child.join(60)
        deaths += child.exitcode == -signal.SIGKILL
        now = pipe.held
        if now == len(batches):
            break
        longest = longest * 1.5 if now == held else max(longest / 2, 0.1)  # a busy machine gets nothing done in less
        held = now
    assert pipe.held == len(batches)
    assert deaths >= 2
    assert pipe.state(table) == Counter((n, "a", 11) for n in range(40))
    if bench.appends:
        assert not twice_arrived(bench)
        assert len(bench.received()) == 40 * 12


@pytest.mark.parametrize(
    ("kind", "changes", "call"),
    [
        ("delta", "latest", "execute"), ("delta", "all", "write_deltalake"), ("delta", "latest", "__init__"),
        ("iceberg", "latest", "write_file"), ("iceberg", "latest", "commit_table"),
        ("iceberg", "all", "commit_table"),
        ("iceberg-rest", "latest", "commit_table"),
    ],
)  # fmt: skip
def test_an_old_writer_that_comes_back(made: Made, kind: str, changes: str, call: str) -> None:
    """It stands still before it commits; a newer one delivers the batch and the next; then the old one goes on."""
    bench = made(changes)
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, FIRST))
    batch = pipe.given([(table, SECOND)])
    child, said = start(KINDS[kind][1], bench, [batch], 2, At(-1, False, 0))  # says which call is which
    child.join(60)
    calls, error = said.get()
    assert not error, error
    before = calls.index("execute") - 1 if call == "__init__" else len(calls) - 1 - calls[::-1].index(call)
    # of Iceberg's commits the last one is the checkpoint's: the one before it has the rows
    number = before if call != "commit_table" else len(calls) - 1 - calls[::-1].index(call, calls[::-1].index(call) + 1)
    pipe.epoch = 3
    pipe.take_over()
    batch = pipe.given([(table, [changed((0, "b", 1), (0, "c", 2))])])
    child, said = start(KINDS[kind][1], bench, [batch], 4, At(number, False, signal.SIGSTOP))
    assert stands_still(child)
    pipe.epoch = 5
    assert pipe.take_over() == 2
    pipe.write(batch)
    pipe.deliver((table, [changed((0, "c", 2), (0, "d", 3)), new(9, "z", 9)]))
    os.kill(child.pid, signal.SIGCONT)
    calls, error = said.get()
    child.join(60)
    assert error.startswith("Fenced"), (error, calls)
    assert pipe.state(table) == EXPECTED - Counter([(0, "b", 1)]) + Counter([(0, "d", 3), (9, "z", 9)])
    assert pipe.held == 4
    if bench.appends:
        assert not twice_arrived(bench)


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_that_is_out_of_date_does_not_disturb_a_newer_one(made: Made, kind: str) -> None:
    bench = made()
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    batch = pipe.given([(table, FIRST)])
    pipe.checkpoints.take_over(5)
    with pytest.raises(Fenced):
        bench.target().checkpoints.take_over(4)
    with pytest.raises(Fenced):
        Pipe(bench, epoch=4).writer(batch).plan(1)[0][0].write()
    pipe.epoch = 5
    writer = pipe.writer(batch)
    units = pickle.loads(pickle.dumps(writer.plan(1)))  # as they travel to workers
    writer.commit([unit.write() for phase in units for unit in phase])
    assert pipe.held == 1


@pytest.mark.parametrize("kind", IN_FOLDERS)
def test_after_a_rewind_batches_are_written_again_whatever_the_tables_noted(
    made: Made, tmp_path: Path, kind: str
) -> None:
    """Also where the checkpoint was forgotten, or its folder deleted by hand."""
    bench = made()
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    for number in range(3):
        pipe.deliver((table, [new(number, "a", number)]))
    for again in range(2):
        if again and kind == "delta":
            for path in sorted((tmp_path / "_sluice").rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
        else:
            pipe.checkpoints.forget()
        assert pipe.checkpoints.read() is None
        pipe.batch, pipe.epoch = 0, 1
        assert pipe.checkpoints.take_over(1).batch == 0
        pipe.deliver((table, [changed((0, "a", 0), (0, "b", 10 + again))]))
        assert pipe.state(table) == Counter([(0, "b", 10 + again), (1, "a", 1), (2, "a", 2)])


@pytest.mark.parametrize("changes", ["latest", "all"])
def test_what_is_noted_outlives_the_logs_files(tmp_path: Path, changes: str) -> None:
    """Old commits of a log are removed once a checkpoint of the log has them: also those of the target's own table."""
    bench = DeltaBench(tmp_path, changes)
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    for number in range(30):  # more than the checkpoint's table keeps as single commits
        pipe.epoch += 1
        pipe.deliver((table, [new(number, "a", 0)]))
    batch = pipe.given([(table, [new(100, "b", 1), gone(0, "a", 0)])])
    with contextlib.suppress(_Crash):
        pipe.write(batch, after=_crash_at("write"))
    bench.table(table.table).create_checkpoint()
    for folder in (tmp_path / "shop/people", tmp_path / "_sluice/p/copy"):
        log = folder / "_delta_log"
        last = max(int(path.name.split(".")[0]) for path in log.glob("*.checkpoint.parquet"))
        for path in log.glob("*.json"):
            if int(path.stem) < last:
                path.unlink()
    assert pipe.held == 30
    pipe.epoch += 1
    pipe.write(batch)
    assert pipe.state(table) == Counter([*((n, "a", 0) for n in range(1, 30)), (100, "b", 1)])
    assert pipe.held == 31
    if bench.appends:
        assert not twice_arrived(bench)
