"""A batch after merge and rules: ``changeset-{attempt}/manifest.json``. A stored contract, format version 1."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from sluice.errors import SegmentError, first_line
from sluice.model.column_types import ColumnType
from sluice.model.fields import declared_type, key_ordinal, neutral_type, true_name
from sluice.model.row_ops import Dumped
from sluice.model.sizes import cuts, row_bytes
from sluice.model.tables import META_COLUMNS, TableId
from sluice.segments.checksums import ChecksumSink
from sluice.segments.footers import footer_crc32, opened
from sluice.segments.manifest import OffsetRecord, ReplaceRecord, SegmentFile
from sluice.segments.packed import SMALL_BYTES, packed
from sluice.segments.sealed import unsealed
from sluice.segments.store import SegmentStore, made_anew, quoted

ROW_GROUP_ROWS = 16_384
"""Small enough that a unit which loads a range of keys reads little else."""

ROW_GROUP_BYTES = 2**20
"""Bytes of a group's rows in memory: a unit that loads a range of keys holds a group of each file."""


MOST_PACKED_BYTES = 16 * SMALL_BYTES
"""Contents of data files, as stored, that are packed into a manifest's file."""


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ChangesetFile(_Stored):
    """One immutable Parquet file: merged rows of one target table, one row a key."""

    path: str = Field(description="Relative to the pipeline's store folder.")
    rows: int
    inserts: int
    updates: int
    deletes: int
    partial: int = Field(0, description="Rows of which the log lacks some columns.")
    size_bytes: int
    crc32: str = Field(pattern=r"^[0-9a-f]{8}$")
    footer_crc32: str = Field(
        "",
        pattern=r"^([0-9a-f]{8})?$",
        description="Of the Parquet footer, with its length and magic number; empty: not noted.",
    )
    bucket_min: int
    bucket_max: int
    arrow_bytes: int = Field(0, description="Of the rows in memory; 0: written before this was noted.")
    revived: bool = Field(
        False,
        description="The source deleted these rows, and a rule keeps them. The server may hold a key of theirs equal "
        "to that of a row that came later, so that the table's rows are written in the order of the log.",
    )
    dumped: Dumped = Field(
        "",
        description="read: a dump read these rows. cleared: they are deletes of keys that a dump read and for which "
        "the rules give nothing; a target whose table another pipeline writes, too, leaves them out.",
    )
    key_starts: tuple[int, ...] = Field(
        (),
        description="First key column's number (days, microseconds for times) at the start of each row group, and of "
        "the last row; empty unless the rows are in its order and it is a number.",
    )

    def groups(self, low: int | None, high: int | None) -> list[int]:
        """Return the row groups that may hold a first key column ``low <= value < high``; None is no bound."""
        starts = self.key_starts
        return [
            group
            for group in range(len(starts) - 1)
            if (high is None or starts[group] < high) and (low is None or starts[group + 1] >= low)
        ]


class ChangesetColumn(_Stored):
    """A column that goes to the target; ``type`` is the SQL type at the source, empty if a rule made it."""

    name: str
    type: str = ""
    key: int = 0
    generated: bool = False
    charset: str = ""
    collation: str = ""
    arrow_type: str = ""
    kind: str = Field(
        "", description="The type whatever the source, as ColumnType.to_text has it; empty in older manifests."
    )


class ChangesetTable(_Stored):
    """All files of one source table on its way to one target table."""

    schema_: str = Field(alias="schema", description="At the target.")
    table: str
    source_schema: str
    source_table: str
    weight: int = 0
    columns: tuple[ChangesetColumn, ...]
    files: tuple[ChangesetFile, ...]

    @property
    def target(self) -> TableId:
        """The table's name at the target."""
        return TableId(self.schema_, self.table)

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)


class RuleTotal(_Stored):
    """The total of a rule for the whole batch."""

    name: str
    rows_in: int
    rows_out: int
    seconds: float
    errors: int = Field(0, description="Rows on which it raised; they were skipped, or kept as dead letters.")
    dead_letters: int = 0
    changed: int | None = Field(
        None, description="Rows that came out with other values or columns, or for another table; null: not counted."
    )

    def __add__(self, more: RuleTotal) -> RuleTotal:
        """Return the total of the same rule in two batches."""
        return RuleTotal(
            name=self.name,
            rows_in=self.rows_in + more.rows_in,
            rows_out=self.rows_out + more.rows_out,
            seconds=round(self.seconds + more.seconds, 6),
            errors=self.errors + more.errors,
            dead_letters=self.dead_letters + more.dead_letters,
            changed=None if self.changed is None or more.changed is None else self.changed + more.changed,
        )


