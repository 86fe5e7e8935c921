"""What the server puts in the log of an updated or deleted row: the replica identity of the table that holds it.

A partition has an identity of its own, which it does not inherit. The log describes the identity of the partitioned
table, and the old rows are what the partition's gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sluice.model.tables import TableId, TableSchema
from sluice.postgresql.connection import Connection
from sluice.postgresql.names import quoted_table
from sluice.sources.postgresql.catalog.table import KEPT, CatalogTable
from sluice.sources.postgresql.server.connection import rows_of

_IDENTITIES = f"""
SELECT n.nspname::text, c.relname::text, m.nspname::text, l.relname::text, l.relreplident::text, l.relkind = 'p',
  (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
     WHERE a.attrelid = l.oid AND a.attnum > 0 AND NOT a.attisdropped),
  (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
     WHERE a.attrelid = l.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> ''),
  (SELECT array_agg(a.attname::text ORDER BY k.place)
     FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k(number, place)
     JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
     WHERE i.indrelid = l.oid AND k.place <= i.indnkeyatts AND i.indisvalid AND i.indimmediate
       AND CASE l.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END),
  EXISTS (SELECT FROM pg_index i WHERE i.indrelid = l.oid AND i.indisprimary AND NOT i.indimmediate)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (SELECT c.oid AS place UNION SELECT relid FROM pg_partition_tree(c.oid) WHERE isleaf) t
