"""Compare rows with what a target holds: what a load would write is made, and compared with the documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from sluice.errors import LoadError
from sluice.model.fields import true_name
from sluice.model.planned import PlannedTable
from sluice.model.tables import one_chunk
from sluice.targets.elasticsearch.client import Client, connected
from sluice.targets.elasticsearch.column_types import key_value, same
from sluice.targets.elasticsearch.documents import TableDocuments, held_documents
from sluice.targets.elasticsearch.place import Place
from sluice.targets.elasticsearch.tables import held_indexes, require
from sluice.targets.messages.read_back import listed_keys
from sluice.targets.messages.row_texts import not_read_back
from sluice.targets.port import (
    SHOWN_CHARACTERS,
    ComparesRowsOnly,
    KeyRange,
    RangeDifferences,
    RowDifference,
    keys_where,
)


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
            made = TableDocuments(self.place, plan)
            rows = rows.combine_chunks()
            ids, routings = _lists(*made.places(rows)) if rows.num_rows else ([], None)
            found = self._compared(client, made, rows, ids, routings, values=values)
            if item is None or item.listed is None:
                return found
            return replace(found, extra=self._beyond(client, made, rows, item, set(ids)))

    def not_listed(self, plan: PlannedTable) -> str:
        """See :meth:`sluice.targets.port.KeyLister.not_listed`."""
        return not_read_back(plan, "documents")

    def keys(self, plan: PlannedTable) -> Iterator[pa.Table]:
        """See :meth:`sluice.targets.port.KeyLister.keys`."""
        with connected(self.place) as client:
            self._require(client, plan)
            for hits in client.scan(self.place.index_of(plan.target), columns=plan.key):
                yield self._key_table(plan, [one["_source"] for one in hits])

    def _key_table(self, plan: PlannedTable, rows: Sequence[dict[str, Any]]) -> pa.Table:
        try:
            arrays = [
                pa.array([key_value(c.value_type, row[c.name]) for row in rows], c.value_type.arrow_type)
                for c in plan.key_columns
            ]
        except (ValueError, KeyError, TypeError, ArithmeticError, pa.ArrowException) as error:
            raise LoadError(
                f"keys of {plan.target} cannot be read back: {error!r}",
                where=self.place.index_of(plan.target),
                hint="did another program write them?",
            ) from None
        return pa.table(arrays, names=list(plan.key))

    def _require(self, client: Client, plan: PlannedTable) -> None:
        require(self.place, held_indexes(client, [self.place.index_of(plan.target)]), plan)

    def _beyond(
        self, client: Client, made: TableDocuments, rows: pa.Table, item: KeyRange, sent: set[str]
    ) -> pa.Table | None:
        """Return the listed keys that only the target has."""
        listed = item.listed
        if listed is None or not listed.num_rows:
            return None
        keys = listed_keys(made.plan, listed, rows.schema)
        columns, fields = [one_chunk(one) for one in keys.columns], list(keys.schema)
        ids, routings = _lists(*made.places_of(columns, fields))
        there = held_documents(client, made.index, ids, routings)
        return keys_where(listed, [row is not None and key not in sent for key, row in zip(ids, there, strict=True)])

    def _compared(
        self,
        client: Client,
        made: TableDocuments,
        rows: pa.Table,
        ids: Sequence[str],
        routings: Sequence[str] | None,
        *,
        values: bool,
    ) -> RangeDifferences:
        mine = {name: one.to_pylist() for name, one in made.texts_of(rows).items()} if ids else {}
        types = {true_name(one): made.type_of(one) for one in made.sent(rows.schema)}
        missing, different = [], []
        for number, there in enumerate(held_documents(client, made.index, ids, routings)):
            if there is None:
                missing.append(number)
                continue
            texts = {name: column[number] for name, column in mine.items()}
            own = {name: None if text is None else json.loads(text) for name, text in texts.items()}
            odd = tuple(name for name, value in own.items() if not same(types[name], value, there.get(name)))
            if odd:
                shown = tuple((_shown(own[name]), _shown(there.get(name))) for name in odd) if values else ()
                different.append(RowDifference(number, odd, shown))
        return RangeDifferences(tuple(missing), tuple(different))


def _lists(ids: pa.Array, routings: pa.Array | None) -> tuple[list[str], list[str] | None]:
    return ids.to_pylist(), routings.to_pylist() if routings is not None else None


def _shown(value: Any) -> str | None:
    return None if value is None else str(value)[:SHOWN_CHARACTERS]


__all__ = ["ElasticsearchComparer"]
