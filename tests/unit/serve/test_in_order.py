"""Files that overlap become one stream in the order of the log, in memory or through files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.serve import in_order
from sluice.serve.in_order import Runs

FILES = st.lists(st.lists(st.tuples(st.integers(0, 40), st.sampled_from("iudr")), max_size=30), max_size=5)


@pytest.mark.parametrize("held", [0, 1 << 30], ids=["files", "memory"])
@given(files=FILES, window=st.integers(1, 20))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_all_rows_come_in_order(files: list[Any], window: int, held: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_order, "HELD_BYTES", held)
        patch.setattr(in_order, "WINDOW_ROWS", window)
        runs = Runs()
        wanted = []
        for number, file in enumerate(files):
            ordered = sorted(file, key=lambda row: (row[0], row[1] != "r"))
            wanted += [(seq, op, number) for seq, op in ordered]
            schema = pa.schema([("_seq", pa.uint64()), ("_op", pa.string()), ("of", pa.int64())])
            runs.add(pa.Table.from_pylist([{"_seq": seq, "_op": op, "of": number} for seq, op in ordered], schema))
        found = [(row["_seq"], row["_op"], row["of"]) for rows in runs.in_order() for row in rows.to_pylist()]
        runs.close()
    assert [(seq, op != "r") for seq, op, _ in found] == sorted((seq, op != "r") for seq, op, _ in wanted)
    assert sorted(found) == sorted(wanted)
