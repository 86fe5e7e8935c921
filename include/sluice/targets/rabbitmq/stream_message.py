"""A message of a stream in the encoding of AMQP 1.0, which clients of streams and of AMQP 0.9.1 read: message id,
headers and the document.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

_PROPERTIES, _APPLICATION_PROPERTIES, _DATA = b"\x00\x53\x73", b"\x00\x53\x74", b"\x00\x53\x75"
_NULL = b"\x40"


def encoded(message_id: str, content_type: str, headers: Mapping[str, str], value: bytes) -> bytes:
    """Return the bytes of a message: the sections properties, application-properties and data."""
    # message-id, user-id, to, subject, reply-to, correlation-id, content-type
    fields = _text(message_id) + _NULL * 5 + _symbol(content_type)
    named = b"".join(_text(name) + _text(said) for name, said in headers.items())
    return b"".join((
        _PROPERTIES, _compound(b"\xd0", 7, fields), _APPLICATION_PROPERTIES,
        _compound(b"\xd1", 2 * len(headers), named), _DATA,
        b"\xb0", struct.pack(">I", len(value)), value,
    ))  # fmt: skip


def _compound(code: bytes, count: int, content: bytes) -> bytes:
    """Return a list or map whose size counts the bytes after itself."""
    return code + struct.pack(">II", len(content) + 4, count) + content


def _text(text: str) -> bytes:
    data = text.encode()
    return b"\xa1" + bytes([len(data)]) + data if len(data) < 256 else b"\xb1" + struct.pack(">I", len(data)) + data


def _symbol(text: str) -> bytes:
    data = text.encode("ascii")
    return b"\xa3" + bytes([len(data)]) + data


__all__ = ["encoded"]
