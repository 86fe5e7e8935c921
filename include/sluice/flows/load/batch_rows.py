"""The rows of a batch as a target reads them: from the files of its changeset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sluice.flows.dump.reconcile import read_range
from sluice.flows.load import changeset_rows
from sluice.flows.load.changeset_rows import Keys
from sluice.model.changes import Change
from sluice.segments.changeset import ChangesetFile, ChangesetReader, key_numbers, read_changeset_file
from sluice.segments.store import SegmentStore
from sluice.targets.port import ChangePiece, KeyRange, RowFile, RowGroup, Share, StoredRange


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Reads changeset files of a pipeline's store. See :class:`sluice.targets.port.RowReader`."""

    store_uri: str
    pipeline: str

    @property
    def _store(self) -> SegmentStore:
        return SegmentStore(self.store_uri, self.pipeline)

    def pieces(self, files: Sequence[RowFile]) -> Iterator[pa.Table]:
        """Yield CHANGESET_ROWS, row group by row group. Raises SegmentError."""
        for file in files:
            reader = ChangesetReader(self._store, _stored(file))
            for group in range(reader.groups):
                rows = reader.read(group)
                if rows.num_rows:
                    yield rows

    def groups(
        self,
        files: Sequence[RowFile],
        keys: Keys | None = None,
        *,
        lean: bool = False,
        in_order: bool = False,
        streamed: bool = False,
    ) -> list[RowGroup]:
        """Return CHANGESET_ROWS, one group for each set of columns. Raises SegmentError."""
        store, stored = self._store, list(map(_stored, files))
        if streamed:
            same: dict[frozenset[str], list[ChangesetReader]] = {}
            for reader in changeset_rows.readers_of(store, stored, lean=lean):
                same.setdefault(frozenset(reader.schema.names), []).append(reader)
            return [RowGroup(*changeset_rows.reading(alike, keys, in_order=in_order)) for alike in same.values()]
        tables: dict[frozenset[str], list[pa.Table]] = {}
        for file in sorted(stored, key=lambda file: not file.revived) if in_order else stored:
            table = read_changeset_file(store, file, keys, lean=lean)
            tables.setdefault(frozenset(table.schema.names), []).append(table)
        return [RowGroup(_together(alike, keys, in_order=in_order)) for alike in tables.values()]

    def changes(self, share: Share | None = None) -> Iterator[Change]:
        """See :mod:`sluice.flows.load.batch_changes`; merged rows have none."""
        return iter(())

    def change_pieces(self, share: Share | None = None) -> Sequence[ChangePiece]:
        """Return nothing: merged rows have no single changes."""
        return ()

    def is_large(self, size_bytes: int) -> bool:
        """See :func:`sluice.flows.load.changeset_rows.is_large`."""
        return changeset_rows.is_large(size_bytes)

    def memory_of(self, size_bytes: int, files: int) -> int:
        """See :func:`sluice.flows.load.changeset_rows.memory_of`."""
        return changeset_rows.memory_of(size_bytes, files)

    def key_range(self, stored: StoredRange) -> KeyRange:
        """Read a range with its keys, under their names at the target. Raises SegmentError."""
        return read_range(self._store, stored)


def _stored(file: RowFile) -> ChangesetFile:
    assert isinstance(file, ChangesetFile)
    return file


def _together(tables: list[pa.Table], keys: Keys | None, *, in_order: bool) -> pa.Table:
    if in_order:  # a retained row whose key changed only in spelling shares `_seq` with the new row
        rows = pa.concat_tables(tables, promote_options="permissive")
        return rows.take(pa.array(np.argsort(rows["_seq"].to_numpy(), kind="stable")))
    if len(tables) == 1:
        return tables[0]
    rows = pa.concat_tables(tables, promote_options="permissive")
    numbers = key_numbers(rows) if keys else None
    return rows if numbers is None else rows.take(pa.array(np.argsort(numbers, kind="stable")))
