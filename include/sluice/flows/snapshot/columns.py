"""The columns of tables of a pipeline's snapshot, for rules whose columns only rows tell."""

from __future__ import annotations

import pyarrow as pa

from sluice.coordination.state import PipelineState
from sluice.flows.transform.made_columns import only_rows_tell
from sluice.model.tables import TableId
from sluice.rules import RuleSet
from sluice.segments.changeset import Changeset, ChangesetReader
from sluice.segments.snapshot_columns import SnapshotColumns, Way
from sluice.segments.store import SegmentStore


def note_columns(store: SegmentStore, state: PipelineState, rules: RuleSet, changeset: Changeset, epoch: int) -> None:
    """Record the columns of a batch's rows before the snapshot gets the batch. ``rules``: the pipeline's.

    Raises SegmentError.
    """
    if not only_rows_tell(rules):
        return
    made = {}
    for table in changeset.manifest.tables:
        file = next(iter(table.files))  # of the newest definition, see write_part
        way = (TableId(table.source_schema, table.source_table), table.target)
        made[way] = ChangesetReader(store, file).schema
    if made:
        SnapshotColumns(store, state.identity()).note(changeset.manifest.batch, epoch, made)


def noted_columns(store: SegmentStore, state: PipelineState, batch: int, rules: RuleSet) -> dict[Way, pa.Schema]:
    """Return the user columns of the snapshot's tables after a batch. ``rules``: the pipeline's.

    Raises SegmentError.
    """
    return SnapshotColumns(store, state.identity()).after(batch) if only_rows_tell(rules) else {}
