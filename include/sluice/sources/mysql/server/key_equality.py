"""Equality of keys at the server: texts are compared by their column's collation, as only the server can."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from sluice.model.fields import declared_type
from sluice.sources.mysql.server.connection import rows_of

_ASKED_AT_ONCE = 500


def same_keys(
    connection: Any,
    fields: Sequence[pa.Field],
    questions: Sequence[tuple[int, tuple[Any, ...], Sequence[tuple[Any, ...]]]],
) -> Iterator[tuple[int, bool]]:
    """Yield (number, is_same) for each (number, key, others): whether ``key`` equals one of ``others`` in its texts."""
    texts = [i for i, field in enumerate(fields) if pa.types.is_string(field.type)]
    for number, key, others in questions:
        own_key = "(" + ", ".join(_literal(fields[i], key[i]) for i in texts) + ")"
        for start in range(0, len(others), _ASKED_AT_ONCE):
            some = others[start : start + _ASKED_AT_ONCE]
            keys = ", ".join("(" + ", ".join(_literal(fields[i], k[i]) for i in texts) + ")" for k in some)
            answer = rows_of(connection, f"SELECT {own_key} IN ({keys})")
            yield number, bool(answer and answer[0][0])


def _literal(field: pa.Field, value: str) -> str:
    """Return a text as the source compares it.

    If the column's collation is not known (a rule made it), that is byte by byte.
    """
    metadata = {k.decode(): v.decode() for k, v in (field.metadata or {}).items()}
    collation, text = metadata.get("sluice.collation", ""), value.encode("utf-8").hex()
    if not collation or declared_type(field).startswith(("enum", "set")):
        return f"x'{text}'"
    charset = metadata.get("sluice.charset") or collation.partition("_")[0]
    return f"CONVERT(_utf8mb4 x'{text}' USING {charset}) COLLATE {collation}"
