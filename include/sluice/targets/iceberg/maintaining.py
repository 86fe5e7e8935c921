"""Upkeep of a target's tables: old snapshots are given up, and the files that only they need are removed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sluice.errors import SluiceError, TargetUnavailable
from sluice.model.tables import TableId
from sluice.targets.base import Upkeep
from sluice.targets.iceberg.client import errors
from sluice.targets.iceberg.site import Site
from sluice.targets.lake.checkpoints import Raced


@dataclass(frozen=True)
class IcebergMaintainer:
    """See :class:`sluice.targets.base.Maintainer`."""

    site: Site

    def maintain(self, tables: Sequence[TableId], *, dry_run: bool = False) -> list[Upkeep]:
        """See :meth:`sluice.targets.base.Maintainer.maintain`."""
        done = []
        for table in tables if self.site.options.maintenance.expire else ():
            try:
                found = self._expired(table, dry_run)
                done += [found] if found is not None else []
            except Raced:
                done.append(Upkeep(table, error=f"a load of {table} came first; it is tried again at the next run"))
            except SluiceError as error:
                done.append(Upkeep(table, error=str(error)))
        return done

    def _expired(self, table: TableId, dry_run: bool) -> Upkeep | None:
        found = self.site.open(table)
        if found is None:
            return None
        before_ms = (datetime.now(UTC) - self.site.options.maintenance.keep).timestamp() * 1000
        heads = {ref.snapshot_id for ref in found.refs().values()}
        old = [one for one in found.snapshots() if one.timestamp_ms < before_ms and one.snapshot_id not in heads]
        if not old:
            return None
        with errors(self.site.place, f"giving up old snapshots of {table}", self.site.uri(table)):
            gone = _files(found, old) - _files(found, [one for one in found.snapshots() if one not in old])
            if dry_run:
                return Upkeep(table, removed=len(gone), expired=len(old))
            found.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in old]).commit()
            now = self.site.open(table)
            if now is None:
                raise TargetUnavailable(f"{table} is gone")
            # what was committed since may use files of the newest snapshot alone, which is kept
            for path in gone - _files(now, now.snapshots()):
                found.io.delete(path)
        return Upkeep(table, removed=len(gone), expired=len(old))


def _files(table: Any, snapshots: Iterable[Any]) -> set[str]:
    """All that snapshots consist of."""
    found: set[str] = set()
    for one in snapshots:
        found.add(one.manifest_list)
        for manifest in one.manifests(table.io):
            if manifest.manifest_path not in found:
                found.add(manifest.manifest_path)
                found |= {
                    entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                }
    return found
