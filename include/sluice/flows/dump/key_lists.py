"""Keys to dump: the columns by which a table is cut, and lists of keys, typed by a person or found in the segments of a
time range.

A list is a Parquet file of literals in the store, one column per key column, so that a chunk is a range of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, DumpRefused
from sluice.flows.stored import stored_manifest
from sluice.model.tables import TableId, distinct, member, stored_name
from sluice.model.whole_rows import LOG_WHOLE_ROWS
from sluice.segments.reader import read_file
from sluice.segments.store import SegmentStore
from sluice.sources.port import ChunkKey, KeyText

KEYS_A_SELECT = 2_000


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A range of commit times from ``since_us`` up to ``until_us`` (not included), in microseconds since 1970."""

    since_us: int
    until_us: int

    @classmethod
    def parse(cls, since: str, until: str) -> TimeRange | None:
        """Parse two ISO 8601 timestamps (UTC by default); return None if both are empty. Raises ConfigError."""
        if not since and not until:
            return None
        span = cls(_micros(since, 0), _micros(until, 2**62))
        if span.since_us >= span.until_us:
            raise ConfigError(f"the span of time is empty: {since!r} is not before {until!r}", hint="since comes first")
        return span


def _micros(text: str, default: int) -> int:
    if not text:
        return default
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a valid timestamp", hint="write 2026-01-31T12:00:00Z") from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def typed_keys(text_of: KeyText, key: ChunkKey, texts: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the literals of keys that a person typed, columns joined by commas.

    Raises ConfigError for a wrong number of columns.
    """
    keys = []
    for text in texts:
        parts = [text] if len(key.columns) == 1 else [p.strip() for p in text.split(",")]
        if len(parts) != len(key.columns):
            raise ConfigError(
                f"the key {text!r} has {len(parts)} columns, not {len(key.columns)}: {', '.join(key.names)}"
            )
        keys.append(tuple(text_of.typed(c, part) for c, part in zip(key.columns, parts, strict=True)))
    return list(dict.fromkeys(keys))


def touched_keys(
    texts: KeyText,
    store: SegmentStore,
    state: PipelineState,
    table: TableId,
    key: ChunkKey,
    span: TimeRange | None,
    *,
    primary: bool,
) -> list[tuple[str, ...]]:
    """Return the literals of every key of a table that the log changed in a span of time, from the retained segments.

    ``primary``: ``key`` is the table's primary key; otherwise the mapping defines it, and no metadata column follows
    it.

    Raises DumpRefused if the table had another key then, or the log does not contain the key.
    """
    assert span is not None
    touched_keys: dict[tuple[str, ...], None] = {}
    names = [stored_name(name) for name in key.names]
    for batch in store.batches():
        manifest = stored_manifest(store, batch, state.batches.get(batch))
        if (
            manifest is None
            or manifest.last_commit_time_us < span.since_us
            or manifest.first_commit_time_us >= span.until_us
        ):
            continue
        for file in manifest.files:
            if file.table_id != table or not file.inserts + file.updates + file.deletes:
                continue
            if tuple(file.primary_key) != (key.names if primary else ()):
                raise DumpRefused(
                    f"batch {batch} holds {table} with another primary key: {', '.join(file.primary_key) or 'none'}",
                    where=file.path,
                    hint="copy the table whole, or ask for a span of time after that batch",
                )
            rows = read_file(store, file, columns=[*names, "_commit_ts", "_op", *([] if primary else ["_before"])])
            moments = rows["_commit_ts"].cast(pa.int64())
            inside = pc.and_(pc.greater_equal(moments, span.since_us), pc.less(moments, span.until_us))
            rows = rows.filter(pc.and_(inside, pc.not_equal(rows["_op"], "r")))
            for part in (rows, *([] if primary else [_as_they_were(rows, names)])):
                if part.num_rows:
                    once = distinct(part.select(names))
                    if any(column.null_count for column in once.columns):
                        raise DumpRefused(
                            f"batch {batch} does not tell the key of each row of {table}: {', '.join(key.names)}",
                            where=file.path,
                            hint=f"copy the table whole; {LOG_WHOLE_ROWS}, from then on",
                        )
                    touched_keys.update(dict.fromkeys(texts.literals(key.columns, once)))
    return list(touched_keys)


def _as_they_were(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the key columns of updated rows as they were before the update."""
    before = rows["_before"].combine_chunks()
    struct = before.filter(pc.is_valid(before))
    return pa.table({name: member(struct, name) for name in names})


def write_keys(store: SegmentStore, path: str, keys: Sequence[tuple[str, ...]]) -> None:
    """Store a list of keys."""
    sink = pa.BufferOutputStream()
    pq.write_table(_key_table(keys), sink, compression="zstd", write_page_checksum=True)
    store.write_bytes(path, sink.getvalue().to_pybytes())


def write_key_pieces(store: SegmentStore, path: str, pieces: Iterable[Sequence[tuple[str, ...]]]) -> None:
    """Store a list of keys, of which a piece is in memory at a time."""
    with store.open_output(path) as sink:
        writer: pq.ParquetWriter | None = None
        for keys in pieces:
            table = _key_table(keys)
            if writer is None:
                writer = pq.ParquetWriter(sink, table.schema, compression="zstd", write_page_checksum=True)
            writer.write_table(table)
        if writer is not None:
            writer.close()


def _key_table(keys: Sequence[tuple[str, ...]]) -> pa.Table:
    columns = list(zip(*keys, strict=True)) if keys else []
    return pa.table([pa.array(c, pa.string()) for c in columns], names=[str(i) for i in range(len(columns))])


def stored_keys(store: SegmentStore, path: str, start: int, stop: int) -> Iterator[list[tuple[str, ...]]]:
    """Yield the keys ``start`` to ``stop`` of a stored list, in pieces for one SELECT each."""
    file = pq.ParquetFile(pa.BufferReader(store.read_bytes(path)), page_checksum_verification=True)
    at = 0
    for group in range(file.num_row_groups):
        first, at = at, at + file.metadata.row_group(group).num_rows
        if at <= start or first >= stop:
            continue
        table = file.read_row_group(group)
        low, high = max(start - first, 0), min(stop, at) - first
        for begin in range(low, high, KEYS_A_SELECT):
            piece = table.slice(begin, min(KEYS_A_SELECT, high - begin))
            yield list(zip(*(column.to_pylist() for column in piece.columns), strict=True))
