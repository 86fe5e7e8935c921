"""The plan of a batch's chunks: a function of marks, manifests and keys. Nothing is stored here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from sluice.flows.dump.interleaver import InterleavePlan, InterleavePlanner, OtherKey
from sluice.model.column_types import ColumnKind
from sluice.model.dumps import Chunk, ChunkId, ChunkState, Dump, Mark, Marking, TableRequest
from sluice.model.offset import Offset
from sluice.model.tables import Column, TableId, TableSchema
from sluice.segments.manifest import MarkRecord, SegmentFile, SegmentManifest

TABLE = TableId("s", "t")
SCHEMA = TableSchema(TABLE, (Column("id", ColumnKind.INT, "int"),), ("id",))
FIRST = Offset.at("uuid", "log.000001", 100)
CHUNK = Chunk(
    ChunkId("d", 0, 1), ChunkState.MARKED, path="chunk", rows=3, position="log.000001:100", end="log.000001:200"
)
LOW, HIGH = (Mark(CHUNK.id, CHUNK.attempt, high=high).text for high in (False, True))


@dataclass
class Batch:
    """The batch that is made: ``changes`` are (seq, id) of rows of the table."""

    batch: int = 2
    marks: list[MarkRecord] = field(default_factory=lambda: [mark(LOW, 1), mark(HIGH, 9)])
    changes: Sequence[tuple[int, int]] = ()
    statements: Sequence[int] = ()
    kept: Sequence[int] = ()

    @property
    def files(self) -> list[SegmentFile]:
        return [file("now")] if self.changes else []

    def kept_between(self, table: TableId, low: int, high: int) -> bool:
        return any(low < seq < high for seq in self.kept)

    def changed_since(self, seq: int, upto: int, table: TableId) -> bool:
        return any(seq < at <= upto for at in self.statements)


@dataclass
class Stored:
    """What is stored: the chunk's keys, and the changes of the batch."""

    batch: Batch
    ids: Sequence[int] | None = (1, 2, 3)
    before: SegmentManifest | None = None
    keys_differ: bool = False

    def manifest(self, batch: int) -> SegmentManifest | None:
        return self.before if batch == 1 else None

    def changes(self, of: SegmentFile, columns: Sequence[str]) -> pa.Table:
        if self.keys_differ:
            raise OtherKey
        seqs, ids = zip(*self.batch.changes, strict=True)
        count = len(ids)
        return pa.table({
            "id": pa.array(ids, pa.int32()), "_seq": pa.array(seqs, pa.uint64()), "_file": ["log.000001"] * count,
            "_offset": pa.array([150] * count, pa.uint64()), "_gtid": pa.nulls(count, pa.string()),
            "_present": pa.nulls(count, pa.binary()),
        })  # fmt: skip

    def chunk(self, chunk: Chunk, identity: tuple[str, ...]) -> tuple[TableSchema, pa.Table] | None:
        if self.ids is None:
            return None
        rows = {"id": pa.array(self.ids, pa.int32()), "_row": pa.array(range(len(self.ids)), pa.uint32())}
        return SCHEMA, pa.table(rows)


def mark(text: str, seq: int) -> MarkRecord:
    return MarkRecord(mark=text, seq=seq, file="log.000001", offset=100 + seq)


def file(path: str, version: str = "") -> SegmentFile:
    return SegmentFile.model_validate({
        "path": path, "schema": "s", "table": "t", "schema_version": version or SCHEMA.version, "primary_key": ("id",), "rows": 1,
        "inserts": 1,
        "updates": 0, "deletes": 0, "reads": 0, "size_bytes": 1, "crc32": "00000000", "bucket_min": 0, "bucket_max": 63,
    })  # fmt: skip


def planned(batch: Batch, stored: Stored | None = None, *, keyless: bool = False, late: bool = False) -> InterleavePlan:
    held = frozenset({TABLE}) if keyless else frozenset()
    planner = InterleavePlanner(stored or Stored(batch), _never, _never, held)
    dump = Dump("d", (TableRequest(TABLE, keyless=keyless),))
    high = None if late else next(m for m in batch.marks if m.mark == HIGH)
    return planner.plan(batch, FIRST, [(CHUNK, dump, high)])


def _never(*_: Any) -> Any:
    raise AssertionError("marks are rows here")


def why(plan: InterleavePlan) -> str:
    ((chunk, table, reason),) = plan.repeats
    assert (chunk, table, plan.placements, plan.rows) == (CHUNK, TABLE, [], 0)
    return reason


def test_a_quiet_chunk_stands_whole_at_its_high_mark() -> None:
    (placement,) = planned(Batch()).placements
    assert (placement.kept, placement.place.seq, placement.place.left_out) == (3, 9, ())


def test_keys_changed_between_the_marks_are_left_out_and_others_are_not() -> None:
    plan = planned(Batch(changes=[(0, 1), (5, 2), (9, 3), (12, 3)]))
    (placement,) = plan.placements
    assert (placement.kept, placement.place.left_out, plan.rows) == (2, (1,), 2)


