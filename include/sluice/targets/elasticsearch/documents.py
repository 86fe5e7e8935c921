"""Rows of a table as documents: their ids, their routing and their JSON, made column by column."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.formats.columns import image
from sluice.model.batches import Op
from sluice.model.fields import is_masked, true_name
from sluice.model.planned import PlannedTable
from sluice.model.tables import one_chunk
from sluice.targets.documents.refusals import key_changed, row_missing
from sluice.targets.elasticsearch.client import Client
from sluice.targets.elasticsearch.column_types import document_texts
from sluice.targets.elasticsearch.place import Place, path_of
from sluice.targets.messages.keyed_rows import KeyedRows
from sluice.targets.messages.row_texts import key_texts

ID_BYTES = 512
"""Bytes of a document's id at most."""
_HELD = 500
"""Documents that are asked for at a time."""


class TableDocuments(KeyedRows):
    """Makes the documents of a table."""

    def __init__(self, place: Place, plan: PlannedTable) -> None:
        super().__init__(plan)
        self.place, self.index, self._column = place, place.index_of(plan.target), place.routing_of(plan.target)

    def routings(self, columns: Sequence[pa.Array], fields: Sequence[pa.Field]) -> pa.Array | None:
        """Return the routing of rows, from the key's columns in key order; None if the table has none."""
        if not self._column:
            return None
        number = self.plan.key.index(self._column)
        return key_texts(columns[number], self.type_of(fields[number]))

    def places(self, rows: pa.Table) -> tuple[pa.Array, pa.Array | None]:
        """Return ids and routing of rows."""
        fields = self.key_fields(rows.schema)
        return self.places_of([one_chunk(rows[field.name]) for field in fields], fields)

    def places_of(self, columns: Sequence[pa.Array], fields: Sequence[pa.Field]) -> tuple[pa.Array, pa.Array | None]:
        """Return ids and routing of rows, from the key's columns in key order."""
        return self.keys(columns, fields), self.routings(columns, fields)

    def texts_of(self, rows: pa.Table) -> dict[str, pa.Array]:
        """Return the JSON texts of what is sent, by true name."""
        return {
            true_name(schema_field): document_texts(one_chunk(rows[schema_field.name]), self.type_of(schema_field))
            for schema_field in self.sent(rows.schema)
        }

    def documents(self, client: Client, rows: pa.Table, *, copied: bool) -> pa.Array:
        """Return rows as JSON. Columns that the log lacks are the target's.

        ``copied``: a dump fills the table, so that rows may be missing.
        """
        values = self.texts_of(rows)
        lacks = self.lacking(rows)
        if lacks.any():
            self._complete(client, rows, values, lacks, copied=copied)
        return image({name: pc.fill_null(value, "null") for name, value in values.items()})

    def _complete(
        self, client: Client, rows: pa.Table, values: dict[str, pa.Array], lacks: np.ndarray[Any, Any], *, copied: bool
    ) -> None:
        ids, routings = self.places(rows)
        hidden = any(map(is_masked, rows.schema))
        keys = self.keys_of(rows)
        if (keys.moved & lacks).any():
            raise key_changed(self.plan)
        known_masks, ops = self.known(rows), rows["_op"].to_pylist()
        stored = {true_name(schema_field): schema_field.name for schema_field in self.sent(rows.schema)}
        texts = {name: value.to_pylist() for name, value in values.items()}
        places = np.flatnonzero(lacks).tolist()
        mask = pa.array(lacks)
        incomplete = ids.filter(mask).to_pylist(), routings.filter(mask).to_pylist() if routings is not None else None
        for place, document in zip(places, held_documents(client, self.index, *incomplete), strict=True):
            if document is None and ops[place] == Op.UPDATE and not copied:
                raise row_missing(self.plan, ids[place], hidden=hidden)
            for name, column in texts.items():
                if not known_masks[stored[name]][place]:
                    column[place] = json.dumps((document or {}).get(name), ensure_ascii=False)
        for name, column in texts.items():
            values[name] = pa.array(column, values[name].type)


def held_documents(
    client: Client, index: str, ids: Sequence[str], routings: Sequence[str] | None
) -> Iterator[dict[str, Any] | None]:
    """Yield the document of each id as it is now, None if there is none."""
    for first in range(0, len(ids), _HELD):
        docs = [{"_id": document_id} for document_id in ids[first : first + _HELD]]
        if routings is not None:
            docs = [{**doc, "routing": by} for doc, by in zip(docs, routings[first : first + _HELD], strict=True)]
        document = client.ask("reading rows", "POST", path_of(index, "_mget"), {"docs": docs}).document
        for answer in document["docs"]:
            if "error" in answer:
                raise LoadError(f"reading rows: {answer['error'].get('reason')}", where=index)
            yield answer["_source"] if answer.get("found") else None


__all__ = ["ID_BYTES", "TableDocuments", "held_documents"]
