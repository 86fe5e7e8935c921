"""The rights that a login needs at PostgreSQL, and which of them it lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sluice.model.findings import Finding
from sluice.model.rights import Purpose, Right, Scope, lacking
from sluice.model.tables import TableId
from sluice.postgresql.connection import Connection
from sluice.postgresql.names import quoted, quoted_table

OWNER = "OWNER"
"""Stands for the ownership of tables, which no GRANT gives."""

SOURCE = (
    Right(("REPLICATION",), Scope.SERVER, Purpose.CAPTURE, "the log, and the slot"),
    Right(("USAGE",), Scope.CAPTURED, Purpose.DUMP, "copies of rows, `sluice verify`", required=False),
    Right(("SELECT",), Scope.CAPTURED_TABLES, Purpose.DUMP, "copies of rows, `sluice verify`", required=False),
    Right(("pg_read_all_stats",), Scope.SERVER, Purpose.CAPTURE, "[complete batches](complete.md)", required=False),
)
"""The rights of a source's login."""

PUBLISHER = (
    Right((OWNER,), Scope.CAPTURED_TABLES, Purpose.CAPTURE, "the publication"),
    Right(("CREATE",), Scope.DATABASE, Purpose.CAPTURE, "the publication"),
)
"""The rights of the role that makes the publication: the source's login, or another."""

TARGET = (
    Right(("USAGE",), Scope.TABLES, Purpose.ROWS, "rows and comparisons"),
    Right(("SELECT", "INSERT", "UPDATE", "DELETE"), Scope.TARGET_TABLES, Purpose.ROWS, "rows and comparisons"),
    Right(("TEMPORARY",), Scope.DATABASE, Purpose.ROWS, "rows and comparisons"),
    Right(("CREATE",), Scope.TABLES, Purpose.DDL, "`sluice check --apply`, and the source's DDL", required=False),
    Right((OWNER,), Scope.TARGET_TABLES, Purpose.DDL, "the source's DDL", required=False),
    Right(("USAGE",), Scope.CHECKPOINTS, Purpose.CHECKPOINT, "the checkpoint"),
    Right(("CREATE",), Scope.CHECKPOINTS, Purpose.CHECKPOINT, "making the checkpoint's table", required=False),
    Right(("SELECT", "INSERT", "UPDATE", "DELETE"), Scope.CHECKPOINT_TABLE, Purpose.CHECKPOINT, "the checkpoint"),
)
"""The rights of a target's login."""

_TABLES = """SELECT n.nspname::text, c.relname::text, p.name
FROM unnest(%s::text[], %s::text[]) AS w(place, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = w.place
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
CROSS JOIN unnest(%s::text[]) AS p(name)
WHERE NOT CASE p.name WHEN 'OWNER' THEN pg_has_role(c.relowner, 'USAGE') ELSE has_table_privilege(c.oid, p.name) END
ORDER BY 1, 2"""
_SCHEMAS = """SELECT n.nspname::text, p.name FROM pg_catalog.pg_namespace n CROSS JOIN unnest(%s::text[]) AS p(name)
WHERE n.nspname = ANY(%s) AND NOT has_schema_privilege(n.oid, p.name) ORDER BY 1"""
_MISSING_SCHEMAS = "SELECT name FROM unnest(%s::text[]) AS w(name) WHERE to_regnamespace(quote_ident(name)) IS NULL"
_DATABASE = """SELECT current_database()::text, p.name FROM unnest(%s::text[]) AS p(name)
WHERE NOT has_database_privilege(current_database(), p.name)"""

Place = str | TableId
"""A schema, or a table."""


def missing_rights(
    connection: Connection, rights: Iterable[Right], places: Mapping[Scope, Sequence[Place]]
) -> list[Finding]:
    """Return findings, each with the statement that grants them, about ``rights`` that the login lacks on ``places``.

    A schema that is missing takes CREATE on the database.
    """
    [(user, database)] = connection.execute("SELECT current_user::text, current_database()::text").fetchall()
    findings = []
    for right in rights:
        on, words = list(places.get(right.scope, ())), list(right.privileges)
        tables = [place for place in on if isinstance(place, TableId)]
        schemas = [place for place in on if not isinstance(place, TableId)]
        lacked: dict[str, list[str]] = {}
        if right.scope is Scope.DATABASE:
            lacked[f"DATABASE {quoted(database)}"] = _asked(connection, _DATABASE, (words,))
        if schemas:
            for schema, word in connection.execute(_SCHEMAS, (words, schemas)).fetchall():
                lacked.setdefault(f"SCHEMA {quoted(schema)}", []).append(word)
            if connection.execute(_MISSING_SCHEMAS, (schemas,)).fetchall():
                lacked[f"DATABASE {quoted(database)}"] = _asked(connection, _DATABASE, (["CREATE"],))
        if tables:
            arguments = [entry.schema for entry in tables], [entry.table for entry in tables], words
            for schema, table, word in connection.execute(_TABLES, arguments).fetchall():
                lacked.setdefault(f"TABLE {quoted_table(TableId(schema, table))}", []).append(word)
        findings += [
            lacking(user, place, [(right, names)], grant(names, place, user))
            for place, names in lacked.items()
            if names
        ]
    return list({entry.fix: entry for entry in findings}.values())


def _asked(connection: Connection, sql: str, parameters: tuple[Any, ...]) -> list[str]:
    return [str(row[-1]) for row in connection.execute(sql, parameters).fetchall()]


def grant(privileges: Sequence[str], place: str, user: str) -> str:
    """Return the statement that gives a role privileges on ``place``: DATABASE, SCHEMA or TABLE and a quoted name."""
    if OWNER in privileges:
        return f"ALTER {place} OWNER TO {quoted(user)}"
    return f"GRANT {', '.join(privileges)} ON {place} TO {quoted(user)}"
