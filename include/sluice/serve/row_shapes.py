"""The columns of a stream of rows, which are the same for all of it, and rows brought into them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import ConfigError, SchemaMoved, first_line
from sluice.merge.column_presence import is_partial, remapped, renewed
from sluice.merge.compact import user_columns
from sluice.model.decimals import cast, nan_columns, rows_without_nan
from sluice.model.fields import key_fields, true_name
from sluice.model.nearest import meant
from sluice.model.tables import META_FIELDS, TableId, member, one_chunk, user_schema
from sluice.serve.requests import ReadRequest, holds
from sluice.serve.transaction_records import RECORD, with_records

ROWS_AT_ONCE = 65_536
"""Most rows of a record batch."""

OWN = {
    "_table": pa.field("_table", pa.string(), nullable=False),
    "_batch": pa.field("_batch", pa.uint64(), nullable=False),
}
"""What the service itself says of a row: its table (schema.table) and its batch."""

_RESERVED = frozenset(OWN) | {RECORD}
"""A user's column with such a name has a ``$`` before it."""

_META = {field.name: field for field in META_FIELDS} | {"_present": pa.field("_present", pa.binary())}
_OF = {
    "changes": ("_op", "_seq", "_file", "_offset", "_row", "_commit_ts", "_gtid", "_txn", "_origin", "_present"),
    "merged": ("_op", "_seq", "_commit_ts", "_present"),
}


def sent_name(name: str) -> str:
    """Return the name of a user's column in a stream."""
    return f"${name}" if name in _RESERVED else name


def with_users(rows: pa.Table, users: Sequence[pa.Field]) -> pa.Table:
    """Return ``rows`` with exactly these user columns, in this order.

    Others are dropped, missing ones are null, types are converted. ``_present`` says of them what it said before.
    Raises pyarrow.ArrowInvalid for a value that does not fit.
    """
    own_user_columns = user_columns(rows.schema)
    wanted_names = [field.name for field in users]
    fields, columns = [], []
    for field in users:
        fields.append(field)
        columns.append(
            cast(rows[field.name], field.type)
            if field.name in own_user_columns
            else pa.nulls(rows.num_rows, field.type)
        )
    for field in rows.schema:
        if field.name in own_user_columns:
            continue
        values = rows[field.name]
        if field.name == "_before":
            struct = one_chunk(values)
            have = {child.name for child in struct.type}
            children = [
                cast(member(struct, child.name), child.type)
                if child.name in have
                else pa.nulls(len(struct), child.type)
                for child in users
            ]
            values = pa.StructArray.from_arrays(children, fields=list(users), mask=pc.is_null(struct))
            field = pa.field("_before", values.type)
        elif field.name == "_present" and wanted_names != own_user_columns and is_partial(rows):
            is_change = "_txn" in rows.schema.names
            own_names = [name if name in own_user_columns else None for name in wanted_names]
            values = (
                renewed(rows, own_user_columns, wanted_names)
                if is_change
                else remapped(rows, own_user_columns, own_names)
            )
        fields.append(field)
        columns.append(values)
    return pa.table(columns, schema=pa.schema(fields))