def test_a_late_chunk_stands_at_the_beginning_whatever_the_batch_changes() -> None:
    batch = Batch(marks=[], changes=[(5, 2)])
    (placement,) = planned(batch, Stored(batch), late=True).placements
    assert (placement.kept, placement.place.seq, placement.place.offset) == (3, 0, FIRST.row_place[1])


def test_a_batch_that_may_hold_the_low_mark_is_gone() -> None:
    batch = Batch(marks=[mark(HIGH, 9)])
    planner = InterleavePlanner(Stored(batch), _never, _never)
    plan = planner.plan(
        batch, Offset.at("uuid", "log.000001", 150), [(CHUNK, Dump("d", (TableRequest(TABLE),)), batch.marks[0])]
    )
    assert why(plan) == "its window is no longer stored"


def test_a_statement_in_the_window() -> None:
    assert why(planned(Batch(statements=[5]))) == "the table's definition changed meanwhile"
    assert planned(Batch(statements=[1, 10])).repeats == []


def test_a_file_that_is_gone() -> None:
    batch = Batch()
    assert why(planned(batch, Stored(batch, ids=None))) == "its file is gone"


def test_a_key_that_changed() -> None:
    batch = Batch(changes=[(5, 2)])
    assert why(planned(batch, Stored(batch, keys_differ=True))) == "the table's key changed meanwhile"


def test_a_table_without_a_key() -> None:
    plan = planned(Batch(kept=[0, 1, 9, 30]), keyless=True)
    assert (plan.rows, plan.released) == (3, {TABLE: 9})
    assert why(planned(Batch(kept=[4]), keyless=True)) == "the table has no key and was written meanwhile"


HELD, DELIVERED = file("held"), file("delivered")


@pytest.mark.parametrize(
    ("files", "held_files", "held", "replaces", "lacking"),
    [
        ([], [HELD], {str(TABLE): 5}, False, [(1, HELD)]),  # a copy from nothing: its changes waited
        ([DELIVERED], [], {}, True, [(1, DELIVERED)]),  # a copy that replaces: targets had them, and they come again
        ([DELIVERED], [], {}, False, None),  # targets have them, and nothing replaces their table
        ([], [], {str(TABLE): 5}, False, None),  # they waited, and were not stored
        ([], [file("other", "another")], {str(TABLE): 5}, False, None),  # in other columns than the copy
    ],
)
def test_changes_that_an_exact_copy_without_a_key_lacks_follow_it(
    files: list[SegmentFile],
    held_files: list[SegmentFile],
    held: dict[str, int],
    replaces: bool,
    lacking: list[tuple[int, SegmentFile]] | None,
) -> None:
    before = SegmentManifest.model_construct(
        batch=1,
        first=Offset.at("uuid", "log.000001", 10),
        files=tuple(files),
        held_files=tuple(held_files),
        marks=(),
        ddl=(),
        held=held,
    )
    batch = Batch(marks=[], changes=[(1, 1), (2, 2)])
    tables = (frozenset(), frozenset({TABLE})) if replaces else (frozenset({TABLE}), frozenset())
    chunk, dump = replace(CHUNK, position="log.000001:90", low="exact"), Dump("d", (TableRequest(TABLE, keyless=True),))
    dump = replace(dump, marking=Marking.SNAPSHOT)

    def unseen(marking: Marking, low: str, rows: pa.Table) -> Any:
        return rows["_seq"].to_numpy() > 1

    for exact in (True, False):
        planner = InterleavePlanner(Stored(batch, before=before), unseen, lambda *_, exact=exact: exact, *tables)
        plan = planner.plan(batch, FIRST, [(chunk, dump, None)])
        if exact and lacking is not None:
            assert [list(placement.lacking) for placement in plan.placements] == [lacking]
        else:
            [(_, _, reason)] = plan.repeats
            assert (reason, plan.placements) == ("the table has no key and was written meanwhile", [])


def test_a_window_does_not_reach_back_to_a_batch_before_its_dump() -> None:
    """The log behind batch 1 was lost. The position moved on, the chunk was read, and an idle log moved the position once
    more: batch 1 is the last one that begins before the chunk, but what it says of row 1 is not so any more.
    """
    before = SegmentManifest.model_construct(
        batch=1, first=Offset.at("uuid", "log.000001", 10), files=(file("then"),), marks=(), ddl=(), held={}
    )
    batch = Batch(marks=[], changes=[(1, 1)])
    planner = InterleavePlanner(Stored(batch, before=before), _never, _never)
    chunk = replace(CHUNK, position="log.000001:90")
    kept = []
    for since in (2, 1):
        dump = Dump("d", (TableRequest(TABLE),), since_batch=since)
        (placement,) = planner.plan(batch, FIRST, [(chunk, dump, None)]).placements
        kept.append((placement.window.batch, placement.kept))
    assert kept == [(2, 3), (1, 2)]
