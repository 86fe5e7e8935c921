"""Keys of messages: the key's columns as a document, as the programs that the formats are named after write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.errors import LoadError
from sluice.formats import debezium, maxwell
from sluice.formats.common import Column, json_text
from sluice.model.tables import TableId
from sluice.model.whole_rows import LOG_WHOLE_ROWS


def key_document(format_name: str, table: TableId, names: Sequence[str]) -> tuple[str, list[str], str]:
    """Return the text around a key's values: what begins it, what stands before each value, and what ends it."""
    opening, prefix = "{", ""
    if format_name == "maxwell-json":
        opening, prefix = "{" + f'"database":{json_text(table.schema)},"table":{json_text(table.table)},', "pk."
    before = [("," if number else "") + json_text(prefix + name) + ":" for number, name in enumerate(names)]
    return opening, before, "}"


def key_text(
    format_name: str, table: TableId, names: Sequence[str], row: Mapping[str, Any], columns: Mapping[str, Column]
) -> str:
    """Return the key of a row.

    Values are written as in the format's documents (canal-json: as in debezium-json, as canal has no keys). Raises
    LoadError if the log lacks one of them.
    """
    for name in names:
        if name not in row:
            raise LoadError(
                f"the log lacks {name} of a changed row of {table}, which its message's key or partition needs",
                where=f"{table}.{name}",
                hint=LOG_WHOLE_ROWS,
            )
    convert = maxwell.value_of if format_name == "maxwell-json" else debezium.value_of
    opening, before, closing = key_document(format_name, table, names)
    values = [json_text(None if row[name] is None else convert(row[name], columns[name])) for name in names]
    return opening + "".join(b + v for b, v in zip(before, values, strict=True)) + closing
