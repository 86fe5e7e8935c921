"""Checksums of key ranges that PostgreSQL and other kinds of servers compute alike.

The text of a row, and its hash, are those of :mod:`sluice.mysql.shared_digest`, which says what they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sluice.model.digests import SHARED_LONG_BYTES
from sluice.postgresql.names import quoted
from sluice.postgresql.range_digest import DigestColumn, checksum_sql, hash_sql, is_built_in, printed
from sluice.postgresql.type_names import pg_type

MASK = 2**64 - 1
"""The bits of a checksum, which a bigint has with a sign."""
_TIME = (
    "CASE WHEN isfinite({0}) THEN to_char({0}, 'YYYY-MM-DD HH24:MI:SS.US') || CASE WHEN {0} < '0001-01-01' THEN ' BC' "
    "ELSE '' END ELSE {0}::text END"
)
"""to_char gives NULL for an infinite time, and the year 44 for 44 BC."""
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
    parsed = pg_type(declared)
    if declared.endswith("[]") or parsed.label or not is_built_in(declared):
        return ("", "") if parsed.word in _NONE else ("text", "")
    if parsed.word == "numeric":
        precision, scale = (*parsed.numbers, 0, 0)[:2]
        exact = parsed.numbers and precision <= _DIGITS and 0 <= scale <= min(_SCALE, precision)
        return (f"decimal {scale}" if exact else "text"), _PLAIN
    return _WORDS.get(parsed.word, ("" if parsed.word in _NONE else "text", ""))


def shared_digest_sql(place: str, columns: Sequence[DigestColumn], condition: str, alias: str) -> str:
    """Return the select of (rows, checksum), of which :data:`MASK` has to be taken.

    ``place``: the table, as FROM has it, under the name ``alias``. The session is in UTC.
    """
    return checksum_sql(place, _data(columns, alias), condition)


def hashes_sql(place: str, columns: Sequence[DigestColumn], condition: str, alias: str) -> str:
    """Return the select of the hash of each row, see :func:`shared_digest_sql`."""
    return f"SELECT {hash_sql(_data(columns, alias))} FROM {place} WHERE {condition}"  # noqa: S608 - names are quoted


def _data(columns: Sequence[DigestColumn], alias: str) -> str:
    text = " || ',' || ".join(_piece(f"{alias}.{quoted(column.name)}", column.declared) for column in columns)
    return f"convert_to({text}, 'UTF8')"


def _piece(column: str, declared: str) -> str:
    form = _read(declared)[1]
    text = form.format(column) if form else printed(column, declared)
    data = f"convert_to({text}, 'UTF8')"
    short = f"CASE WHEN octet_length({data}) > {SHARED_LONG_BYTES} THEN encode(sha256({data}), 'hex') ELSE {text} END"
    return f"coalesce(octet_length({data}) || ':' || {short}, 'N')"
