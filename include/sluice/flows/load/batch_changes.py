"""Every change of a batch in log order, for a target with ``changes: all``: from the segments, through rules and
mapping.

Decision: rules see each change on its way to the target, inside the unit that writes it. The changes are not stored a
second time; a target that is loaded again runs the rules again. A target of merged rows in the same pipeline is not
affected.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.config.engine import RuleKind
from sluice.config.pipeline import TableMapping
from sluice.errors import RuleError
from sluice.flows.load.batch_rows import StoredRows
from sluice.flows.runtime import Runtime
from sluice.flows.transform.changeset_writer import needs_whole_rows
from sluice.flows.transform.stage_rules import StageRules, tagged_as_made
from sluice.mapping import Mapping as Routes
from sluice.mapping import TableRoute
from sluice.merge.column_presence import is_partial, renewed
from sluice.merge.compact import user_columns
from sluice.model.batches import Op
from sluice.model.changes import Change
from sluice.model.fields import key_fields, true_name
from sluice.model.tables import META_COLUMNS, TableId
from sluice.rules import Ruled, RuleSet
from sluice.segments.manifest import SegmentFile, SegmentManifest
from sluice.segments.reader import batch_changes, read_file, read_projected
from sluice.segments.store import SegmentStore
from sluice.targets.port import ChangePiece, Share

_FOR_RULES = ("_op", "_seq", "_commit_ts", "_origin", "_before")


@dataclass(frozen=True, slots=True)
class _Place:
    """The table that changes go to, and the columns that tell its rows apart."""

    table_id: TableId
    primary_key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoredChanges(StoredRows):
    """Reads the changes of one batch. See :class:`sluice.targets.port.RowReader`.

    Args:
        manifest: path of the segments' manifest.
        keeps_rejected: rows that a rule rejects become dead letters.
    """

    target: str = ""
    batch: int = 0
    manifest: str = ""
    ruling: StageRules = field(default_factory=StageRules)
    mapping: tuple[TableMapping, ...] = ()
    keeps_rejected: bool = True

    def changes(self, share: Share | None = None) -> Iterator[Change]:
        """Yield the changes in log order. Raises SegmentError, RuleError, MappingError."""
        store = SegmentStore(self.store_uri, self.pipeline)
        files = store.read_manifest(self.manifest).files
        begins = _begins(store, files)
        streams = [self._of_file(store, number, file, share, begins) for number, file in enumerate(files)]
        yield from heapq.merge(*streams, key=lambda change: (change.seq, change.op != Op.READ))

    def change_pieces(self, share: Share | None = None) -> Sequence[ChangePiece]:
        """Return the changes as columns. Raises SegmentError, RuleError, MappingError."""
        store = SegmentStore(self.store_uri, self.pipeline)
        files = store.read_manifest(self.manifest).files
        begins = _begins(store, files)
        return [
            piece for number, file in enumerate(files) for piece in self._pieces(store, number, file, share, begins)
        ]

    def file_pieces(self, store: SegmentStore, number: int, file: SegmentFile) -> list[ChangePiece]:
        """Return the changes of the batch's file ``number``, for a reader that does not use a change's place in its
        transaction (``txn_row``).
        """
        return self._pieces(store, number, file, None, None)

    def plain(self, store: SegmentStore, file: SegmentFile, names: Set[str] | None) -> tuple[TableId, pa.Table]:
        """Return the changes of a file whose table no rule concerns, unordered, and the target table.

        Args:
            names: those of user columns at the target: others become null; None: all columns. See
                :func:`read_projected`.
        """
        source = file.table_id
        route = Routes.compile(self.mapping).whole_route(source)
        wants = None if names is None else lambda field: route.column(field) in names
        rows = _without_moves(read_projected(store, file, wants))
        return route.target, self._routed(self.ruling.tagged(rows, source), route, self.ruling.hides(rows, source))

    @staticmethod
    def _routed(rows: pa.Table, route: TableRoute, hides: bool) -> pa.Table:
        rows = tagged_as_made(rows) if hides else rows
        return _known_columns(rows, route.apply(rows), route)

    def _of_file(
        self, store: SegmentStore, number: int, file: SegmentFile, share: Share | None, begins: _Begins
    ) -> Iterator[Change]:
        changes = [_changes_of(piece) for piece in self._pieces(store, number, file, share, begins)]
        yield from heapq.merge(*changes, key=lambda change: (change.seq, change.row))

    def _pieces(
        self, store: SegmentStore, number: int, file: SegmentFile, share: Share | None, begins: _Begins | None
    ) -> list[ChangePiece]:
        rows = _by_seq(_without_moves(read_file(store, file))).combine_chunks()
        if share is not None and share.of > 1:
            in_share = rows["_bucket"].to_numpy() % share.of == share.number
            rows = rows.filter(pa.array(in_share))
        if not rows.num_rows:
            return []
        return [
            self._placed(place, mapped, rows, None if file.place else begins)
            for place, mapped in self._ruled(store, number, file, rows).items()
        ]

    def _ruled(self, store: SegmentStore, number: int, file: SegmentFile, rows: pa.Table) -> dict[_Place, pa.Table]:
        """Apply rules and mapping to the rows and return the results by target table; ``_seq`` is the row's number in
        ``rows``.
        """
        source, ruling = file.table_id, self.ruling
        numbered = rows.select([
            n for n in rows.schema.names if n not in META_COLUMNS or n in (*_FOR_RULES, "_present")
        ])
        numbered = _with(numbered, "_seq", pa.array(np.arange(rows.num_rows, dtype=np.uint64)))
        numbered = _with(numbered, "_op", pc.if_else(pc.equal(rows["_op"], Op.READ.value), "i", rows["_op"]))
        if not is_partial(numbered) and "_present" in numbered.schema.names:
            numbered = numbered.drop_columns(["_present"])
        if is_partial(numbered) and ruling.concerning(source):
            raise needs_whole_rows(source)
        hides = ruling.hides(numbered, source)
        ruled = ruling.apply(ruling.tagged(numbered, source), source, each=True)
        if self.keeps_rejected:
            self._keep_rejected(store, number, file, rows, ruled)
        routes = Routes.compile(self.mapping)
        rows_by_place: dict[_Place, pa.Table] = {}
        for table, out in ruled.tables.items():
            if out.num_rows:
                route = routes.whole_route(table)  # whole images, as the log has them
                mapped = self._routed(out, route, hides)
                rows_by_place[_Place(route.target, tuple(map(true_name, key_fields(mapped.schema))))] = mapped
        return rows_by_place

    def _keep_rejected(self, store: SegmentStore, number: int, file: SegmentFile, rows: pa.Table, ruled: Ruled) -> None:
        """Store the rows that a rule with ``on_error: dead_letter`` rejected, before anything that lacks them is
        written.

        The file names are the same in every attempt.
        """
        true = [
            replace(
                rejected, rows=_with(rejected.rows, "_seq", rows["_seq"].take(rejected.rows["_seq"]).combine_chunks())
            )
            for rejected in ruled.rejected
        ]
        renumbered = replace(ruled, rejected=true)
        self.ruling.keep_rejected(
            store,
            self.batch,
            f"changes-{self.target}",
            f"{number:05d}",
            source=file.table_id,
            ruled=renumbered,
            segments=(file,),
        )

    def _placed(self, place: _Place, out: pa.Table, rows: pa.Table, begins: _Begins | None) -> ChangePiece:
        """Return the rows that rules and mapping made, with the envelope of the changes they came from.

        ``begins`` None: a dump read them, so that they have no transaction.
        """
        out = _by_seq(out)
        origin = out["_seq"].combine_chunks()
        rows = rows if _is_counting(origin, rows.num_rows) else rows.select(_envelope(rows)).take(origin)
        was_read = pc.equal(rows["_op"], Op.READ.value)
        ops = pc.if_else(pc.and_(was_read, pc.equal(out["_op"], "i")), Op.READ.value, out["_op"])
        columns = {name: out[name] for name in out.schema.names if name not in META_COLUMNS}
        fields = [out.schema.field(name) for name in columns]
        for name in _envelope(rows):
            if name != "_op":
                fields.append(rows.schema.field(name))
                columns[name] = rows[name]
        for name, values in (("_op", ops), ("_before", out["_before"])):
            fields.append(pa.field(name, values.type))
            columns[name] = values
        if "_present" in out.schema.names:
            fields.append(out.schema.field("_present"))
            columns["_present"] = out["_present"]
        combine_chunks = pa.table(list(columns.values()), schema=pa.schema(fields)).combine_chunks()
        seq, row = combine_chunks["_seq"].to_numpy(), combine_chunks["_row"].to_numpy()
        txn_row = row if begins is None else seq - begins.of(combine_chunks["_txn"].to_numpy())
        return ChangePiece(
            place.table_id,
            place.primary_key,
            combine_chunks,
            pa.array(txn_row.astype(np.uint64)),
            pa.array(_parts(seq, row)),
        )


def _without_moves(rows: pa.Table) -> pa.Table:
    """Remove the rows that only say that a key left its bucket."""
    moved = pc.equal(rows["_op"], Op.KEY_MOVED.value)
    return rows.filter(pc.invert(moved)) if pc.any(moved).as_py() else rows


def _by_seq(rows: pa.Table) -> pa.Table:
    """Sort rows by ``_seq``; rows that are already in order, as most are, are not copied."""
    seq = rows["_seq"].to_numpy()
    return rows if bool((seq[1:] >= seq[:-1]).all()) else rows.sort_by("_seq")


def _is_counting(numbers: pa.Array, count: int) -> bool:
    """Return True if the numbers are 0, 1, ... ``count`` - 1."""
    return len(numbers) == count and bool((numbers.to_numpy() == np.arange(count)).all())


def _envelope(rows: pa.Table) -> list[str]:
    """Return the metadata columns that describe a change as it was captured, whatever rules make of its values."""
    return [name for name in rows.schema.names if name in META_COLUMNS and name not in {"_before", "_present"}]


def _parts(seq: np.ndarray[Any, Any], row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the number of each row within its run of rows that have the same ``_seq`` and ``_row``."""
    number = np.arange(len(seq))
    begins = np.ones(len(seq), bool)
    begins[1:] = (seq[1:] != seq[:-1]) | (row[1:] != row[:-1])
    return (number - np.maximum.accumulate(np.where(begins, number, 0))).astype(np.uint32)


