"""Checksums of key ranges that PostgreSQL and other kinds of servers compute alike.

The text of a row, and its hash, are those of :mod:`sluice.mysql.shared_digest`, which says what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sluice.postgresql.names import quoted
from sluice.postgresql.range_digest import DigestColumn, is_built_in
from sluice.postgresql.type_names import pg_type

KIND = "shared"
"""The first word of a list of words."""
MASK = 2**64 - 1
"""The bits of a checksum, which a bigint has with a sign."""
LONG_BYTES = 1_000
_TIME = "to_char({}, 'YYYY-MM-DD HH24:MI:SS.US')"
_DIGITS = 65
_SCALE = 30
_PLAIN = "{}::text"
_WORDS: Mapping[str, tuple[str, str]] = {
    "boolean": ("decimal 0", "{}::int::text"),
    **dict.fromkeys(("smallint", "integer", "bigint", "oid", "xid", "xid8"), ("decimal 0", _PLAIN)),
    **dict.fromkeys(("text", "character varying", "character", "uuid", "inet", "cidr", "macaddr"), ("text", "")),
    "date": ("date", _PLAIN),
    "timestamp without time zone": ("datetime", _TIME),
    "timestamp with time zone": ("datetime", _TIME),
    "bytea": ("bytes", "encode({}, 'hex')"),
}
"""By type: the word, and the text of a value; "" for what the type's own output function prints."""
_NONE = frozenset({
    "real", "double precision", "json", "jsonb", "time without time zone", "bit", "money",
})  # fmt: skip
"""The types that other kinds of servers print otherwise."""


def shared_word(declared: str) -> str:
    """See :func:`sluice.mysql.shared_digest.shared_word`."""
    return _read(declared)[0]


def _read(declared: str) -> tuple[str, str]:
    made = pg_type(declared)
    if declared.endswith("[]") or made.label or not is_built_in(declared):
        return ("", "") if made.word in _NONE else ("text", "")
    if made.word == "numeric":
        precision, scale = (*made.numbers, 0, 0)[:2]
        exact = made.numbers and precision <= _DIGITS and 0 <= scale <= min(_SCALE, precision)
        return (f"decimal {scale}" if exact else "text"), _PLAIN
    return _WORDS.get(made.word, ("" if made.word in _NONE else "text", ""))


def shared_digest_sql(place: str, columns: Sequence[DigestColumn], condition: str, alias: str) -> str:
    """Return the select of (rows, checksum), of which :data:`MASK` has to be taken.

    ``place``: the table, as FROM has it, under the name ``alias``. The session is in UTC.
    """
    text = " || ',' || ".join(_piece(f"{alias}.{quoted(one.name)}", one.declared) for one in columns)
    digest = f"sha256(convert_to({text}, 'UTF8'))"
    checksum = f"bit_xor(('x' || encode(substr({digest}, 1, 8), 'hex'))::bit(64)::bigint)"
    return f"SELECT count(*), coalesce({checksum}, 0) FROM {place} WHERE {condition}"  # noqa: S608 - quoted


def _piece(column: str, declared: str) -> str:
    text = _printed(declared)(column)
    data = f"convert_to({text}, 'UTF8')"
    short = f"CASE WHEN octet_length({data}) > {LONG_BYTES} THEN encode(sha256({data}), 'hex') ELSE {text} END"
    return f"coalesce(octet_length({data}) || ':' || {short}, 'N')"


def _printed(declared: str) -> Callable[[str], str]:
    form = _read(declared)[1]
    if form:
        return form.format
    if is_built_in(declared) and pg_type(declared).word in {"text", "character varying", "character", "uuid"}:
        return _PLAIN.format
    return "CASE WHEN {0} IS DISTINCT FROM NULL THEN format('%s', {0}) END".format


__all__ = ["KIND", "MASK", "shared_digest_sql", "shared_word"]
