"""The publication of a pipeline: which tables' changes the server sends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sluice.config.pipeline import PipelineConfig
from sluice.model.tables import TableId
from sluice.postgresql.connection import Connection
from sluice.postgresql.names import quoted, quoted_table
from sluice.sources.postgresql.server.connection import rows_of
from sluice.sources.postgresql.server.slot import slot_name

_FILTERED = 150_000
"""The first version with row filters and column lists."""
_GENERATED = 180_000


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
    """

    name: str
    everything: bool
    via_root: bool
    operations: frozenset[str]
    tables: frozenset[TableId]
    cut: tuple[TableId, ...] = ()
    generated: bool = False


def read_publication(connection: Connection, name: str, version_number: int) -> Publication | None:
    """Return a publication, None if there is none of that name."""
    generated = "pubgencols <> 'n'" if version_number >= _GENERATED else "false"
    found = rows_of(
        connection,
        "SELECT oid::bigint, puballtables, pubviaroot, pubinsert, pubupdate, pubdelete, pubtruncate, "  # noqa: S608
        f"{generated} FROM pg_publication WHERE pubname = %s",
        (name,),
    )
    if not found:
        return None
    oid, everything, via_root, *does, sends_generated = found[0]
    words = ("insert", "update", "delete", "truncate")
    tables = rows_of(
        connection, "SELECT schemaname::text, tablename::text FROM pg_publication_tables WHERE pubname = %s", (name,)
    )
    cut = []
    if version_number >= _FILTERED:
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
        frozenset(word for word, done in zip(words, does, strict=True) if done),
        frozenset(TableId(*row) for row in tables),
        tuple(TableId(*row) for row in cut),
        sends_generated,
    )


def creation(name: str, tables: Collection[TableId]) -> str:
    """Return the statement that makes a publication of tables."""
    listed = ", ".join(quoted_table(table) for table in sorted(tables))
    return f"CREATE PUBLICATION {quoted(name)} FOR TABLE {listed} WITH (publish_via_partition_root = true)"


def addition(name: str, tables: Sequence[TableId]) -> str:
    """Return the statement that adds tables to a publication."""
    return f"ALTER PUBLICATION {quoted(name)} ADD TABLE {', '.join(quoted_table(table) for table in sorted(tables))}"