@dataclass(frozen=True)
class StreamShape:
    """The shape of a stream's rows.

    Attributes:
        users: the user's columns that the tables have; schema: of what is sent, ``users`` by name may be fewer there.
    """

    request: ReadRequest
    users: tuple[pa.Field, ...]
    schema: pa.Schema

    @classmethod
    def of(cls, request: ReadRequest, tables: Iterable[tuple[TableId, pa.Schema]]) -> StreamShape:
        """Return the shape for rows of all these tables, under the names of :func:`sent_name`.

        The first of two definitions of a table counts.

        Raises ConfigError: columns of one name do not fit together, or a column that the request names is not there.
        """
        users = _united(tables)
        names = [sent_name(name) for name in users]
        requested_columns = [*(request.columns or ())]
        for name in requested_columns:
            if name not in names:
                raise ConfigError(f"no table has a column {name!r}{meant(name, names)}", hint=_listed(names))
        if request.predicate is not None:
            holds(request.predicate, _Empty(users, names))
        visible_fields = [
            f.with_name(sent_name(f.name))
            for f in users.values()
            if request.columns is None or sent_name(f.name) in requested_columns
        ]
        meta = [_META[name] for name in _OF[request.form]]
        if request.transactions:  # a record has no values
            visible_fields = [field.with_nullable(True) for field in visible_fields]
            meta.append(pa.field(RECORD, pa.string()))
        before = pa.field("_before", pa.struct(visible_fields))
        return cls(request, tuple(users.values()), pa.schema([*visible_fields, *OWN.values(), *meta, before]))

    @property
    def columns(self) -> list[tuple[str, pa.DataType]]:
        """The user's columns under the names that requests have for them."""
        return [(sent_name(field.name), field.type) for field in self.users]

    def require(self, columns: pa.Schema, table: TableId, batch: int) -> None:
        """Raise SchemaMoved if rows of these columns do not fit."""
        have = {field.name: field.type for field in self.users}
        for field in columns:
            if field.name not in have:
                raise _moved(f"{table} has a column {field.name!r} that the stream lacks", batch)
            if field.type != have[field.name] and not _widens(field.type, have[field.name]):
                raise _moved(
                    f"column {field.name!r} of {table} is {field.type}, and {have[field.name]} in the stream", batch
                )

    def rows(self, rows: pa.Table, table: TableId, batch: int) -> pa.Table:
        """Return those rows of a batch that are sent, with the columns that :meth:`sent` needs. Raises SchemaMoved."""
        self.require(user_schema(rows.schema), table, batch)
        reads = self.request.reads
        try:
            users = with_users(rows, [f for f in self.users if reads is None or sent_name(f.name) in reads])
        except pa.ArrowException as error:
            raise _moved(f"{table} has a value that the stream cannot hold: {first_line(error)}", batch) from None
        if self.request.predicate is not None:
            users = users.filter(self._wanted(users))
        shown_users = (
            with_users(users, self._visible_fields)
            if len(self._visible_fields) < len(user_columns(users.schema))
            else users
        )
        names = [field.name for field in self._visible_fields]
        names += [name for name in (*_OF[self.request.form], "_before") if name in shown_users.schema.names]
        chosen = shown_users.select(names)
        if not is_partial(chosen):
            absent = pa.nulls(chosen.num_rows, pa.binary())
            chosen = chosen.drop_columns(["_present"]) if "_present" in names else chosen
            chosen = chosen.append_column(_META["_present"], absent)
        for column in nan_columns(chosen, [true_name(field) for field in key_fields(chosen.schema)]).values():
            raise ConfigError(
                f"a row of {table} in batch {batch} has NaN in column {column!r}, which a decimal of a stream cannot "
                "hold",
                hint="leave the column out (columns), or change the row at the source and read on behind its batch",
            )
        return rows_without_nan(chosen)

    @property
    def _visible_fields(self) -> list[pa.Field]:
        sent = set(self.schema.names)
        return [field for field in self.users if sent_name(field.name) in sent]

    def sent(self, rows: pa.Table, table: TableId, batch: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows that :meth:`rows` made, a piece at a time."""
        for start in range(0, rows.num_rows, ROWS_AT_ONCE):
            yield self._piece(rows.slice(start, ROWS_AT_ONCE), table, batch)

    def with_records(self, pieces: Iterable[tuple[pa.Table, TableId]], batch: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a whole batch in log order, with the records of transactions.

        See :mod:`transaction_records`.
        """
        sent_pieces = (piece for rows, table in pieces for piece in self.sent(rows, table, batch))
        return with_records(sent_pieces, RECORD)

    def _piece(self, rows: pa.Table, table: TableId, batch: int) -> pa.RecordBatch:
        count = rows.num_rows
        own = {"_table": pa.scalar(str(table)), "_batch": pa.scalar(batch, pa.uint64())}
        columns = []
        for field in self.schema:
            if field.name == "_before":
                struct = one_chunk(rows["_before"])
                children = [member(struct, stored(child.name)) for child in field.type]
                columns.append(pa.StructArray.from_arrays(children, fields=list(field.type), mask=pc.is_null(struct)))
            elif field.name in own:
                columns.append(pa.repeat(own[field.name], count))
            elif field.name == RECORD:
                columns.append(pa.nulls(count, field.type))
            else:
                columns.append(_plain(one_chunk(rows[stored(field.name)]), field.type))
        return pa.record_batch(columns, schema=self.schema)

    def _wanted(self, rows: pa.Table) -> pa.Array:
        assert self.request.predicate is not None
        before = one_chunk(rows["_before"])
        now = holds(self.request.predicate, lambda name: rows[stored(name)])
        then = holds(self.request.predicate, lambda name: member(before, stored(name)))
        then = pc.and_(pc.fill_null(then, False), pc.is_valid(before))
        return pc.or_(pc.fill_null(now, False), then)


class _Empty:
    """The columns without a row, to see whether a predicate fits them."""

    def __init__(self, users: Mapping[str, pa.Field], names: Sequence[str]) -> None:
        self._types = dict(zip(names, (field.type for field in users.values()), strict=True))

    def __call__(self, name: str) -> pa.Array:
        if name not in self._types:
            names = list(self._types)
            raise ConfigError(f"no table has a column {name!r}{meant(name, names)}", hint=_listed(names))
        return pa.array([], self._types[name])


def _plain(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(values.type) and len(values.dictionary) == 1 and not values.null_count:
        return pa.repeat(values.dictionary[0].cast(kind), len(values))
    return values.cast(kind)


def stored(name: str) -> str:
    """Return the name in the table of a user's column of a stream."""
    return name[1:] if name[:1] == "$" and name[1:] in _RESERVED else name


def _listed(names: Sequence[str]) -> str:
    return f"columns that are read: {', '.join(names[:50])}"


def _united(tables: Iterable[tuple[TableId, pa.Schema]]) -> dict[str, pa.Field]:
    fields: dict[str, pa.Field] = {}
    of: dict[str, TableId] = {}
    seen_tables: set[TableId] = set()
    for table, schema in tables:
        seen_tables.add(table)
        for field in schema:
            if field.name not in fields:
                fields[field.name], of[field.name] = field, table
            elif field.type != fields[field.name].type and of[field.name] != table:
                fields[field.name] = _common(fields[field.name], field, of[field.name], table)
    if len(seen_tables) > 1:  # a key, a type at the source: of one table only
        return {name: pa.field(name, field.type) for name, field in fields.items()}
    return fields


def _common(first_field: pa.Field, second_field: pa.Field, table: TableId, second: TableId) -> pa.Field:
    plain = [pa.schema([pa.field(first_field.name, field.type)]) for field in (first_field, second_field)]
    try:
        return pa.unify_schemas(plain, promote_options="permissive").field(0)
    except pa.ArrowException:
        raise ConfigError(
            f"column {first_field.name!r} is {first_field.type} in {table} and {second_field.type} in {second}: "
            "one stream cannot have both",
            hint="read these tables one by one",
        ) from None


def _widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    pair = [pa.schema([pa.field("v", kind)]) for kind in (narrow, wide)]
    try:
        return bool(pa.unify_schemas(pair, promote_options="permissive").field(0).type == wide)
    except pa.ArrowException:
        return False


def _moved(why: str, batch: int) -> SchemaMoved:
    error = SchemaMoved(
        f"the columns changed in batch {batch}: {why}",
        hint=f"read on from batch {batch}: a new stream has the new columns",
    )
    error.batch = batch
    return error
