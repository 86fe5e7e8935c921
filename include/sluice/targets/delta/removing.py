"""Delete rows that only a Delta table has, in one commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.targets.delta.client import errors
from sluice.targets.delta.merging import merge_parts
from sluice.targets.delta.notes import said_by
from sluice.targets.delta.site import Site
from sluice.targets.lake.committing import committed
from sluice.targets.lake.removing import LOOKED_BACK, LakeReconciler, removed_part
from sluice.targets.lake.site import Note
from sluice.targets.port import Fence, RowReader, StoredRange, WriteResult


@dataclass(frozen=True)
class DeltaReconciler(LakeReconciler):
    """See :class:`sluice.targets.lake.removing.LakeReconciler`."""

    site: Site

    def _writers(self, table: Any) -> set[str]:
        return {said_by(one).get("sluice.owner", "") for one in table.history(LOOKED_BACK)}


def remove(site: Site, fence: Fence, reader: RowReader, stored: StoredRange, scope: str) -> WriteResult:
    """Remove listed keys of one table. Raises Fenced, LoadError, MappingError, TargetUnavailable."""
    plan = stored.plan

    def write(table: Any, note: Note) -> WriteResult:
        info = site.info(table)
        part = removed_part(info, reader, stored)
        count = len(part.gone)
        if not count or not table.file_uris():
            return WriteResult()
        doing = f"removing {count} rows of {plan.target} in batch {fence.batch}"
        with errors(site.place, doing, site.path(plan.target)):
            merge_parts(table, site.noting(table, note), [part], info, list(part.columns))
        return WriteResult(deleted=count, statements=1)

    return committed(site, fence, plan.target, scope, "", write)
