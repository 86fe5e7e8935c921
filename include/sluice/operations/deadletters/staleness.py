"""Decide whether rows of an old batch are out of date, by what the log did to them up to the last batch that a target
holds.

A row is overtaken if a later batch that the target holds has its key, at the source (segments) or at the target
(changesets), or if its table was truncated since. Keys are compared as the server does: byte by byte first; for those
that differ the source is asked, by its collation. If the stored batches do not tell, it cannot be known:
:class:`Undecidable`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.coordination.state import PipelineState
from sluice.errors import SluiceError
from sluice.flows.runtime import Runtime
from sluice.flows.stored import manifest_of
from sluice.mapping import Mapping as Routes
from sluice.model.fields import key_columns
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.tables import META_COLUMNS, TableId, member
from sluice.segments.changeset import read_changeset, read_changeset_file
from sluice.segments.manifest import SegmentManifest
from sluice.segments.reader import read_file

_EMPTIED = {ChangeKind.TRUNCATE_TABLE, ChangeKind.DROP_TABLE, ChangeKind.DROP_DATABASE}
_UNCLEAR = {ChangeKind.RENAME_TABLE, ChangeKind.ROWS_REMOVED, ChangeKind.ROWS_REPLACED, ChangeKind.UNKNOWN}

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Key = tuple[Any, ...]


class Undecidable(Exception):
    """The stored batches do not tell whether a row is out of date. The message says why, and what to do."""


def _unproven(why: str) -> Undecidable:
    return Undecidable(f"{why}; `sluice dump` reads it anew from the source, then `sluice dead-letters discard`")


@dataclass
class LaterBatches:
    """The batches up to the last one that ``target`` holds."""

    runtime: Runtime
    state: PipelineState
    target: str
    held: int

    def overtaken(
        self, rows: pa.Table, table: TableId, batch: int, own: SegmentManifest | None, *, at_target: bool
    ) -> pa.Array:
        """Return a mask of the ``rows`` of ``batch`` that are out of date.

        Args:
            rows: merged rows.
            table: the source table, or the target table with ``at_target``.
            own: manifest of ``batch``; None: as stored.
        """
        own = own or self._manifest(batch)
        later = [self._manifest(number) for number in range(batch + 1, self.held + 1)]
        later = [manifest for manifest in later if not manifest.targets or self.target in manifest.targets]
        mask = self._emptied(rows, table, own, later, at_target=at_target)
        key = key_columns(rows.schema)
        if not key:
            return pa.array(mask | self._removed(rows, table, later, at_target=at_target))
        whole_keys, parts = self._keys(key, table, later, at_target=at_target)
        mask |= self._among(rows, key, whole_keys)
        if (self._among(rows, key, parts) & ~mask).any():
            raise _unproven(
                "a later batch has only some columns of this row, and it cannot be known which of the others still hold"
            )
        self._refuse_replaced(table, later, any_undecided=bool((~mask).any()), at_target=at_target)
        return pa.array(mask)

    def _manifest(self, batch: int) -> SegmentManifest:
        store = self.runtime.store
        manifest = manifest_of(self.runtime.state, store, batch) if batch in self._stored else None
        if manifest is None:
            raise _unproven(
                f"batch {batch} is no longer stored, so it cannot be known whether this row was changed since"
            )
        return manifest

    @cached_property
    def _stored(self) -> set[int]:
        return set(self.runtime.store.batches())

    @cached_property
    def _routes(self) -> Routes:
        return Routes.of(self.runtime.pipeline)

    def _is(self, source: TableId, table: TableId, *, at_target: bool) -> bool:
        """Return True if the table ``source`` is ``table`` or is loaded into it; a name without a table stands for its
        whole schema.
        """
        if not at_target:
            return source == table or (not source.table and source.schema == table.schema)
        if source.table:
            return self._routes.route(source).target == table
        return self._routes.route(TableId(source.schema, table.table)).target.schema == table.schema

    def _emptied(
        self, rows: pa.Table, table: TableId, own: SegmentManifest, later: Sequence[SegmentManifest], *, at_target: bool
    ) -> Mask:
        """Return a mask of the rows after which their table was truncated or dropped."""
        mask: Mask = np.zeros(rows.num_rows, np.bool_)
        unclear = mask.copy()
        seq = rows["_seq"].to_numpy().astype(np.int64)
        for manifest in (own, *later):
            for record in manifest.ddl:
                for change in map(TableChange.from_json, record.changes):
                    if not self._is(change.table, table, at_target=at_target):
                        continue
                    behind = np.ones(len(seq), np.bool_) if manifest is not own else seq < record.seq
                    mask |= behind & bool(_EMPTIED.intersection(change.kinds))
                    unclear |= behind & bool(_UNCLEAR.intersection(change.kinds))
        if (unclear & ~mask).any():
            raise _unproven("a statement of a later batch renamed the table, or changed its rows without naming them")
        return mask

    def _removed(self, rows: pa.Table, table: TableId, later: Sequence[SegmentManifest], *, at_target: bool) -> Mask:
        """Return an empty mask for a table without a key; raises Unproven if a later batch deleted a row with the same
        values.

        It cannot be known which of several equal rows was deleted.
        """
        images = _images(rows)
        for removed in self._removals(table, later, at_target=at_target):
            if set(images) & set(_images(removed, rows.schema)):
                raise _unproven("the table has no key, and a later batch removed a row with the same values")
        self._refuse_replaced(table, later, any_undecided=True, at_target=at_target)
        return np.zeros(rows.num_rows, np.bool_)

    def _removals(self, table: TableId, later: Sequence[SegmentManifest], *, at_target: bool) -> Iterator[pa.Table]:
        if at_target:
            for rows in self._loaded(table, later):
                yield rows.filter(pc.equal(rows["_op"], "d"))
            return
        for manifest in later:
            for file in manifest.files:
                if file.table_id == table:
                    rows = read_file(self.runtime.store, file)
                    yield rows.filter(pc.is_in(rows["_op"], value_set=pa.array(["d", "k"])))
                    before = rows.filter(pc.equal(rows["_op"], "u"))["_before"].combine_chunks()
                    yield pa.table(
                        [before.field(i) for i in range(before.type.num_fields)], schema=pa.schema(list(before.type))
                    )

    def _keys(
        self, key: Sequence[str], table: TableId, later: Sequence[SegmentManifest], *, at_target: bool
    ) -> tuple[set[Key], set[Key]]:
        """Return the keys that later batches changed: (those whose rows came whole or were deleted, those of which only
        some columns came).
        """
        whole_keys: set[Key] = set()
        parts: set[Key] = set()
        for rows in self._loaded(table, later) if at_target else self._changed(key, table, later):
            some = np.zeros(rows.num_rows, np.bool_)
            if "_present" in rows.schema.names:
                is_removed = pc.is_in(rows["_op"], value_set=pa.array(["d", "k"]))
                some = pc.and_(pc.is_valid(rows["_present"]), pc.invert(is_removed)).to_numpy(zero_copy_only=False)
            whole_keys |= set(_values(rows.filter(pa.array(~some)), key))
            parts |= set(_values(rows.filter(pa.array(some)), key))
        return whole_keys, parts - whole_keys

    def _changed(self, key: Sequence[str], table: TableId, later: Sequence[SegmentManifest]) -> Iterator[pa.Table]:
        """Yield the rows of the segments, with the old keys of rows whose key changed if those have no rows of their
        own.
        """
        for manifest in later:
            for file in manifest.files:
                if file.table_id != table:
                    continue
                rows = read_file(self.runtime.store, file)
                yield rows
                if not file.primary_key:  # the mapping names the key: an abandoned key has no row
                    before = rows["_before"].combine_chunks()
                    before = before.filter(pc.is_valid(before))
                    yield pa.table({name: member(before, name) for name in key})

    def _loaded(self, table: TableId, later: Sequence[SegmentManifest]) -> Iterator[pa.Table]:
        """Yield the rows that the changesets have for a target table."""
        store = self.runtime.store
        for manifest in later:
            record = self.state.batches.get(manifest.batch)
            stored = (p for p, _ in store.files(manifest.batch) if "/changeset-" in p and p.endswith("/manifest.json"))
            for path in [record.changeset] if record and record.changeset else sorted(stored):
                for entry in read_changeset(store, path).manifest.tables:
                    if entry.target == table:
                        yield from (read_changeset_file(store, file) for file in entry.files)

    def _refuse_replaced(
        self, table: TableId, later: Sequence[SegmentManifest], *, any_undecided: bool, at_target: bool
    ) -> None:
        for manifest in later if any_undecided else ():
            for record in manifest.replaces:
                if self._is(record.table_id, table, at_target=at_target):
                    raise _unproven(
                        f"dump {record.dump} has made the table equal to the source's since, and did not copy this row"
                    )

    def _among(self, rows: pa.Table, key: Sequence[str], later: set[Key]) -> Mask:
        """Return a mask of the rows whose key is in ``later``, compared as the source compares keys."""
        own_values = list(_values(rows, key))
        mask = np.array([value in later for value in own_values], np.bool_)
        texts = [i for i, name in enumerate(key) if pa.types.is_string(rows.schema.field(name).type)]
        if not texts or not later or mask.all():
            return mask
        fields = [rows.schema.field(name) for name in key]
        alike: dict[Key, list[Key]] = {}
        for later_key in later:
            alike.setdefault(tuple(v for i, v in enumerate(later_key) if i not in texts), []).append(later_key)
        open_ = [
            (n, value, alike.get(tuple(v for i, v in enumerate(value) if i not in texts), []))
            for n, value in enumerate(own_values)
        ]
        questions = [(n, own_key, candidates) for n, own_key, candidates in open_ if candidates and not mask[n]]
        for number, answer in self._ask(fields, questions):
            mask[number] |= answer
        return mask

    def _ask(
        self, fields: Sequence[pa.Field], questions: Sequence[tuple[int, Key, Sequence[Key]]]
    ) -> Iterator[tuple[int, bool]]:
        if not questions:
            return
        try:
            with self.runtime.source.open() as source:
                yield from source.same_keys(fields, questions)
        except SluiceError as error:
            raise _unproven(
                f"the source could not be asked whether two keys are one to it ({error.message})"
            ) from error


def _values(rows: pa.Table, key: Sequence[str]) -> Iterator[Key]:
    columns = []
    for name in key:
        values = rows[name]
        if pa.types.is_temporal(values.type):  # values may exceed the range of Python's types
            values = values.cast(pa.int64() if values.type.bit_width == 64 else pa.int32())
        columns.append(values.to_pylist())
    return zip(*columns, strict=True)


def _images(rows: pa.Table, like: pa.Schema | None = None) -> list[str]:
    """Return one text per row with all values of the columns that both sides have."""
    names = [n for n in (like or rows.schema).names if n not in META_COLUMNS and n in rows.schema.names]
    return list(map(repr, _values(rows, names)))
