"""Compare rows with what a target holds: what a load would write is made, and compared with what the keys have."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.column_types import ColumnType
from sluice.model.fields import is_masked, true_name
from sluice.model.planned import PlannedTable
from sluice.model.tables import one_chunk
from sluice.targets.messages.read_back import listed_keys
from sluice.targets.messages.row_texts import BYTES, alike, not_read_back
from sluice.targets.port import (
    SHOWN_CHARACTERS,
    ComparesRowsOnly,
    KeyRange,
    RangeDifferences,
    RowDifference,
    keys_where,
)
from sluice.targets.redis.client import Client, connected
from sluice.targets.redis.held_rows import held_rows, key_table
from sluice.targets.redis.place import Place
from sluice.targets.redis.rows import TableRows, expiry_ms
from sluice.targets.redis.tables import definitions, require


@dataclass(frozen=True)
class RedisComparer(ComparesRowsOnly):
    """See :class:`sluice.targets.port.Comparer` and :class:`sluice.targets.port.KeyLister`.

    It has no ranges and no checksums.
    """

    place: Place

    def compare(
        self, plan: PlannedTable, rows: pa.Table, item: KeyRange | None, *, values: bool = False
    ) -> RangeDifferences:
        """See :meth:`sluice.targets.port.Comparer.compare`. Raises MappingError."""
        with connected(self.place) as client:
            require(self.place, definitions(client, self.place), plan)
            table_rows = TableRows(self.place, plan)
            rows = rows.combine_chunks()
            keys = table_rows.row_keys(rows).cast(BYTES).to_pylist() if rows.num_rows else []
            differences = self._compared(client, table_rows, rows, keys, values=values)
            if item is None or item.listed is None:
                return differences
            return replace(differences, extra=self._beyond(client, table_rows, rows, item, set(keys)))

    def not_listed(self, plan: PlannedTable) -> str:
        """See :meth:`sluice.targets.port.KeyLister.not_listed`."""
        return not_read_back(plan, "keys")

    def keys(self, plan: PlannedTable) -> Iterator[pa.Table]:
        """See :meth:`sluice.targets.port.KeyLister.keys`."""
        with connected(self.place) as client:
            require(self.place, definitions(client, self.place), plan)
            for keys in client.scan(*self.place.row_affixes(plan.target)):
                yield key_table(self.place, plan, list(dict.fromkeys(keys)))

    def _beyond(
        self, client: Client, table_rows: TableRows, rows: pa.Table, item: KeyRange, sent: set[bytes]
    ) -> pa.Table | None:
        """Return the listed keys that only the target has."""
        listed = item.listed
        if listed is None or not listed.num_rows:
            return None
        columns = listed_keys(table_rows.plan, listed, rows.schema)
        keys = (
            table_rows
            .keys([column.combine_chunks() for column in columns.columns], list(columns.schema))
            .cast(BYTES)
            .to_pylist()
        )
        key_counts = client.ask_all("looking for keys", [["EXISTS", key] for key in keys])
        return keys_where(
            listed, [exists == 1 and key not in sent for key, exists in zip(keys, key_counts, strict=True)]
        )

    def _compared(
        self, client: Client, table_rows: TableRows, rows: pa.Table, keys: Sequence[bytes], *, values: bool
    ) -> RangeDifferences:
        if not keys:
            return RangeDifferences()
        expected_columns = {name: texts.cast(BYTES).to_pylist() for name, texts in table_rows.texts_of(rows).items()}
        types = {true_name(field): table_rows.type_of(field) for field in table_rows.sent(rows.schema)}
        expired = self._gone(table_rows, rows)
        value_column = self.place.options.value_column
        missing, different = [], []
        hidden = any(map(is_masked, rows.schema))
        for number, stored_row in enumerate(held_rows(client, self.place, keys, list(expected_columns), hidden=hidden)):
            if expired[number]:
                continue
            own = {name: column[number] for name, column in expected_columns.items()}
            if stored_row is None:
                if not value_column or own[value_column] is not None:
                    missing.append(number)
                continue
            odd = tuple(name for name, value in own.items() if not self._same(types[name], value, stored_row.get(name)))
            if odd:
                differing_texts = (
                    tuple((self._shown(own[name]), self._shown(stored_row.get(name))) for name in odd) if values else ()
                )
                different.append(RowDifference(number, odd, differing_texts))
        return RangeDifferences(tuple(missing), tuple(different))

    def _same(self, column_type: ColumnType, expected: bytes | None, stored: bytes | None) -> bool:
        if self.place.options.form != "json" or expected is None or stored is None:
            return alike(column_type, expected, stored)
        expected_json, stored_json = (
            json.loads(text, parse_float=lambda digits: repr(float(digits))) for text in (expected, stored)
        )
        if type(expected_json) is not type(stored_json):
            return False
        return bool(expected_json == stored_json) or (
            isinstance(expected_json, str) and alike(column_type, expected_json.encode(), stored_json.encode())
        )

    def _shown(self, value: bytes | None) -> str | None:
        if value is None:
            return None
        text = value.decode("utf-8", "backslashreplace")
        text = str(json.loads(text, parse_float=str, parse_int=str)) if self.place.options.form == "json" else text
        return text[:SHOWN_CHARACTERS]

    def _gone(self, table_rows: TableRows, rows: pa.Table) -> Sequence[bool]:
        """Return which rows have expired or will within a second: the comparison leaves these rows out."""
        column = self.place.expiry_column({true_name(field) for field in table_rows.sent(rows.schema)})
        if not column:
            return [False] * rows.num_rows
        [arrow] = [field for field in table_rows.sent(rows.schema) if true_name(field) == column]
        at = expiry_ms(one_chunk(rows[arrow.name]))
        now_ms = int((time.time() + 1) * 1000)
        expired: list[bool] = pc.fill_null(pc.less(at, now_ms), False).to_pylist()
        return expired
