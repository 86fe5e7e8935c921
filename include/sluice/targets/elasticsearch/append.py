"""Write each change as a document: in an index for each table, or one for each of its days, which is made when its
first change comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError, MappingError
from sluice.formats.columns import image, quoted
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.fields import is_masked, true_name
from sluice.model.planned import PlannedTable
from sluice.model.tables import one_chunk
from sluice.model.temporal import is_special
from sluice.targets.documents.changes import BEFORE, CHANGE, about, before, ids_of
from sluice.targets.documents.definitions import definition_of, require_own_table
from sluice.targets.documents.records import Record
from sluice.targets.elasticsearch.bulk import BulkSender, index_lines
from sluice.targets.elasticsearch.checkpoint import let_in
from sluice.targets.elasticsearch.client import Client
from sluice.targets.elasticsearch.column_types import document_texts
from sluice.targets.elasticsearch.documents import ID_BYTES, TableDocuments
from sluice.targets.elasticsearch.place import path_of
from sluice.targets.elasticsearch.tables import fields_of, held_indexes, index_body, make_room
from sluice.targets.port import ChangePiece, Fence, WriteResult

_BAD_REQUEST = 400
_TEXT = pa.large_string()
_KEYWORD: Mapping[str, Any] = {"type": "keyword"}
_LONG: Mapping[str, Any] = {"type": "long"}
FIELDS: Mapping[str, Any] = {
    CHANGE: {
        "properties": {
            "op": _KEYWORD, "at": {"type": "date"}, "batch": _LONG, "seq": _LONG, "row": _LONG, "part": _LONG,
            "position": _KEYWORD, "gtid": _KEYWORD, "origin": _LONG,
        }
    },
    BEFORE: {"type": "object", "enabled": False},
}  # fmt: skip
"""The mappings of Sluice's fields. The row before a change is kept, and not searchable."""
_AT = ColumnType(ColumnKind.TIMESTAMP, digits=6)


def append(client: Client, record: Record, fence: Fence, plan: PlannedTable, piece: ChangePiece) -> WriteResult:
    """Write the changes of a piece. Raises LoadError, MappingError, Fenced."""
    place, documents_of = client.place, TableDocuments(client.place, plan)
    ids, documents = ids_of(place.owner, fence.batch, piece), _documents(documents_of, fence.batch, piece)
    _require_sizes(client, plan, ids, documents)
    total = WriteResult()
    for index, numbers in _indexes(client, plan, piece):
        _ensure(client, plan, index)
        let_in(client, place, fence, [index])
        hidden = any(map(is_masked, piece.rows.schema))
        sender = BulkSender(client, fence, index, place.aliases(record.term, index), hidden=hidden)
        lines = index_lines(ids.take(numbers), None, documents.take(numbers), record.version(fence.batch))
        for status, why in sender.send(lines).values():
            raise LoadError(
                f"a change of {plan.target} is refused: the server answers {status}{f': {why}' if why else ''}",
                where=index,
                hint="the field's mapping does not take the value: give the field another one (options.mappings) and "
                "the changes another index (options.index)",
            )
        total += WriteResult(statements=sender.requests, retries=sender.retries)
    return total


def _documents(documents: TableDocuments, batch: int, piece: ChangePiece) -> pa.Array:
    """Return the changes of a piece as JSON."""
    was, existed = before(piece)
    old = image({name: pc.fill_null(texts, "null") for name, texts in documents.texts_of(was).items()})
    old = pc.if_else(existed, old.cast(_TEXT), pa.scalar("null", _TEXT))
    known_image = image({name: pc.fill_null(_text(name, array), "null") for name, array in about(batch, piece).items()})
    own = {name: pc.fill_null(texts, "null") for name, texts in documents.texts_of(piece.rows).items()}
    return image({**own, CHANGE: known_image, BEFORE: old})


def _text(name: str, values: pa.Array) -> pa.Array:
    if name == "at":
        return document_texts(values, _AT)
    return quoted(values) if pa.types.is_large_string(values.type) else pc.cast(values, _TEXT)


