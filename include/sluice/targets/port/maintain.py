"""Optional: maintenance of the files of a target's tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from sluice.model.tables import TableId
from sluice.targets.port.target import Target


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The maintenance that was done for the files of one table, or would be.

    Attributes:
        merged: files that became ``written`` larger ones.
        removed: files that no version within its retention needs.
        expired: old versions that were expired.
        error: why it was not done, "" if it was.
    """

    table: TableId
    merged: int = 0
    written: int = 0
    removed: int = 0
    expired: int = 0
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "table": str(self.table), "merged": self.merged, "written": self.written, "removed": self.removed,
            "expired": self.expired,
            "error": self.error,
        }  # fmt: skip


class Maintainer(Protocol):
    """Maintains targets whose tables are files that batches add to.

    It works while batches are loaded, in any process and without the lease: rows and what is noted of batches stay as
    they are, and a commit that loses against a load is made again.
    """

    def maintain(self, tables: Sequence[TableId], *, dry_run: bool = False) -> Sequence[Upkeep]:
        """Maintain each of ``tables`` that exists and needs it; return one result for each.

        An error at one does not stop the others.
        """


class MaintainsFiles(Protocol):
    """A target with files to maintain; it declares :attr:`Capabilities.maintains_files`."""

    def maintainer(self) -> Maintainer | None:
        """Return the maintainer; None if this target's options leave nothing to maintain."""


def maintainer_of(target: Target) -> Maintainer | None:
    """Return the maintainer of a target's files; None if it has none."""
    return cast(MaintainsFiles, target).maintainer() if target.capabilities.maintains_files else None
