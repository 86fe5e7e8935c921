"""Delete rows that only an Iceberg table has, in one snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.targets.iceberg.committing import committed
from sluice.targets.iceberg.merging import merge_parts
from sluice.targets.iceberg.site import Site
from sluice.targets.lake.removing import LOOKED_BACK, LakeReconciler, removed_part
from sluice.targets.lake.site import Note
from sluice.targets.port import Fence, RowReader, StoredRange, WriteResult


@dataclass(frozen=True)
class IcebergReconciler(LakeReconciler):
    """See :class:`sluice.targets.lake.removing.LakeReconciler`."""

    site: Site

    def _writers(self, table: Any) -> set[str]:
        newest = sorted(table.snapshots(), key=lambda one: int(one.sequence_number or 0))[-LOOKED_BACK:]
        return {
            str(one.summary.additional_properties.get("sluice.owner", "")) for one in newest if one.summary is not None
        }


def remove(site: Site, fence: Fence, reader: RowReader, stored: StoredRange, scope: str) -> WriteResult:
    """Remove listed keys of one table. Raises Fenced, LoadError, MappingError, TargetUnavailable."""

    def write(found: Any, change: Any, note: Note) -> WriteResult:
        info = site.info(found)
        part = removed_part(info, reader, stored)
        merge_parts(found, change, dict(note.said), info, list(part.columns), [part])
        return WriteResult(deleted=len(part.gone), statements=int(len(part.gone) > 0))

    return committed(site, fence, stored.plan.target, scope, "", write)
