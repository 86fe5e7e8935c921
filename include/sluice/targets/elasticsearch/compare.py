"""Compare rows with what a target holds: what a load would write is made, and compared with the documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from sluice.model.fields import true_name
from sluice.model.planned import PlannedTable
from sluice.model.tables import one_chunk
from sluice.targets.documents.compare import differences, key_table, same_value
from sluice.targets.elasticsearch.client import Client, connected
from sluice.targets.elasticsearch.column_types import key_value
from sluice.targets.elasticsearch.documents import TableDocuments, held_documents
from sluice.targets.elasticsearch.place import Place
from sluice.targets.elasticsearch.tables import held_indexes, require
from sluice.targets.messages.read_back import listed_keys
from sluice.targets.messages.row_texts import not_read_back
from sluice.targets.port import ComparesRowsOnly, KeyRange, RangeDifferences, keys_where


@dataclass(frozen=True)
class ElasticsearchComparer(ComparesRowsOnly):
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
            documents = TableDocuments(self.place, plan)
            rows = rows.combine_chunks()
            ids, routings = _lists(*documents.places(rows)) if rows.num_rows else ([], None)
            differences = self._compared(client, documents, rows, ids, routings, values=values)
            if item is None or item.listed is None:
                return differences
            return replace(differences, extra=self._beyond(client, documents, rows, item, set(ids)))

    def not_listed(self, plan: PlannedTable) -> str:
        """See :meth:`sluice.targets.port.KeyLister.not_listed`."""
        return not_read_back(plan, "documents")

    def keys(self, plan: PlannedTable) -> Iterator[pa.Table]:
        """See :meth:`sluice.targets.port.KeyLister.keys`."""
        with connected(self.place) as client:
            self._require(client, plan)
            for hits in client.scan(self.place.index_of(plan.target), columns=plan.key):
                yield key_table(plan, [hit["_source"] for hit in hits], key_value, self.place.index_of(plan.target))

    def _require(self, client: Client, plan: PlannedTable) -> None:
        require(self.place, held_indexes(client, [self.place.index_of(plan.target)]), plan)

    def _beyond(
        self, client: Client, documents: TableDocuments, rows: pa.Table, item: KeyRange, sent: set[str]
    ) -> pa.Table | None:
        """Return the listed keys that only the target has."""
        listed = item.listed
        if listed is None or not listed.num_rows:
            return None
        keys = listed_keys(documents.plan, listed, rows.schema)
        columns, fields = [one_chunk(column) for column in keys.columns], list(keys.schema)
        ids, routings = _lists(*documents.places_of(columns, fields))
        stored = held_documents(client, documents.index, ids, routings)
        return keys_where(listed, [row is not None and key not in sent for key, row in zip(ids, stored, strict=True)])

    def _compared(
        self,
        client: Client,
        documents: TableDocuments,
        rows: pa.Table,
        ids: Sequence[str],
        routings: Sequence[str] | None,
        *,
        values: bool,
    ) -> RangeDifferences:
        if not ids:
            return RangeDifferences()
        own_texts = {name: column_texts.to_pylist() for name, column_texts in documents.texts_of(rows).items()}
        types = {true_name(field): documents.type_of(field) for field in documents.sent(rows.schema)}
        columns = zip(*own_texts.values(), strict=True)
        own = (dict(zip(own_texts, map(_parsed, texts), strict=True)) for texts in columns)
        current = held_documents(client, documents.index, ids, routings)
        return differences(
            own, current, lambda name, value, stored: same_value(types[name], value, stored), values=values
        )


def _parsed(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _lists(ids: pa.Array, routings: pa.Array | None) -> tuple[list[str], list[str] | None]:
    return ids.to_pylist(), routings.to_pylist() if routings is not None else None


__all__ = ["ElasticsearchComparer"]
