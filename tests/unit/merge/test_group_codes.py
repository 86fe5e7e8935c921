"""Wide texts are told apart by a hash and a look; the grouping is that of Arrow's dictionary."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.merge import group_codes as module

texts = st.lists(st.none() | st.binary(max_size=20) | st.sampled_from([b"", b"\x00", b"a" * 300, b"a" * 299 + b"b"]))


@given(values=texts, cut=st.integers(0, 5))
def test_the_same_grouping(values: list[bytes | None], cut: int) -> None:
    array = pa.array([b"!"] * cut + values + [b"x" * 9], pa.binary()).slice(cut)
    found = module._by_hash(array)
    assert found is not None
    codes, count = found
    encoded = pc.dictionary_encode(array, null_encoding="encode")
    assert codes.tolist() == encoded.indices.to_pylist()
    assert count == len(encoded.dictionary)


def test_values_of_one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are seen, and the dictionary tells them apart."""

    def one_hash(state: np.ndarray, values: object) -> None:
        state[:] = 7

    monkeypatch.setattr(module, "mix_values", one_hash)
    array = pa.array(["a" * 5_000_000, "b" * 5_000_000, "a" * 5_000_000])
    assert module._by_hash(array) is None
    assert module.group_codes(pa.table({"v": array}), ["v"]).tolist() == [0, 1, 0]


def test_wide_texts_take_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    array = pa.array([f"{number % 700}" * 2000 for number in range(1400)] + [None, None])
    assert module._is_wide(array)
    monkeypatch.setattr(pc, "dictionary_encode", lambda values, **more: _numbers_only(values, **more))
    codes = module.group_codes(pa.table({"v": array}), ["v"])
    assert codes.tolist() == [*range(700), *range(700), 700, 700]


def _numbers_only(values: pa.Array, dictionary_encode: object = pc.dictionary_encode, **more: object) -> pa.Array:
    assert pa.types.is_uint64(values.type)
    return dictionary_encode(values, **more)  # type: ignore[operator]
