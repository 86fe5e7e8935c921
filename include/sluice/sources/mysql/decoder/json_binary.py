"""Single values of MySQL's binary JSON: as a tree, to which differences are applied, and its text; and what the kernel
leaves to Python.

Source: sql-common/json_binary.cc and json_dom.cc. Whole columns are printed by
:mod:`sluice.sources.mysql.decoder.json_text`.
"""

from __future__ import annotations

import base64
import struct
from typing import Any

from sluice.errors import DecodeError
from sluice.model.jsontext import double_text
from sluice.model.temporal import time_text

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = 0, 1, 2, 3, 4
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING, _OPAQUE = 5, 6, 7, 8, 9, 10, 11, 12, 15
_LITERALS = {0: "null", 1: "true", 2: "false"}
_NUMBERS = {_INT16: "<h", _UINT16: "<H", _INT32: "<i", _UINT32: "<I", _INT64: "<q", _UINT64: "<Q"}
_ESCAPES = {i: f"\\u{i:04x}" for i in range(0x20)} | {
    8: "\\b",
    9: "\\t",
    10: "\\n",
    12: "\\f",
    13: "\\r",
    34: '\\"',
    92: "\\\\",
}
_MAX_DEPTH = 110
Node = dict[bytes, Any] | list[Any] | str
"""An object by its keys (UTF-8), an array, or the text of a scalar."""


def tree(data: bytes) -> Node:
    """Parse a binary JSON value to nodes.

    An empty value (an old server's damaged row) is ``null``. Raises DecodeError.
    """
    if not data:
        return "null"
    try:
        return _value(data, data[0], 1, _Budget(len(data)), 0)
    except (struct.error, IndexError, UnicodeDecodeError, KeyError, ValueError) as error:
        raise DecodeError(f"a JSON value is broken: {error}") from error


def tree_text(node: Node) -> str:
    """Return the text of a node; keys in the server's order, shorter ones first."""
    if isinstance(node, str):
        return node
    if isinstance(node, list):
        return f"[{', '.join(map(tree_text, node))}]"
    keys = sorted(node, key=lambda key: (len(key), key))
    return "{" + ", ".join(f"{quote(key.decode())}: {tree_text(node[key])}" for key in keys) + "}"


def opaque_at(d: Any, at: int) -> str:
    """Return the text of the opaque value at ``at`` (its type, its length, its bytes) of a uint8 array.

    Raises DecodeError.
    """
    head = bytes(d[at : at + 6])
    size, behind = _varlen(head, 1)
    try:
        return _opaque(head[0], bytes(d[at + behind : at + behind + size]))
    except (struct.error, IndexError, ValueError) as error:
        raise DecodeError(f"a JSON value is broken: {error}") from error


class _Budget:
    """Bytes of a value that its parts may still take together; so shared or nested parts end."""

    def __init__(self, size: int) -> None:
        self.left = size

    def spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise DecodeError("the parts of a JSON value are longer than the value")


def _value(d: bytes, kind: int, at: int, budget: _Budget, depth: int) -> Node:
    if kind in _NUMBERS:
        return str(struct.unpack_from(_NUMBERS[kind], d, at)[0])
    if kind == _STRING:
        size, at = _varlen(d, at)
        budget.spend(size)
        return quote(_cut(d, at, size).decode("utf-8"))
    if kind == _LITERAL:
        return _LITERALS[d[at]]
    if kind == _DOUBLE:
        return double_text(struct.unpack_from("<d", d, at)[0])
    if kind == _OPAQUE:
        size, behind = _varlen(d, at + 1)
        budget.spend(size)
        return _opaque(d[at], _cut(d, behind, size))
    if kind > _LARGE_ARRAY:
        raise DecodeError(f"a JSON value has the unknown type {kind}")
    if depth > _MAX_DEPTH:
        raise DecodeError("a JSON value is nested too deeply")
    return _container(d, kind, at, budget, depth)


