"""The schemas of a server that a pipeline captures: what is asked about tables is asked about theirs only, as a server
may have thousands of others.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.mysql.client import MySQLConnection
from sluice.sources.mysql.server.connection import rows_of
from sluice.sources.table_filter import Selection


def captured_schemas(connection: MySQLConnection, selection: Selection) -> list[str]:
    """Return the schemas that may have captured tables, by name.

    They also hold the tables on their way to a captured name, such as those of gh-ost.
    """
    found = rows_of(connection, "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA")
    return sorted(str(name) for (name,) in found if selection.wants_schema(str(name)))


def in_schemas(schemas: Sequence[str]) -> str:
    """Return the condition that a table is of one of ``schemas``, which follow as parameters."""
    return f"TABLE_SCHEMA IN ({', '.join(['%s'] * len(schemas))})" if schemas else "FALSE"


__all__ = ["captured_schemas", "in_schemas"]
