"""Partial JSON updates (``binlog_row_value_options=PARTIAL_JSON``): the after image holds differences, applied here to
the before image.

Source: ``Json_diff_vector::read_binary`` and ``apply_json_diffs`` in MySQL's sql-common/json_diff.cc.
"""

from __future__ import annotations

import json
from typing import Any

from sluice.errors import DecodeError
from sluice.sources.mysql.decoder.json_binary import Node, tree, tree_text

_REPLACE, _INSERT, _REMOVE = 0, 1, 2

Leg = bytes | int


def patched_text(before: bytes, diffs: bytes) -> str:
    """Apply ``diffs`` to the binary value ``before``, and return the text that the server prints.

    Raises DecodeError.
    """
    node = tree(before)
    at = 0
    try:
        while at < len(diffs):
            operation = diffs[at]
            size, at = _packed(diffs, at + 1)
            path = parse_path(_cut(diffs, at, size).decode("utf-8"))
            at += size
            value: Node = ""
            if operation in {_REPLACE, _INSERT}:
                size, at = _packed(diffs, at)
                value = tree(_cut(diffs, at, size))
                at += size
            elif operation != _REMOVE:
                raise DecodeError(f"a JSON difference has the unknown operation {operation}")
            node = _apply(node, operation, path, value)
    except (IndexError, ValueError) as error:
        raise DecodeError(f"a JSON difference is broken: {error}") from error
    return tree_text(node)


def parse_path(path: str) -> list[Leg]:
    """Parse ``$.a[3]."b c"`` to keys (UTF-8) and indexes. Raises ValueError."""
    if not path.startswith("$"):
        raise ValueError(f"{path!r} is not a path")
    legs: list[Leg] = []
    decoder = json.JSONDecoder(strict=False)
    at = 1
    while at < len(path):
        if path[at] == "[":
            end = path.index("]", at)
            legs.append(int(path[at + 1 : end]))
            at = end + 1
        elif path[at] != ".":
            raise ValueError(f"{path!r} is not a path")
        elif path[at + 1 : at + 2] == '"':
            key, at = decoder.raw_decode(path, at + 1)
            legs.append(str(key).encode())
        else:
            end = at + 1
            while end < len(path) and path[end] not in ".[":
                end += 1
            legs.append(path[at + 1 : end].encode())
            at = end
    return legs


def _apply(root: Node, operation: int, path: list[Leg], value: Node) -> Node:
    if not path:
        if operation != _REPLACE:
            raise DecodeError("a JSON difference inserts or removes the whole value")
        return value
    parent = root
    for leg in path[:-1]:
        parent = _child(parent, leg)
    last = path[-1]
    if operation == _INSERT:
        if isinstance(parent, dict) and isinstance(last, bytes) and last not in parent:
            parent[last] = value
        elif isinstance(parent, list) and isinstance(last, int):
            parent.insert(last, value)
        else:
            raise DecodeError("a JSON difference inserts where it can't")
        return root
    _child(parent, last)
    holder: Any = parent
    if operation == _REPLACE:
        holder[last] = value
    else:
        del holder[last]
    return root


def _child(node: Node, leg: Leg) -> Any:
    if isinstance(node, dict) and isinstance(leg, bytes) and leg in node:
        return node[leg]
    if isinstance(node, list) and isinstance(leg, int) and 0 <= leg < len(node):
        return node[leg]
    raise DecodeError("a JSON difference does not fit the before image")


def _cut(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise DecodeError("a JSON difference ends too early")
    return data[at : at + size]


def _packed(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    if first < 251:
        return first, at + 1
    count = {252: 2, 253: 3, 254: 8}.get(first)
    if count is None or at + 1 + count > len(data):
        raise DecodeError("a JSON difference has an invalid length")
    return int.from_bytes(data[at + 1 : at + 1 + count], "little"), at + 1 + count
