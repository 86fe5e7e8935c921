"""Rows in key order, through temporary files: all of them, each once, sorted as Python sorts their keys."""

from __future__ import annotations

import decimal
import shutil
from collections import namedtuple
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.flows.snapshot import key_order
from sluice.flows.snapshot.key_order import in_key_order

KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "number": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "unsigned": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "text": (pa.string(), st.text(max_size=4)),
    "bytes": (pa.binary(), st.binary(max_size=3)),
    "decimal": (pa.decimal128(30, 2), st.decimals(-1000, 1000, places=2)),
    "long decimal": (pa.decimal256(65, 2), st.integers(-(10**62), 10**62).map(lambda n: decimal.Decimal(n).scaleb(-2))),
    "date": (pa.date32(), st.dates()),
    "datetime": (pa.timestamp("us"), st.datetimes()),
}


def pieces(rows: list[tuple[Any, ...]], types: list[pa.DataType], sizes: int) -> list[pa.Table]:
    names = [f"k{n}" for n in range(len(types))]
    columns = [pa.array([row[n] for row in rows], kind) for n, kind in enumerate(types)]
    table = pa.table([*columns, pa.array(range(len(rows)))], names=[*names, "v"])
    return [table.slice(begin, sizes) for begin in range(0, len(rows), sizes)]


@given(st.data())
def test_rows_come_sorted_and_each_once(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2))
    types = [KEYS[name][0] for name in chosen]
    one = st.tuples(*(st.one_of(st.none(), KEYS[name][1]) for name in chosen))
    rows = data.draw(st.lists(one, max_size=60))
    size, run_bytes, window = (data.draw(st.integers(1, most)) for most in (20, 400, 30))
    names = [f"k{n}" for n in range(len(types))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_order, "RUN_BYTES", run_bytes)
        given_ = in_key_order(iter(pieces(rows, types, size)), names, len(rows), window_rows=window, window_bytes=2**20)
        found = [row for piece in given_ for row in piece.to_pylist()]
    keys = [tuple((row[name] is None, row[name]) for name in names) for row in found]
    assert keys == sorted(keys)
    assert sorted(row["v"] for row in found) == list(range(len(rows)))
    assert all(tuple(row[name] for name in names) == rows[row["v"]] for row in found)


@pytest.mark.parametrize("by_bytes", [False, True])
def test_windows_are_of_the_size_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, by_bytes: bool) -> None:
    monkeypatch.setattr(key_order, "RUN_BYTES", 4096)
    rows = [((n * 7919) % 20_011,) for n in range(20_000)]
    sizes = (
        {"window_rows": 2**40, "window_bytes": 16 * 1000} if by_bytes else {"window_rows": 1000, "window_bytes": 2**40}
    )
    found = list(in_key_order(iter(pieces(rows, [pa.int64()], 200)), ["k0"], 20_000, **sizes))
    assert sum(piece.num_rows for piece in found) == 20_000
    assert max(piece.num_rows for piece in found) <= 2_000
    assert len(found) < 40


def test_without_room_or_without_a_key_rows_come_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_order, "RUN_BYTES", 100)
    rows = [(n,) for n in (3, 1, 2, 5, 4, 0)]
    for key, free in ((["k0"], 10), ([], 10**12)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: namedtuple("usage", "free")(free))
        given_ = in_key_order(iter(pieces(rows * 20, [pa.int64()], 10)), key, 120, window_rows=10, window_bytes=2**20)
        assert [row["k0"] for piece in given_ for row in piece.to_pylist()] == [row[0] for row in rows * 20]
