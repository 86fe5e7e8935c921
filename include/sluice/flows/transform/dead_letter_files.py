"""The dead-letter store: rows that a rule or a target did not take, with the reason and the position they came from.

Below the pipeline's folder, never touched by the retention of batches::

    dead-letters/_rules/batch=0000000042/{attempt}-{part}.parquet     rows rejected by a rule; missing in every target
    dead-letters/{target}/batch=0000000042/{table}-{part}.parquet     rows that the target refused; part: a digest
    dead-letters/{target}/batch=0000000042/skipped.json …             a whole batch that a person skipped, with its segment files
    dead-letters/_settled/{time}-{random}.json                        what became of them: replayed, superseded, discarded

A Parquet file holds rows of one table: its own columns as merged, ``_op _seq _commit_ts _before``, and the ``_dl_*``
columns below. What is the same for all of its rows is JSON in the schema's metadata (:class:`Origin`).
"""  # noqa: E501

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.config.masking import Masking
from sluice.model.fields import described, true_name
from sluice.model.tables import META_COLUMNS, TableId
from sluice.rules import Rejected
from sluice.segments.manifest import SegmentFile
from sluice.segments.reader import read_file
from sluice.segments.store import SegmentStore, quoted
from sluice.targets.port import Rejection

FOLDER = "dead-letters"
RULES = "_rules"
SETTLED = "_settled"
METADATA = b"sluice.dead_letter"
LETTER_FIELDS = (
    pa.field("_dl_id", pa.string()),
    pa.field("_dl_reason", pa.string()),
    pa.field("_dl_where", pa.string()),
    pa.field("_dl_file", pa.string()),
    pa.field("_dl_offset", pa.uint64()),
    pa.field("_dl_gtid", pa.string()),
)
"""Id, reason, place in a rule's file or at the target, and the row event in the source's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The values that all rows of a dead-letter file share.

    Attributes:
        stage: ``rule`` or ``load``.
        by: the rule's name, or the target's.
        schema, table: at the source for a rule, at the target for a load.
        source: the table they came from.
        at: when it was written, ISO 8601.
        stage_number: for rules with their own task: the stage before which the row was as it is here.
    """

    pipeline: str
    batch: int
    stage: str
    by: str
    schema: str
    table: str
    source: str
    at: str
    stage_number: int = 0
    format_version: int = 1

    @property
    def table_id(self) -> TableId:
        """The table at the source."""
        return TableId(self.schema, self.table)


@dataclass(frozen=True, slots=True)
class Written:
    """A dead-letter file that a work unit wrote."""

    path: str
    rows: int
    by: str


def letter_id(pipeline: str, place: str, batch: int, table: TableId, seq: int, op: str, *, nth: int = 0) -> str:
    """Return twelve hex digits that are the same whenever the same change fails in the same place."""
    return hashlib.sha256(f"{pipeline}|{place}|{batch}|{table}|{seq}|{op}|{nth}".encode()).hexdigest()[:12]


def place_folder(place: str, batch: int) -> str:
    """Return the folder of one batch's letters of a target, or of :data:`RULES`."""
    return f"{FOLDER}/{place}/batch={batch:010d}"


