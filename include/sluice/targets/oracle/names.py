"""The length of Oracle's identifiers."""

from __future__ import annotations

LONGEST_BYTES = 128
"""Bytes of a name since version 12.2."""

OLDER_BYTES = 30
"""Bytes of a name before that, and while COMPATIBLE says an older version."""
