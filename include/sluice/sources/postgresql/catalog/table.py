"""Tables as the server's catalogs have them now: what a Relation message of the log lacks, and what copies need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg.errors import QueryCanceled

from sluice.model.definitions import ColumnDefinition, IndexDefinition, TableDefinition
from sluice.model.tables import TableId, TableSchema
from sluice.postgresql.column_types import neutral_column
from sluice.postgresql.connection import Connection
from sluice.postgresql.names import quoted, quoted_table, text_literal
from sluice.sources.postgresql.server.connection import rows_of

PRIMARY = "PRIMARY"
"""The name, in a definition, of the index that tells rows apart in the log; indexes keep their own names otherwise."""
KEPT = "n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)'"
"""The condition for schemas of users."""

_TABLE_FIELDS = """c.oid::bigint, n.nspname::text, c.relname::text, c.relkind::text, c.relispartition,
  c.relreplident::text, c.relpersistence::text, greatest(c.reltuples, 0)::bigint, c.relpages::bigint * 8192,
  coalesce(obj_description(c.oid, 'pg_class'), ''), c.relrowsecurity"""
_TABLE_ROWS = "pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
_COLUMN_FIELDS = """a.attnum::int, a.attname::text, a.atttypid::bigint, a.atttypmod, a.attnotnull, a.attgenerated::text,
  a.attidentity::text, pg_get_expr(d.adbin, d.adrelid), coalesce(col_description(a.attrelid, a.attnum), ''),
  format_type(b.type, b.mod), l.labels"""
_COLUMN_ROWS = """pg_attribute a
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
CROSS JOIN LATERAL (
  WITH RECURSIVE base(type, mod, step) AS (
    SELECT a.atttypid, a.atttypmod, 0
    UNION ALL
    SELECT t.typbasetype, t.typtypmod, base.step + 1 FROM base JOIN pg_type t ON t.oid = base.type WHERE t.typtype = 'd'
  ) SELECT type, mod FROM base ORDER BY step DESC LIMIT 1
) b
LEFT JOIN LATERAL (
  SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder) AS labels FROM pg_enum e WHERE e.enumtypid = b.type
) l ON true
WHERE a.attnum > 0 AND NOT a.attisdropped"""
_INDEX_FIELDS = """x.relname::text, i.indisprimary, i.indisreplident, i.indisunique, i.indimmediate,
  i.indpred IS NOT NULL, m.amname::text, i.indnkeyatts::int,
  (SELECT array_agg(coalesce(a.attname::text, '') ORDER BY k.place) FROM unnest(i.indkey) WITH ORDINALITY
     AS k(number, place) LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number),
  i.indoption::text"""
_INDEX_ROWS = """pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam
WHERE i.indisvalid AND i.indislive"""
_INDEX_ORDER = "NOT i.indisprimary, x.relname"

_TABLES = f"SELECT {_TABLE_FIELDS} FROM {_TABLE_ROWS} WHERE c.relkind IN ('r', 'p') AND {KEPT}"  # noqa: S608 - fixed
_COLUMNS = (
    f"SELECT a.attrelid::bigint, {_COLUMN_FIELDS} FROM {_COLUMN_ROWS} AND a.attrelid = ANY(%s::oid[]) "  # noqa: S608
    "ORDER BY a.attrelid, a.attnum"
)
_INDEXES = (
    f"SELECT i.indrelid::bigint, {_INDEX_FIELDS} FROM {_INDEX_ROWS} AND i.indrelid = ANY(%s::oid[]) "  # noqa: S608
    f"ORDER BY i.indrelid, {_INDEX_ORDER}"
)
DEFINITIONS_AS_JSON = f"""SELECT json_agg(json_build_object(
  'numbers', c.relnatts,
  'table', json_build_array({_TABLE_FIELDS}),
  'columns', (SELECT coalesce(json_agg(json_build_array({_COLUMN_FIELDS}) ORDER BY a.attnum), '[]'::json)
    FROM {_COLUMN_ROWS} AND a.attrelid = c.oid),
  'indexes', (SELECT coalesce(json_agg(json_build_array({_INDEX_FIELDS}) ORDER BY {_INDEX_ORDER}), '[]'::json)
    FROM {_INDEX_ROWS} AND i.indrelid = c.oid)) ORDER BY c.oid)
FROM {_TABLE_ROWS} WHERE c.relkind IN ('r', 'p') AND {KEPT}"""  # noqa: S608
"""The query whose one value is a list of definitions, each for :func:`table_from_json`; a condition may follow."""
_TABLES_A_QUERY = 1_000
_FILLED = """SELECT r.attnum::int, bool_or(r.attname::text = t.name),
  bool_or(has_table_privilege(r.attrelid, 'SELECT')),
  array_agg(DISTINCT (a.attmissingval::text::text[])[1]) FILTER (WHERE a.atthasmissing)
