"""Identifiers as PostgreSQL reads them, always quoted and never cut, and texts."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.model import identifiers
from sluice.model.identifiers import quoted, quoted_table

LONGEST_BYTES = 63
"""NAMEDATALEN - 1: the server cuts longer names with no more than a notice, and two columns may become one."""


def too_long(names: Iterable[str]) -> str:
    """Return the first name that the server would cut, "" if there is none."""
    return identifiers.too_long(names, LONGEST_BYTES)


def text_literal(text: str) -> str:
    """Return an SQL string, for a session with standard_conforming_strings."""
    return "'" + text.replace("'", "''") + "'"


__all__ = ["LONGEST_BYTES", "quoted", "quoted_table", "text_literal", "too_long"]
