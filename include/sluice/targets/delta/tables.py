"""What the target's tables are, and statements that make them: Spark's SQL, which people can run, too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sluice.errors import LoadError
from sluice.targets.delta.client import library

_LENGTH = "__CHAR_VARCHAR_TYPE_STRING"
"""Where Spark keeps the type of CHAR(n) and VARCHAR(n) columns. It refuses longer texts, and so does Sluice."""
_ODD = frozenset(" ,;{}()\n\t=")
"""Characters that Delta does not take in names of columns, unless they are mapped."""

Shape = str | tuple["DeltaColumn", ...]


@dataclass(frozen=True, slots=True)
class DeltaColumn:
    """A column.

    ``kind``: Delta's name of its type, or its parts if it is a struct; ``length``: characters of CHAR and VARCHAR, 0: any; ``partition``: the table
    is partitioned by it.
    """

    name: str
    kind: Shape
    nullable: bool = True
    length: int = 0
    partition: bool = False


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table as it is."""

    columns: tuple[DeltaColumn, ...]
    partitions: tuple[str, ...] = ()

    def find(self, name: str) -> DeltaColumn | None:
        """By its name, whose case does not matter in Delta."""
        return next((one for one in self.columns if one.name.casefold() == name.casefold()), None)


def info_of(table: Any) -> TableInfo:
    """Of a ``DeltaTable``."""
    meta = table.metadata()
    partitions = tuple(meta.partition_columns)
    columns = map(_column, table.schema().fields)
    return TableInfo(tuple(replace(one, partition=one.name in partitions) for one in columns), partitions)


def _column(field: Any) -> DeltaColumn:
    length = re.fullmatch(r"(?:var)?char\((\d+)\)", str((field.metadata or {}).get(_LENGTH, "")))
    return DeltaColumn(field.name, _shape(field.type), bool(field.nullable), int(length[1]) if length else 0)


def _shape(kind: Any) -> Shape:
    if type(kind).__name__ == "StructType":
        return tuple(map(_column, kind.fields))
    return str(kind.type) if type(kind).__name__ == "PrimitiveType" else type(kind).__name__


_PARTITIONS = re.compile(r"byte|short|integer|long|string|date|timestamp(_ntz)?|decimal\(\d+, ?0\)")


def partitionable(kind: Shape) -> bool:
    """True for types of which the library writes every value of a partition so that it reads the same. Tried with the values at their edges."""
    return isinstance(kind, str) and _PARTITIONS.fullmatch(kind) is not None


NO_PARTITIONS = ("", "__HIVE_DEFAULT_PARTITION__")
"""Texts that are NULL in a column of the partition, by the rules of Delta and Hive."""


def odd_name(name: str) -> bool:
    """True for a name that Delta does not take."""
    return bool(_ODD & set(name)) or not name


def field_of(column: DeltaColumn) -> Any:
    """As the library has it."""
    delta = library()
    metadata = {_LENGTH: f"varchar({column.length})"} if column.length else None
    return delta.Field(column.name, _type(column.kind), nullable=column.nullable, metadata=metadata)


def _type(kind: Shape) -> Any:
    from deltalake.schema import PrimitiveType, StructType

    return PrimitiveType(kind) if isinstance(kind, str) else StructType([field_of(one) for one in kind])


def schema_of(columns: Sequence[DeltaColumn]) -> Any:
    """As the library has it."""
    return library().Schema([field_of(column) for column in columns])


# -- statements ---------------------------------------------------------------------------------------------------------
_SQL: Mapping[str, str] = {
    "byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE", "string": "STRING",
    "binary": "BINARY", "boolean": "BOOLEAN", "date": "DATE", "timestamp": "TIMESTAMP", "timestamp_ntz": "TIMESTAMP_NTZ",
}  # fmt: skip
_DELTA = {sql: kind for kind, sql in _SQL.items()}
_WORDS = re.compile(r"`(?:[^`]|``)*`|[A-Za-z_]+(?:\(\d+, ?\d+\))?|[(),.:<>]|\S")


def quoted(name: str) -> str:
    """As Spark reads it."""
    return "`" + name.replace("`", "``") + "`"


def type_text(kind: Shape) -> str:
    """A type in Spark's words."""
    if isinstance(kind, str):
        return _SQL.get(kind, kind.upper().replace(" ", ""))
    return f"STRUCT<{', '.join(f'{quoted(one.name)}: {type_text(one.kind)}' for one in kind)}>"


def create_text(uri: str, columns: Sequence[DeltaColumn], partitions: Sequence[str] = ()) -> str:
    """CREATE TABLE."""
    listed = ", ".join(f"{quoted(one.name)} {type_text(one.kind)}" for one in columns)
    by = f" PARTITIONED BY ({', '.join(map(quoted, partitions))})" if partitions else ""
    return f"CREATE TABLE delta.{quoted(uri)} ({listed}) USING DELTA{by}"


def add_text(uri: str, columns: Sequence[DeltaColumn]) -> str:
    """ALTER TABLE … ADD COLUMNS. Parts of a struct that is there already are added to it."""
    listed = ", ".join(f"{quoted(one.name)} {type_text(one.kind)}" for one in columns)
    return f"ALTER TABLE delta.{quoted(uri)} ADD COLUMNS ({listed})"


@dataclass(frozen=True, slots=True)
class Statement:
    """One of the two, read again. ``create``: it makes a table."""

    create: bool
    uri: str
    columns: tuple[DeltaColumn, ...]
    partitions: tuple[str, ...] = ()


def read_statement(text: str) -> Statement:
    """What :func:`create_text` and :func:`add_text` wrote. Raises LoadError."""
    words = iter(_WORDS.findall(text))
    try:
        create = next(words) == "CREATE"
        uri = _after(words, "TABLE", "delta", ".")
        if not create and (next(words), next(words)) != ("ADD", "COLUMNS"):
            raise ValueError("ADD COLUMNS")
        columns = _columns(words, "(", ")", colon=False)
        rest = list(words)
        partitions = tuple(_name(word) for word in rest if word.startswith("`"))
        return Statement(create, uri, columns, partitions)
    except (StopIteration, ValueError, KeyError) as error:
        raise LoadError(
            f"this is no statement of a Delta target ({error}): {text[:300]}",
            hint="it runs what `sluice check` proposes; other changes are made with Spark or another writer of Delta tables",
        ) from None


def _after(words: Iterator[str], *expected: str) -> str:
    for word in expected:
        if next(words) != word:
            raise ValueError(word)
    return _name(next(words))


def _name(word: str) -> str:
    if not word.startswith("`"):
        raise ValueError(word)
    return word[1:-1].replace("``", "`")


def _columns(words: Iterator[str], begin: str, end: str, *, colon: bool) -> tuple[DeltaColumn, ...]:
    if next(words) != begin:
        raise ValueError(begin)
    found: list[DeltaColumn] = []
    while True:
        name = _name(next(words))
        if colon and next(words) != ":":
            raise ValueError(":")
        word = next(words)
        kind: Shape = _columns(words, "<", ">", colon=True) if word == "STRUCT" else _kind(word)
        found.append(DeltaColumn(name, kind))
        word = next(words)
        if word == end:
            return tuple(found)
        if word != ",":
            raise ValueError(word)


def _kind(word: str) -> str:
    if word.startswith("DECIMAL("):
        return word.lower().replace(" ", "")
    return _DELTA[word]
