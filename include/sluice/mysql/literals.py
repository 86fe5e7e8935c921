"""Literals of SQL that MySQL and MariaDB read alike."""

from __future__ import annotations


def text_literal(text: str) -> str:
    """Return an SQL string, for a session without NO_BACKSLASH_ESCAPES."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
