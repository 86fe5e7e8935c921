"""The segment store: which files of batches that some target still needs are gone or damaged, and how to restore
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sluice.coordination.cursor import Cursor
from sluice.coordination.state import PipelineState
from sluice.errors import CaptureError, SegmentError, SluiceError
from sluice.flows.runtime import Runtime
from sluice.flows.stored import lost_segment
from sluice.model.batches import Batch
from sluice.model.tables import TableId
from sluice.operations.recover.copies import Replacement, copy, cost_of, replacement, rows_of
from sluice.operations.recover.plan import Measure, StoreFinding
from sluice.operations.recover.recapture import placed_tables, recapture, require_log_of
from sluice.segments.schemas import SchemaStore
from sluice.segments.store import SegmentStore
from sluice.sources.port import Source

SUBJECT = "segments"


def look_at_segments(
    runtime: Runtime, state: PipelineState, cursor: Cursor, records: Sequence[Batch]
) -> tuple[list[StoreFinding], list[Measure]]:
    """Check the files of ``records``, the batches that some target still needs."""
    store = runtime.store
    damaged = [(record, lost) for record in records if not record.dropped and (lost := lost_segment(store, record))]
    findings = [
        StoreFinding(SUBJECT, "loss", f"batch {record.number} ({record.changes} changes): {lost} is damaged or gone")
        for record, lost in damaged
    ]
    if not damaged:
        sentence = (
            f"all files of the {len(records)} batches that a target still needs" if records else "no batch is needed"
        )
        findings.append(StoreFinding(SUBJECT, "ok", f"{sentence}{' are whole' if records else ''}; {store.uri}"))
    measures = []
    if cursor.schema and not _readable(runtime.source, runtime.store, cursor.schema):
        findings.append(StoreFinding(SUBJECT, "loss", f"the schema history: {cursor.schema} is damaged or gone"))
        measures.append(
            Measure(
                SUBJECT,
                (
                    "the schema history is read from the source again, as far as definitions were not changed since",
                    "a statement in these batches that changed a definition may then stop at a target, which says "
                    "what to do",
                ),
                partial(_forget_schema, runtime, state),
                cost="one look at all definitions",
            )
        )
    again: list[Batch] = []
    purged: list[tuple[Batch, str]] = []
    for record, _ in damaged:
        why = _why_purged(runtime, record)
        if why:
            purged.append((record, why))
        else:
            again.append(record)
    if again:
        measures.append(_captured_again(runtime, state, again))
    if purged:
        measures.append(_copied(runtime, state, purged))
    return findings, measures


def _readable(source: Source, store: SegmentStore, path: str) -> bool:
    try:
        SchemaStore(store).load(path, source.stored_definitions)
    except SegmentError:
        return False
    return True


def _forget_schema(runtime: Runtime, state: PipelineState) -> None:
    with state.replicator() as lease:
        cursor = state.cursor()
        if cursor is not None:
            state.advance(lease, cursor, cursor.position, schema="")


def _why_purged(runtime: Runtime, record: Batch) -> str:
    """Return why the source no longer has the log of a batch, "" if it has it.

    Raises SourceUnavailable, PreflightError.
    """
    if record.first.is_at(record.last):
        return ""
    try:
        with runtime.source.open(to_stream=True) as source:
            require_log_of(source, record)
    except CaptureError as error:
        return error.message
    return ""


# -- from the log ------------------------------------------------------------------------------------------------------


def _captured_again(runtime: Runtime, state: PipelineState, records: Sequence[Batch]) -> Measure:
    steps = [
        f"batch {record.number} is captured again from the source's log, {record.first} to {record.last}: same "
        "number, same content"
        for record in records
    ]
    plain, tables = _placed(runtime.store, state, records)
    removal = Replacement(())
    cost = f"{len(records)} batches, {sum(record.changes for record in records):,} changes are read from the log"
    if plain | tables:
        steps.append("rows that dumps placed in them are not in the log: their tables are copied anew")
        with runtime.source.open() as source:
            cost += f"; {cost_of(rows_of(runtime.pipeline, source, plain | tables))}"
            removal = (
                replacement(runtime, source, rows_of(runtime.pipeline, source, tables)) if tables else Replacement(())
            )
        steps += removal.steps
    act = partial(_capture_again, runtime, state, records)
    return Measure(SUBJECT, tuple(steps), act, cost=cost, after=removal.after, left=removal.left)


def _capture_again(runtime: Runtime, state: PipelineState, records: Sequence[Batch]) -> None:
    plain, tables = _placed(runtime.store, state, records)
    name = f"recover-{records[0].number:010d}-{records[-1].number:010d}"
    targets = records[0].targets if len({record.targets for record in records}) == 1 else ()
    if plain | tables:  # recorded first: a batch that was captured again no longer says what it lacks
        with runtime.source.open() as source:
            copy(runtime, state, source, plain, f"{name}-rows", targets=targets, replace_rows=False)
            copy(runtime, state, source, tables, f"{name}-tables", targets=targets)
    for record in records:
        with state.replicator() as lease:
            recapture(runtime, state, lease, record)


def _placed(store: SegmentStore, state: PipelineState, records: Sequence[Batch]) -> tuple[set[TableId], set[TableId]]:
    plain: set[TableId] = set()
    tables: set[TableId] = set()
    for record in records:
        copied, replaced = placed_tables(store, state, record)
        plain |= copied
        tables |= replaced
    return plain - tables, tables


# -- the log is gone, too ----------------------------------------------------------------------------------------------


def _copied(runtime: Runtime, state: PipelineState, purged: Sequence[tuple[Batch, str]]) -> Measure:
    records = [record for record, _ in purged]
    tables = _tables(runtime.store, records)
    with runtime.source.open() as source:
        rows = rows_of(runtime.pipeline, source, tables)
        removal = replacement(runtime, source, rows)
    steps = [f"the source does not have their log any more: {purged[0][1]}"]
    steps += [
        f"batch {record.number} ({record.changes} changes) is abandoned: no target that lacks it gets it"
        for record in records
    ]
    copied_tables = "every captured table, as no manifest says which it had" if tables is None else "the tables it had"
    steps += [f"{copied_tables}: copied anew", *removal.steps]
    steps.append(
        "definitions that they changed are not changed at the targets: `sluice check` names what lacks, `--apply` "
        "makes it"
    )
    return Measure(
        SUBJECT,
        tuple(steps),
        partial(_let_go, runtime, state, records),
        cost=cost_of(rows),
        lost=_lost_for_streams(runtime, records),
        after=removal.after,
        left=removal.left,
    )


def _tables(store: SegmentStore, records: Sequence[Batch]) -> set[TableId] | None:
    """Return the tables in the batches' manifests; None if one cannot be read."""
    tables: set[TableId] = set()
    for record in records:
        try:
            tables |= {file.table_id for file in store.read_manifest(record.manifest).files}
        except SluiceError:
            return None
    return tables


def _lost_for_streams(runtime: Runtime, records: Sequence[Batch]) -> tuple[str, ...]:
    """Describe the changes that targets with ``changes: all`` lack after a copy, which has the rows only as they are
    now.
    """
    names = [target.name for target in runtime.pipeline.targets if target.changes == "all"]
    return tuple(
        f"{', '.join(names)} (changes: all): the {record.changes} changes from {record.first} to {record.last}; the "
        "copy has only the rows as they are now, and no deletes"
        for record in records
        if names
    )


def _let_go(runtime: Runtime, state: PipelineState, records: Sequence[Batch]) -> None:
    with state.replicator() as lease:
        with runtime.source.open() as source:  # the copy is recorded first, so that it is repeated after a crash
            copy(runtime, state, source, _tables(runtime.store, records), f"recover-{records[0].number:010d}-lost")
        cursor = state.cursor()
        if cursor is not None:
            state.abandon(lease, cursor, [record.number for record in records])
