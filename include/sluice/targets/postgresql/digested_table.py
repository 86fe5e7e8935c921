"""The hashes of a PostgreSQL table's rows, see :class:`sluice.targets.sql.digest_rows.DigestedTable`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.model.digests import RangeDigest
from sluice.model.planned import PlannedTable
from sluice.model.tables import stored_name
from sluice.postgresql.names import quoted_table
from sluice.postgresql.range_digest import DigestColumn
from sluice.postgresql.row_digest import hashes_of
from sluice.postgresql.shared_digest import MASK, hashes_sql, shared_digest_sql
from sluice.targets.port import KeyRange
from sluice.targets.postgresql.range_delete import stretches
from sluice.targets.sql.digest_rows import shape_of
from sluice.targets.sql.rows import spelt
from sluice.targets.sql.tables import TargetTable


@dataclass(frozen=True, slots=True)
class PostgreSQLDigestedTable:
    """See the module."""

    plan: PlannedTable
    table: TargetTable
    columns: tuple[DigestColumn, ...]
    shape: str

    @classmethod
    def of(cls, plan: PlannedTable, table: TargetTable) -> PostgreSQLDigestedTable:
        """Return the hashes of a table whose definition is known."""
        by_name = {n.casefold(): DigestColumn(n, kind) for n, kind in zip(table.columns, table.types, strict=True)}
        columns = tuple(by_name[column.name.casefold()] for column in plan.columns if not column.generated)
        return cls(plan, table, columns, shape_of(plan, [column.declared for column in columns]))

    def hashes(self, values: Sequence[pa.Array | pa.ChunkedArray]) -> np.ndarray[Any, Any]:
        """See the protocol."""
        return hashes_of(values)

    def digest(self, cursor: Any, condition: str = "") -> RangeDigest:
        """See the protocol."""
        cursor.execute(shared_digest_sql(*self._place, condition or "TRUE", "t"))
        rows, checksum = cursor.fetchone()
        return RangeDigest(int(rows), int(checksum) & MASK)

    def hashes_at(self, cursor: Any, condition: str) -> list[int]:
        """See the protocol."""
        cursor.execute(hashes_sql(*self._place, condition, "t"))
        return [int(value) & MASK for (value,) in cursor.fetchall()]

    def conditions(self, rows: pa.Table) -> Iterable[str]:
        """See the protocol."""
        if not rows.num_rows:
            return ()
        keys = rows.select([stored_name(name) for name in self.plan.key])
        return stretches(self.table, spelt(self.table, KeyRange(self.plan.key, listed=keys)))

    @property
    def _place(self) -> tuple[str, tuple[DigestColumn, ...]]:
        return f"{quoted_table(self.table.place)} AS t", self.columns


__all__ = ["PostgreSQLDigestedTable"]
