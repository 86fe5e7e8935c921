"""A statement that the event triggers of :mod:`sluice.sources.postgresql.ddl_trigger` noted."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sluice.errors import DecodeError
from sluice.model.tables import TableId
from sluice.sources.postgresql.catalog.table import CatalogTable, table_from_json

_VERSION = 1


@dataclass(frozen=True, slots=True)
class NotedStatement:
    """The effect of a statement on tables.

    Attributes:
        tag: its command tag, such as ALTER TABLE.
        tables: those that it made or changed, as they are after it. dropped: OID and name of those that are gone.
        indexes: schema and name of indexes that are gone, while their tables stay.
        filled: tables that got rows which are not in the log, with a partition.
        failed: why the trigger could not note it, "" if it could.
    """

    tag: str
    tables: tuple[CatalogTable, ...] = ()
    dropped: tuple[tuple[int, TableId], ...] = ()
    indexes: tuple[tuple[str, str], ...] = ()
    filled: tuple[TableId, ...] = ()
    failed: str = ""


def parse_noted(content: bytes) -> NotedStatement:
    """Parse a row of the table. Raises DecodeError for one that another version wrote, or nobody."""
    try:
        data = json.loads(content)
        if data["version"] != _VERSION:
            raise DecodeError(
                f"a noted statement has format {data['version']}, and this version reads {_VERSION}",
                hint="a newer Sluice made the event triggers: upgrade this one",
            )
        return NotedStatement(
            str(data["tag"]),
            tuple(map(table_from_json, data.get("tables", ()))),
            tuple((int(oid), TableId(schema, table)) for oid, schema, table in data.get("dropped", ())),
            tuple((str(schema), str(name)) for schema, name in data.get("indexes", ())),
            tuple(TableId(schema, table) for schema, table in data.get("filled", ())),
            str(data.get("failed", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DecodeError(f"a noted statement cannot be read: {error!r}", hint="report it with this line") from error


__all__ = ["NotedStatement", "parse_noted"]
