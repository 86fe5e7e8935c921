"""Rows whose key changed while they are copied: which of them the log has in full."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sluice.flows.dump.interleaver import _without_old_gaps
from sluice.merge.column_presence import bitmaps


def test_a_row_under_its_old_key_is_as_whole_as_the_update() -> None:
    """Return rows of two columns, of which the second one of an old row is never known: an update, one of a key, and one
    of a key that lacks a value, each row with what is known of it now and before.
    """
    known = [[1, 1, 1, 0], [1, 1, 1, 0], [1, 0, 1, 1], [1, 0, 1, 0], [1, 0, 1, 1]]
    after = np.array([one[:2] for one in known], bool)
    before = np.array([one[2:] for one in known], bool)
    padded = np.zeros((len(known), 16), bool)
    padded[:, :2], padded[:, 8:10] = after, before
    rows = pa.table({
        "id": [1, 2, 3, 4, 5],
        "_seq": pa.array([1, 2, 2, 3, 3], pa.uint64()),
        "_op": ["u", "u", "k", "u", "k"],
        "_present": bitmaps(padded),
    })
    assert _without_old_gaps(rows, 2)["_present"].is_null().to_pylist() == [True, True, True, False, False]
