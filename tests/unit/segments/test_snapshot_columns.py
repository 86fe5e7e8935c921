"""Columns of the snapshot's tables are noted when they change, and found as of a batch."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sluice.errors import SegmentError
from sluice.model.fields import declared_type
from sluice.model.tables import TableId
from sluice.segments.snapshot_columns import SnapshotColumns
from sluice.segments.store import SegmentStore

WAY = (TableId("shop", "t"), TableId("shop", "t"))
OTHER = (TableId("shop", "ä" * 64), TableId("a.b", "c/d"))
ID = pa.field("id", pa.int32(), metadata={"sluice.type": "int", "sluice.key": "1"})


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return SegmentStore(tmp_path.as_uri(), "p")


def rows(*more: pa.Field) -> pa.Schema:
    """CHANGESET_ROWS, as far as it matters here."""
    return pa.schema([ID, *more, pa.field("_op", pa.string()), pa.field("_before", pa.struct([ID, *more]))])


def noted(store: SegmentStore) -> int:
    return len(store.list_files("snapshot-columns"))


def test_the_newest_columns_as_of_a_batch(store: SegmentStore) -> None:
    columns = SnapshotColumns(store, "state")
    assert columns.after(9) == {}
    assert declared_type(ID)
    columns.note(3, 1, {WAY: rows(), OTHER: rows()})
    columns.note(5, 2, {WAY: rows(pa.field("loud", pa.string()))})
    columns.note(6, 2, {WAY: rows(pa.field("loud", pa.string())), OTHER: rows()})
    assert noted(store) == 3, "where they did not change nothing is written"
    assert columns.after(2) == {}
    assert {way: fields.names for way, fields in columns.after(4).items()} == {WAY: ["id"], OTHER: ["id"]}
    assert {way: fields.names for way, fields in columns.after(6).items()} == {WAY: ["id", "loud"], OTHER: ["id"]}
    assert columns.after(6)[WAY].field("id").equals(ID, check_metadata=True)
    assert SnapshotColumns(store, "another state").after(6) == {}


def test_what_only_some_batches_have_stays_and_the_first_type_of_what_a_rule_made(store: SegmentStore) -> None:
    columns = SnapshotColumns(store, "state")
    half, loud = pa.field("half", pa.float64()), pa.field("loud", pa.string())
    columns.note(1, 1, {WAY: rows(half)})
    columns.note(2, 1, {WAY: rows(loud)})
    columns.note(3, 1, {WAY: rows(pa.field("half", pa.string()))})  # all NULL: a string
    assert noted(store) == 3
    assert columns.after(3)[WAY].equals(pa.schema([ID, half, loud]))
    columns.note(4, 1, {WAY: rows(half)})
    assert noted(store) == 3


def test_batches_that_are_delivered_again_count_anew(store: SegmentStore) -> None:
    columns = SnapshotColumns(store, "state")
    columns.note(1, 1, {WAY: rows()})
    columns.note(4, 1, {WAY: rows(pa.field("was", pa.int64()))})
    columns.note(2, 5, {WAY: rows(pa.field("now", pa.int64()))})
    assert columns.after(4)[WAY].names == ["id", "now"]


def test_a_damaged_note_is_named_and_noted_again_when_it_is_gone(store: SegmentStore) -> None:
    columns = SnapshotColumns(store, "state")
    columns.note(1, 1, {WAY: rows()})
    [path] = store.list_files("snapshot-columns")
    store.write_bytes(path, b"nonsense")
    with pytest.raises(SegmentError, match="cannot be read: its CRC32") as caught:
        columns.after(1)
    assert caught.value.where == path
    store.delete(path)
    columns.note(2, 1, {WAY: rows()})
    assert columns.after(2)[WAY].names == ["id"]
