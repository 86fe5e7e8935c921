"""Maintenance of a target's tables: small files become larger ones, and what no version within its retention needs is
deleted.

Nothing here is fenced: a compaction or clustering changes no row. If its commit conflicts with a load's, the later one
of the two is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.errors import SluiceError
from sluice.model.tables import TableId
from sluice.targets.lake.format import Raced
from sluice.targets.lake.tables import LakeTables
from sluice.targets.port import Upkeep


@dataclass(frozen=True)
class LakeMaintainer:
    """See :class:`sluice.targets.port.Maintainer`."""

    tables: LakeTables

    def maintain(self, tables: Sequence[TableId], *, dry_run: bool = False) -> list[Upkeep]:
        """See :meth:`sluice.targets.port.Maintainer.maintain`."""
        done = [self._maintain(table, dry_run) for table in tables]
        return [one for one in done if one != Upkeep(one.table)]

    def _maintain(self, table: TableId, dry_run: bool) -> Upkeep:
        format_ = self.tables.format
        try:
            found = self.tables.open(table)
            if found is None:
                return Upkeep(table)
            return format_.expire(format_.compact(table, found, self.tables.owner, dry_run=dry_run), dry_run=dry_run)
        except Raced:
            return Upkeep(table, error=f"loads of {table} came first; it is tried again at the next run")
        except SluiceError as error:
            return Upkeep(table, error=str(error))
