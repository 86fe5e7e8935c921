"""Bytes of rows in memory, against a count that goes value by value."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sluice.model.sizes import row_bytes

TEXTS = [None, "", "a", "four", None, "a longer text"]


def lengths(values: list[Any]) -> list[int]:
    return [len(value or "") for value in values]


@pytest.mark.parametrize(
    ("column", "bytes_"),
    [
        (pa.array([1, None, 3, 4, 5, 6], pa.int64()), [8] * 6),
        (pa.array([True] * 6), [1] * 6),
        (pa.nulls(6), [0] * 6),
        (pa.nulls(6, pa.string()), [4] * 6),
        (pa.array(TEXTS), [4 + size for size in lengths(TEXTS)]),
        (pa.array(TEXTS, pa.large_string()), [8 + size for size in lengths(TEXTS)]),
        (pa.array(TEXTS).dictionary_encode(), [4] * 6),
        (pa.array([{"id": 1, "v": text} for text in TEXTS]), [8 + 4 + size for size in lengths(TEXTS)]),
    ],
    ids=["numbers", "truths", "nothing", "no texts", "texts", "large texts", "few values", "rows before"],
)
@pytest.mark.parametrize("cut", [0, 1, 4])
def test_the_bytes_of_each_row_are_counted(column: pa.Array, bytes_: list[int], cut: int) -> None:
    whole = pa.table({
        "one": pa.chunked_array([column.slice(0, cut), column.slice(cut)]),
        "k": pa.array([7] * 6, pa.int32()),
    })
    assert row_bytes(whole).tolist() == [size + 4 for size in bytes_]
    assert row_bytes(whole.slice(2, 3)).tolist() == [size + 4 for size in bytes_[2:5]]
