"""The rows of a part that is read piece by piece: in the order of their keys, and few at a time, however many files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sluice.flows.load import changeset_rows
from sluice.flows.load.batch_rows import StoredRows
from sluice.segments.changeset import ChangesetFile, write_changeset_file
from sluice.segments.store import SegmentStore

FILES, ROWS = 64, 6_400
HELD = 64 * 2**10

_BEFORE = pa.struct([("id", pa.int64()), ("v", pa.string())])
_ID = pa.field("id", pa.int64(), metadata={"sluice.type": "bigint", "sluice.key": "1"})


def _rows(keys: list[int]) -> pa.Table:
    count = len(keys)
    return pa.table(
        [
            pa.array(keys), pa.array([f"{key:0200d}" for key in keys]), pa.array(["i"] * count),
            pa.array(range(count), pa.uint64()), pa.array([1] * count, pa.timestamp("us")), pa.nulls(count, _BEFORE),
        ],
        schema=pa.schema([
            _ID, ("v", pa.string()), ("_op", pa.string()), ("_seq", pa.uint64()), ("_commit_ts", pa.timestamp("us")),
            ("_before", _BEFORE),
        ]),
    )  # fmt: skip


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: Any) -> StoredRows:
    monkeypatch.setattr("sluice.segments.changeset.ROW_GROUP_BYTES", 8 * 2**10)
    monkeypatch.setattr("sluice.flows.load.changeset_rows.PIECE_BYTES", 16 * 2**10)
    monkeypatch.setattr("sluice.flows.load.changeset_rows.HELD_BYTES", HELD)
    return StoredRows(tmp_path.as_uri(), "p")


def _written(reader: StoredRows, keys: np.ndarray[Any, Any]) -> list[ChangesetFile]:
    """Write files as a merge of hashed keys leaves them: each has rows of the whole range."""
    store, owner = SegmentStore(reader.store_uri, reader.pipeline), np.random.default_rng(1).integers(0, FILES, ROWS)
    return [
        write_changeset_file(store, f"f{number}.parquet", _rows(keys[owner == number].tolist()), (0, 63))
        for number in range(FILES)
    ]


@pytest.mark.promise("E11")
@pytest.mark.parametrize("keys", [None, (1_000, 4_500)], ids=["whole", "range"])
def test_a_part_of_many_files_holds_no_more_rows_than_a_unit_writes(
    reader: StoredRows, monkeypatch: Any, keys: Any
) -> None:
    """Half a megabyte would be held if a row group of each file were."""
    files = _written(reader, np.arange(ROWS))
    assert all(len(file.key_starts) > 2 for file in files)
    cursors: list[Any] = []

    class Watched(changeset_rows._Cursor):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            cursors.append(self)

    monkeypatch.setattr(changeset_rows, "_Cursor", Watched)
    [group] = reader.groups(files, keys, lean=True, streamed=True)
    assert group.read is not None
    found, held = [], []
    for piece in group.read():
        found += piece["id"].to_pylist()
        held.append(sum(one._rows.get_total_buffer_size() for one in cursors if one._rows is not None))
    assert found == list(range(*(keys or (0, ROWS))))
    assert max(held) < 2 * HELD


def test_rows_of_many_files_with_few_first_keys_are_all_there(reader: StoredRows) -> None:
    """The first key column of a composite key may have one value for most of the rows: no border cuts them."""
    keys = np.sort(np.random.default_rng(2).choice([1, 2, 2, 2, 2, 2, 9], ROWS))
    [group] = reader.groups(_written(reader, keys), None, streamed=True)
    assert group.read is not None
    found = [key for piece in group.read() for key in piece["id"].to_pylist()]
    assert found == sorted(keys.tolist())