JOIN pg_class l ON l.oid = t.place JOIN pg_namespace m ON m.oid = l.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p' AND l.relkind IN ('r', 'p') AND {KEPT}
ORDER BY 1, 2, 3, 4"""  # noqa: S608 - a fixed condition

_ATTACHED = """
SELECT DISTINCT n.nspname::text, c.relname::text
FROM pg_inherits i JOIN pg_class l ON l.oid = i.inhrelid AND l.relispartition
JOIN pg_attribute a ON a.attrelid = i.inhrelid AND a.attnum = -6
JOIN pg_class c ON c.oid = pg_partition_root(i.inhrelid) JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE a.xmin <> i.xmin AND mod(i.xmin::text::bigint - %s + 4294967296, 4294967296) < 2147483648
  AND (SELECT sum(pg_relation_size(relid)) FROM pg_partition_tree(i.inhrelid)) > 0"""
"""A table that was made as a partition has its columns from the same transaction; attnum -6 is ``tableoid``, which no
ALTER TABLE writes again.
"""
_RESHAPED = f"""
WITH RECURSIVE reshaped(id) AS (
  SELECT t.oid FROM pg_class k JOIN pg_type t ON t.typrelid = k.oid JOIN pg_attribute a ON a.attrelid = k.oid
  WHERE k.relkind = 'c' AND a.attnum > 0 AND a.xmin <> t.xmin
    AND mod(a.xmin::text::bigint - %s + 4294967296, 4294967296) < 2147483648
  UNION SELECT h.oid FROM reshaped r JOIN pg_type h ON h.typelem = r.id OR h.typbasetype = r.id
    OR h.typtype = 'c' AND EXISTS (
      SELECT FROM pg_attribute a WHERE a.attrelid = h.typrelid AND a.atttypid = r.id AND NOT a.attisdropped)
)
SELECT DISTINCT n.nspname::text, c.relname::text
FROM reshaped r JOIN pg_attribute u ON u.atttypid = r.id AND u.attnum > 0 AND NOT u.attisdropped
JOIN pg_class c ON c.oid = u.attrelid AND c.relkind IN ('r', 'p') AND NOT c.relispartition
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE {KEPT} AND coalesce(
  (SELECT sum(pg_relation_size(relid)) FROM pg_partition_tree(c.oid)), pg_relation_size(c.oid)) > 0"""  # noqa: S608 - fixed
"""Tables with values of a composite type of which an attribute came, went or got another name since a transaction: the
text of all values is another one, and the log has none of the rows. A type that was made as it is has the attributes'
rows from the same transaction.
"""
_NOW = "SELECT mod(pg_snapshot_xmin(pg_current_snapshot())::text::bigint, 4294967296)"
_REFUSES_GENERATED = 180_000
"""The first version that refuses changes of rows whose identity holds a column that is not published."""


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """The replica identity of a table that holds rows, or of a partitioned table.

    Attributes:
        table, root: the table, and the captured one whose partition it is; else the same.
        kind: ``relreplident``: d, f, i or n. columns: whose old values are logged; generated: of these, the computed
            ones, which are not published.
        partitioned: it holds no rows itself. deferrable: its primary key is, and no identity.
    """

    table: TableId
    root: TableId
    kind: str
    columns: frozenset[str]
    generated: tuple[str, ...] = ()
    partitioned: bool = False
    deferrable: bool = False

    def refusal(self, version_number: int) -> str:
        """Return why the server refuses UPDATE and DELETE of the table once it is published; "" if it does not."""
        if self.partitioned:
            return ""
        if self.generated and (version_number >= _REFUSES_GENERATED or self.kind != "f"):
            return f"its replica identity has a generated column ({', '.join(self.generated)}), which is not published"
        if self.columns:
            return ""
        if self.kind == "d":
            return "its primary key is DEFERRABLE" if self.deferrable else "it has no primary key"
        return "its replica identity is NOTHING" if self.kind == "n" else "the index of its replica identity is gone"

    def gap(self, schema: TableSchema) -> str:
        """Return why changes of the table cannot be told apart by its key; "" if they can."""
        key = schema.primary_key
        lacking = [name for name in key if name not in self.columns or name in self.generated]
        if not lacking and self.kind != "f" and (schema.deferrable or not key):
            return f"{'its key is DEFERRABLE' if key else 'it has no key'}, and its replica identity is not FULL"
        if not lacking:
            return ""
        return f"its old rows in the log lack {', '.join(lacking)} of the key"

    @property
    def remedy(self) -> str:
        """The statement that gives the table an identity by which its changes can be published and read."""
        if self.generated and self.kind == "f":
            return f"ALTER TABLE {quoted_table(self.table)} REPLICA IDENTITY DEFAULT, with a primary key"
        if self.generated:
            return f"a key of {self.table} without generated columns"
        return f"ALTER TABLE {quoted_table(self.table)} REPLICA IDENTITY FULL"


def read_identities(connection: Connection) -> dict[TableId, list[ReplicaIdentity]]:
    """Return for each logged table, which is no partition, its identity and those of the partitions with its rows."""
    identities: dict[TableId, list[ReplicaIdentity]] = {}
    for schema, name, place, leaf, kind, partitioned, every, generated, index, deferrable in rows_of(
        connection, _IDENTITIES
    ):
        columns = frozenset(every if kind == "f" else index or ())
        computed = tuple(column for column in generated or () if column in columns)
        root = TableId(schema, name)
        identities.setdefault(root, []).append(
            ReplicaIdentity(TableId(place, leaf), root, kind, columns, computed, partitioned, deferrable)
        )
    return identities


def read_attached(connection: Connection, since: int) -> tuple[list[TableId], int]:
    """Return the partitioned tables that got a partition with rows by ATTACH since a transaction, and one to ask from
    the next time: all before it have ended.

    ``since``: 0 for no transaction.
    """
    [(now,)] = rows_of(connection, _NOW)
    return [TableId(*row) for row in rows_of(connection, _ATTACHED, (since,))] if since else [], int(now)


def read_reshaped(connection: Connection, since: int) -> list[TableId]:
    """Return the tables whose rows have other values of a composite type since a transaction; 0: none."""
    return [TableId(*row) for row in rows_of(connection, _RESHAPED, (since,))] if since else []


def refusals(
    identities: Mapping[TableId, Iterable[ReplicaIdentity]], tables: Iterable[CatalogTable], version_number: int
) -> list[tuple[ReplicaIdentity, str]]:
    """Return the identities of captured tables with which the server refuses changes, or Sluice cannot read them."""
    refusals = []
    for table in tables:
        for identity in identities.get(table.id, ()):
            why = identity.refusal(version_number) or identity.gap(table.schema)
            if why:
                refusals.append((identity, why))
    return refusals


__all__ = ["ReplicaIdentity", "read_attached", "read_identities", "read_reshaped", "refusals"]
