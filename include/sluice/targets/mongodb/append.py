"""Write each change as a document: in a collection for each table, which the server makes with the first one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sluice.errors import LoadError
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.fields import is_masked
from sluice.model.planned import PlannedTable
from sluice.targets.documents.changes import BEFORE, CHANGE, about, before, ids_of
from sluice.targets.documents.records import Record
from sluice.targets.mongodb.bulk import BulkSender
from sluice.targets.mongodb.client import Client
from sluice.targets.mongodb.column_types import Form, Unstorable, document_values
from sluice.targets.mongodb.documents import Refused, TableDocuments, encoded_write
from sluice.targets.mongodb.tables import require_fields
from sluice.targets.port import ChangePiece, Fence, WriteResult

_AT = ColumnType(ColumnKind.TIMESTAMP, digits=3)


def append(client: Client, record: Record, fence: Fence, plan: PlannedTable, piece: ChangePiece) -> WriteResult:
    """Write the changes of a piece. Raises LoadError, MappingError, Fenced."""
    place, documents, version = client.place, TableDocuments(client.place, plan), record.version(fence.batch)
    require_fields(place, plan)
    hidden = any(map(is_masked, piece.rows.schema))
    writes = []
    for key, document in zip(
        ids_of(place.owner, fence.batch, piece).to_pylist(), _documents(documents, fence, piece), strict=True
    ):
        encoded = encoded_write(place, key, document, version)
        if isinstance(encoded, Refused):
            raise _refused(plan, encoded.why)
        writes.append(encoded)
    sender = BulkSender(client, fence, documents.at, version, hidden=hidden)
    for _, why in sender.send(writes).values():
        raise _refused(plan, why)
    return WriteResult(statements=sender.requests, retries=sender.retries)


def _documents(documents_of: TableDocuments, fence: Fence, piece: ChangePiece) -> list[dict[str, Any]]:
    was, existed = before(piece)
    known_values = {name: _values(name, values) for name, values in about(fence.batch, piece).items()}
    columns = documents_of.values_of(piece.rows), known_values, documents_of.values_of(was)
    rows, changes, old = (
        [dict(zip(column, row, strict=True)) for row in zip(*column.values(), strict=True)] for column in columns
    )
    documents = []
    for number, exists in enumerate(existed.to_pylist()):
        odd = next((value for value in old[number].values() if type(value) is Unstorable), None) if exists else None
        if odd is not None:
            raise LoadError(f"the row before a change of {documents_of.plan.target} cannot be stored: {odd.why}")
        documents.append({**rows[number], CHANGE: changes[number], BEFORE: old[number] if exists else None})
    return documents


def _values(name: str, values: pa.Array) -> list[Any]:
    return document_values(values, _AT, Form.DATE) if name == "at" else list(values.to_pylist())


def _refused(plan: PlannedTable, why: str) -> LoadError:
    return LoadError(
        f"a change of {plan.target} is refused: {why}",
        where=str(plan.target),
        hint="store its column in another way (options.types), or leave it out: mapping.columns.exclude",
    )


__all__ = ["append"]
