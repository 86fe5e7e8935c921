"""The decision of a channel's other site, batch by batch, which of the partner's loads go back to the main site
(:mod:`sluice.merge.conflicts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.config.masking import SHOWN, Masking
from sluice.coordination.state import PipelineState
from sluice.flows.transform.segment_rows import MergePart
from sluice.merge.compact import user_columns
from sluice.merge.conflicts import Hashes, keys_of, sent_changes
from sluice.model.decimals import cast
from sluice.model.definitions import Definitions
from sluice.model.fields import key_columns, true_name
from sluice.model.load_marks import MarkRules, origin_number
from sluice.model.tables import TableId, stored_name
from sluice.segments.conflicts import LISTED, ConflictRecord, note_conflicts, read_sent, write_sent
from sluice.segments.manifest import SegmentFile, SegmentManifest
from sluice.segments.reader import read_file
from sluice.segments.store import SegmentStore

MOST_UNSEEN = 1_000
"""Batches that the main site may not have seen, at most.

With more, all of the partner's loads go back, as with loop_back.
"""
_MOST_TEXT = 100
_NOTHING = np.zeros(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Repaired:
    """The repair of a part: hashes of the keys that are sent, how many rows were in conflict, and the first of them."""

    sent: Hashes = field(default_factory=lambda: _NOTHING)
    conflicts: int = 0
    listed: tuple[ConflictRecord, ...] = ()

    def __add__(self, other: Repaired) -> Repaired:
        sent = np.union1d(self.sent, other.sent)
        return Repaired(sent, self.conflicts + other.conflicts, (*self.listed, *other.listed)[:LISTED])


@dataclass(frozen=True, slots=True)
class Repair:
    """Tells workers which changes are in conflict. Picklable.

    Attributes:
        origin: origin of the changes that the partner loaded.
        unseen: see :func:`sluice.merge.conflicts.sent_changes`.
        loops_back: all changes are sent; those in conflict are counted.
        masking: columns whose values are not listed.
        unique: tables with a further unique key, and unknown ones: all of their changes are sent, too. A row may have
            removed another one there that held its value, and that goes back with it.
    """

    origin: int
    unseen: Hashes | None
    loops_back: bool
    masking: Masking
    unique: frozenset[TableId] = frozenset()

    def look(self, store: SegmentStore, part: MergePart) -> Chosen:
        """Choose the changes of a part that are sent. Raises SegmentError."""
        read = [_places(store, part, file) for file in part.files]
        sizes = [table.num_rows for table, _ in read]
        fields = [read[0][0].schema.field(name) for name in read[0][1]]
        columns = [
            pa.chunked_array([chunk for table, names in read for chunk in cast(table[names[i]], fields[i].type).chunks])
            for i in range(len(fields))
        ]
        keys = keys_of(part.source, fields, [column.combine_chunks() for column in columns])
        order = np.concatenate([table["_seq"].to_numpy() for table, _ in read])
        loaded = np.concatenate([table["_origin"].to_numpy() for table, _ in read]) == self.origin
        unseen = self.unseen if self.unseen is not None else _NOTHING
        met = sent_changes(keys, order, loaded, unseen)
        sends_all = self.loops_back or self.unseen is None or part.source in self.unique
        sent = np.ones(len(loaded), bool) if sends_all else met
        borders = np.cumsum(sizes)[:-1]
        return Chosen(self, part.source, np.split(sent, borders), np.split(loaded & met, borders), keys.chosen(sent))


@dataclass(frozen=True, slots=True)
class Chosen:
    """The changes of a part that are sent and those in conflict, by file; ``hashes``: of the keys that are sent."""

    repair: Repair
    source: TableId
    sent: Sequence[np.ndarray[Any, Any]]
    met: Sequence[np.ndarray[Any, Any]]
    hashes: Hashes

    def of_file(self, number: int, rows: pa.Table) -> pa.Table:
        """Return the changes of one of the part's files that are sent."""
        mask = self.sent[number]
        return rows if mask.all() else rows.filter(pa.array(mask))

    def listed(self, number: int, rows: pa.Table) -> list[ConflictRecord]:
        """Return some of a file's conflicts for display."""
        some = rows.filter(pa.array(self.met[number]))
        some = some.filter(pc.not_equal(some["_op"], "k")).slice(0, LISTED)
        return [self._record(row, some) for row in range(some.num_rows)]

    @property
    def conflicts(self) -> int:
        """The number of rows in conflict."""
        return sum(int(mask.sum()) for mask in self.met)

    def _record(self, place: int, rows: pa.Table) -> ConflictRecord:
        fields = {name: rows.schema.field(name) for name in user_columns(rows.schema)}
        now = {name: rows[name][place].as_py() for name in fields}
        then = rows["_before"][place].as_py()
        if rows["_op"][place].as_py() == "d":
            now, then = None, now  # type: ignore[assignment]
        keys = key_columns(rows.schema)
        image = now if now is not None else then
        differ = [name for name in fields if now is None or then is None or now[name] != then.get(name)]
        hidden = self.repair.masking.hidden(self.source.schema, self.source.table, map(true_name, fields.values()))

        def shown(values: dict[str, Any], names: Sequence[str]) -> dict[str, str | None]:
            plain = {true_name(fields[name]): values.get(name) for name in names}
            return {name: SHOWN if name in hidden else _text(value) for name, value in plain.items()}

        return ConflictRecord(
            schema_=self.source.schema,
            table=self.source.table,
            key=shown(image, keys),
            main=None if now is None else shown(now, differ),
            other=None if then is None else shown(then, differ),
            at_us=rows["_commit_ts"].cast(pa.int64())[place].as_py(),
        )


