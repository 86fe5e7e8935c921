"""Checksums that the server of a source computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from sluice.model.digests import RangeDigest
from sluice.model.dumps import Chunk, TableRequest
from sluice.model.tables import TableId, TableSchema


@runtime_checkable
class DigestReader(Protocol):
    """Optional, of a :class:`ChunkReader`: the server computes checksums of ranges itself, without sending their
    rows.
    """

    def digest_words(self, table: TableId, columns: Sequence[str]) -> tuple[str, ...]:
        """Describe how the columns' values enter a checksum; empty if there is none.

        Sides that return the same have the same checksum for the same rows.
        """

    def digest(self, request: TableRequest, chunk: Chunk, columns: Sequence[str]) -> RangeDigest:
        """Return the digest of the rows of a chunk, over these columns in this order."""


@runtime_checkable
class SharedDigestReader(Protocol):
    """Optional, of a :class:`ChunkReader`: as :class:`DigestReader`, with checksums that other kinds of servers compute
    alike.
    """

    def shared_digest_words(self, table: TableId, columns: Sequence[str]) -> tuple[str, ...]:
        """See :meth:`DigestReader.digest_words`."""

    def shared_digest(self, request: TableRequest, chunk: Chunk, columns: Sequence[str]) -> RangeDigest:
        """See :meth:`DigestReader.digest`."""


@runtime_checkable
class DigestsLog(Protocol):
    """Optional, of a :class:`Source`: computes from decoded rows the checksums that its server computes."""

    def log_digest(self, schema: TableSchema, rows: pa.Table) -> RangeDigest | str:
        """Return what SEGMENT_ROWS do to the digest of their table: rows that come less rows that go, and the XOR of
        the hashes of both. A text: why that cannot be told. Pure.

        Rows that a dump read are no changes.
        """

    def not_digested(self, schema: TableSchema) -> str:
        """Return why the digest of a table cannot be kept from the log, "" if it can. Pure."""


@dataclass(frozen=True, slots=True)
class SnapshotDigest:
    """The digest of a whole table as of one moment, and where that stands in the log.

    Attributes:
        digest: of all rows.
        low: as for a dump's chunk: with the marking, tells which changes the moment saw; "": the marks are rows.
        start, end: all that stands before ``start`` in the log was seen, nothing that stands after ``end`` was.
    """

    digest: RangeDigest
    low: str
    start: str
    end: str


@runtime_checkable
class SnapshotDigestReader(Protocol):
    """Optional, of a :class:`DigestReader`: computes the digest of a whole table as of one moment."""

    def snapshot_digest(self, request: TableRequest, chunk: Chunk, columns: Sequence[str]) -> SnapshotDigest:
        """Return the digest of all rows of a table, over these columns in this order. ``chunk``: its marks' name."""
