"""Segments: what is written is what is read; memory, buckets, manifests, damage."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.errors import SegmentError, StorageUnavailable
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.segments.buckets import key_bucket
from sluice.segments.changeset import ChangesetReader, write_changeset_file
from sluice.segments.checksums import LARGEST_FOOTER, ChecksumSink
from sluice.segments.manifest import SegmentManifest
from sluice.segments.packed import SMALL_BYTES, fitting, packed, parted
from sluice.segments.reader import first_seq, iter_changes, read_file, read_projected, verify_file
from sluice.segments.sealed import unsealed
from sluice.segments.store import SegmentStore, quoted
from sluice.segments.writer import SegmentWriter, row_groups
from tests.support.tables.small_segments import POSITION, rows, schema_of


@pytest.fixture
def store(tmp_path):
    return SegmentStore(f"file://{tmp_path}", "p", min_free_bytes=0)


@pytest.mark.parametrize("part_bytes", [1, 3000, 10**9])
def test_what_is_written_is_read(store, part_bytes):
    writer = SegmentWriter(store, 3, 2, part_bytes=part_bytes)
    ids = list(range(1000))
    for start in range(0, 1000, 100):
        writer.add(schema_of(), rows(schema_of(), ids[start : start + 100], start))
    made = writer.finish(POSITION, POSITION, transactions=1000)
    assert made == store.read_manifest(store.manifest_path(3, 2))
    assert made.changes == 1000
    assert [c.after["id"] for c in iter_changes(store, made)] == ids
    for file in made.files:
        table = read_file(store, file)
        order = list(zip(table["_bucket"].to_pylist(), table["_seq"].to_pylist(), strict=True))
        assert order == sorted(order)
        assert first_seq(store, file) == min(table["_seq"].to_pylist())
        pieces = [read_file(store, file, (lo, lo + 8)) for lo in range(0, 64, 8)]
        assert pa.concat_tables(pieces).equals(table)


def test_a_small_batch_of_many_tables_is_one_file(store):
    writer = SegmentWriter(store, 3, 2)
    for number in range(20):
        writer.add(schema_of(f"t{number}"), rows(schema_of(f"t{number}"), [number, 7], number * 2))
    made = writer.finish(POSITION, POSITION, transactions=20)
    path = store.manifest_path(3, 2)
    assert [name for name, _ in store.files(3)] == [path]
    assert made == store.read_manifest(path)
    assert [c.after["id"] for c in iter_changes(store, made)] == [i for n in range(20) for i in (n, 7)]
    for file in made.files:
        verify_file(store, file)
        assert store.exists(file.path)
        assert store.checksum(file.path) == (file.size_bytes, file.crc32)
        store.delete(file.path)
    assert store.exists(path)
    store.delete_batch(3)
    assert not store.exists(made.files[0].path)
    with pytest.raises(SegmentError, match="missing"):
        verify_file(store, made.files[0])


def test_large_tables_of_a_batch_have_files_of_their_own(store):
    writer = SegmentWriter(store, 3, 2, small_files=1)
    for number, count in enumerate([2, SMALL_BYTES // 100, 3]):
        schema = schema_of(f"t{number}")
        writer.add(schema, rows(schema, list(range(count)), number * SMALL_BYTES))
    made = writer.finish(POSITION, POSITION, transactions=1)
    large = [file for file in made.files if parted(file.path) is None]
    assert [file.table for file in large] == ["t1"]
    assert sorted(name for name, _ in store.files(3)) == sorted([store.manifest_path(3, 2), large[0].path])
    assert store.read_manifest(store.manifest_path(3, 2)) == made
    assert [read_file(store, file).num_rows for file in made.files if file not in large] == [2, 3]


@given(st.lists(st.integers(0, 400), max_size=12), st.integers(0, 1000))
def test_the_smallest_are_packed(sizes, most):
    small = fitting(sizes, most)
    assert sum(sizes[i] for i in small) <= most
    left = [size for i, size in enumerate(sizes) if i not in small]
    assert all(size >= max((sizes[i] for i in small), default=0) for size in left)
    assert not left or sum(sizes[i] for i in small) + min(left) > most


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(min_size=1, max_size=50), max_size=12), st.text(max_size=20))
def test_a_part_is_found_at_its_address(store, parts, text):
    data, places = packed(
        "m.json", lambda at: json.dumps({"x": [text, *at]}, ensure_ascii=False, indent=1) + "\n", parts
    )
    store.write_bytes("m.json", data)
    assert json.loads(unsealed(store.read_text("m.json")))["x"] == [text, *places]
    assert [store.read_bytes(place) for place in places] == parts
    for place, part in zip(places, parts, strict=True):
        with store.open_input(place) as source:
            assert source.read() == part


def test_a_long_manifest_is_read_up_to_its_data(store):
    text = json.dumps({"x": ["x" * 1000] * 500}, indent=1) + "\n"
    data, places = packed("m.json", lambda at: text, [b"\0" * 100_000])
    store.write_bytes("m.json", data)
    assert unsealed(store.read_text("m.json")).decode() == text
    assert store.read_bytes(places[0]) == b"\0" * 100_000


def test_a_small_batch_of_which_rows_are_needed_before_has_files_of_its_own(store):
    writer = SegmentWriter(store, 3, 2, small_files=0)
    writer.add(schema_of(), rows(schema_of(), [1, 2]))
    writer.flush(pack=True)
    assert not store.files(3)
    writer.unpack()
    made = writer.finish(POSITION, POSITION, transactions=1)
    assert [name for name, _ in store.files(3) if name.endswith(".parquet")] == [file.path for file in made.files]
    assert [c.after["id"] for c in iter_changes(store, made)] == [1, 2]


@pytest.mark.parametrize("small_files", [0, 1], ids=["packed", "a file"])
def test_no_flipped_bit_of_a_segment_goes_unnoticed(store, small_files):
    writer = SegmentWriter(store, 1, 1, small_files=small_files)
    writer.add(schema_of(), rows(schema_of(), [1, 2, 3]))
    (file,) = writer.finish(POSITION, POSITION, transactions=3).files
    own, start, size = parted(file.path) or (file.path, 0, file.size_bytes)
    path = Path(store.full_path(own))
    whole = path.read_bytes()
    for at in range(start, start + size, 1 if int(os.environ.get("SLUICE_TEST_VALUES", "0")) >= 1000 else 37):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(SegmentError):
                read_file(store, file)
            with pytest.raises(SegmentError):
                read_projected(store, file, lambda field: field.name == "id")
    path.write_bytes(whole[:-1])
    with pytest.raises(SegmentError):
        read_file(store, file)


def test_a_projected_read_has_all_columns_and_reads_those_that_are_wanted(store):
    columns = (*schema_of().columns, Column("id.v", ColumnKind.BIGINT, "bigint"))
    schema = TableSchema(TableId("s.1", "t"), columns, ("id",))
    made = rows(schema_of(), [1, 2, 3])
    before = pa.array([None, {"id": 7, "v": "old", "id.v": 8}, None], schema.arrow_schema.field("_before").type)
    made = made.set_column(made.schema.get_field_index("_before"), "_before", before)
    made = made.add_column(2, schema.field(columns[-1]), pa.array([5, None, 6], pa.int64()))
    writer = SegmentWriter(store, 1, 1)
    writer.add(schema, made.cast(schema.arrow_schema))
    writer.flush()
    (file,) = writer.finish(POSITION, POSITION, transactions=3).files
    stored = read_file(store, file).drop_columns(["_bucket"])
    whole = stored.to_pylist()
    wanted = [
        {
            **row,
            "v": None,
            "id.v": None,
            "_before": row["_before"] and {"id": row["_before"]["id"], "v": None, "id.v": None},
        }
        for row in whole
    ]
    read = read_projected(store, file, lambda field: field.name == "id")
    # Parquet knows columns by paths: it reads what begins with the same, and that is not taken back
    assert [{**row, "id.v": None} for row in read.to_pylist()] == wanted
    assert read.schema.names == stored.schema.names
    assert read_projected(store, file, None).to_pylist() == whole
    none = read_projected(store, file, lambda field: False)
    assert [row["_before"] is None for row in none.to_pylist()] == [row["_before"] is None for row in whole]


def test_many_tables_stay_within_the_buffer(store):
    writer = SegmentWriter(store, 1, 1, buffer_bytes=20_000)
    for number in range(50):
        writer.add(schema_of(f"t{number}"), rows(schema_of(f"t{number}"), [1, 2, 3]))
        assert writer._buffered <= 20_000
    assert len(writer.finish(POSITION, POSITION).files) == 50


def test_abort_leaves_nothing(store):
    writer = SegmentWriter(store, 1, 1, part_bytes=1)
    writer.add(schema_of(), rows(schema_of(), [1]))
    assert store.files(1)
    writer.abort()
    assert store.files(1) == []


def test_a_full_disk_is_said_before_it_is_full(tmp_path):
    store = SegmentStore(f"file://{tmp_path}", "p", min_free_bytes=2**62)
    with pytest.raises(StorageUnavailable, match="free"):
        SegmentWriter(store, 1, 1)


def test_every_flipped_bit_of_a_manifest_is_noticed(store):
    writer = SegmentWriter(store, 3, 2, small_files=0)  # files of both tables are packed behind it
    for number in range(2):
        writer.add(schema_of(f"t{number}"), rows(schema_of(f"t{number}"), [number, 7], number * 2))
    made = writer.finish(POSITION, POSITION, transactions=20)
    text = store.read_text(store.manifest_path(3, 2))
    unseen = []
    for at, byte in enumerate(text):
        with contextlib.suppress(SegmentError):
            SegmentManifest.from_json(text[:at] + bytes([byte ^ 1 << at % 8]) + text[at + 1 :])
            unseen.append((at, text[max(at - 20, 0) : at + 20]))
    assert unseen == []
    assert SegmentManifest.from_json(unsealed(text)) == made  # as an older version wrote it


def test_a_manifest_of_another_format_is_refused(store):
    made = SegmentWriter(store, 1, 1).finish(POSITION, POSITION)
    with pytest.raises(SegmentError):
        SegmentManifest.from_json(made.to_json().replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(SegmentError):
        SegmentManifest.from_json(made.to_json().replace('"pipeline"', '"unknown": 1, "pipeline"'))


def test_delete_batch(store):
    SegmentWriter(store, 1, 1).finish(POSITION, POSITION)
    assert store.batches() == [1]
    store.delete_batch(1)
    assert store.batches() == []


def test_names_are_safe_in_paths():
    assert quoted("a.b/c é") == "a%2Eb%2Fc%20%C3%A9"


@given(st.lists(st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)), min_size=1))
def test_buckets_do_not_depend_on_the_width_or_the_slice(values):
    narrow, wide = pa.array(values, pa.int32()), pa.array(values, pa.int64())
    whole = key_bucket("s", "t", [wide])
    assert (key_bucket("s", "t", [narrow]) == whole).all()
    assert (key_bucket("s", "t", [wide.slice(1)]) == whole[1:]).all()
    assert whole.max() < 64


@given(st.lists(st.text(), min_size=1))
def test_buckets_of_text(values):
    keys = pa.array(values, pa.string())
    again = key_bucket("s", "t", [keys.slice(len(values) // 2)])
    assert (key_bucket("s", "t", [keys])[len(values) // 2 :] == again).all()


def test_buckets_are_stable_for_ever():
    assert key_bucket("shop", "orders", [pa.array([1, 2, 3], pa.int64())]).tolist() == [13, 44, 63]
    assert key_bucket("shop", "orders", [], 2).tolist() == [0, 0]


@given(st.lists(st.integers(0, 63), max_size=300), st.integers(1, 100))
def test_row_groups_cut_at_bucket_borders(buckets, target):
    buckets = np.array(sorted(buckets), np.uint8)
    groups = row_groups(buckets, target)
    assert groups[0][0] == 0
    assert groups[-1][1] == len(buckets)
    for (_, stop), (start, _) in itertools.pairwise(groups):
        assert stop == start
        assert buckets[stop - 1] != buckets[start]


def test_every_damaged_byte_of_a_footer_is_noticed_by_readers_of_a_part(store, tmp_path):
    """Pages have checksums, the footer has none: a bit of it would rename a column, or leave a row group out."""
    writer = SegmentWriter(store, 3, 2)
    writer.add(schema_of(), rows(schema_of(), list(range(100))))
    [segment] = writer.finish(POSITION, POSITION, transactions=1).files
    merged = rows(schema_of(), list(range(100))).select(["id", "v", "_op", "_seq", "_commit_ts", "_before"])
    changeset = write_changeset_file(store, "changeset.parquet", merged, (0, 63))
    readers = {
        segment.path: lambda: read_file(store, segment, (segment.bucket_min, segment.bucket_max)),
        changeset.path: lambda: ChangesetReader(store, changeset).read(0),
    }
    for path, read in readers.items():
        name, _, place = path.partition("#")  # a part of the manifest's file
        file = tmp_path / "p" / name
        data = file.read_bytes()
        start, size = map(int, place.split("-")) if place else (0, len(data))
        end = start + size
        assert read().num_rows
        for at in range(end - 8 - int.from_bytes(data[end - 8 : end - 4], "little"), end):
            file.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
            with pytest.raises(SegmentError, match="damaged"):
                read()
        file.write_bytes(data)
        assert read().num_rows


def test_a_footer_is_summed_however_it_is_written():
    """The sink keeps what is needed of the end, in pieces of any size."""
    data = os.urandom(3 * LARGEST_FOOTER)
    for piece in (7_919, LARGEST_FOOTER // 3, len(data)):
        sink = ChecksumSink(io.BytesIO())
        for start in range(0, len(data), piece):
            sink.write(data[start : start + piece])
        assert len(sink.tail()) >= LARGEST_FOOTER
        assert data.endswith(sink.tail())
