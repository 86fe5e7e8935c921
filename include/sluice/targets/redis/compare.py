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
            made = TableRows(self.place, plan)
            rows = rows.combine_chunks()
            keys = made.row_keys(rows).cast(BYTES).to_pylist() if rows.num_rows else []
            differences = self._compared(client, made, rows, keys, values=values)
            if item is None or item.listed is None:
                return differences
            return replace(differences, extra=self._beyond(client, made, rows, item, set(keys)))

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
        self, client: Client, made: TableRows, rows: pa.Table, item: KeyRange, sent: set[bytes]
    ) -> pa.Table | None:
        """Return the listed keys that only the target has."""
        listed = item.listed
        if listed is None or not listed.num_rows:
            return None
        columns = listed_keys(made.plan, listed, rows.schema)
        keys = (
            made
            .keys([column.combine_chunks() for column in columns.columns], list(columns.schema))
            .cast(BYTES)
            .to_pylist()
        )
        there = client.ask_all("looking for keys", [["EXISTS", key] for key in keys])
        return keys_where(listed, [exists == 1 and key not in sent for key, exists in zip(keys, there, strict=True)])

    def _compared(
        self, client: Client, made: TableRows, rows: pa.Table, keys: Sequence[bytes], *, values: bool
    ) -> RangeDifferences:
        if not keys:
            return RangeDifferences()
        mine = {name: one.cast(BYTES).to_pylist() for name, one in made.texts_of(rows).items()}
        types = {true_name(one): made.type_of(one) for one in made.sent(rows.schema)}
        gone = self._gone(made, rows)
        value_column = self.place.options.value_column
        missing, different = [], []
        hidden = any(map(is_masked, rows.schema))
        for number, there in enumerate(held_rows(client, self.place, keys, list(mine), hidden=hidden)):
            if gone[number]:
                continue
            own = {name: column[number] for name, column in mine.items()}
            if there is None:
                if not value_column or own[value_column] is not None:
                    missing.append(number)
                continue
            odd = tuple(name for name, value in own.items() if not self._same(types[name], value, there.get(name)))
            if odd:
                shown = tuple((self._shown(own[name]), self._shown(there.get(name))) for name in odd) if values else ()
                different.append(RowDifference(number, odd, shown))
        return RangeDifferences(tuple(missing), tuple(different))

    def _same(self, column_type: ColumnType, mine: bytes | None, there: bytes | None) -> bool:
        if self.place.options.form != "json" or mine is None or there is None:
            return alike(column_type, mine, there)
        one, other = (json.loads(text, parse_float=lambda digits: repr(float(digits))) for text in (mine, there))
        if type(one) is not type(other):
            return False
        return bool(one == other) or (isinstance(one, str) and alike(column_type, one.encode(), other.encode()))

    def _shown(self, value: bytes | None) -> str | None:
        if value is None:
            return None
        text = value.decode("utf-8", "backslashreplace")
        text = str(json.loads(text, parse_float=str, parse_int=str)) if self.place.options.form == "json" else text
        return text[:SHOWN_CHARACTERS]

    def _gone(self, made: TableRows, rows: pa.Table) -> Sequence[bool]:
        """Return which rows have expired by now, or do within a second: whether they are there says nothing."""
        column = self.place.expiry_column({true_name(one) for one in made.sent(rows.schema)})
        if not column:
            return [False] * rows.num_rows
        [arrow] = [one for one in made.sent(rows.schema) if true_name(one) == column]
        at = expiry_ms(one_chunk(rows[arrow.name]))
        now_ms = int((time.time() + 1) * 1000)
        found: list[bool] = pc.fill_null(pc.less(at, now_ms), False).to_pylist()
        return found
