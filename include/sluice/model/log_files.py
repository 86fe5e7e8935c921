"""The log and the number in the name of a log file, and the order of places in it.

Format 1 of a stored offset names a place by a file and a number, whatever kind of source wrote it. This module is the
only one that takes these names apart; flows and stored parts ask an :class:`~sluice.model.offset.Offset`.
"""

from __future__ import annotations

import re

from sluice.errors import ConfigError

_FILE = re.compile(r"^(?P<base>.*)\.(?P<number>\d+)$")


def split_file(file: str) -> tuple[str, int]:
    """Split ``binlog.000042`` into ``("binlog", 42)``; 1000000 follows 999999, so names never compare as strings."""
    match = _FILE.match(file)
    if match is None:
        raise ConfigError(f"{file!r} is not the name of a log file (base.number)")
    return match["base"], int(match["number"])


def place_order(place: str) -> tuple[int, int]:
    """Return (file number, offset) of ``file:offset``, comparable within a log epoch. Raises ConfigError."""
    file, _, offset = place.rpartition(":")
    return split_file(file)[1], int(offset)
