"""Targets that can fill an empty table without its secondary indexes, and build these from the rows afterwards.

The order of a load, which the flow drives (:mod:`sluice.flows.load.late_indexes`)::

    target.leave_out_indexes(fence, tables)    noted durably at the target, then dropped
    ... units write the rows of the copy ...
    target.build_indexes(fence)                built, then the note is removed
    writer.commit(results)                     only now the target holds the batch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from sluice.model.tables import TableId
from sluice.targets.port.checkpoint import Fence
from sluice.targets.port.target import Target


class LeavesOutIndexes(Protocol):
    """A target that can fill a table without its secondary indexes.

    It declares :attr:`~sluice.targets.port.Capabilities.leaves_out_indexes`. Unique indexes stay: they refuse equal
    rows.
    """

    def leave_out_indexes(self, fence: Fence, tables: Sequence[TableId]) -> tuple[TableId, ...]:
        """Drop the secondary indexes of those ``tables`` that ``apply`` of this target made and that are empty.

        What is dropped is noted first, at the target, so that any later process can build it. Returns the tables that
        lack indexes now, also by an earlier attempt. A table whose indexes cannot be dropped keeps them. Raises Fenced,
        TargetUnavailable.
        """

    def left_out_indexes(self) -> Mapping[TableId, tuple[str, ...]]:
        """Return the definitions that are noted as left out, by table."""

    def build_indexes(self, fence: Fence, tables: Sequence[TableId]) -> None:
        """Build what is noted as left out of these tables, as far as it is missing, and remove the notes.

        A repeat is harmless. Raises Fenced, TargetUnavailable, and LoadError that names the statement.
        """


def leaving_out_indexes(target: Target) -> LeavesOutIndexes | None:
    """Return the target if it can leave indexes out, else None."""
    return cast(LeavesOutIndexes, target) if target.capabilities.leaves_out_indexes else None
