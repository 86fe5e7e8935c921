"""Statements that create or set what a target lacks: Spark's SQL, which people can run, too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.errors import LoadError
from sluice.targets.lake.types import LakeColumn, Shape

_SQL: Mapping[str, str] = {
    "byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE",
    "string": "STRING",
    "binary": "BINARY", "boolean": "BOOLEAN", "date": "DATE", "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ",
}  # fmt: skip
_DELTA = {sql: kind for kind, sql in _SQL.items()}
_WORDS = re.compile(r"`(?:[^`]|``)*`|'[^']*'|[A-Za-z_]+(?:\(\d+, ?\d+\))?|[(),.:<>]|\S")


def quoted(name: str) -> str:
    """Quote a name as Spark reads it."""
    return "`" + name.replace("`", "``") + "`"


def type_text(kind: Shape) -> str:
    """Return a type in Spark's words."""
    if isinstance(kind, str):
        return _SQL.get(kind, kind.upper().replace(" ", ""))
    return f"STRUCT<{', '.join(f'{quoted(part.name)}: {type_text(part.kind)}' for part in kind)}>"


def create_text(place: str, columns: Sequence[LakeColumn], partitions: Sequence[str], using: str) -> str:
    """Return a CREATE TABLE. ``place``: the table in Spark's words; ``using``: the format."""
    listed = ", ".join(f"{quoted(column.name)} {type_text(column.kind)}" for column in columns)
    by = f" PARTITIONED BY ({', '.join(map(quoted, partitions))})" if partitions else ""
    return f"CREATE TABLE {place} ({listed}) USING {using}{by}"


def add_text(place: str, columns: Sequence[LakeColumn]) -> str:
    """Return an ALTER TABLE … ADD COLUMNS. Parts of an existing struct are added to it."""
    listed = ", ".join(f"{quoted(column.name)} {type_text(column.kind)}" for column in columns)
    return f"ALTER TABLE {place} ADD COLUMNS ({listed})"


def set_text(place: str, name: str, value: str) -> str:
    """Return an ALTER TABLE … SET TBLPROPERTIES."""
    return f"ALTER TABLE {place} SET TBLPROPERTIES ('{name}'='{value}')"


@dataclass(frozen=True, slots=True)
class Statement:
    """A parsed statement of this module. ``create``: it makes a table; ``names``: the parts of the table's name."""

    create: bool
    names: tuple[str, ...]
    columns: tuple[LakeColumn, ...] = ()
    partitions: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


def read_statement(text: str) -> Statement:
    """Parse what :func:`create_text`, :func:`add_text` and :func:`set_text` wrote. Raises LoadError."""
    words = iter(_WORDS.findall(text))
    try:
        create = next(words) == "CREATE"
        if next(words) != "TABLE":
            raise ValueError("TABLE")
        names: list[str] = []
        while (word := next(words)) not in {"(", "ADD", "SET"}:
            names += [_name(word)] if word.startswith("`") else []
        if not create and word == "SET":
            name, value = (word.strip("'") for word in words if word.startswith("'"))
            return Statement(create, tuple(names), properties={name: value})
        if not create and (word, next(words), next(words)) != ("ADD", "COLUMNS", "("):
            raise ValueError("ADD COLUMNS")
        columns = _columns(words, ")", colon=False)
        rest = list(words)
        partitions = tuple(_name(word) for word in rest if word.startswith("`"))
        return Statement(create, tuple(names), columns, partitions)
    except (StopIteration, ValueError, KeyError) as error:
        raise LoadError(
            f"this is no statement of a target of lake tables ({error}): {text[:300]}",
            hint="it runs what `sluice check` proposes; other changes are made with Spark or another writer of such "
            "tables",
        ) from None


def _name(word: str) -> str:
    if not word.startswith("`"):
        raise ValueError(word)
    return word[1:-1].replace("``", "`")


def _columns(words: Iterator[str], end: str, *, colon: bool) -> tuple[LakeColumn, ...]:
    """Parse columns after their opening bracket."""
    columns: list[LakeColumn] = []
    while True:
        name = _name(next(words))
        if colon and next(words) != ":":
            raise ValueError(":")
        word = next(words)
        kind: Shape = _struct(words) if word == "STRUCT" else _kind(word)
        columns.append(LakeColumn(name, kind))
        word = next(words)
        if word == end:
            return tuple(columns)
        if word != ",":
            raise ValueError(word)


def _kind(word: str) -> str:
    if word.startswith("DECIMAL("):
        return word.lower().replace(" ", "")
    return _DELTA[word]


def _struct(words: Iterator[str]) -> Shape:
    if next(words) != "<":
        raise ValueError("<")
    return _columns(words, ">", colon=True)
