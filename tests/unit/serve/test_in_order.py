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
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_all_rows_come_in_order_as_soon_as_no_later_file_has_any_before_them(
    files: list[Any], window: int, held: int
) -> None:
    schema = pa.schema([("_seq", pa.uint64()), ("_op", pa.string()), ("of", pa.int64())])
    ordered = sorted((file for file in files if file), key=lambda file: min(file)[0])
    wanted, found = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_order, "HELD_BYTES", held)
        patch.setattr(in_order, "WINDOW_ROWS", window)
        runs = Runs()
        for number, file in enumerate(ordered):
            wanted += [(seq, op, number) for seq, op in file]
            runs.add(pa.Table.from_pylist([{"_seq": seq, "_op": op, "of": number} for seq, op in file], schema))
            following = min(ordered[number + 1])[0] if number + 1 < len(ordered) else None
            came = [(row["_seq"], row["_op"], row["of"]) for rows in runs.before(following) for row in rows.to_pylist()]
            found += came
            assert len(found) == sum(following is None or seq < following for seq, _, _ in wanted)
        runs.close()
    assert [(seq, op != "r") for seq, op, _ in found] == sorted((seq, op != "r") for seq, op, _ in wanted)
    assert sorted(found) == sorted(wanted)
