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
            documents, rows = TableDocuments(self.place, plan), rows.combine_chunks()
            ids = documents.ids(rows) if rows.num_rows else []
            differences = self._compared(client, documents, rows, ids, values=values) if ids else RangeDifferences()
            if item is None or item.listed is None or not item.listed.num_rows:
                return differences
            keys = listed_keys(plan, item.listed, rows.schema)
            requested_ids = documents.ids_of([one_chunk(column) for column in keys.columns], list(keys.schema))
            sent, there = set(map(named, ids)), held_documents(client, documents.at, requested_ids, ())
            only = [one is not None and named(key) not in sent for key, one in zip(requested_ids, there, strict=True)]
            return replace(differences, extra=keys_where(item.listed, only))

    def not_listed(self, plan: PlannedTable) -> str:
        """See :meth:`sluice.targets.port.KeyLister.not_listed`."""
        return not_read_back(plan, "documents")

    def keys(self, plan: PlannedTable) -> Iterator[pa.Table]:
        """See :meth:`sluice.targets.port.KeyLister.keys`."""
        at, part = self.place.namespace(plan.target), list[dict[str, Any]]()
        with connected(self.place) as client:
            self._require(client, plan)
            for one in client.find("reading keys", at, NOT_DELETED, plan.key):
                part.append(one)
                if len(part) == _KEYS:
                    yield key_table(plan, part, key_value, str(at))
                    part = []
        if part:
            yield key_table(plan, part, key_value, str(at))

    def _require(self, client: Client, plan: PlannedTable) -> None:
        require(self.place, definitions(client, self.place, [self.place.namespace(plan.target)]), plan)

    def _compared(
        self, client: Client, documents: TableDocuments, rows: pa.Table, ids: list[Any], *, values: bool
    ) -> RangeDifferences:
        own_values = documents.values_of(rows)
        types = {true_name(one): documents.type_of(one) for one in documents.sent(rows.schema)}
        own = (dict(zip(own_values, row, strict=True)) for row in zip(*own_values.values(), strict=True))
        held = held_documents(client, documents.at, ids)
        return differences(own, held, lambda name, value, there: same(types[name], value, there), values=values)


__all__ = ["MongoComparer"]