def _indexes(client: Client, plan: PlannedTable, piece: ChangePiece) -> Iterator[tuple[str, pa.Array]]:
    """Yield the indexes of a piece with the numbers of their changes."""
    place, rows = client.place, piece.rows
    if not place.options.dated:
        yield place.index_of(plan.target), pa.array(np.arange(rows.num_rows))
        return
    days = _days(client, plan, rows)
    names = {day: place.index_of(plan.target, day) for day in pc.unique(days).to_pylist()}
    coded = np.array([names[day] for day in days.to_pylist()])
    for index in dict.fromkeys(names.values()):
        yield index, pa.array(np.flatnonzero(coded == index))


def _days(client: Client, plan: PlannedTable, rows: pa.Table) -> pa.Array:
    """Return the day of each change: of the column that the options name, else of the commit."""
    place = client.place
    days = pc.cast(pc.cast(one_chunk(rows["_commit_ts"]), pa.timestamp("us")), pa.date32(), safe=False)
    wanted_name = place.options.date_columns.get(str(plan.target))
    if wanted_name is not None:
        own = next((schema_field for schema_field in rows.schema if true_name(schema_field) == wanted_name), None)
        if own is None or not (pa.types.is_date32(own.type) or pa.types.is_timestamp(own.type)):
            raise MappingError(
                f"options.date_columns names {wanted_name!r}, which is no DATE, DATETIME or TIMESTAMP of {plan.target}",
                where=f"{plan.target}.{wanted_name}",
                hint="name another column, or leave the table out: the day is then that of the commit",
            )
        days = pc.coalesce(_plain_days(one_chunk(rows[own.name])), days)
    return days


def _plain_days(values: pa.Array) -> pa.Array:
    """Return dates, null for those that no calendar has."""
    plain = pc.if_else(pa.array(is_special(values)), pa.scalar(None, values.type), values)
    return (
        plain
        if pa.types.is_date32(values.type)
        else pc.cast(pc.cast(plain, pa.timestamp("us")), pa.date32(), safe=False)
    )


def _require_sizes(client: Client, plan: PlannedTable, ids: pa.Array, documents: pa.Array) -> None:
    limit = client.place.options.max_document_bytes
    sizes = pc.binary_length(documents.cast(_TEXT)).to_numpy(zero_copy_only=False)
    for number in np.flatnonzero(sizes > limit).tolist():
        raise LoadError(
            f"a change of {plan.target} is a document of {sizes[number]:,} bytes, larger than "
            f"options.max_document_bytes, {limit:,}",
            where=str(plan.target),
            hint="raise it, or leave the column out: mapping.columns.exclude",
        )
    if len(ids) and pc.max(pc.binary_length(ids)).as_py() > ID_BYTES:
        raise LoadError(
            f"the ids of changes of {plan.target} have more than {ID_BYTES} bytes",
            where=str(plan.target),
            hint="give the pipeline or the target a shorter name",
        )


def _ensure(client: Client, plan: PlannedTable, index: str) -> None:
    """Make the index of a table's changes, or give it the fields that it lacks. Raises MappingError."""
    place, definition = client.place, definition_of(plan)
    fields = {**fields_of(place, plan, definition.columns), **FIELDS}
    held_index = held_indexes(client, [index]).get(index)
    if held_index is None:
        body = index_body(place, definition, fields)
        reply = client.acknowledged(f"making index {index}", "PUT", path_of(index), body, allow={_BAD_REQUEST})
        if reply.status != _BAD_REQUEST:
            return
        held_index = held_indexes(client, [index]).get(index)  # another process was faster, or the name is no index's
        if held_index is None:
            error = reply.document["error"].get("reason")
            raise LoadError(f"making index {index}: {error}", where=index, hint="give it another name: options.index")
    if held_index.definition is None or CHANGE not in held_index.fields:
        raise MappingError(
            f"index {index} has other documents than the changes of {plan.target}",
            where=index,
            hint="give the changes an index of their own: options.index",
        )
    hint = "give each table an index of its own: {schema} and {table} in options.index"
    require_own_table(held_index.definition, plan, f"index {index}", hint)
    new = {name: field for name, field in fields.items() if name not in held_index.fields}
    if new:
        body = {"properties": new}
        make_room(client, index, body["properties"])
        client.acknowledged(f"changing the mapping of index {index}", "PUT", path_of(index, "_mapping"), body)


__all__ = ["FIELDS", "append"]
