"""The names of PostgreSQL's types, as ``format_type`` prints them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

OIDS: Mapping[str, int] = {
    "boolean": 16, "bytea": 17, "bigint": 20, "smallint": 21, "integer": 23, "text": 25, "json": 114, "real": 700,
    "double precision": 701,
    "inet": 869, "date": 1082, "time without time zone": 1083, "timestamp without time zone": 1114,
    "timestamp with time zone": 1184,
    "interval": 1186, "bit varying": 1562, "numeric": 1700, "uuid": 2950, "jsonb": 3802,
}  # fmt: skip
"""The types in which values are sent, and their numbers in pg_type."""

_SENT_AS: Mapping[str, str] = {
    "character varying": "text",
    "character": "text",
    "bit": "bit varying",
    "geometry": "bytea",
}
_ALIASES: Mapping[str, str] = {
    "decimal": "numeric", "int": "integer", "int2": "smallint", "int4": "integer", "int8": "bigint", "bool": "boolean",
    "float4": "real",
    "float8": "double precision", "varchar": "character varying", "char": "character", "varbit": "bit varying",
    "timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone",
    "time": "time without time zone",
}  # fmt: skip
"""The names of types that people write; ``format_type`` prints none of them."""
_TYPE = re.compile(r"(?P<word>.*?)(?:\((?P<numbers>-?\d+(?:,-?\d+)?)\))?(?P<zone> with(?:out)? time zone)?")

SPATIAL = re.compile(r"""(?:"[^"]*"\.|\w+\.)?geometry(?:\((?P<shape>.*)\))?""")
"""PostGIS's type, of which ``format_type`` prints the schema if the search path does not have it."""


@dataclass(frozen=True, slots=True)
class PgType:
    """A type as ``format_type`` prints it: ``word`` without the numbers in its brackets, ``numbers``, and the whole of
    it.

    ``label``: its values are sent as text, and the server casts them: it is an enumerated type of the user's, or one
    that the source, another PostgreSQL server, has too.
    """

    word: str
    numbers: tuple[int, ...]
    declared: str
    label: bool = False

    @property
    def sent(self) -> str:
        """The type in which its values are sent."""
        return "text" if self.label else _SENT_AS.get(self.word, self.word)


LABEL = "enum "
"""The prefix of a column's type that is an enumerated one, see :attr:`sluice.targets.sql.tables.TargetTable.types`."""


@lru_cache(4096)
def pg_type(declared: str) -> PgType:
    """Read what ``format_type`` prints."""
    if declared.startswith(LABEL):
        own = declared.removeprefix(LABEL)
        return PgType(own, (), own, label=True)
    if SPATIAL.fullmatch(declared):
        return PgType("geometry", (), declared)
    match = _TYPE.fullmatch(declared)
    assert match is not None
    numbers = tuple(int(part) for part in (match["numbers"] or "").split(",") if part)
    word = match["word"] + (match["zone"] or "")
    return PgType(_ALIASES.get(word.lower(), word), numbers, declared)
