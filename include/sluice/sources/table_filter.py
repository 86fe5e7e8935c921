"""The tables and the kinds of change that are captured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sluice.config.patterns import compiled, fullmatch
from sluice.config.pipeline import CaptureConfig, Event
from sluice.errors import ConfigError
from sluice.model.row_ops import OP_DELETE, OP_INSERT, OP_UPDATE
from sluice.model.tables import TableId, TableSchema

SYSTEM_SCHEMAS = frozenset({"mysql", "sys", "performance_schema", "information_schema"})
OWN_TABLES = ("_sluice_ack", "_sluice_digests", "_sluice_mark_", "_sluice_origin", "_sluice_ddl")
"""Tables that Sluice keeps at a source or a target."""
_SHADOW = re.compile(r"^(_.*_(gho|ghc|del|old|new)|_.*_[0-9]{14}_(del|ghc|gho)|~.*|#sql.*)$")
"""Tables that gh-ost, pt-online-schema-change and the server itself make on the way to another definition."""


@dataclass(frozen=True)
class Selection:
    """Compiled include and exclude patterns (anchored, on ``schema.table``), and the kinds of change.

    System schemas are never captured; shadow tables only with ``shadow_tables: capture``, or if an include pattern
    other than a catch-all names them with their underscore. ``columns``: patterns, on ``schema.table.column``, of
    columns that are kept out of storage.
    """

    include: tuple[str, ...]
    exclude: tuple[str, ...]
    events: frozenset[Event]
    shadows: bool = False
    columns: tuple[str, ...] = ()
    _seen: dict[TableId, bool] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def compile(cls, config: CaptureConfig) -> Selection:
        """Compile the pipeline's ``capture``."""
        return cls(
            config.include,
            config.exclude,
            frozenset(config.events),
            config.shadow_tables == "capture",
            config.columns.exclude,
        )

    def wants(self, table: TableId) -> bool:
        """Return True if rows of this table are captured."""
        decision = self._seen.get(table)
        if decision is None:
            decision = self._seen[table] = self._decide(table)
        return decision

    def _decide(self, table: TableId) -> bool:
        if table.schema.lower() in SYSTEM_SCHEMAS or table.table.startswith(OWN_TABLES):
            return False
        name = str(table)
        matching = [p for p in self.include if fullmatch(p, name)]
        if _SHADOW.match(table.table) and (not self.shadows or table.table.startswith("#sql")):
            matching = [p for p in matching if "_" in p.partition(r"\.")[2][:2] or "gho" in p]
        return bool(matching) and not any(fullmatch(p, name) for p in self.exclude)

    def looks_like_shadow(self, table: TableId) -> bool:
        """Return True if the patterns fit, and the table is not captured because of its name alone."""
        return (
            not self.wants(table)
            and not table.table.startswith("#sql")
            and replace(self, shadows=True, _seen={}).wants(table)
        )

    def skips(self, table: TableId, column: str) -> bool:
        """Return True if a column is kept out of storage (``capture.columns.exclude``)."""
        return any(fullmatch(pattern, f"{table}.{column}") for pattern in self.columns)

    def kept(self, schema: TableSchema) -> TableSchema:
        """Return a definition without the columns that are kept out of storage.

        Raises ConfigError if one of them is a part of the key.
        """
        left_out = {column.name for column in schema.columns if self.skips(schema.table, column.name)}
        keyed = [name for name in schema.primary_key if name in left_out]
        if keyed:
            raise key_left_out(schema.table, keyed)
        columns = tuple(column for column in schema.columns if column.name not in left_out)
        if left_out and not columns:
            raise ConfigError(
                f"capture.columns.exclude names every column of {schema.table}",
                hint="leave the table out: capture.exclude",
            )
        return replace(schema, columns=columns) if left_out else schema

    def wants_schema(self, schema: str) -> bool:
        """Return True if tables of this schema may be captured: then statements about the schema itself matter."""
        if schema.lower() in SYSTEM_SCHEMAS:
            return False
        return any(fullmatch(_schema_part(p), schema) for p in self.include)

    @property
    def row_events(self) -> int:
        """Bits of the wanted row changes, by OP_*."""
        bits = 0
        for event, op in ((Event.INSERT, OP_INSERT), (Event.UPDATE, OP_UPDATE), (Event.DELETE, OP_DELETE)):
            if event in self.events:
                bits |= 1 << op
        return bits

    @property
    def ddl(self) -> bool:
        """True if DDL is captured."""
        return Event.DDL in self.events


NOTHING = Selection((), (), frozenset())
"""The selection of no table."""


def key_left_out(table: TableId, names: Sequence[str]) -> ConfigError:
    """Return the error for columns of a key that are kept out of storage."""
    return ConfigError(
        f"capture.columns.exclude names {', '.join(names)}, by which rows of {table} are told apart",
        where=str(table),
        hint="write the patterns so that they do not match the key; a rule can mask or hash it (docs/rules.md)",
    )


def _schema_part(pattern: str) -> str:
    """Return the part of a pattern before its dot; any schema if the dot may be missing, or is that of one
    alternative.
    """
    head, dot, tail = pattern.partition(r"\.")
    try:
        return compiled(head).pattern if dot and tail[:1] not in tuple("?*{") and not _has_alternative(tail) else ".*"
    except ValueError:
        return ".*"


def _has_alternative(pattern: str) -> bool:
    """Return True if a ``|`` outside of brackets may be part of ``pattern``."""
    outside = re.sub(r"\\.|\[\^?\]?[^\]]*\]", "", pattern)
    while (shorter := re.sub(r"\([^()]*\)", "", outside)) != outside:
        outside = shorter
    return "|" in outside
