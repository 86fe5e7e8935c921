"""Every change as a document of its own: the row as it is after the change, what is known of the change, and the row
before it.

A document's id is made from the pipeline, the target, the batch and the change's place in it, so that a batch that is
tried again writes the same documents once more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError, MappingError
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId, member, one_chunk
from sluice.targets.changes_in_order import in_log_order
from sluice.targets.documents.writer import C, DocumentStore, DocumentWriter
from sluice.targets.messages.definitions import FOLLOWED, require_not_converted, require_not_stopped
from sluice.targets.messages.pieces import plan_of
from sluice.targets.port import ChangePiece, Fence, RejectedRows, RowReader, WriteResult, WriteUnit

CHANGE, BEFORE = "_change", "_before"
"""Fields of a document: what is known of the change, and the row before it."""
FOLLOWED_CHANGES = FOLLOWED
"""The schema changes that are followed with every change. They need nothing: a document has the columns of its time."""
_TEXT = pa.large_string()


@dataclass(frozen=True)
class ChangeUnit(Generic[C]):
    """See :class:`sluice.targets.port.WriteUnit`: all changes of a batch, in the order of each table's log."""

    store: DocumentStore[C]
    fence: Fence
    reader: RowReader
    changes: int

    @property
    def cost(self) -> int:
        """The cost of the unit, in changes."""
        return self.changes

    @property
    def memory_bytes(self) -> int:
        """Nothing is known of the bytes before they are read."""
        return 0

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Write the documents. Raises Fenced, LoadError, MappingError."""
        started, total, tables = time.monotonic(), WriteResult(), dict[TableId, None]()
        with self.store.connected() as client:
            record = self.store.guarded(client, self.fence)
            for group in in_log_order(self.reader.change_pieces(), self.store.rows):
                for piece in group:
                    if piece.rows.num_rows:
                        plan = plan_of(piece)
                        require_free_names(plan)
                        tables[piece.table] = None
                        result = self.store.append(client, record, self.fence, plan, piece)
                        total += replace(result, appended=piece.rows.num_rows)
        return replace(total, seconds=time.monotonic() - started, message=tuple(tables))


@dataclass(frozen=True)
class ChangeWriter(DocumentWriter[C]):
    """See :class:`sluice.targets.port.BatchWriter`. ``pipeline``: its name."""

    pipeline: str = ""

    def _follow(self, *, before_rows: bool) -> None:
        """Do nothing for schema changes, unless the policy is to stop: a document has the columns of its time."""
        for change in self.batch.schema_changes:
            if change.before_rows is before_rows:
                require_not_stopped(change)
                require_not_converted(change)

    def plan(self, parallelism: int) -> Sequence[Sequence[WriteUnit]]:
        """Return one unit with all changes. Raises LoadError for merged rows."""
        batch = self.batch
        for table in batch.tables:
            raise LoadError(
                f"rows of {table.plan.source} are not changes, and a target with every change takes nothing else",
                where=str(table.target),
                hint=f"`sluice dump start {self.pipeline} --table {table.plan.source}` reads them anew from the source",
            )
        return [[ChangeUnit(self.store, self.fence, batch.reader, batch.changes)]] if batch.changes else []


def require_free_names(plan: PlannedTable) -> None:
    """Raise MappingError if a column has the name of a field of Sluice's."""
    for column in plan.columns:
        if column.name in {CHANGE, BEFORE}:
            raise MappingError(
                f"column {column.name!r} of {plan.target} has the name of a field that Sluice writes",
                where=f"{plan.target}.{column.name}",
                hint="give it another name in the mapping: columns: {rename: {…}}",
            )


def ids_of(owner: str, batch: int, piece: ChangePiece) -> pa.Array:
    """Return the ids of a piece's documents."""
    rows = piece.rows
    parts = [one_chunk(rows["_seq"]), one_chunk(rows["_row"]), piece.part]
    texts = [pc.cast(part, _TEXT) for part in parts]
    head = pa.scalar(f"{owner}:{piece.batch or batch}", _TEXT)
    return pc.binary_join_element_wise(head, *texts, pa.scalar(".", _TEXT))


def about(batch: int, piece: ChangePiece) -> dict[str, pa.Array]:
    """Return what is known of each change, by the name of its field."""
    rows, count = piece.rows, piece.rows.num_rows
    place = pc.binary_join_element_wise(
        pc.cast(one_chunk(rows["_file"]), _TEXT), pc.cast(one_chunk(rows["_offset"]), _TEXT), pa.scalar(":", _TEXT)
    )
    return {
        "op": pc.cast(one_chunk(rows["_op"]), _TEXT),
        "at": one_chunk(rows["_commit_ts"]),
        "batch": pa.repeat(pa.scalar(piece.batch or batch, pa.int64()), count),
        "seq": one_chunk(rows["_seq"]),
        "row": one_chunk(rows["_row"]),
        "part": piece.part,
        "position": place,
        "gtid": pc.cast(one_chunk(rows["_gtid"]), _TEXT),
        "origin": one_chunk(rows["_origin"]),
    }


def before(piece: ChangePiece) -> tuple[pa.Table, pa.Array]:
    """Return the rows before the changes as a table like that of the rows, and which of them there are."""
    held_chunk = one_chunk(piece.rows["_before"])
    fields = [piece.rows.schema.field(part.name) for part in held_chunk.type if part.name in piece.rows.schema.names]
    columns = [member(held_chunk, field.name).cast(field.type) for field in fields]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields)), held_chunk.is_valid()


__all__ = [
    "BEFORE", "CHANGE", "FOLLOWED_CHANGES", "ChangeUnit", "ChangeWriter", "about", "before", "ids_of",
    "require_free_names",
]  # fmt: skip
