"""The manifest of a batch of captured changes: ``manifest-e{epoch}.json``, written last.

A stored contract, format version 1.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator

from sluice.errors import ConfigError, SegmentError, first_line
from sluice.model.dialects import Dialect
from sluice.model.offset import Offset
from sluice.model.schema_changes import StatementSession
from sluice.model.tables import KEY_BUCKETS, TableId
from sluice.segments.sealed import unsealed

FORMAT_VERSION: Literal[1] = 1


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _offset(stored: Any) -> Offset:
    if isinstance(stored, Offset):
        return stored
    if not isinstance(stored, dict):
        raise ValueError("a stored position is a mapping")
    try:
        return Offset.from_json(stored)
    except ConfigError as error:
        raise ValueError(str(error)) from error


OffsetRecord = Annotated[Offset, PlainValidator(_offset), PlainSerializer(Offset.to_json)]
"""An :class:`~sluice.model.offset.Offset` as JSON, as the source wrote it."""


class PlaceRecord(_Stored):
    """Log position of a chunk file; replaces the metadata columns of all its rows.

    ``left_out``: numbers (``_row``) of rows of the file that don't count, because the log has newer ones.
    """

    seq: int
    file: str
    offset: int
    commit_time_us: int
    origin: int = 0
    left_out: tuple[int, ...] = ()


class SegmentFile(_Stored):
    """One immutable Parquet file: rows of one definition of one table, sorted by (``_bucket``, ``_seq``).

    ``rows`` counts stored rows (with ``_op`` = ``k``), ``inserts + updates + deletes + reads`` counts changes.
    """

    path: str = Field(description="Relative to the pipeline's store folder.")
    schema_: str = Field(alias="schema")
    table: str
    schema_version: str = Field(description="TableSchema.version; changes with the definition.")
    primary_key: tuple[str, ...] = ()
    rows: int
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    reads: int = Field(0, description="Rows read by a dump.")
    moved_partially: bool = Field(False, description="Rows changed their key of which the log lacks some columns.")
    size_bytes: int
    crc32: str = Field(pattern=r"^[0-9a-f]{8}$", description="Of the whole file.")
    footer_crc32: str = Field(
        "",
        pattern=r"^([0-9a-f]{8})?$",
        description="Of the Parquet footer, with its length and magic number; empty: not noted.",
    )
    bucket_min: int = Field(ge=0, lt=KEY_BUCKETS)
    bucket_max: int = Field(ge=0, lt=KEY_BUCKETS)
    arrow_bytes: int = Field(0, description="Of the rows in memory; 0: written before this was noted.")
    bucket_bytes: tuple[int, ...] = Field(
        (),
        description="The same by bucket from bucket_min to bucket_max, where one has much more than its share; else "
        "empty.",
    )
    place: PlaceRecord | None = Field(None, description="For a file of rows that a dump read: its place in the log.")

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @property
    def table_id(self) -> TableId:
        """Schema and table."""
        return TableId(self.schema_, self.table)

    def share(self, values: int, low: int, high: int) -> int:
        """Return the part of a figure of the whole file that its buckets from ``low`` to ``high`` (excluded) have."""
        first, last = max(low, self.bucket_min), min(high, self.bucket_max + 1)
        if first >= last:
            return 0
        if (first, last) == (self.bucket_min, self.bucket_max + 1):
            return values
        if self.bucket_bytes:
            own = sum(self.bucket_bytes[first - self.bucket_min : last - self.bucket_min])
            return values * own // max(sum(self.bucket_bytes), 1)
        return values * (last - first) // (self.bucket_max - self.bucket_min + 1)


class DdlRecord(_Stored):
    """A statement that changed a definition. ``seq`` is the sequence number of the first row change after it."""

    file: str
    offset: int
    gtid: str | None = None
    commit_time_us: int = 0
    schema_: str = Field(alias="schema", description="Default schema of the session that ran it.")
    table: str | None = Field(None, description="schema.table it names, where one could be told.")
    sql: str
    seq: int
    sql_mode: int = Field(0, description="Bits of the session's sql_mode.")
    session: StatementSession | None = Field(
        None, description="What else its effect may depend on; null in segments of older versions."
    )
    changes: tuple[dict[str, Any], ...] = Field(
        (), description="What it did to captured tables: sluice.model.schema_changes.TableChange as JSON."
    )

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class MarkRecord(_Stored):
    """A watermark of a dump that stands in this batch. ``seq``: its place among the batch's row changes."""

    mark: str
    seq: int
    file: str
    offset: int


