"""The publication of a pipeline: which tables' changes the server sends."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.config.pipeline import PipelineConfig
from sluice.model.tables import TableId
from sluice.postgresql.connection import Connection
from sluice.postgresql.names import quoted, quoted_table
from sluice.sources.postgresql.server.connection import rows_of
from sluice.sources.postgresql.server.slot import slot_name

_FILTERED = 150_000
"""The first version with row filters and column lists."""
_GENERATED = 180_000
_MEMBERS = "SELECT oid::bigint, prrelid::bigint, prrelid::regclass::text FROM pg_publication_rel WHERE prpubid = %s"
_SCHEMAS = (
    " UNION ALL SELECT oid::bigint, pnnspid::bigint, pnnspid::regnamespace || '.*' FROM pg_publication_namespace "
    "WHERE pnpubid = %s"
)
OPERATIONS = ("insert", "update", "delete", "truncate")


def publication_name(pipeline: PipelineConfig) -> str:
    """Return ``source.publication``, else the name of the slot."""
    return pipeline.source.publication or slot_name(pipeline)


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication.

    Attributes:
        everything: FOR ALL TABLES. via_root: changes of partitions come as those of the partitioned table.
        operations: insert, update, delete, truncate. tables: what it publishes now.
        cut: tables of which it leaves out rows or columns. generated: it sends generated columns.
        version: OID of the publication, and the transaction that wrote its row: both change with what it publishes.
        members: OID of the entry of each table (by its OID and name), or of each schema.
    """

    name: str
    everything: bool
    via_root: bool
    operations: frozenset[str]
    tables: frozenset[TableId]
    cut: tuple[TableId, ...] = ()
    generated: bool = False
    version: str = ""
    members: Mapping[int, tuple[int, str]] = field(default_factory=dict)

    @property
    def mark(self) -> str:
        """The text that :meth:`interrupted` compares with a later publication, short enough for a position."""
        last = max(self.members, default=0)
        return f"{self.version}.{last}.{self._checksum(last)}"

    def _checksum(self, last: int) -> str:
        """Return a checksum of the entries up to an OID; later ones have greater OIDs."""
        return f"{zlib.crc32(' '.join(str(member) for member in sorted(self.members) if member <= last).encode()):08x}"

    def interrupted(self, mark: str) -> list[str] | None:
        """Return the tables of which changes may not have been sent since the publication had ``mark``.

        None: of no table. An empty list: of every table. A table that was only added is none of them.
        """
        version, _, rest = mark.rpartition(".")
        version, _, last = version.rpartition(".")
        if not mark:
            return None
        if version != self.version:
            return []
        if rest == self._checksum(int(last)):
            return None
        again = [name for entry, (table, name) in self.members.items() if entry > int(last) >= table]
        return sorted(again) or None


def read_publication(connection: Connection, name: str, version_number: int) -> Publication | None:
    """Return a publication, None if there is none of that name."""
    generated = "pubgencols <> 'n'" if version_number >= _GENERATED else "false"
    rows = rows_of(
        connection,
        "SELECT oid || '.' || xmin, oid::bigint, puballtables, pubviaroot, pubinsert, pubupdate, pubdelete, "  # noqa: S608
        f"pubtruncate, {generated} FROM pg_publication WHERE pubname = %s",
        (name,),
    )
    if not rows:
        return None
    version, oid, everything, via_root, *does, sends_generated = rows[0]
    tables = rows_of(
        connection, "SELECT schemaname::text, tablename::text FROM pg_publication_tables WHERE pubname = %s", (name,)
    )
    cut, members = [], _MEMBERS
    if version_number >= _FILTERED:
        members += _SCHEMAS
        cut = rows_of(
            connection,
            "SELECT n.nspname::text, c.relname::text FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE r.prpubid = %s AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL)",
            (oid,),
        )
    return Publication(
        name,
        everything,
        via_root,
        frozenset(word for word, flag in zip(OPERATIONS, does, strict=True) if flag),
        frozenset(TableId(*row) for row in tables),
        tuple(TableId(*row) for row in cut),
        sends_generated,
        version,
        {
            entry: (table, name)
            for entry, table, name in rows_of(connection, members, (oid, oid)[: members.count("%s")])
        },
    )


def creation(name: str, tables: Collection[TableId], operations: Collection[str] = OPERATIONS) -> str:
    """Return the statement that makes a publication of tables.

    It names the operations if it is not all: the server demands a replica identity where UPDATE or DELETE is published.
    """
    listed = ", ".join(quoted_table(table) for table in sorted(tables))
    options = ["publish_via_partition_root = true"]
    if (
        listed_operations := [operation for operation in OPERATIONS if operation in operations]
        if set(operations) < set(OPERATIONS)
        else []
    ):
        options.append(f"publish = '{', '.join(listed_operations)}'")
    return f"CREATE PUBLICATION {quoted(name)} FOR TABLE {listed} WITH ({', '.join(options)})"


def addition(name: str, tables: Sequence[TableId]) -> str:
    """Return the statement that adds tables to a publication."""
    return f"ALTER PUBLICATION {quoted(name)} ADD TABLE {', '.join(quoted_table(table) for table in sorted(tables))}"