class ChangesetManifest(_Stored):
    """The stored file."""

    format_version: Literal[1] = 1
    batch: int = Field(ge=1)
    attempt: str
    last: OffsetRecord = Field(description="Position after the batch's last transaction.")
    tables: tuple[ChangesetTable, ...]
    rules: tuple[RuleTotal, ...] = ()
    dead_letters: tuple[str, ...] = Field(
        (), description="Files of rows that rules rejected, relative to the pipeline's store folder."
    )
    counts: dict[str, int] = Field(
        default_factory=dict, description="changes: merged from; rows, inserts, updates, deletes: merged to."
    )
    replaces: tuple[ReplaceRecord, ...] = Field(
        (),
        description="Tables of which the snapshot, whose rows these are, has every row there is: others go from "
        "targets.",
    )
    made_ms: int = Field(0, description="When it was made, milliseconds since 1970; 0: written before this was noted.")


class _ListsFiles(Protocol):
    @property
    def files(self) -> tuple[ChangesetFile, ...]: ...

    def model_copy(self, *, update: Mapping[str, Any]) -> Any: ...


class _ListsTables(Protocol):
    @property
    def tables(self) -> tuple[_ListsFiles, ...]: ...

    def model_copy(self, *, update: Mapping[str, Any]) -> Any: ...

    def model_dump_json(self, *, by_alias: bool, indent: int) -> str: ...


_Manifest = TypeVar("_Manifest", bound=_ListsTables)


@dataclass(frozen=True, slots=True)
class Changeset:
    """A changeset manifest and where it is."""

    path: str
    manifest: ChangesetManifest

    @property
    def rows(self) -> int:
        """Merged rows of all tables."""
        return self.manifest.counts.get("rows", 0)


def changeset_folder(store: SegmentStore, batch: int, attempt: str) -> str:
    """Return the folder of one attempt."""
    return f"{store.batch_path(batch)}/changeset-{attempt}"


def changeset_file_path(store: SegmentStore, batch: int, attempt: str, target: TableId, unit: str) -> str:
    """Return the path of one unit's file for one table."""
    return f"{changeset_folder(store, batch, attempt)}/{quoted(target.schema)}.{quoted(target.table)}/{unit}.parquet"


def read_changeset(store: SegmentStore, path: str) -> Changeset:
    """Read a manifest. Raises SegmentError if it is missing, damaged or of a newer format."""
    try:
        return Changeset(path, ChangesetManifest.model_validate_json(unsealed(store.read_text(path))))
    except ValueError as error:
        raise SegmentError(
            f"the changeset manifest cannot be read: {first_line(error)}",
            where=path,
            hint=made_anew(store.pipeline),
        ) from error


def damage(store: SegmentStore, files: Iterable[ChangesetFile | SegmentFile]) -> str:
    """Return the first file that is missing or damaged, "" if all are intact. Reads them all."""
    for file in files:
        try:
            if store.checksum(file.path) != (file.size_bytes, file.crc32):
                return file.path
        except SegmentError:
            return file.path
    return ""


def changeset_damage(store: SegmentStore, path: str) -> str:
    """Check a whole changeset with its manifest as :func:`damage` checks files."""
    try:
        changeset = read_changeset(store, path)
    except SegmentError:
        return path
    return damage(store, (file for table in changeset.manifest.tables for file in table.files))


def write_changeset_file(
    store: SegmentStore,
    path: str,
    rows: pa.Table,
    buckets: tuple[int, int],
    *,
    revived: bool = False,
    dumped: Dumped = "",
) -> ChangesetFile:
    """Write CHANGESET_ROWS (of a stage before the last: MERGED_ROWS or FRAME_ROWS).

    ``buckets``: first and last key bucket they may come from; ``revived``, ``dumped``: see :class:`ChangesetFile`.
    """
    with store.open_output(path) as sink:
        return _encoded(path, rows, buckets, sink, revived=revived, dumped=dumped)


