"""Bytes of rows in memory, against a count that goes value by value."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sluice.model.sizes import row_bytes
from sluice.model.tables import plain_numbers

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


@pytest.mark.parametrize("kind", ["uint8", "int32", "int64", "uint64"])
def test_numbers_are_read_where_they_lie(kind: str) -> None:
    numbers = pa.array([5, 1, 4, 2], kind)
    assert plain_numbers(numbers.slice(1, 2)).tolist() == [1, 4]
    assert plain_numbers(pa.chunked_array([numbers, numbers.slice(3)])).tolist() == [5, 1, 4, 2, 2]
    assert plain_numbers(pa.chunked_array([], kind)).tolist() == []
    assert str(plain_numbers(numbers).dtype) == kind
    with pytest.raises(ValueError, match="1 of 2 values are null"):
        plain_numbers(pa.array([1, None], kind))
