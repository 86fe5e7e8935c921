"""The words of ``_op`` as Arrow arrays, made when they are first needed: ``pa.array`` loads pandas, a third of what a process takes to start."""

from __future__ import annotations

from functools import cache

import pyarrow as pa


@cache
def stored() -> pa.Array:
    """Those of a segment, by their codes: insert, update, delete, moved away (the old key of an update), read by a dump."""
    return pa.array(["i", "u", "d", "k", "r"])


@cache
def merged() -> pa.Array:
    """Those of a merged row, by the same codes."""
    return pa.array(["i", "u", "d"])
