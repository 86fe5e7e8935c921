"""Rows that a target holds, read back by their keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from sluice.errors import LoadError
from sluice.model.planned import PlannedTable
from sluice.targets.messages.row_texts import read_text
from sluice.targets.redis.client import Client, library, translated
from sluice.targets.redis.place import Place

_ROWS = 500
"""Rows that are asked for at a time."""
HeldRow = dict[str, bytes]
"""Column -> its text, in form: json as JSON; a column that is NULL is left out."""


def held_rows(
    client: Client, place: Place, keys: Sequence[bytes], names: Sequence[str], *, hidden: bool
) -> Iterator[HeldRow | None]:
    """Yield the row of each key, None if there is none. ``hidden``: errors do not name keys.

    Raises LoadError for a key of another type.
    """
    hashes = place.options.form == "hash"
    for first in range(0, len(keys), _ROWS):
        part = keys[first : first + _ROWS]
        commands = [["HMGET", key, *names] if hashes else ["GET", key] for key in part]
        for key, answer in zip(part, client.ask_all("reading rows", commands), strict=True):
            if isinstance(answer, library().RedisError):
                if "WRONGTYPE" not in str(answer):
                    raise translated(answer, place.endpoint, "reading rows")
                raise LoadError(
                    f"the key {shown_key(key, hidden=hidden)} holds no row in form: {place.options.form}: {answer}",
                    where=place.endpoint.address,
                    hint="another program wrote it, or options.form was another one; "
                    f"`sluice verify run {place.pipeline} --target {place.target} --repair` writes the row anew",
                )
            yield _hash_row(names, answer) if hashes else _string_row(place, key, answer, hidden=hidden)


def _hash_row(names: Sequence[str], answer: Sequence[bytes | None]) -> HeldRow | None:
    values = {name: value for name, value in zip(names, answer, strict=True) if value is not None}
    return values or None  # the key's columns are never NULL


def shown_key(key: bytes, *, hidden: bool) -> str:
    """Return a key as errors name it."""
    return "(masked)" if hidden else key.decode("utf-8", "replace")[:300]


def _string_row(place: Place, key: bytes, answer: bytes | None, *, hidden: bool) -> HeldRow | None:
    if answer is None:
        return None
    if place.options.form == "string":
        return {place.options.value_column: answer}
    try:
        row = json.loads(answer)
        return {name: json_value(value) for name, value in row.items() if value is not None}
    except (ValueError, AttributeError):
        raise LoadError(
            f"the key {shown_key(key, hidden=hidden)} holds no JSON object",
            where=place.endpoint.address,
            hint="did another program write it?",
        ) from None


def json_value(value: Any) -> bytes:
    """Return a value as JSON, as :func:`~sluice.targets.messages.row_texts.json_texts` writes it."""
    return json.dumps(value, ensure_ascii=False).encode()


def key_table(place: Place, plan: PlannedTable, keys: Sequence[bytes]) -> pa.Table:
    """Return the key's columns from the keys of rows, as the source's values are stored; keys of other things are left
    out. Raises LoadError.
    """
    head, tail = (affix.encode() for affix in place.row_affixes(plan.target))
    columns = plan.key_columns
    middles = (key[len(head) : len(key) - len(tail)].decode("utf-8", "surrogateescape").split(":") for key in keys)
    key_parts = [
        [part.replace("%3A", ":").replace("%25", "%") for part in parts]
        for parts in middles
        if len(parts) == len(columns)
    ]
    arrays = []
    for number, column in enumerate(columns):
        value_type = column.value_type
        try:
            arrays.append(
                pa.array([read_text(value_type, parts[number]) for parts in key_parts], value_type.arrow_type)
            )
        except (ValueError, ArithmeticError, pa.ArrowException) as error:
            raise LoadError(
                f"keys of {plan.target} cannot be read back: {error}",
                where=str(plan.target),
                hint="did another program write them?",
            ) from None
    return pa.table(arrays, names=list(plan.key))
