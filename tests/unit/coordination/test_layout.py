"""The nodes of a pipeline that did everything: the tree drawn in ``layout`` is the tree there is, and every format
bends without breaking.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.coordination import layout
from sluice.coordination.channel_side import ChannelMembership
from sluice.coordination.layout import FORMATS, MOVED, QUARANTINE, Format, Layout, moved_node
from sluice.coordination.leases import try_acquire
from sluice.coordination.memory import MemoryTree
from sluice.coordination.migrations import Handover, Migration, Phase, Side, Step
from sluice.coordination.moving import note_of
from sluice.coordination.port import Create, Znode
from sluice.coordination.run_progress import Progress, StageState, Worker
from sluice.coordination.servers import ServerEntry, Servers
from sluice.coordination.state import PipelineState
from sluice.coordination.target_checkpoints import TargetRecord
from sluice.errors import ConfigError, SourceUnavailable
from sluice.model.batches import Batch, BatchNumber
from sluice.model.dumps import Chunk, ChunkId, ChunkState, Dump, DumpState, TableRequest
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.sources.mysql.position import LastEvent, Position

ROOT, PIPELINE = "/data/sync", "shop"
CHANNEL = ChannelMembership("both_ways", "back", 60.0)
TARGETS = ("copy", "version")
"""The second one is named as the field that most nodes have their format's version in."""

EVENT = LastEvent("binlog.000001", 4, 31, 305419896, 16, 1790000000, "uuid:7")
CHUNKS = (ChunkId("running", 0, 1), ChunkId("running", 0, 2))


def position(offset: int) -> Offset:
    return Position("uuid", "binlog.000001", offset, "uuid:1-7", 1790000000123456, last_event=EVENT).as_offset()


@pytest.fixture
def tree() -> MemoryTree:
    """All nodes that there can be, each written by the code that writes it."""
    made = MemoryTree()
    session = made.session()
    state = PipelineState(session, ROOT, PIPELINE, TARGETS, lease_wait_s=0, membership=CHANNEL)
    with pytest.raises(SourceUnavailable), state.reporting("drain"):
        raise SourceUnavailable("it does not answer")
    state.election.become_leader("airflow:one")
    state.election.beat("cli:two/three")
    state.election.announce_restart(60)
    state.pause_switch.set(open_=None, by="me", reason="a new round")
    state.begin_mark_keys()
    lease = try_acquire(session, state.layout.replicator, "drain")
    cursor = state.begin(lease, position(4), targets=TARGETS, schema="schema/a")
    for number in (1, 2):
        first, last = position(3 + number), position(4 + number)
        cursor = state.commit(
            lease, cursor, Batch(BatchNumber(number), lease.epoch, f"run-{number}", "m", first, last, 1, 1)
        )
    session.transact([Create(moved_node(ROOT), MOVED.encode({"state": "gone", "other": "x", "since": "y"}))])
    state.require_channel()
    state.member.silent_since(5)
    state.runs.write("run-1", "drain", Progress(StageState.ENDED, 1, why="idle"))
    assert state.runs.take("run-1", "merge", Worker.TASK)
    state.runs.ask("run-1", "merge")
    state.waiting_tasks.waits("sense")
    state.batches.staged(1, 0, "stage")
    state.batches.merged(1, "changeset")
    for target in TARGETS:
        try_acquire(session, state.layout.consumer(target), "load")
        state.acks.acknowledge(target, state.batches.require(1))
        state.target_records(target).swap(TargetRecord(1, 1, position(5), state.identity()), -1)
    assert state.alerts.raise_("copy", 5000)
    assert state.announcements.take("copy", state.announcements.read("copy"), "run-1", (1, 1), 1)
    assert state.completions.take("mysql://db:3306/shop/a", 5, "run-1")
    assert state.quarantine.add("version", "it does not answer")
    state.incomplete.add("copy", [(TableId("shop", "a"), ("v",))])
    state.mapped_names.add(["shop.a key id"])
    held = state.subscriptions.connect("reporting", "me", None, 0, 5)
    assert held
    state.subscriptions.acknowledge(held, 1, 6)
    Servers(session, ROOT).keep("id", ServerEntry("grpc://here:8815", (PIPELINE,)))
    migration = state.migration("shop")
    migration.write(try_acquire(session, layout.migration(ROOT, "shop"), "me"), MIGRATION_RECORD, MIGRATION_RECORD)
    state.audit.note(by="me", what="pause", details={"reason": "x"})
    dumps = state.dumps
    dumps.set_selection({"include": ["shop[.].*"], "exclude": []})
    request = TableRequest(TableId("shop", "a"), where="id > 3", lower=("1",), identity=("id",))
    dumps.create(Dump("running", (request,), targets=("copy",), reason="backfill", by="me", note="n", created_ms=5))
    done = dumps.create(Dump("done-0", (request,), created_ms=4))
    assert dumps.update(done.to_state(DumpState.DONE, ended_ms=9))
    dumps.join("running", (0,))
    plan = dumps.planned("running", 0)
    for number, id_ in enumerate(CHUNKS, 1):
        taken = dumps.claim(plan, replace(plan, upto=(str(number),), chunks=number), Chunk(id_, upto=(str(number),)))
        assert taken
        assert dumps.move(taken, ChunkState.STORED, path="p", rows=7, crc32="0", buckets=(1, 4), low="l", position="q")
        plan = dumps.planned("running", 0)
    chunk = dumps.chunk(CHUNKS[0])
    assert chunk
    session.transact(dumps.placing([(chunk, replace(dumps.placed("running", 0), chunks=1, rows=7, first_ms=8))]))
    dumps.say_held("running", "w:1", "a replica is behind")
    return made