def _text(value: Any) -> str | None:
    if value is None:
        return None
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"


def _places(store: SegmentStore, part: MergePart, file: SegmentFile) -> tuple[pa.Table, list[str]]:
    """Return the keys of a file's changes with their sequence and origin, and the names of the key columns."""
    names = [stored_name(name) for name in file.primary_key]
    return read_file(store, file, part.buckets, [*names, "_seq", "_origin"]), names


ReadDefinitions = Callable[[], Definitions | None]
"""Reads the stored definitions; None if they are not known."""


def plan_repair(
    loads: MarkRules | None,
    masked: Sequence[str],
    store: SegmentStore,
    state: PipelineState,
    manifest: SegmentManifest,
    *,
    merged: Callable[[int], object],
    definitions: ReadDefinitions,
) -> Repair | None:
    """Return what tells conflicts in a batch; None if the pipeline sends nothing back.

    Args:
        loads: what the capture does with what Sluice itself wrote at the source.
        masked: patterns of the columns whose values are never shown.
        merged: merges an earlier batch; its errors are raised.
        definitions: reads the definitions that apply to the batch's first change.
    """
    if loads is None or not loads.sends_back or (manifest.loads_saw is None and not loads.repairs):
        return None
    unseen: Hashes | None = None  # also for a batch that was captured again, whose manifest does not tell
    if loads.repairs and manifest.loads_saw is not None:
        unseen = _unseen(store, state, range(manifest.loads_saw + 1, manifest.batch), merged)
    unique = with_unique_keys(definitions, manifest) if unseen is not None else frozenset[TableId]()
    masking = Masking(tuple(masked))
    return Repair(origin_number(loads.partner), unseen, not loads.repairs, masking, unique)


def with_unique_keys(read: ReadDefinitions, manifest: SegmentManifest) -> frozenset[TableId]:
    """Return the tables of a batch that have a unique key besides the primary key, or whose definition is unknown."""
    if not manifest.files:
        return frozenset()
    definitions = read()
    by_table = {file.table_id: definitions.find(file.table_id) if definitions else None for file in manifest.files}
    return frozenset(
        table
        for table, definition in by_table.items()
        if definition is None or sum(1 for index in definition.indexes if index.unique) > 1
    )


def _unseen(
    store: SegmentStore, state: PipelineState, batches: range, merged: Callable[[int], object]
) -> Hashes | None:
    """Return the keys that these batches send; None if that is not known."""
    if len(batches) > MOST_UNSEEN:
        return None
    hashes = [_NOTHING]
    for number in batches:
        keys = read_sent(store, number)
        record = state.batches.get(number) if keys is None else None
        if record is not None and not record.dropped and not record.changeset and not record.stages:
            merged(number)
            keys = read_sent(store, number)
        if keys is None:
            return None
        hashes.append(keys)
    return np.unique(np.concatenate(hashes))


def note_repaired(store: SegmentStore, repair: Repair, batch: int, repaired: Repaired) -> None:
    """Store what later batches, and people, have to know of this one.

    Call it before the batch's changeset is recorded.
    """
    if not repair.loops_back:
        write_sent(store, batch, repaired.sent)
    if repaired.conflicts:
        note_conflicts(store, batch, repaired.conflicts, repaired.listed)


__all__ = ["Chosen", "Repair", "Repaired", "note_repaired", "plan_repair", "with_unique_keys"]
