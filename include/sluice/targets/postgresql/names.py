"""The length of PostgreSQL's identifiers."""

from __future__ import annotations

LONGEST_BYTES = 63
"""NAMEDATALEN - 1: the server cuts longer names with no more than a notice, and two columns may become one."""
