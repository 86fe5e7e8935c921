"""The hashes of a MySQL table's rows, see :class:`sluice.targets.sql.digest_rows.DigestedTable`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.model.digests import RangeDigest
from sluice.model.planned import PlannedTable
from sluice.mysql.range_digest import DigestColumn, digest_sql, hashes_sql
from sluice.mysql.row_digest import HashedColumn, hashes_of
from sluice.targets.mysql import statements
from sluice.targets.mysql.session import Session
from sluice.targets.mysql.tables import read_tables
from sluice.targets.sql.digest_rows import shape_of
from sluice.targets.sql.tables import TargetTable


@dataclass(frozen=True, slots=True)
class MySQLDigestedTable:
    """See the module.

    Attributes:
        hashed: columns in the source's types. selected: the same columns in the target's.
    """

    session: Session
    hashed: tuple[HashedColumn, ...]
    selected: tuple[DigestColumn, ...]
    table: TargetTable
    shape: str

    @classmethod
    def of(cls, session: Session, plan: PlannedTable) -> MySQLDigestedTable:
        """Read the table's definition."""
        stored = read_tables(session.cursor, [plan.target])[plan.target].columns
        types = {column.name.casefold(): column for column in stored}
        columns = [column for column in plan.columns if not column.generated]
        infos = [types[column.name.casefold()] for column in columns]
        sent = [info for info in stored if not info.generated]
        table = TargetTable(
            plan.target,
            tuple(info.name for info in sent),
            tuple(types[name.casefold()].name for name in plan.key),
            types=tuple(info.sql_type for info in sent),
        )
        return cls(
            session,
            tuple(HashedColumn(c.name, c.sql_type, c.value_type) for c in columns),
            tuple(DigestColumn(info.name, info.sql_type, info.nullable) for info in infos),
            table,
            shape_of(plan, [(info.sql_type, info.charset) for info in infos]),
        )

    def hashes(self, values: Sequence[pa.Array | pa.ChunkedArray]) -> np.ndarray[Any, Any]:
        """See the protocol."""
        return hashes_of(self.hashed, values)

    def digest(self, cursor: Any, condition: str = "") -> RangeDigest:
        """See the protocol."""
        cursor.execute(digest_sql(self.table.table, self.selected, "", condition, mariadb=self.session.mariadb))
        return RangeDigest().plus(*cursor.fetchone())

    def hashes_at(self, cursor: Any, condition: str) -> list[int]:
        """See the protocol."""
        cursor.execute(hashes_sql(self.table.table, self.selected, condition))
        return [int(value) for (value,) in cursor.fetchall()]

    def conditions(self, rows: pa.Table) -> Iterable[str]:
        """See the protocol."""
        return statements.key_conditions(self.table, rows, self.session.dialect)


__all__ = ["MySQLDigestedTable"]
