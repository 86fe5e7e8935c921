"""Compare rows with what a target holds: what a load would write is made, and compared with the documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from sluice.model.fields import true_name
from sluice.model.planned import PlannedTable
from sluice.model.tables import one_chunk
from sluice.targets.documents.compare import differences, key_table
from sluice.targets.messages.read_back import listed_keys
from sluice.targets.messages.row_texts import not_read_back
from sluice.targets.mongodb.client import Client, connected
from sluice.targets.mongodb.column_types import key_value, same
from sluice.targets.mongodb.documents import NOT_DELETED, TableDocuments, held_documents, named
from sluice.targets.mongodb.place import Place
from sluice.targets.mongodb.tables import definitions, require
from sluice.targets.port import ComparesRowsOnly, KeyRange, RangeDifferences, keys_where

_KEYS = 1_000
"""Keys that are told at a time."""


@dataclass(frozen=True)
class MongoComparer(ComparesRowsOnly):
    """See :class:`sluice.targets.port.Comparer` and :class:`sluice.targets.port.KeyLister`.

    It has no ranges and no checksums.
    """

    place: Place

    def compare(
        self, plan: PlannedTable, rows: pa.Table, item: KeyRange | None, *, values: bool = False
    ) -> RangeDifferences:
        """See :meth:`sluice.targets.port.Comparer.compare`. Raises MappingError."""
        with connected(self.place) as client:
            self._require(client, plan)
            table_documents, rows = TableDocuments(self.place, plan), rows.combine_chunks()
            ids = table_documents.ids(rows) if rows.num_rows else []
            differing = self._compared(client, table_documents, rows, ids, values=values) if ids else RangeDifferences()
            if item is None or item.listed is None or not item.listed.num_rows:
                return differing
            keys = listed_keys(plan, item.listed, rows.schema)
            listed_ids = table_documents.ids_of([one_chunk(column) for column in keys.columns], list(keys.schema))
            sent, stored_documents = set(map(named, ids)), held_documents(client, table_documents.at, listed_ids, ())
            only = [
                document is not None and named(key) not in sent
                for key, document in zip(listed_ids, stored_documents, strict=True)
            ]
            return replace(differing, extra=keys_where(item.listed, only))

    def not_listed(self, plan: PlannedTable) -> str:
        """See :meth:`sluice.targets.port.KeyLister.not_listed`."""
        return not_read_back(plan, "documents")

    def keys(self, plan: PlannedTable) -> Iterator[pa.Table]:
        """See :meth:`sluice.targets.port.KeyLister.keys`."""
        at, part = self.place.namespace(plan.target), list[dict[str, Any]]()
        with connected(self.place) as client:
            self._require(client, plan)
            for document in client.find("reading keys", at, NOT_DELETED, plan.key):
                part.append(document)
                if len(part) == _KEYS:
                    yield key_table(plan, part, key_value, str(at))
                    part = []
        if part:
            yield key_table(plan, part, key_value, str(at))

    def _require(self, client: Client, plan: PlannedTable) -> None:
        require(self.place, definitions(client, self.place, [self.place.namespace(plan.target)]), plan)

    def _compared(
        self, client: Client, table_documents: TableDocuments, rows: pa.Table, ids: list[Any], *, values: bool
    ) -> RangeDifferences:
        expected_columns = table_documents.values_of(rows)
        types = {true_name(field): table_documents.type_of(field) for field in table_documents.sent(rows.schema)}
        own = (dict(zip(expected_columns, row, strict=True)) for row in zip(*expected_columns.values(), strict=True))
        stored_documents = held_documents(client, table_documents.at, ids)
        return differences(
            own, stored_documents, lambda name, value, stored: same(types[name], value, stored), values=values
        )


__all__ = ["MongoComparer"]
