"""Identifiers as PostgreSQL reads them: always quoted, and never cut."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.model.tables import TableId

LONGEST_BYTES = 63
"""NAMEDATALEN - 1: the server cuts longer names with no more than a notice, and two columns may become one."""


def quoted(name: str) -> str:
    """Return an identifier in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(table: TableId) -> str:
    """Return ``"schema"."table"``."""
    return f"{quoted(table.schema)}.{quoted(table.table)}"


def too_long(names: Iterable[str]) -> str:
    """Return the first name that the server would cut, "" if there is none."""
    return next((name for name in names if len(name.encode()) > LONGEST_BYTES), "")


__all__ = ["LONGEST_BYTES", "quoted", "quoted_table", "too_long"]