def _changes_of(piece: ChangePiece) -> Iterator[Change]:
    at = 0
    place = _Place(piece.table, piece.key)
    txn_rows, parts = piece.txn_row.to_pylist(), piece.part.to_pylist()
    for batch in piece.rows.to_batches(max_chunksize=4096):
        for change in batch_changes(place, batch):
            yield replace(change, part=parts[at], txn_row=txn_rows[at])
            at += 1


@dataclass(frozen=True, slots=True)
class _Begins:
    """The first change of each transaction, so that a change's place in it does not depend on what rules left out."""

    txns: np.ndarray[tuple[int], np.dtype[np.int64]]
    firsts: np.ndarray[tuple[int], np.dtype[np.int64]]

    def of(self, txns: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the ``_seq`` of the first change of each transaction."""
        begins: np.ndarray[Any, Any] = self.firsts[np.searchsorted(self.txns, txns)].astype(np.uint64)
        return begins


def _begins(store: SegmentStore, files: Sequence[SegmentFile]) -> _Begins:
    txns, seqs = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for file in files:
        if file.place is not None:  # rows that a dump read belong to no transaction
            continue
        rows = read_file(store, file, columns=["_txn", "_seq"])
        txns.append(rows["_txn"].to_numpy().astype(np.int64))
        seqs.append(rows["_seq"].to_numpy().astype(np.int64))
    txn, seq = np.concatenate(txns), np.concatenate(seqs)
    order = np.lexsort((seq, txn))
    unique_txns, first = np.unique(txn[order], return_index=True)
    return _Begins(unique_txns, seq[order][first])


def _known_columns(rows: pa.Table, mapped: pa.Table, route: TableRoute) -> pa.Table:
    """Translate ``_present`` to the columns of the mapped rows, for the row and for its old values."""
    if mapped is rows or not is_partial(rows):
        return mapped
    before = user_columns(rows.schema)
    back = {route.target_name(true_name(rows.schema.field(name))): name for name in before}
    after = [back.get(true_name(mapped.schema.field(name)), "") for name in user_columns(mapped.schema)]
    return _with(mapped, "_present", renewed(rows, before, after))


def _with(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    index = rows.schema.get_field_index(name)
    return rows.set_column(index, rows.schema.field(index), values)


def stored_changes(runtime: Runtime, target: str, manifest: SegmentManifest, path: str) -> StoredChanges:
    """Return the reader of a batch's changes. Raises RuleError for a rule that cannot see single changes."""
    ruling = change_rules(runtime, f"target {target} gets (changes: all)", "give the target changes: latest")
    store = runtime.store
    return StoredChanges(store.uri, store.pipeline, target, manifest.batch, path, ruling, runtime.pipeline.mapping)


def change_rules(runtime: Runtime, reader: str, way_out: str) -> StageRules:
    """Return the pipeline's rules for single changes, as their files are now.

    Args:
        reader: who gets the changes, for the error message.
        way_out: what to do if a rule cannot see single changes, for the error message.

    Raises:
        RuleError: a rule is broken, or is of type spark, which does not see single changes.
    """
    rules = RuleSet.of(runtime.rules_path)
    rules.validate()
    frames = [rule.name for rule in rules if rule.kind is RuleKind.SPARK]
    if frames:
        raise RuleError(
            f"rule {frames[0]!r} is of type spark: it does not see single changes, which {reader}",
            hint=f"write it as a rule of type row, arrow, pandas or sql; or {way_out}",
        )
    return StageRules.of(rules, runtime.pipeline, runtime.rules_path, runtime.resolver)
