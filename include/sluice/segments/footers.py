"""What rows of a stored file take in memory, told by the file's own footer: for files that were written before the manifest said it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from sluice.errors import SegmentError
from sluice.segments.store import SegmentStore

WORTH_A_LOOK = 2**18
"""Bytes of a file below which an estimate will do."""

_OURS = 48
"""Bytes a row that dictionaries (_op, _file, _origin) and the encoding of _seq and _offset save on disk only."""


class _Sized(Protocol):
    @property
    def path(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def arrow_bytes(self) -> int: ...


_File = TypeVar("_File", bound=BaseModel)


def measured(store: SegmentStore, files: Iterable[_File]) -> tuple[_File, ...]:
    """The same files; large ones of which the manifest does not say how many bytes their rows take, with what their footers say."""
    return tuple(_measured(store, file) for file in files)


def _measured(store: SegmentStore, file: _File) -> _File:
    sized: _Sized = file  # type: ignore[assignment]
    if sized.arrow_bytes or sized.size_bytes < WORTH_A_LOOK:
        return file
    try:
        with store.open_input(sized.path) as source:
            footer = pq.read_metadata(source)
    except (SegmentError, pa.ArrowException, OSError):  # who reads the rows says what is wrong with the file
        return file
    total = sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
    return file.model_copy(update={"arrow_bytes": total + footer.num_rows * _OURS})
