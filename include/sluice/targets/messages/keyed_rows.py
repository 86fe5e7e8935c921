"""The keys of merged rows as texts, now and as a target has them, and which columns of them the log knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.merge.column_presence import is_partial, masks
from sluice.model.batches import Op
from sluice.model.column_types import ColumnType
from sluice.model.fields import neutral_type, true_name
from sluice.model.planned import PlannedTable
from sluice.model.tables import META_COLUMNS, member, one_chunk, stored_name
from sluice.targets.messages.row_texts import key_texts

_Mask = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class RowKeys:
    """The keys of rows.

    ``now``: those of the rows; ``old``: those under which the target holds them, null where it holds none; ``gone``:
    deleted.
    """

    now: pa.Array
    old: pa.Array
    gone: _Mask

    @property
    def _differ(self) -> _Mask:
        return np.asarray(pc.fill_null(pc.not_equal(self.now, self.old), False).to_numpy(zero_copy_only=False))

    @property
    def moved(self) -> _Mask:
        """A mask of the rows that stay under another key."""
        return self._differ & ~self.gone

    def left(self, but: _Mask) -> pa.Array:
        """Return the keys that rows leave, except the rows of a mask: those of deleted ones, and old keys of those that
        have another one by now.
        """
        return pc.coalesce(self.old, self.now).filter(pa.array((self._differ | self.gone) & ~but))


@dataclass
class KeyedRows:
    """Makes the keys of a table's rows. ``head``, ``tail``: what stands before and after the key's values."""

    plan: PlannedTable
    head: str = ""
    tail: str = ""
    _types: dict[str, ColumnType] = field(init=False)

    def __post_init__(self) -> None:
        self._types = {column.name: column.sent_type for column in self.plan.columns}

    def type_of(self, arrow: pa.Field) -> ColumnType:
        """Return what the values of a column are."""
        known_type = self._types.get(true_name(arrow))
        if known_type is not None and known_type.arrow_type == arrow.type:
            return known_type
        return neutral_type(arrow) or known_type or ColumnType.of_arrow(str(arrow.type))

    def sent(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the columns that are sent."""
        return [field for field in schema if field.name not in META_COLUMNS and true_name(field) in self._types]

    def keys(self, columns: Sequence[pa.Array], fields: Sequence[pa.Field]) -> pa.Array:
        """Return the keys of rows (large_string), from the key's columns in key order; null where a value is."""
        parts: list[Any] = [pa.scalar(self.head, pa.large_string())]
        for number, (values, arrow) in enumerate(zip(columns, fields, strict=True)):
            parts += [pa.scalar(":", pa.large_string())] if number else []
            parts.append(key_texts(values, self.type_of(arrow)))
        return pc.binary_join_element_wise(
            *parts, pa.scalar(self.tail, pa.large_string()), pa.scalar("", pa.large_string())
        )

    def key_fields(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the key's columns, in key order."""
        return [schema.field(stored_name(name)) for name in self.plan.key]

    def old_columns(self, rows: pa.Table) -> list[pa.Array]:
        """Return the values of :meth:`key_fields` that the target has.

        Where it has none, or the log does not say them, they are those of the row.
        """
        before, old_columns = one_chunk(rows["_before"]), []
        for key_field in self.key_fields(rows.schema):
            now = one_chunk(rows[key_field.name])
            is_logged = before.type.get_field_index(key_field.name) >= 0
            old_columns.append(pc.coalesce(member(before, key_field.name).cast(now.type), now) if is_logged else now)
        return old_columns

    def row_keys(self, rows: pa.Table) -> pa.Array:
        """Return the keys of rows."""
        fields = self.key_fields(rows.schema)
        return self.keys([one_chunk(rows[field.name]) for field in fields], fields)

    def keys_of(self, rows: pa.Table) -> RowKeys:
        """Return the keys of rows, now and at the target."""
        is_delete = pc.equal(one_chunk(rows["_op"]), Op.DELETE.value).to_numpy(zero_copy_only=False)
        return RowKeys(self.row_keys(rows), self._old_keys(rows), np.asarray(is_delete))

    def _old_keys(self, rows: pa.Table) -> pa.Array:
        """Return the keys under which the target holds the rows; null where it holds none.

        Values that the log lacks are those of the row.
        """
        keys = self.keys(self.old_columns(rows), self.key_fields(rows.schema))
        return pc.if_else(one_chunk(rows["_before"]).is_valid(), keys, pa.scalar(None, keys.type))

    def lacking(self, rows: pa.Table) -> _Mask:
        """Return a mask of the rows that stay and of which the log lacks a column."""
        logged = self.known(rows)
        if not logged:
            return np.zeros(rows.num_rows, bool)
        stays = np.asarray(pc.not_equal(one_chunk(rows["_op"]), Op.DELETE.value).to_numpy(zero_copy_only=False))
        lacks: _Mask = stays & ~np.all([logged[field.name] for field in self.sent(rows.schema)], axis=0)
        return lacks

    def known(self, rows: pa.Table) -> dict[str, _Mask]:
        """Return, by stored name, which rows have a value of a column that the log knows; empty: all do."""
        if not is_partial(rows):
            return {}
        users = [user_field for user_field in rows.schema if user_field.name not in META_COLUMNS]
        known_mask, _ = masks(rows["_present"], len(users))
        return {user_field.name: known_mask[:, number] for number, user_field in enumerate(users)}