def write_rejected(
    store: SegmentStore,
    batch: int,
    attempt: str,
    part: str,
    *,
    source: TableId,
    rejected: Rejected,
    segments: Sequence[SegmentFile],
    masking: Masking,
    stage_number: int,
) -> Written:
    """Store rows that a rule rejected. ``part`` tells the files of an attempt apart."""
    path = f"{place_folder(RULES, batch)}/{attempt}-{part}.parquet"
    origin = Origin(
        pipeline=store.pipeline,
        batch=batch,
        stage="rule",
        by=rejected.rule,
        schema=source.schema,
        table=source.table,
        source=str(source),
        at=_now(),
        stage_number=stage_number,
    )
    write_letters(
        store,
        path,
        origin,
        RULES,
        rows=rejected.rows,
        reasons=rejected.reasons,
        wheres=rejected.places,
        segments=segments,
        masking=masking,
    )
    return Written(path, rejected.rows.num_rows, rejected.rule)


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """Stores the rows that a target refused, before the transaction that lacks them commits.

    Picklable: it is sent with the units.

    Each part has one file, of the same name in every attempt: a repeated attempt replaces it, or deletes it if nothing
    is refused any more. The name holds a digest of the part, as a target may name a part by the path of a file.

    Attributes:
        segments: path of the batch's segment manifest.
    """

    store_uri: str
    pipeline: str
    target: str
    batch: int
    segments: str

    def __call__(self, part: str, table: TableId, rejected: Sequence[Rejection]) -> None:
        """See :class:`sluice.targets.port.RejectedRows`."""
        store = SegmentStore(self.store_uri, self.pipeline)
        name = f"{quoted(table.schema)}.{quoted(table.table)}-{hashlib.sha256(part.encode()).hexdigest()[:16]}"
        path = f"{place_folder(self.target, self.batch)}/{name}.parquet"
        if not rejected:
            store.delete(path)
            return
        rows = pa.concat_tables([rejection.row for rejection in rejected])
        origin = Origin(
            pipeline=store.pipeline,
            batch=self.batch,
            stage="load",
            by=self.target,
            schema=table.schema,
            table=table.table,
            source="",
            at=_now(),
        )
        files = store.read_manifest(self.segments).files if self.segments else ()
        reasons, wheres = [r.reason for r in rejected], [f"{table}, {r.where}" for r in rejected]
        write_letters(
            store,
            path,
            origin,
            self.target,
            rows=rows,
            reasons=reasons,
            wheres=wheres,
            segments=files,
            masking=Masking(),
        )


def write_letters(
    store: SegmentStore,
    path: str,
    origin: Origin,
    place: str,
    *,
    rows: pa.Table,
    reasons: Sequence[str],
    wheres: Sequence[str],
    segments: Iterable[SegmentFile],
    masking: Masking,
) -> None:
    """Write one file, durably, replacing one of that path."""
    rows = rows.combine_chunks()
    seqs = rows["_seq"].to_pylist()
    ids, counts = [], Counter[tuple[int, str]]()
    for change in zip(seqs, rows["_op"].to_pylist(), strict=True):
        ids.append(letter_id(store.pipeline, place, origin.batch, origin.table_id, *change, nth=counts[change]))
        counts[change] += 1  # a table without a key may hold a row twice
    positions = positions_of(store, segments, set(seqs))
    row_positions = [positions.get(seq, (None, None, None)) for seq in seqs]
    values: list[list[Any]] = [ids, list(reasons), list(wheres), *([row[i] for row in row_positions] for i in range(3))]
    for field, column in zip(LETTER_FIELDS, values, strict=True):
        rows = rows.append_column(field, pa.array(column, field.type))
    schema = pa.schema(
        [_tagged(field, origin, masking) for field in rows.schema],
        metadata={METADATA: json.dumps(asdict(origin)).encode()},
    )
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(rows.columns, schema=schema), sink, compression="zstd", write_page_checksum=True)
    store.write_bytes(path, sink.getvalue().to_pybytes())


def forget_attempts(store: SegmentStore, batch: int, keep: Sequence[str]) -> None:
    """Remove what rules rejected in attempts that were not recorded."""
    for path in store.list_files(place_folder(RULES, batch)):
        if path not in keep:
            store.delete(path)


def positions_of(
    store: SegmentStore, segments: Iterable[SegmentFile], seqs: set[int]
) -> dict[int, tuple[str, int, str | None]]:
    """Return (log file, offset, GTID) of changes by ``_seq``."""
    sorted_seqs = pa.array(sorted(seqs), pa.uint64())
    positions: dict[int, tuple[str, int, str | None]] = {}
    for file in segments:
        if len(positions) == len(seqs):
            break
        rows = read_file(store, file, columns=["_seq", "_file", "_offset", "_gtid"])
        for row in rows.filter(pc.is_in(rows["_seq"], value_set=sorted_seqs)).to_pylist():
            positions[row["_seq"]] = (row["_file"], row["_offset"], row["_gtid"])
    return positions


def _tagged(field: pa.Field, origin: Origin, masking: Masking) -> pa.Field:
    """Mark a column that is masked now, so that it stays masked when the setting changes."""
    if field.name in META_COLUMNS or field.name.startswith("_dl_"):
        return field
    hidden = masking.hides(origin.schema, origin.table, true_name(field))
    return described(field, masked="1") if hidden else field


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