def changeset_image(
    path: str, rows: pa.Table, buckets: tuple[int, int], *, revived: bool = False, dumped: Dumped = ""
) -> tuple[ChangesetFile, bytes]:
    """Encode a file that is packed with its manifest.

    Return its record, as :func:`write_changeset_file` does, and its contents.
    """
    raw = io.BytesIO()
    return _encoded(path, rows, buckets, ChecksumSink(raw), revived=revived, dumped=dumped), raw.getvalue()


def write_manifest_with(store: SegmentStore, path: str, manifest: _Manifest, images: Mapping[str, bytes]) -> _Manifest:
    """Write a manifest, with data files that have not been written yet packed into its file.

    ``images``: their contents by the paths under which the manifest lists them. Returns the manifest as it is stored.
    Files that a rule made much larger than what it was given get files of their own.
    """
    if sum(map(len, images.values())) > MOST_PACKED_BYTES:
        for own, image in images.items():
            with store.open_output(own) as sink:
                sink.write(image)
        images = {}
    names = list(images)

    def addressed(places: Sequence[str]) -> _Manifest:
        address_of = dict(zip(names, places, strict=True))
        tables = [
            table.model_copy(
                update={
                    "files": tuple(f.model_copy(update={"path": address_of.get(f.path, f.path)}) for f in table.files)
                }
            )
            for table in manifest.tables
        ]
        moved: _Manifest = manifest.model_copy(update={"tables": tuple(tables)})
        return moved

    data, places = packed(
        path, lambda at: addressed(at).model_dump_json(by_alias=True, indent=1) + "\n", list(images.values())
    )
    store.write_bytes(path, data)
    return addressed(places) if places else manifest


def _encoded(
    path: str, rows: pa.Table, buckets: tuple[int, int], sink: ChecksumSink, *, revived: bool, dumped: Dumped
) -> ChangesetFile:
    sizes = row_bytes(rows)
    groups = cuts(sizes, ROW_GROUP_BYTES, ROW_GROUP_ROWS)
    with (
        sink.gathering() as out,
        pq.ParquetWriter(
            out,
            rows.schema,
            compression="zstd",
            compression_level=1,
            write_page_checksum=True,
            use_dictionary=False,
            write_statistics=False,
        ) as writer,
    ):
        for start, stop in groups or [(0, 0)]:
            writer.write_table(rows.slice(start, stop - start), row_group_size=ROW_GROUP_ROWS)
    numbers = key_numbers(rows)
    starts: tuple[int, ...] = ()
    if numbers is not None and numbers.size and (numbers[1:] >= numbers[:-1]).all():
        starts = (*(int(numbers[start]) for start, _ in groups), int(numbers[-1]))
    counted = {entry["values"]: entry["counts"] for entry in rows["_op"].value_counts().to_pylist()}
    return ChangesetFile(
        path=path,
        rows=rows.num_rows,
        inserts=counted.get("i", 0),
        updates=counted.get("u", 0),
        deletes=counted.get("d", 0),
        partial=rows.num_rows - rows["_present"].null_count if "_present" in rows.schema.names else 0,
        size_bytes=sink.size_bytes,
        crc32=f"{sink.crc32:08x}",
        footer_crc32=footer_crc32(sink.tail()),
        bucket_min=buckets[0],
        bucket_max=buckets[1],
        arrow_bytes=int(sizes.sum()),
        revived=revived,
        dumped=dumped,
        key_starts=starts,
    )


def key_numbers(rows: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Return the first key column's stored numbers as int64; None if it is no number, is too large or has nulls."""
    for field in rows.schema:
        if key_ordinal(field) == 1:
            kind = field.type
            if not (pa.types.is_integer(kind) or pa.types.is_temporal(kind)) or rows[field.name].null_count:
                return None
            column = rows[field.name].combine_chunks()
            if pa.types.is_temporal(kind):
                column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
            if kind == pa.uint64() and rows.num_rows and pc.max(column).as_py() >= 1 << 63:
                return None
            return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.int64)
    return None


