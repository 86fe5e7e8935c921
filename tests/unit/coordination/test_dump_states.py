"""What is said of a dump while it runs: notes once, and what a worker waits for as long as it lives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sluice.coordination.dumps import DumpStates
from sluice.coordination.layout import Layout
from sluice.coordination.memory import MemoryTree, MemoryZnodes
from sluice.coordination.port import Remove
from sluice.model.dumps import Chunk, ChunkId, Dump, DumpState, TablePlanned, TableRequest
from sluice.model.tables import TableId

TABLE = TableId("shop", "t")


def states(tree: MemoryTree) -> tuple[MemoryZnodes, DumpStates]:
    session = tree.session()
    return session, DumpStates(session, Layout("/data/sync", "shop"), "me")


def test_a_note_is_added_once_and_lines_are_kept() -> None:
    _, dumps = states(MemoryTree())
    dumps.create(Dump("d", (TableRequest(TABLE),), note="first"))
    for note in ("second", "second", "third"):
        dumps.add_note("d", note)
    assert dumps.require("d").note == "first; second; third"
    dumps.add_note("nothing", "nowhere")


def test_what_a_worker_waits_for_is_no_chunk_and_goes_with_it() -> None:
    tree = MemoryTree()
    _, dumps = states(tree)
    session, worker = states(tree)
    dumps.create(Dump("d", (TableRequest(TABLE),)))
    plan = worker.planned("d", 0)
    assert worker.claim(plan, TablePlanned(("7",), 1), Chunk(ChunkId("d", 0, 1)))
    for why in ("a replica is behind", "a replica is 3 s behind"):
        worker.say_held("d", "w:1", why)
        assert dumps.held("d") == why
        assert dumps.working("d") == ["0000-00000001"]
    worker.say_held("d", "w:1", "")
    worker.say_held("d", "w:1", "")
    assert dumps.held("d") == ""
    worker.say_held("d", "w:1", "again")
    session.expire()
    assert dumps.held("d") == ""
    assert dumps.working("d") == []
    dumps.forget("d")
    assert dumps.ids() == []


def test_who_reads_and_since_when_nobody_does() -> None:
    tree = MemoryTree()
    tree.now_ms = 1000
    _, dumps = states(tree)
    session, reader = states(tree)
    dumps.create(Dump("d", (TableRequest(TABLE),)))
    assert (dumps.readers("d"), dumps.last_read("d")) == ([], (0, ""))
    first, _ = reader.join("d", None), reader.join("d", (0, 2))
    assert sorted(dumps.readers("d"), key=str) == [(0, 2), None]
    tree.now_ms = 2000
    reader.leave("d", first, "it failed" + "x" * 1000)
    assert dumps.readers("d") == [(0, 2)]
    tree.now_ms = 3000
    reader.still_reads("d")
    tree.now_ms = 9000
    session.expire()
    assert (dumps.readers("d"), dumps.last_read("d")) == ([], (3000, ""))
    dumps.leave("d", dumps.join("d", None), "it failed")
    assert dumps.last_read("d") == (9000, "it failed")
    dumps.forget("d")
    assert dumps.ids() == []


def test_a_request_of_an_older_version_is_read() -> None:
    """Before there was ``replace`` and ``identity``."""
    data = Dump("d", (TableRequest(TABLE, lower=("1",)),)).to_json()
    for name in ("replace", "identity"):
        del data["tables"][0][name]
    assert Dump.from_json(data).tables[0] == TableRequest(TABLE, lower=("1",))


def test_dumps_that_ended_long_ago_are_not_read() -> None:
    tree = MemoryTree()
    session, dumps = states(tree)
    for number in range(30):
        made = dumps.create(Dump(f"d{number:02d}", (TableRequest(TABLE),)))
        if number < 29:
            dumps.update(made.to_state(DumpState.DONE, ended_ms=1000 + number))
    with counted(session) as reads:
        assert {d.id for d in dumps.under_way_since(1028)} == {"d28", "d29"}
    assert len(reads) <= 5
    dumps.forget("d28")
    assert [d.id for d in dumps.under_way_since(1028)] == ["d29"]
    for name in session.children("/data/sync/shop/dumped"):
        session.transact([Remove(f"/data/sync/shop/dumped/{name}")])
    session.transact([Remove("/data/sync/shop/dumped")])  # as an older version left it
    assert {d.id for d in dumps.under_way_since(1027)} == {"d27", "d29"}


@contextmanager
def counted(session: MemoryZnodes) -> Iterator[list[str]]:
    """Paths read meanwhile."""
    reads: list[str] = []
    get, children = session.get, session.children
    session.get = lambda path: (reads.append(path), get(path))[1]  # type: ignore[method-assign]
    session.children = lambda path: (reads.append(path), children(path))[1]  # type: ignore[method-assign]
    try:
        yield reads
    finally:
        del session.get, session.children
