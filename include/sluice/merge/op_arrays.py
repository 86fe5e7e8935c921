"""The words of ``_op`` as Arrow arrays, made when they are first needed: ``pa.array`` loads pandas, a third of what a
process takes to start.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa


@cache
def stored() -> pa.Array:
    """Return the words of a segment by their codes.

    They are insert, update, delete, moved away (the old key of an update), and read by a dump.
    """
    return pa.array(["i", "u", "d", "k", "r"])


@cache
def merged() -> pa.Array:
    """Return the words of a merged row, by the same codes."""
    return pa.array(["i", "u", "d"])
