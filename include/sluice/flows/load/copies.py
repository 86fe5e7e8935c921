"""Tables that are copied again for one target, as it cannot convert their rows as the source did
(``on_conversion: copy``).
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.coordination.state import PipelineState
from sluice.errors import LoadError
from sluice.flows.dump.start import DumpOrder, captured_tables, dump_tables
from sluice.flows.runtime import Runtime
from sluice.mapping import Mapping as Routes
from sluice.model.dumps import CONVERTED
from sluice.model.tables import TableId
from sluice.targets.feature_check import to_ignore
from sluice.targets.port import SchemaChange


def request_copies(
    runtime: Runtime,
    state: PipelineState,
    target: str,
    batch: int,
    changes: Sequence[SchemaChange],
    *,
    may_be_gone: bool = False,
) -> None:
    """Record a dump of each table that is copied again, before the batch empties it at the target.

    A repeat finds the dump that is there.

    Its chunks are read after the statement, so that their rows are converted, and arrive in later batches.
    ``may_be_gone``: a table that the source no longer has needs no copy, see :class:`sluice.targets.port.CopiesAgain`.

    Raises:
        LoadError: the source has no such table any more, or it has no key by which rows that change meanwhile are told
            apart.
    """
    for change in changes:
        for table in sorted(change.copies):
            name = change.name_after(table)
            id_ = f"converted-{target}-{batch:010d}-{change.number}"
            if len(change.copies) > 1:
                id_ += f"-{sorted(change.copies).index(table)}"
            if state.dumps.get(id_) is None:
                _request(runtime, state, change, name, DumpOrder(CONVERTED, id_, (target,)), may_be_gone=may_be_gone)


def _request(
    runtime: Runtime, state: PipelineState, change: SchemaChange, table: TableId, order: DumpOrder, *, may_be_gone: bool
) -> None:
    key = Routes.of(runtime.pipeline).route(table).key
    with runtime.source.open() as source:
        captured = captured_tables(runtime.pipeline, source)
        why = ""
        if table not in captured and may_be_gone:
            return
        if table not in captured:
            why = "the source has no such table any more, or it is not captured"
        elif table in source.keyless() and not key:
            why = "it has no primary key"
        if why:
            raise LoadError(
                f"the rows of {table} are others after a statement, and the table cannot be copied again for target "
                f"{change.consumer}: {why}: {change.statement.text[:300]}",
                where=change.where,
                hint="make the change at the target by hand, rows included, and "
                f"{to_ignore(change.consumer, ', '.join(change.ddl_kinds))}",
            )
        dump_tables(runtime.pipeline, runtime.rules_path, state, source, {table: captured[table]}, order)
