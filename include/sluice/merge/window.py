"""The rows of a chunk that survive its window: those whose key the log did not touch between the two watermarks.

A key is compared as it is stored. That is enough whatever the collation: the select saw a version of the row that
either stood there when the window began or was written inside it; so any change of that row in the window has exactly
those bytes as its key, before or after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Codes = Callable[[pa.Table, Sequence[str]], "npt.NDArray[np.int64]"]
"""One number a row: equal for rows that are equal in the named columns."""


def survivors(chunk: pa.Table, changed: Sequence[pa.Table], key: Sequence[str], codes: Codes) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows of ``chunk`` whose key is in no table of ``changed`` (key columns of changed rows)."""
    touched = [table.select(list(key)) for table in changed if table.num_rows]
    if not touched or not chunk.num_rows:
        return np.ones(chunk.num_rows, bool)
    chunk_keys = chunk.select(list(key))
    plain = pa.schema([pa.field(f.name, f.type) for f in chunk_keys.schema])
    every = pa.concat_tables([table.cast(plain) for table in [chunk_keys, *touched]])
    numbers = codes(every, list(key))
    alive: npt.NDArray[np.bool_] = ~np.isin(numbers[: chunk.num_rows], numbers[chunk.num_rows :])
    return alive
