"""Identifiers in standard SQL: in double quotes, and never cut."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.model.tables import TableId


def quoted(name: str) -> str:
    """Return an identifier in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(table: TableId) -> str:
    """Return ``"schema"."table"``."""
    return f"{quoted(table.schema)}.{quoted(table.table)}"


def too_long(names: Iterable[str], longest_bytes: int) -> str:
    """Return the first name that has more bytes than the server takes, "" if there is none."""
    return next((name for name in names if len(name.encode()) > longest_bytes), "")