MIGRATION_RECORD = Migration(
    Phase.STARTED,
    handover=Handover(Side.NEW, Step.OPENING, 5, 10.0, "me", position(5)),
    locked={Side.OLD: ["'app'@'%'"]},
)


def state_of(tree: MemoryTree) -> PipelineState:
    return PipelineState(tree.session(), ROOT, PIPELINE, TARGETS, lease_wait_s=0, membership=CHANNEL)


def everything(tree: MemoryTree) -> dict[str, Any]:
    """All that is read, in plain values.

    The order is one in which each node is met first by the reader that it belongs to.
    """
    state = state_of(tree)
    dumps = state.dumps
    return {
        "identity": state.identity(),
        "permit": state.pause_switch.read(),
        "holds": state.quarantine.all(),
        "owners": [state.owner(), *map(state.owner, TARGETS)],
        "cursor": state.cursor(),
        "event": Position.of(state.cursor().position).last_event,
        "active": (state.election.leader_name(), state.election.leader("cli:me").patience_s),
        "progress": state.runs.read("run-1", "drain"),
        "batches": [state.batches.get(n) for n in state.batches.numbers()],
        "acknowledged": [state.acks.get(target) for target in TARGETS],
        "checkpoints": [state.target_records(target).read()[0] for target in TARGETS],
        "failures": state.side.failures(),
        "failing": state._failures.all(),
        "errors": state.error_counts(),
        "incomplete": state.incomplete.all(),
        "mapped": state.mapped_names.read(),
        "channel": state.require_channel(),
        "subscriptions": state.subscriptions.all(),
        "servers": Servers(tree.session(), ROOT).all(),
        "alert": state.alerts.since("copy"),
        "announced": state.announcements.read("copy"),
        "complete": state.completions.read("mysql://db:3306/shop/a"),
        "member": state.member.read(),
        "dumps": [dumps.get(name) for name in dumps.ids()],
        "planned": [dumps.planned(name, 0) for name in dumps.ids()],
        "placed": [dumps.placed(name, 0) for name in dumps.ids()],
        "chunks": dumps.chunks("running"),
        "readers": dumps.readers("running"),
        "ended": [dump.id for dump in dumps.under_way_since(9)],
        "migrations": (state.migration("shop").owner(), state.migration("shop").read()),
        "audit": [entry["what"] for entry in state.audit.entries()],
        "mark keys": [state.mark_key(""), state.mark_key(CHANNEL.channel)],
        "moved": note_of(tree.session(), ROOT),
        "captures": (dumps.selection() or {})["include"],
    }


