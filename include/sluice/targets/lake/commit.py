"""A batch's commit to one table: read the table, check whether it holds the batch, check the fence, write.

If another commit was faster, all of it starts again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sluice.errors import TargetUnavailable
from sluice.model.tables import TableId
from sluice.targets.lake.format import CommitNote, Raced
from sluice.targets.lake.tables import LakeTables
from sluice.targets.port import Fence, WriteResult

_ATTEMPTS = 12
_LONGEST_S = 3.0


def commit_batch(
    tables: LakeTables,
    fence: Fence,
    table: TableId,
    scope: str,
    doing: str,
    write: Callable[[Any, CommitNote], WriteResult],
    *,
    replay: str = "",
) -> WriteResult:
    """Call ``write`` (table, what its commit notes) until its commit succeeds; not at all if the table holds the batch.

    If several batches are written as one (Feature.BUNDLES), a table may hold the first ones, because an earlier attempt
    took fewer of them together and was killed before the checkpoint: ``write`` leaves out the batches up to
    ``known`` of its note.

    A replay of a dead letter is written each time: its rows have keys, and one letter may come in several pieces. It
    notes nothing new; if a replay and a batch are written at the same time, one of them is refused, too.

    The table is read before the fence is checked. So an old process has either read the table before a newer one wrote
    to it, and then its commit is refused; or it checks the fence after the newer one took over, and is refused there.

    Args:
        doing: what the commit does, for error messages.

    Raises:
        Fenced, MappingError, LoadError, TargetUnavailable. CheckpointError: the table was set back.
    """
    more = {"sluice.replay": replay} if replay else None
    with tables.format.turn():
        for attempt in range(_ATTEMPTS):
            lake_table = tables.required(table)
            checkpoint = tables.checkpoints.guard(fence)
            tables.require_ahead(table, lake_table, scope, checkpoint.delivery)
            noted = tables.noted(lake_table, scope, checkpoint.delivery)
            if not replay and noted >= fence.batch:
                return WriteResult()
            try:
                note = tables.note(fence, scope, noted if replay else fence.batch, checkpoint.delivery, doing, more)
                return write(lake_table, replace(note, known=noted))
            except Raced:
                time.sleep(random.uniform(0.5, 1.0) * min(0.02 * 2**attempt, _LONGEST_S))  # noqa: S311 - no secret
    raise TargetUnavailable(
        f"{doing}: other writers were quicker {_ATTEMPTS} times",
        where=tables.format.uri(table),
        hint="does another job rewrite the table all the time (OPTIMIZE, MERGE)? Let it pause",
    )


def holds(tables: LakeTables, fence: Fence, table: TableId, scope: str) -> bool:
    """Return True if a table has noted the batch: a repeat writes nothing there."""
    lake_table, checkpoint = tables.open(table), tables.checkpoints.held()
    return (
        lake_table is not None
        and checkpoint is not None
        and tables.noted(lake_table, scope, checkpoint.delivery) >= fence.batch
    )
