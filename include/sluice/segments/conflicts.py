"""Stored conflicts of a two-way channel: the keys that a batch sends, and the last conflicts. Stored contracts."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sluice.errors import SegmentError, first_line
from sluice.segments.store import SegmentStore

KEPT = 200
"""Batches with conflicts of which the list is kept."""
LISTED = 100
"""Conflicts of one batch that are listed; all are counted."""

_FOLDER = "conflicts"


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ConflictRecord(_Stored):
    """A row that both sites changed.

    ``main``, ``other``: columns that differ, as texts, masked ones as ***; null: the row was deleted there.
    """

    schema_: str = Field(alias="schema")
    table: str
    key: dict[str, str | None]
    main: dict[str, str | None] | None = Field(description="What the main site wrote: it wins.")
    other: dict[str, str | None] | None = Field(description="What stood at the other site.")
    at_us: int = Field(
        description="When the main site's change arrived at the other site, microseconds since 1970, by its clock."
    )


class ConflictsOfBatch(_Stored):
    """The conflicts that a batch met. ``total``: with all batches before it."""

    format_version: Literal[1] = 1
    batch: int
    count: int
    total: int
    listed: tuple[ConflictRecord, ...]


def write_sent(store: SegmentStore, batch: int, hashes: npt.NDArray[np.uint64]) -> None:
    """Note the keys that a batch sends (:meth:`sluice.merge.conflicts.Keys.chosen`)."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"key": hashes}), sink, compression="zstd", write_page_checksum=True)
    store.write_bytes(_sent_path(store, batch), sink.getvalue().to_pybytes())


def read_sent(store: SegmentStore, batch: int) -> npt.NDArray[np.uint64] | None:
    """Return the keys that a batch sends; None if they were not noted, or no longer are."""
    path = _sent_path(store, batch)
    if not store.exists(path):
        return None
    try:
        table = pq.ParquetFile(pa.BufferReader(store.read_bytes(path)), page_checksum_verification=True).read()
    except (pa.ArrowException, OSError):
        return None
    return np.asarray(table["key"].to_numpy(), np.uint64)


def _sent_path(store: SegmentStore, batch: int) -> str:
    return f"{store.batch_path(batch)}/sent-keys.parquet"


def note_conflicts(store: SegmentStore, batch: int, count: int, listed: Sequence[ConflictRecord]) -> None:
    """Keep what a batch met, and forget the oldest. A batch that is merged again is noted anew."""
    earlier = [path for path in _paths(store) if _number(path) < batch]
    before = _read(store, earlier[-1]).total if earlier else 0
    record = ConflictsOfBatch(batch=batch, count=count, total=before + count, listed=tuple(listed[:LISTED]))
    store.write_bytes(f"{_FOLDER}/{batch:010d}.json", record.model_dump_json(by_alias=True).encode())
    for path in earlier[: max(len(earlier) - KEPT + 1, 0)]:
        store.delete(path)


def kept_conflicts(store: SegmentStore, most: int = KEPT) -> list[ConflictsOfBatch]:
    """Return the conflicts of the last ``most`` batches that met some, newest first. Raises SegmentError."""
    return [_read(store, path) for path in reversed(_paths(store)[-most:])]


def total_conflicts(store: SegmentStore) -> int:
    """Return how many conflicts were met. Raises SegmentError."""
    newest = kept_conflicts(store, 1)
    return newest[0].total if newest else 0


def _paths(store: SegmentStore) -> list[str]:
    return [path for path in store.list_files(_FOLDER) if path.endswith(".json")]


def _number(path: str) -> int:
    return int(posixpath.basename(path).partition(".")[0])


def _read(store: SegmentStore, path: str) -> ConflictsOfBatch:
    try:
        return ConflictsOfBatch.model_validate_json(store.read_bytes(path))
    except ValidationError as error:
        raise SegmentError(
            f"a list of conflicts cannot be read: {first_line(error)}",
            where=path,
            hint="was it written by a newer version? The list is for people only: the file may be deleted",
        ) from error
