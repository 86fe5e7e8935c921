"""MariaDB's UUID, INET4 and INET6 as the server prints them. They come in the log as BINARY."""

from __future__ import annotations

import socket
import struct
import uuid


def uuid_text(value: bytes) -> str:
    """Return the text of a UUID of 16 bytes."""
    return str(uuid.UUID(bytes=value))


def inet4_text(value: bytes) -> str:
    """Return the text of an address of 4 bytes."""
    return socket.inet_ntop(socket.AF_INET, value)


def inet6_text(value: bytes) -> str:
    """Return the text of an address of 16 bytes.

    The first longest run of zero groups becomes ``::``, even a run of one.

    Source: ``Inet6::to_string`` in sql_type_inet.cc.
    """
    words = struct.unpack(">8H", value)
    gap, gap_size = -1, 0
    at = 0
    while at < 8:
        end = at
        while end < 8 and words[end] == 0:
            end += 1
        if end - at > gap_size:
            gap, gap_size = at, end - at
        at = max(end, at + 1)
    text = ""
    at = 0
    while at < 8:
        if at == gap:
            text += "::" if at == 0 else ":"
            at += gap_size
        elif at == 6 and gap == 0 and (gap_size == 6 or (gap_size == 5 and words[5] == 0xFFFF)):
            return text + inet4_text(value[12:])
        else:
            text += f"{words[at]:x}" + (":" if at < 7 else "")
            at += 1
    return text