def contents(tree: MemoryTree) -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, fields) of every JSON node."""
    for path, (node, _) in list(tree.nodes.items()):
        if node.data.startswith(b"{"):
            yield path, json.loads(node.data)


def put(tree: MemoryTree, path: str, data: dict[str, Any]) -> None:
    node, owner = tree.nodes[path]
    tree.nodes[path] = (Znode(json.dumps(data).encode(), node.version, node.modified_ms), owner)


def version_field(path: str) -> str:
    return "#version" if path == Layout(ROOT, PIPELINE).quarantine else "version"


def drawn() -> dict[str, str]:
    """Pattern of a path -> what the module's docstring says of it ("" for a folder of other nodes)."""
    found: dict[str, str] = {}
    above: list[str] = []
    drawing = (layout.__doc__ or "").partition("::\n\n")[2].partition("\n\n")[0]
    for line in drawing.splitlines():
        indent, branch, name, _, what = re.fullmatch(r"    ((?:[│ ]   )*)([├└]── )?(\S+)( +(.*))?", line).groups()
        above[len(indent) // 4 + bool(branch) :] = [name.replace("{root}", ROOT)]
        found[re.sub(r"\{\w+\}", "[^/]+", "/".join(above).replace(".", "[.]"))] = what or ""
    return found


def test_the_tree_in_the_docstring_is_the_tree_there_is(tree: MemoryTree) -> None:
    drawing = drawn()
    met = set()
    for path, (node, _) in tree.nodes.items():
        for pattern, what in drawing.items():
            if node.data and re.fullmatch(pattern, path):
                assert node.data.startswith(b"{") != what.startswith(("(number)", "(text)", "(empty)")), path
                break
        else:
            assert not node.data, f"{path} is not drawn"
        met |= {pattern for pattern in drawing if re.fullmatch(pattern, path)}
    assert len(drawing) > 30
    assert {pattern for pattern, what in drawing.items() if what} <= met


def test_every_json_node_says_its_version_where_the_version_before_this_one_can_read_that(tree: MemoryTree) -> None:
    found = dict(contents(tree))
    silent = {path for path, data in found.items() if version_field(path) not in data}
    at = Layout(ROOT, PIPELINE)
    assert silent == {
        at.pause_switch,
        at.captures,
        *(at.dump(name) for name in ("running", "done-0")),
        *(at.placed(name, 0) for name in ("running", "done-0")),
        at.chunk(CHUNKS[1]),
    }
    assert {data[version_field(path)] for path, data in found.items() if path not in silent} == {1}


def test_nodes_without_a_version_are_read_as_version_1(tree: MemoryTree) -> None:
    before = everything(tree)
    for path, data in contents(tree):
        field = version_field(path)
        put(tree, path, {name: value for name, value in data.items() if name != field})
    assert everything(tree) == before


def grown(value: Any) -> Any:
    """With a field more in every object, as a newer version of Sluice may write it."""
    if isinstance(value, dict):
        return {**{name: grown(one) for name, one in value.items()}, "a field of a newer version": {"deep": 1}}
    return [grown(one) for one in value] if isinstance(value, list) else value


def test_fields_of_a_newer_version_are_left_out(tree: MemoryTree) -> None:
    """After a downgrade by one version."""
    before = everything(tree)
    for path, data in contents(tree):
        put(tree, path, grown(data))
    assert everything(tree) == before


def test_a_node_of_a_newer_format_is_refused_with_its_path_and_version(tree: MemoryTree) -> None:
    everything(tree)
    count = 0
    for path, data in contents(tree):
        field = version_field(path)
        put(tree, path, {**data, field: 2})
        with pytest.raises(
            ConfigError, match=r"format version 2; this version of Sluice reads up to 1.*upgrade Sluice"
        ) as raised:
            everything(tree)
        assert raised.value.where == path
        put(tree, path, data)
        count += 1
    assert count >= len(FORMATS)
    everything(tree)


def test_a_position_of_a_newer_format_says_its_node(tree: MemoryTree) -> None:
    at = Layout(ROOT, PIPELINE)
    for path, field in (
        (at.cursor, "position"),
        (at.batch(1), "last"),
        (at.acknowledgement("copy"), "position"),
        (at.checkpoint("copy"), "position"),
    ):
        data = dict(contents(tree))[path]
        put(tree, path, {**data, field: {**data[field], "version": 2}})
        with pytest.raises(ConfigError, match="format 2") as raised:
            everything(tree)
        assert raised.value.where == path
        put(tree, path, data)


def test_a_format_that_was_raised_is_always_written() -> None:
    kind = Format("permit", version=2, is_written=False)
    assert json.loads(kind.encode({"open": True})) == {"version": 2, "open": True}
    assert kind.decode("/p", b'{"version":1,"open":true}') == {"open": True}
    with pytest.raises(ValueError, match="'version'"):
        kind.encode({"version": 1})
    assert QUARANTINE.decode("/p", QUARANTINE.encode({"version": {"error": "x"}})) == {"version": {"error": "x"}}


def test_names_of_nodes_are_read_as_they_are_written() -> None:
    at = Layout(ROOT, PIPELINE)
    assert at.installation("airflow:host/7").rpartition("/")[2] == "airflow:host|7"
    assert at.claimed_batch(at.claim(42, "run-1").rpartition("/")[2]) == 42
    assert at.ended(at.dumped_of("a-b-1", 17).rpartition("/")[2]) == (17, "a-b-1")
    assert at.is_waiting(at.waiting("d", "w").rpartition("/")[2])
    assert not at.is_waiting(at.selecting(ChunkId("d", 0, 1)).rpartition("/")[2])


def test_no_other_module_puts_a_path_together() -> None:
    """Outside of ``layout`` a path is at most a folder and the name of a child that was listed.

    The contract of a store has paths of its own.
    """
    found = []
    for path in Path(layout.__file__).parent.glob("*.py"):
        other = path.name not in {"layout.py", "contract.py"}
        texts = re.findall(r'f"[^"]*\}/[^"]*"', path.read_text()) if other else []
        found += [(path.name, text) for text in texts if not re.fullmatch(r'f"\{[\w.]+\}/\{name\}"', text)]
    assert found == []
