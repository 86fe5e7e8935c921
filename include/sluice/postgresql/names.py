"""Identifiers as PostgreSQL reads them: always quoted, and never cut."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.model import identifiers
from sluice.model.identifiers import quoted, quoted_table

LONGEST_BYTES = 63
"""NAMEDATALEN - 1: the server cuts longer names with no more than a notice, and two columns may become one."""


def too_long(names: Iterable[str]) -> str:
    """Return the first name that the server would cut, "" if there is none."""
    return identifiers.too_long(names, LONGEST_BYTES)


__all__ = ["LONGEST_BYTES", "quoted", "quoted_table", "too_long"]
