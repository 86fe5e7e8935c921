"""Collations of the source as ICU collations of this target, for tables that are proposed or created here.

Key columns keep the server's own collation: rows are told apart by them, and none of ICU's is exactly one of the
source's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.tables import TableId
from sluice.postgresql.names import quoted

_TEXTS = frozenset({ColumnKind.CHAR, ColumnKind.VARCHAR, ColumnKind.TEXT})
_CHARSETS = frozenset({"utf8mb4", "utf8mb3", "utf8", "ucs2", "utf16", "utf32", "latin1"})
_NAME = re.compile(r"(?P<charset>[a-z0-9]+)_(?P<words>.*?)_?(?:(?P<accents>ai|as)_)?(?P<case>ci|cs)")
_ROOT = frozenset({"", "0900", "uca1400", "nopad", "unicode", "520", "general", "mysql500"})
"""The words of a collation that name no language."""
_LANGUAGES: Mapping[str, str] = {
    "swedish": "sv", "danish": "da", "czech": "cs", "polish": "pl", "spanish": "es", "spanish2": "es-u-co-trad",
    "german1": "de",
    "german2": "de-u-co-phonebk", "turkish": "tr", "hungarian": "hu", "icelandic": "is", "latvian": "lv",
    "lithuanian": "lt", "romanian": "ro",
    "slovak": "sk", "slovenian": "sl", "estonian": "et", "croatian": "hr", "esperanto": "eo", "persian": "fa",
    "sinhala": "si",
    "vietnamese": "vi", "de_pb": "de-u-co-phonebk", "es_trad": "es-u-co-trad",
    **{
        code: code
        for code in (
            "bg", "bs", "cs", "da", "eo", "es", "et", "gl", "hr", "hu", "is", "lt", "lv", "nb", "nn", "pl", "ro", "sk",
            "sl", "sv", "tr", "vi",
        )
    },
}  # fmt: skip
DIFFERS = "a few characters may be equal that the source tells apart, and spaces at the end count"


def locale_of(collation: str) -> str:
    """Return ICU's locale (language and strength) for a collation of MySQL or MariaDB; "" for one that compares bytes,
    or is unknown.
    """
    match = _NAME.fullmatch(collation.lower())
    if match is None or match["charset"] not in _CHARSETS or (match["accents"] == "ai" and match["case"] == "cs"):
        return ""
    words = "_".join(word for word in match["words"].split("_") if word not in _ROOT)
    language = _LANGUAGES.get(words, "" if words else "und")
    if not language:
        return ""
    accents = match["accents"] == "as" or (match["charset"] == "latin1" and match["words"] == "general")
    strength = 3 if match["case"] == "cs" else 2 if accents else 1
    return f"{language}{'-' if '-u-' in language else '-u-'}ks-level{strength}"


@dataclass(frozen=True, slots=True)
class Collation:
    """An ICU collation at the target, under the source's name, in ``schema``."""

    schema: str
    name: str
    locale: str

    @property
    def create(self) -> str:
        """The statement that makes it."""
        return (
            f"CREATE COLLATION IF NOT EXISTS {quoted(self.schema)}.{quoted(self.name)} "
            f"(provider = icu, locale = '{self.locale}', deterministic = false)"
        )


def clause(collation: Collation | None) -> str:
    """Return the COLLATE clause that follows a column's type, "" for the database's own collation."""
    return f" COLLATE {quoted(collation.schema)}.{quoted(collation.name)}" if collation is not None else ""


@dataclass(frozen=True, slots=True)
class Collations:
    """The choice of columns that get an ICU collation.

    ``schema``: the schema of the collations; ``tables``: target tables, ``schema.table`` or ``schema.*``.
    """

    schema: str = ""
    tables: frozenset[str] = frozenset()

    def wanted(self, table: TableId) -> bool:
        """Return True if the option names the table."""
        return str(table) in self.tables or f"{table.schema}.*" in self.tables

    def of(self, table: TableId, type_: ColumnType, *, key: bool) -> Collation | None:
        """Return the collation of a column of ``table``; None for the server's own."""
        if key or type_.kind not in _TEXTS or not self.wanted(table):
            return None
        locale = locale_of(type_.collation)
        return Collation(self.schema, type_.collation, locale) if locale else None

    def lost(self, table: TableId, type_: ColumnType, *, key: bool) -> str:
        """Return what to know about how the column compares, "" for nothing."""
        if type_.kind not in _TEXTS or not type_.collation or not self.wanted(table):
            return ""
        collation = self.of(table, type_, key=key)
        if collation is not None:
            return f"compared by ICU's {collation.locale} for {type_.collation}: {DIFFERS}"
        if key and locale_of(type_.collation):
            return f"a key column is compared by the database's own collation, not as by {type_.collation}"
        exact = type_.collation.endswith("_bin") or type_.collation == "binary"
        return "" if exact else f"ICU has no counterpart of {type_.collation}: compared by the database's own collation"


NO_COLLATIONS = Collations()
"""No collations: texts are compared by the database's own."""