def _container(d: bytes, kind: int, base: int, budget: _Budget, depth: int) -> Node:
    large = kind in {_LARGE_OBJECT, _LARGE_ARRAY}
    is_object = kind in {_SMALL_OBJECT, _LARGE_OBJECT}
    width, fmt = (4, "<I") if large else (2, "<H")
    count, size = struct.unpack_from(fmt, d, base)[0], struct.unpack_from(fmt, d, base + width)[0]
    if base + size > len(d) or count * (1 + width) > size:
        raise DecodeError("a JSON container is longer than its value")
    budget.spend(count * (1 + width))
    at = base + 2 * width
    values = at + count * (width + 2) if is_object else at
    keys, items = [], []
    for i in range(count):
        if is_object:
            entry = at + i * (width + 2)
            key_at, key_size = struct.unpack_from(fmt, d, entry)[0], struct.unpack_from("<H", d, entry + width)[0]
            budget.spend(key_size)
            key = _cut(d, base + key_at, key_size)
            key.decode("utf-8")
            keys.append(key)
        entry = values + i * (1 + width)
        item = d[entry]
        inline = item in {_LITERAL, _INT16, _UINT16} or (large and item in {_INT32, _UINT32})
        where = entry + 1 if inline else base + struct.unpack_from(fmt, d, entry + 1)[0]
        if not inline and where <= base:
            raise DecodeError("a JSON value points to itself")
        items.append(_value(d, item, where, budget, depth + 1))
    return dict(zip(keys, items, strict=True)) if is_object else items


def _cut(d: bytes, at: int, size: int) -> bytes:
    if at + size > len(d):
        raise DecodeError("a JSON string is longer than its value")
    return d[at : at + size]


def _varlen(d: bytes, at: int) -> tuple[int, int]:
    size = 0
    for i in range(5):
        byte = d[at + i]
        size |= (byte & 0x7F) << (7 * i)
        if byte & 0x80 == 0:
            return size, at + i + 1
    raise DecodeError("a JSON length is broken")


def quote(text: str) -> str:
    """Return a JSON string as the server prints it."""
    return f'"{text.translate(_ESCAPES)}"'


def _opaque(field_type: int, value: bytes) -> str:
    if field_type == 246:
        return decimal_text(value)
    if field_type in {10, 12, 7, 11}:
        packed = struct.unpack("<q", value)[0]
        return f'"{_packed_time(field_type, packed)}"'
    return f'"base64:type{field_type}:{base64.b64encode(value).decode()}"'


def decimal_text(value: bytes) -> str:
    """Return the text of an opaque decimal: precision, scale, then the binary form."""
    precision, scale = value[0], value[1]
    return decimal_from_binary(value[2:], precision, scale)


def decimal_from_binary(data: bytes, precision: int, scale: int) -> str:
    """Return the text of a DECIMAL(precision, scale) in the server's binary form."""
    integer_digits = precision - scale
    raw = bytearray(data)
    negative = raw[0] & 0x80 == 0
    raw[0] ^= 0x80
    if negative:
        raw = bytearray(b ^ 0xFF for b in raw)
    sizes = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4]
    at, text = 0, ""
    for count in [integer_digits % 9, *[9] * (integer_digits // 9)]:
        if count:
            text += f"{int.from_bytes(raw[at : at + sizes[count]], 'big'):0{count}d}"
            at += sizes[count]
    text = text.lstrip("0") or "0"
    fraction = ""
    for count in [*[9] * (scale // 9), scale % 9]:
        if count:
            fraction += f"{int.from_bytes(raw[at : at + sizes[count]], 'big'):0{count}d}"
            at += sizes[count]
    text = f"{text}.{fraction}" if fraction else text
    return f"-{text}" if negative else text


def _packed_time(field_type: int, packed: int) -> str:
    if field_type == 11:
        negative, packed = packed < 0, abs(packed)
        clock, micros = packed >> 24, packed & 0xFFFFFF
        total = ((clock >> 12) & 0x3FF) * 3600 + ((clock >> 6) & 63) * 60 + (clock & 63)
        text = time_text(total * 1_000_000 + micros, 6)
        return f"-{text}" if negative else text
    clock, micros = packed >> 24, packed & 0xFFFFFF
    day_part, time_part = clock >> 17, clock & 0x1FFFF
    months = day_part >> 5
    date = f"{months // 13:04d}-{months % 13:02d}-{day_part & 31:02d}"
    if field_type == 10:
        return date
    return f"{date} {time_part >> 12:02d}:{(time_part >> 6) & 63:02d}:{time_part & 63:02d}.{micros:06d}"