FROM unnest(%s::int[], %s::text[]) t(number, name)
JOIN pg_attribute r ON r.attrelid = %s::oid AND r.attnum = t.number AND NOT r.attisdropped
LEFT JOIN pg_attribute a ON a.attname = r.attname AND (a.attrelid = r.attrelid OR a.attrelid IN (
  SELECT p.relid::oid FROM pg_partition_tree(r.attrelid::regclass) p WHERE p.isleaf)) GROUP BY 1"""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column as the log counts it: ``number`` is its ``attnum``, which a rename keeps and no other column gets."""

    number: int
    name: str
    type_oid: int
    typmod: int


@dataclass(frozen=True, slots=True)
class Index:
    """An index that is valid.

    Attributes:
        columns: in its order; an expression is ``""``.
        unique: no two rows share its values, checked at once, for all rows. identity: REPLICA IDENTITY USING INDEX.
        deferrable: its values are unique when a statement or a transaction ends.
        unfit: why rows cannot be read in its order; ``""``: they can.
    """

    name: str
    columns: tuple[str, ...]
    primary: bool
    identity: bool
    unique: bool
    deferrable: bool = False
    unfit: str = ""


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table as the server has it now.

    Attributes:
        oid: of the table; a table that is dropped and made again has another.
        schema: its columns in the log's order, without generated ones, which no target writes.
        definition: all of its columns and indexes.
        attributes: of ``schema.columns``, one each.
        identity: ``relreplident``: d, f, i or n.
        rows, size_bytes: as the server last counted, 0 if it did not.
        partition, partitioned: it is a part of another table; it has parts.
        logged: its changes are in the log: it is not UNLOGGED.
        guarded: row security is on.
        numbers: how many columns it ever had, dropped ones among them; 0: not asked.
    """

    oid: int
    schema: TableSchema
    definition: TableDefinition
    attributes: tuple[Attribute, ...]
    indexes: tuple[Index, ...]
    identity: str
    rows: int = 0
    size_bytes: int = 0
    partition: bool = False
    partitioned: bool = False
    logged: bool = True
    guarded: bool = False
    numbers: int = 0

    @property
    def id(self) -> TableId:
        """The name of the table."""
        return self.schema.table

    @property
    def key_index(self) -> str:
        """The name of the index whose columns are the key of ``schema``, "" if it has none."""
        key = self.schema.primary_key
        return next(
            (index.name for index in self.indexes if key and index.columns == key and (index.unique or index.primary)),
            "",
        )


def read_table(connection: Connection, table: TableId) -> CatalogTable | None:
    """Return a table, None if there is none of that name."""
    rows = rows_of(connection, f"{_TABLES} AND n.nspname = %s AND c.relname = %s", (table.schema, table.table))
    return next(iter(_completed(connection, rows)), None)


def read_tables(connection: Connection, wants: Callable[[TableId], bool]) -> list[CatalogTable]:
    """Return the tables that ``wants`` accepts, by name, partitions among them."""
    rows = [row for row in rows_of(connection, _TABLES) if wants(TableId(row[1], row[2]))]
    tables: list[CatalogTable] = []
    for at in range(0, len(rows), _TABLES_A_QUERY):
        tables += _completed(connection, rows[at : at + _TABLES_A_QUERY])
    return sorted(tables, key=lambda table: table.id)


def filled_defaults(
    connection: Connection, oid: int, table: TableId, columns: Mapping[int, ColumnDefinition], *, noted: bool
) -> dict[str, str | None]:
    """Return the default with which rows from before a column have it, by the name of the column.

    It is not always the column's default of now: a later SET or DROP DEFAULT leaves those rows alone. The server keeps
    the value until it writes the table anew. None: they have NULL. A column is left out whose default of now holds, as
    far as the server shows; without SELECT on the table, the default of one that may hold NULL is no constant.

    Args:
        columns: by number. noted: the log has the statement, so that rows of now may have what came after it.
    """
    names = [column.name for column in columns.values()]
    defaults: dict[str, str | None] = {}
    for number, same_name, may_select, values in rows_of(connection, _FILLED, (list(columns), names, oid)):
        column = columns[number]
        if values is not None and len(values) == 1:
            text = {"t": "true", "f": "false"}.get(values[0], values[0]) if column.type == "boolean" else values[0]
            defaults[column.name] = f"{text_literal(text)}::{column.type}"
        elif values is None and same_name and not noted and column.nullable and column.default is not None:
            unfilled = f"SELECT 1 FROM {quoted_table(table)} WHERE {quoted(column.name)} IS NULL LIMIT 1"  # noqa: S608
            try:
                if not may_select:
                    defaults[column.name] = "unknown without GRANT SELECT"
                elif rows_of(connection, unfilled):
                    defaults[column.name] = None
            except QueryCanceled:  # the same question would end so again
                defaults[column.name] = "unknown as the table is too large to look"
    return defaults


def table_from_json(data: Mapping[str, Any]) -> CatalogTable:
    """Return a table that :data:`DEFINITIONS_AS_JSON` gave."""
    columns, indexes = [tuple(row) for row in data["columns"]], [_index(row) for row in data["indexes"]]
    return replace(_table(tuple(data["table"]), columns, indexes), numbers=int(data["numbers"]))


def schema_of(definition: TableDefinition) -> TableSchema:
    """Return how the rows of a definition look in segments. Pure."""
    columns = tuple(
        neutral_column(column.name, column.type, column.labels, nullable=column.nullable)
        for column in definition.columns
        if column.generated is None
    )
    key = definition.row_key
    deferrable = any(index.deferrable and (index.primary or not key) for index in definition.indexes)
    return TableSchema(definition.table, columns, key, deferrable)


# -- inside ------------------------------------------------------------------------------------------------------------
def _completed(connection: Connection, tables: Sequence[tuple[Any, ...]]) -> Iterable[CatalogTable]:
    """Add columns and indexes to rows of ``_TABLES``."""
    oids = [row[0] for row in tables]
    if not oids:
        return []
    columns: Mapping[int, list[tuple[Any, ...]]] = defaultdict(list)
    for oid, *rest in rows_of(connection, _COLUMNS, (oids,)):
        columns[oid].append(tuple(rest))
    indexes: Mapping[int, list[Index]] = defaultdict(list)
    for oid, *rest in rows_of(connection, _INDEXES, (oids,)):
        indexes[oid].append(_index(tuple(rest)))
    return [_table(row, columns[row[0]], indexes[row[0]]) for row in tables]


def _table(row: tuple[Any, ...], columns: Sequence[tuple[Any, ...]], indexes: Sequence[Index]) -> CatalogTable:
    oid, schema, name, kind, partition, identity, persistence, rows, size, comment, guarded = row
    definitions = tuple(map(_column, columns))
    named = _named(indexes, identity)
    definition = TableDefinition(
        TableId(schema, name),
        definitions,
        tuple(
            IndexDefinition(
                index.name, tuple((column, 0) for column in index.columns), index.unique, deferrable=index.deferrable
            )
            for index in named
            if not index.unfit or index.unique
        ),
        comment=comment,
    )
    described = schema_of(definition)
    sent = {column.name for column in described.columns}
    attributes = tuple(Attribute(column[0], column[1], column[2], column[3]) for column in columns if column[1] in sent)
    return CatalogTable(
        oid,
        described,
        definition,
        attributes,
        tuple(indexes),
        identity,
        rows,
        size,
        partition,
        kind == "p",
        persistence == "p",
        guarded,
    )


def _named(indexes: Sequence[Index], identity: str) -> list[Index]:
    """Return the indexes with the one first, as ``PRIMARY``, that tells rows apart in the log.

    That is the primary key, unless the identity is an index that lacks one of its columns: then a delete says only what
    that index has; or unless the primary key is deferrable, which an identity's index never is.
    """
    primary = next((index for index in indexes if index.primary), None)
    chosen = primary
    if identity == "i":
        given_index = next((index for index in indexes if index.identity), None)
        lacks = (
            primary is None
            or primary.deferrable
            or (given_index and not set(primary.columns) <= set(given_index.columns))
        )
        if given_index is not None and lacks:
            chosen = given_index
    rest = [index for index in indexes if index is not chosen]
    return [replace(chosen, name=PRIMARY), *rest] if chosen is not None else rest


def _column(row: tuple[Any, ...]) -> ColumnDefinition:
    _, name, _, _, required, generated, counted, expression, comment, words, labels = row
    return ColumnDefinition(
        name,
        words,
        not required,
        labels=tuple(labels or ()),
        default=expression if not generated else None,
        generated=expression if generated else None,
        stored=generated == "s",
        auto_increment=bool(counted) or (expression or "").startswith("nextval("),
        comment=comment,
    )


def _index(row: Sequence[Any]) -> Index:
    name, primary, identity, unique, immediate, partial, method, keys, columns, options = row
    unfit = ""
    own = tuple(columns[:keys])
    if method != "btree":
        unfit = f"it is a {method} index, which has no order"
    elif partial:
        unfit = "it holds only some of the rows"
    elif "" in own:
        unfit = "it holds an expression, not columns alone"
    elif any(int(option) for option in options.split()[:keys]):
        unfit = "some of its columns descend, or have NULL first"
    unique_in_all = unique and immediate and not partial and "" not in own
    return Index(name, own, primary, identity, unique_in_all, unique and not immediate, unfit)


__all__ = [
    "DEFINITIONS_AS_JSON",
    "KEPT",
    "PRIMARY",
    "Attribute",
    "CatalogTable",
    "Index",
    "filled_defaults",
    "read_table",
    "read_tables",
    "schema_of",
    "table_from_json",
]
