"""The meaning of PostgreSQL's definitions, and of the statements that this source writes for a changed one; see
:class:`sluice.model.source_words.SourceWords`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.default_values import DefaultValue
from sluice.model.definitions import ColumnDefinition
from sluice.model.planned import CreatedTable
from sluice.model.row_effects import Ran
from sluice.model.source_words import AlteredNames
from sluice.model.temporal import time_of
from sluice.postgresql.column_types import neutral_type

K = ColumnKind
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\w+|\S""")
_CONSTANT = re.compile(
    r"(?:(?P<number>-?\d+(?:\.\d+)?)|\((?P<negative>-\d+(?:\.\d+)?)\)|'(?P<text>(?:[^']|'')*)'|(?P<word>true|false|NULL))"
    r"(?P<cast>::.+)?",
    re.S,
)
_NUMBERS = frozenset({K.SMALLINT, K.INT, K.BIGINT, K.DECIMAL, K.FLOAT, K.DOUBLE})
_TEXTS = frozenset({K.CHAR, K.VARCHAR, K.TEXT, K.ENUM, K.JSON, K.UUID})


@dataclass(frozen=True, slots=True)
class PostgreSQLWords:
    """Reads the words of PostgreSQL."""

    def column_type(self, column: ColumnDefinition) -> ColumnType | None:
        """Return the type of a column's values."""
        return neutral_type(column.type, column.labels)

    def altered_names(self, statement: Ran) -> AlteredNames | None:
        """Return the names that the statement changes, None if it alters no table."""
        tokens = [match[0] for match in _TOKEN.finditer(statement.text)]
        if [token.upper() for token in tokens[:2]] != ["ALTER", "TABLE"]:
            return None
        renamed: dict[str, str] = {}
        dropped: set[str] = set()
        for at in range(len(tokens) - 2):
            words = [token.upper() for token in tokens[at : at + 2]]
            if words == ["RENAME", "COLUMN"] and at + 4 < len(tokens) and tokens[at + 3].upper() == "TO":
                renamed[_name(tokens[at + 2]).lower()] = _name(tokens[at + 4])
            elif words == ["DROP", "COLUMN"]:
                dropped.add(_name(tokens[at + 2]).lower())
        return AlteredNames(renamed, dropped)

    def default_value(self, column: ColumnDefinition, wrote: Ran | None = None) -> DefaultValue:
        """Return the value of a default that is a constant; of an expression it is not known."""
        neutral = neutral_type(column.type, column.labels)
        if column.default is None:
            return DefaultValue(pa.scalar(None, neutral.arrow_type))
        unknown = DefaultValue(None, f"the default {column.default[:80]} is no constant that is understood")
        match = _CONSTANT.fullmatch(column.default.strip())
        if match is None:
            return unknown
        if match["word"] == "NULL":
            return DefaultValue(pa.scalar(None, neutral.arrow_type))
        try:
            value = _value(neutral, match)
            return unknown if value is None else DefaultValue(pa.scalar(value, neutral.arrow_type))
        except (ValueError, ArithmeticError, pa.ArrowInvalid, pa.ArrowTypeError):
            return unknown

    def created_table(self, text: str, schema: str) -> CreatedTable | None:
        """Return None: the definition says all of it."""
        return None


def _name(token: str) -> str:
    return token[1:-1].replace('""', '"') if token.startswith('"') else token.lower()


def _value(neutral: ColumnType, match: re.Match[str]) -> Any:
    text = match["number"] or match["negative"] or (match["text"] or "").replace("''", "'")
    if neutral.native == "boolean":
        return {"true": 1, "false": 0}.get(match["word"] or text)
    if match["word"]:
        return None
    if neutral.kind in _NUMBERS:
        if neutral.kind is K.DECIMAL:
            return Decimal(text)
        return float(text) if neutral.kind in {K.FLOAT, K.DOUBLE} else int(text)
    if match["text"] is None:
        return None
    if neutral.kind is K.DATE:
        return date.fromisoformat(text)
    if neutral.kind in {K.DATETIME, K.TIMESTAMP}:
        moment = datetime.fromisoformat(text)
        return moment if (moment.tzinfo is None) is (neutral.kind is K.DATETIME) else None
    if neutral.kind is K.TIME:
        return time_of(text)
    if neutral.kind is K.BLOB:
        return bytes.fromhex(text.removeprefix("\\x")) if text.startswith("\\x") else None
    return text if neutral.kind in _TEXTS else None
