"""Ids of the dumps of one drain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.sources.mysql.server.server_ids import ids_of, reader_id


@given(st.integers(1, 2**32 - 1), st.integers(1, 64))
def test_every_dump_has_an_id_of_its_own_far_from_those_that_people_give(server_id: int, readers: int) -> None:
    ids = ids_of(server_id, readers)
    assert len(ids) == readers + 3
    assert all(2**31 <= number < 2**32 for number in ids if number != server_id)
    assert reader_id(server_id, 0) == server_id


@pytest.mark.parametrize("server_id", [1, 2**31, 2**32 - 2, 2**32 - 1])
def test_they_stay(server_id: int) -> None:
    assert ids_of(server_id, 3) == ids_of(server_id, 3)
    assert set(ids_of(server_id, 2)) < set(ids_of(server_id, 3))
