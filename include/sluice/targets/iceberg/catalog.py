"""The library's SQL catalog, which reads each metadata file once, and its transaction of a table, without its copies.

Decision: a commit loads its table three times (to check whether it holds the batch, for the fence, by the library
before it writes), and each time the file that the catalog's row names is read. Such a file never changes: a commit
writes another one. So the row is read each time, and the file only if it is another than before.

Decision: inside a transaction the library computes the table's metadata anew, with a deep copy, at each access: twenty
times per commit, and the longer the more snapshots a table has. Nothing changes in a copy once it is made, so one is
enough for each step of a transaction. A version of the library that caches it would make this needless.

Imports the library: only functions of this package import it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import AddSortOrderUpdate, AssertDefaultSortOrderId, SetDefaultSortOrderUpdate

from sluice.targets.iceberg.snapshot import ReplacedFiles, replacing

_MOST_BYTES = 16 * 2**20
"""Bytes of files whose content is cached in a process; in memory it takes a few times as much."""


class KeptCatalog(SqlCatalog):  # type: ignore[misc]
    """The SQL catalog."""

    def __init__(self, name: str, **properties: str) -> None:
        self._kept: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        super().__init__(name, **properties)

    def _convert_orm_to_iceberg(self, orm_table: Any) -> Table:
        """Convert a row of the catalog as the library does, except that the file's content is cached."""
        location = orm_table.metadata_location
        if not location or not orm_table.table_namespace or not orm_table.table_name:
            return super()._convert_orm_to_iceberg(orm_table)
        metadata = self._metadata(location)
        identifier = (*Catalog.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
        return Table(identifier, metadata, location, self._load_file_io(metadata.properties, location), self)

    def _metadata(self, location: str) -> Any:
        with self._lock:
            if location in self._kept:
                self._kept.move_to_end(location)
                return self._kept[location][0]
        file = load_file_io(properties=self.properties, location=location).new_input(location)
        metadata, size = FromInputFile.table_metadata(file), len(file)
        with self._lock:
            if location not in self._kept:
                self._kept[location] = (metadata, size)
                self._bytes += size
            while self._bytes > _MOST_BYTES and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1][1]
        return metadata


class KeptTransaction(Transaction):  # type: ignore[misc]
    """The transaction of a table."""

    _kept: tuple[Any, Any, TableMetadata] | None = None
    """The base metadata and updates, and the resulting metadata."""

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata as the library computes it, cached."""
        base, updates, kept = self._table.metadata, self._updates, self._kept
        if kept is None or kept[0] is not base or kept[1] is not updates:
            self._kept = kept = (base, updates, super().table_metadata)
        return kept[2]

    def unsort(self) -> None:
        """Remove the table's sort order. The library's ``update_sort_order`` fails unless it had none before."""
        there, none = self.table_metadata, UNSORTED_SORT_ORDER
        new = () if there.sort_order_by_id(none.order_id) is not None else (AddSortOrderUpdate(sort_order=none),)
        held = AssertDefaultSortOrderId(default_sort_order_id=there.default_sort_order_id)
        self._apply((*new, SetDefaultSortOrderUpdate(sort_order_id=none.order_id)), (held,))

    def replacing(self, said: Mapping[str, str]) -> ReplacedFiles:
        """Open a snapshot of this transaction with these words, to which files are added and from which they are
        removed. A context.
        """
        return replacing(self, dict(said))
