"""Convert names of tables to names of folders."""

from __future__ import annotations

import re

RESERVED = "_sluice"
"""The folder of the checkpoints."""
_ODD = re.compile(r"[^A-Za-z0-9_.\-]")


def legal(name: str) -> str:
    """Return a name for a path: odd characters are written as ~XX, so that two tables never share one."""
    escaped = _ODD.sub(lambda m: "".join(f"~{byte:02X}" for byte in m[0].encode()), name)
    return f"~{ord(escaped[0]):02X}{escaped[1:]}" if escaped in {".", "..", RESERVED} else escaped