class ReplaceRecord(_Stored):
    """A stretch of a table of which a dump's chunk, placed in this batch, holds every row there is: others go from the
    targets.

    ``key``: source columns of the key; empty: the whole table goes, and comes anew with the batch. The bounds are SQL
    literals in key order, ``lower <= key <= upper`` and ``after < key <= upto``; empty: none. ``listed``: file of the
    only keys looked at (literals), ``""``: all of the range. ``kept``: file of the keys that stay: those of the chunk,
    and those that the log of its window or of this batch changed.
    """

    schema_: str = Field(alias="schema")
    table: str
    dump: str
    chunk: str
    key: tuple[str, ...] = ()
    lower: tuple[str, ...] = ()
    upper: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    upto: tuple[str, ...] = ()
    listed: str = ""
    kept: str = ""
    flavour: str = Field(description="MySQL or MariaDB: whose order of keys the range means.")
    optional: bool = Field(
        False, description="It was started automatically: where a target cannot do it, it is left out and noted."
    )
    mapped: bool = Field(
        False, description="Of a snapshot, and no dump: key and kept have the names and values that targets have."
    )

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @property
    def dialect(self) -> Dialect:
        """The dialect whose order of keys the range means."""
        return Dialect(self.flavour)

    @property
    def table_id(self) -> TableId:
        """Schema and table at the source."""
        return TableId(self.schema_, self.table)


class DigestRecord(_Stored):
    """The rows that a batch's log brings to a table less those it takes, and the XOR of the hashes of both.

    ``gap``: why that is not known; "": it is.
    """

    rows: int = 0
    checksum: str = Field("0000000000000000", pattern=r"^[0-9a-f]{16}$")
    gap: str = ""


class SegmentManifest(_Stored):
    """The files and positions of a batch.

    ``first`` is the position before its first transaction, ``last`` the one after its last.
    """

    format_version: Literal[1] = FORMAT_VERSION
    pipeline: str
    batch: int = Field(ge=1)
    epoch: int = Field(ge=0)
    first: OffsetRecord
    last: OffsetRecord
    first_commit_time_us: int = 0
    last_commit_time_us: int = 0
    changes: int
    transactions: int
    log_bytes: int
    files: tuple[SegmentFile, ...]
    ddl: tuple[DdlRecord, ...] = ()
    skipped: dict[str, int] = Field(default_factory=dict, description="Row events left out on purpose, by reason.")
    marks: tuple[MarkRecord, ...] = Field((), description="Watermarks of dumps, in log order.")
    held: dict[str, int] = Field(
        default_factory=dict,
        description="Tables without a key whose changes a dump that is not placed yet makes needless, with the last "
        "change left out.",
    )
    held_files: tuple[SegmentFile, ...] = Field(
        (),
        description="Changes of these tables, of which the copy may lack some: they follow it into the batch of its "
        "place. No part of this batch.",
    )
    replaces: tuple[ReplaceRecord, ...] = Field((), description="Stretches of tables that dumps make equal.")
    targets: tuple[str, ...] = Field((), description="The only targets this batch is for; empty: all.")
    snapshot: int = Field(
        0,
        ge=0,
        description="This batch is all rows of the pipeline's snapshot as of this batch, for its targets; 0: it is "
        "not.",
    )
    snapshot_replaces: bool = Field(
        False,
        description="Rows of its targets that the snapshot does not have go: they lack batches that were removed.",
    )
    partner_batch: int = Field(
        0,
        description="The last batch of the channel's other pipeline that the source held in whole before the first "
        "change here; 0: not known.",
    )
    loads_saw: int | None = Field(
        None,
        description="The least such number of the other pipeline's batches that were loaded at the source and are "
        "captured here; null: none is.",
    )
    digests: dict[str, DigestRecord] | None = Field(
        None,
        description="What the batch's log does to the digest of each table that it changes (schema.table), by "
        "verify.digest: log; null: it was not computed.",
    )
    stretch: int = Field(0, description="Of the log that is read without a gap; stored with digests only.")

    @property
    def size_bytes(self) -> int:
        """Parquet bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    def to_json(self) -> str:
        """Return the stored text."""
        # versions that do not know a field read a manifest without it, too
        left_out = {"digests", "stretch"} if self.digests is None else set()
        left_out |= set() if self.held_files else {"held_files"}
        return self.model_dump_json(by_alias=True, indent=1, exclude=left_out) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str | None = None) -> SegmentManifest:
        """Parse a stored manifest. Raises SegmentError if it is damaged or of a newer format."""
        try:
            return cls.model_validate_json(unsealed(text))
        except ValueError as error:
            raise SegmentError(
                f"the segment manifest cannot be read: {first_line(error)}",
                where=where,
                hint="was it written by a newer version? If it is damaged: `sluice recover PIPELINE` captures the "
                "batch again from the source's log; `sluice seek PIPELINE --drop-undelivered` reads the log again "
                "from where the undelivered batches begin",
            ) from error