def read_changeset_file(
    store: SegmentStore,
    file: ChangesetFile,
    keys: tuple[int | None, int | None] | None = None,
    *,
    lean: bool = False,
) -> pa.Table:
    """Read the CHANGESET_ROWS of one file: all, or those with ``low <= first key column < high``.

    See :attr:`ChangesetFile.key_starts` for the latter. ``lean`` leaves out ``_seq`` and ``_commit_ts``, and all
    columns of ``_before`` but the first, which still tells whether the row existed. Partial rows are read whole.

    Raises SegmentError if a page checksum is wrong, or, when it is read whole, its size or CRC32.
    """
    if keys is not None:
        return _read_keys(store, file, *keys, lean=lean)
    data = store.read_bytes(file.path)
    damaged = _damaged(store, file)
    if len(data) != file.size_bytes or f"{zlib.crc32(data):08x}" != file.crc32:
        raise damaged
    try:
        reader = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        return reader.read(columns=_lean(reader) if lean else None, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise damaged from error


class ChangesetReader:
    """Reads a file row group by row group, and opens it for each: a load reads hundreds side by side.

    ``forgetful``: the footer is parsed again for each row group. Parsed, it takes a kilobyte for each column of each
    row group, which the footers of a large batch together must not.

    Raises SegmentError if it is damaged.
    """

    def __init__(
        self, store: SegmentStore, file: ChangesetFile, *, lean: bool = False, forgetful: bool = False
    ) -> None:
        self.file = file
        self._store = store
        with self._opened(None) as reader:
            self._footer = None if forgetful else reader.metadata
            self.groups = int(reader.metadata.num_row_groups)
            self._columns = _lean(reader) if lean else None
            self.schema = self._read(reader, []).schema

    def read(self, group: int) -> pa.Table:
        """Read the rows of a group (CHANGESET_ROWS)."""
        with self._opened(self._footer) as reader:
            return self._read(reader, [group])

    def _read(self, reader: pq.ParquetFile, groups: list[int]) -> pa.Table:
        return reader.read_row_groups(groups, columns=self._columns, use_threads=False)

    @contextmanager
    def _opened(self, footer: pq.FileMetaData | None) -> Iterator[pq.ParquetFile]:
        try:
            with self._store.open_input(self.file.path) as source:
                if footer is None:
                    yield opened(source, self.file.footer_crc32)
                else:
                    yield pq.ParquetFile(source, metadata=footer, page_checksum_verification=True)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _damaged(self._store, self.file) from error


def _damaged(store: SegmentStore, file: ChangesetFile) -> SegmentError:
    return SegmentError("the changeset file is damaged", where=file.path, hint=made_anew(store.pipeline))


def _lean(reader: pq.ParquetFile) -> list[str]:
    schema = reader.schema_arrow
    if "_present" in schema.names:  # the whole before image: it says where a row that moves is, and completes it
        return list(schema.names)
    before = schema.field("_before").type
    return [n for n in schema.names if n not in {"_seq", "_commit_ts", "_before"}] + [f"_before.{before.field(0).name}"]


def _read_keys(store: SegmentStore, file: ChangesetFile, low: int | None, high: int | None, *, lean: bool) -> pa.Table:
    try:
        with store.open_input(file.path) as source:
            reader = opened(source, file.footer_crc32)
            rows = reader.read_row_groups(
                file.groups(low, high), columns=_lean(reader) if lean else None, use_threads=False
            )
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _damaged(store, file) from error
    numbers = key_numbers(rows)
    assert numbers is not None
    start = int(np.searchsorted(numbers, low)) if low is not None else 0
    stop = int(np.searchsorted(numbers, high)) if high is not None else rows.num_rows
    return rows.slice(start, stop - start)


def columns_of(schema: pa.Schema) -> tuple[ChangesetColumn, ...]:
    """Return the user's columns of a changeset file, as the manifest lists them."""
    columns = []
    for field in schema:
        if field.name in META_COLUMNS:
            continue
        metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
        kind = neutral_type(field)
        if kind is None and not declared_type(field):  # a rule made the column
            kind = ColumnType.of_arrow(str(field.type))
        columns.append(
            ChangesetColumn(
                name=true_name(field),
                type=declared_type(field),
                key=key_ordinal(field),
                generated="sluice.generated" in metadata,
                charset=metadata.get("sluice.charset", ""),
                collation=metadata.get("sluice.collation", ""),
                arrow_type=str(field.type),
                kind=kind.to_text() if kind is not None else "",
            )
        )
    return tuple(columns)
