"""The target port: what every kind of target is, and its capabilities as data.

An author reads :mod:`~sluice.targets.port.target` first, then :mod:`~sluice.targets.port.batch` and
:mod:`~sluice.targets.port.checkpoint`. The rest is read when it is needed: :mod:`~sluice.targets.port.capabilities`,
:mod:`~sluice.targets.port.rows` and :mod:`~sluice.targets.port.schema`. A module describes each ability that a kind may
have: :mod:`~sluice.targets.port.reconcile`, :mod:`~sluice.targets.port.compare`, :mod:`~sluice.targets.port.maintain`
and :mod:`~sluice.targets.port.versions`.
"""

from __future__ import annotations

from sluice.model.schema_changes import ChangeKind
from sluice.targets.port.batch import BatchInput, NoFacts, SourceFacts, StatementRunner
from sluice.targets.port.capabilities import Capabilities, Consistency, Execution, Feature, Guarantee, Input, Ordering
from sluice.targets.port.checkpoint import Agrees, Checkpoint, CheckpointStore, Fence
from sluice.targets.port.compare import (
    MOST_EXTRA,
    SHOWN_CHARACTERS,
    Comparer,
    Compares,
    ComparesRowsOnly,
    CountingComparer,
    KeyLister,
    RangeDifferences,
    RowCount,
    RowCounts,
    RowDifference,
    SharedComparer,
    comparer_of,
    key_lister,
    keys_where,
    row_counter,
)
from sluice.targets.port.maintain import Maintainer, MaintainsFiles, Upkeep, maintainer_of
from sluice.targets.port.reconcile import (
    IDLE_WRITER_S,
    KeyRange,
    ListReconciler,
    OtherWriter,
    Reconciler,
    StoredRange,
)
from sluice.targets.port.rows import ChangePiece, RowFile, RowGroup, RowReader, Share, TableInput
from sluice.targets.port.schema import (
    ConvertsRows,
    CopiesAgain,
    Finding,
    SchemaChange,
    SourceStatement,
    TableFinding,
    TargetSchema,
)
from sluice.targets.port.target import (
    BatchWriter,
    Located,
    MarksLoads,
    RejectedRows,
    Rejection,
    Target,
    TargetSession,
    WriteResult,
    WriteUnit,
    marking,
    other_writers,
    refuses,
)
from sluice.targets.port.versions import KeepsVersions, TableVersion, VersionReader, versions_of

__all__ = [
    "IDLE_WRITER_S",
    "MOST_EXTRA",
    "SHOWN_CHARACTERS",
    "Agrees",
    "BatchInput",
    "BatchWriter",
    "Capabilities",
    "ChangeKind",
    "ChangePiece",
    "Checkpoint",
    "CheckpointStore",
    "Comparer",
    "Compares",
    "ComparesRowsOnly",
    "Consistency",
    "ConvertsRows",
    "CopiesAgain",
    "CountingComparer",
    "Execution",
    "Feature",
    "Fence",
    "Finding",
    "Guarantee",
    "Input",
    "KeepsVersions",
    "KeyLister",
    "KeyRange",
    "ListReconciler",
    "Located",
    "Maintainer",
    "MaintainsFiles",
    "MarksLoads",
    "NoFacts",
    "Ordering",
    "OtherWriter",
    "RangeDifferences",
    "Reconciler",
    "RejectedRows",
    "Rejection",
    "RowCount",
    "RowCounts",
    "RowDifference",
    "RowFile",
    "RowGroup",
    "RowReader",
    "SchemaChange",
    "Share",
    "SharedComparer",
    "SourceFacts",
    "SourceStatement",
    "StatementRunner",
    "StoredRange",
    "TableFinding",
    "TableInput",
    "TableVersion",
    "Target",
    "TargetSchema",
    "TargetSession",
    "Upkeep",
    "VersionReader",
    "WriteResult",
    "WriteUnit",
    "comparer_of",
    "key_lister",
    "keys_where",
    "maintainer_of",
    "marking",
    "other_writers",
    "refuses",
    "row_counter",
    "versions_of",
]
