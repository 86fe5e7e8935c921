"""Stored parts of a pipeline: manifest and files of a batch, its record after ZooKeeper dropped it, the definitions at
a position.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import lru_cache

from sluice.config.pipeline import PipelineConfig
from sluice.coordination.cursor import Cursor
from sluice.coordination.leases import Lease
from sluice.coordination.state import PipelineState
from sluice.errors import SegmentError
from sluice.model.batches import Batch, BatchNumber, Epoch
from sluice.model.definitions import Definitions
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.segments.changeset import damage
from sluice.segments.manifest import SegmentManifest
from sluice.segments.schemas import DefinitionsReader, SchemaStore
from sluice.segments.store import SegmentStore
from sluice.sources.port import Source
from sluice.sources.table_filter import Selection

OpenState = Callable[[], AbstractContextManager[PipelineState]]
"""Opens the state of the pipeline in ZooKeeper for as long as a block needs it."""


def manifest_of(open_state: OpenState, store: SegmentStore, batch: int) -> SegmentManifest | None:
    """Return the valid manifest of ``batch``: the one recorded in ZooKeeper, else the newest in the store; None for an
    orphaned batch.
    """
    with open_state() as state:
        record = state.batches.get(batch)
    return stored_manifest(store, batch, record)


def stored_manifest(store: SegmentStore, batch: int, record: Batch | None) -> SegmentManifest | None:
    """Return what :func:`manifest_of` returns, for a caller that has already read the batch's record from ZooKeeper."""
    if record:
        return store.read_manifest(record.manifest)
    names = sorted(p for p, _ in store.files(batch) if p.rsplit("/", 1)[-1].startswith("manifest-"))
    return store.read_manifest(names[-1]) if names else None


def kept_manifest(state: PipelineState, store: SegmentStore, batch: int) -> SegmentManifest | None:
    """Return the manifest of a batch that ZooKeeper knows; None if it does not, or the manifest cannot be read."""
    record = state.batches.get(batch)
    try:
        return store.read_manifest(record.manifest) if record is not None else None
    except SegmentError:
        return None


def lost_segment(store: SegmentStore, record: Batch) -> str:
    """Return the path of the first file of a batch that is missing or damaged, "" if all are whole.

    Reads every file.
    """
    try:
        manifest = store.read_manifest(record.manifest)
    except SegmentError:
        return record.manifest
    return damage(store, manifest.files)


def record_of(store: SegmentStore, manifest: SegmentManifest, claim: str) -> Batch:
    """Rebuild the record of a batch that ZooKeeper no longer has from the batch's manifest."""
    return Batch(
        number=BatchNumber(manifest.batch),
        epoch=Epoch(manifest.epoch),
        claim=claim,
        manifest=store.manifest_path(manifest.batch, manifest.epoch),
        first=manifest.first,
        last=manifest.last,
        changes=manifest.changes,
        size_bytes=manifest.size_bytes,
        first_commit_time_us=manifest.first_commit_time_us,
        targets=manifest.targets,
        snapshot=manifest.snapshot,
        replaces=manifest.snapshot_replaces,
    )


def known_again(open_state: OpenState, store: SegmentStore, target: str, number: int) -> Batch:
    """Return batch ``number`` from ZooKeeper, or else from the store.

    Raises SegmentError if one of its files is missing.
    """
    with open_state() as state:
        batch = state.batches.get(number)
    manifest = None
    if batch is None or not batch.dropped:
        with suppress(SegmentError):
            manifest = stored_manifest(store, number, batch)
        if manifest is None or not all(store.exists(file.path) for file in manifest.files):
            raise SegmentError(
                f"batch {number} is no longer stored",
                where=store.uri,
                hint=f"`sluice adopt {store.pipeline} {target} --from-target` reads the log again from where the "
                f"target is, while the server has it; `sluice recover {store.pipeline}` shows what else can be done",
            )
    if batch:
        return batch
    assert manifest is not None
    return record_of(store, manifest, "redelivered")


def definitions_at(store: SegmentStore, source: Source, state: PipelineState, first: Offset) -> Definitions | None:
    """Return the stored definitions that apply to changes from ``first`` on, as far as they are known.

    Raises SegmentError.
    """
    schemas, read = SchemaStore(store), source.stored_definitions
    cursor = state.cursor()
    if cursor is None or not cursor.schema:
        return None
    for path in (cursor.schema, *schemas.parents(cursor.schema)):
        at = schemas.position(path)
        if at.log_epoch == first.log_epoch and at.order <= first.order:
            return schemas.load(path, read)
    earlier = schemas.before(first)
    return schemas.load(earlier[0].path, read) if earlier else None


def move_to_another_log(
    store: SegmentStore, state: PipelineState, lease: Lease, cursor: Cursor, position: Offset
) -> Cursor:
    """Move the cursor to a position of the log that the server has in the place of the captured one, and return it
    without a history.

    The stored definitions of the captured log are forgotten first: once the cursor has moved, nobody could tell.
    """
    SchemaStore(store).forget(cursor.position)
    return state.advance(lease, cursor, position, schema="", jumps=True)


def tables_at(store: SegmentStore, source: Source, state: PipelineState, first: Offset) -> frozenset[TableId]:
    """Return the tables of :func:`definitions_at`, none if nothing is known. Raises SegmentError.

    The newest file of the history is read once per process: while no definition changes, a batch reads none.
    """
    cursor, read = state.cursor(), source.stored_definitions
    if cursor is not None and cursor.schema:
        at, tables = _tables_in(store.uri, store.pipeline, cursor.schema, read)
        if at.log_epoch == first.log_epoch and at.order <= first.order:
            return tables
    return _names(definitions_at(store, source, state, first))


def captured_tables_at_cursor(
    pipeline: PipelineConfig, store: SegmentStore, source: Source, state: PipelineState
) -> frozenset[TableId]:
    """Return the captured tables by the definitions at the captured position, none before the first capture. The source
    is not asked. Raises SegmentError.
    """
    cursor, selection = state.cursor(), Selection.compile(pipeline.capture)
    tables = tables_at(store, source, state, cursor.position) if cursor is not None else ()
    return frozenset(table for table in tables if selection.wants(table))


@lru_cache(maxsize=8)
def _tables_in(uri: str, pipeline: str, path: str, read: DefinitionsReader) -> tuple[Offset, frozenset[TableId]]:
    """Return the position of a history file, which never changes, and the tables that it knows."""
    schemas = SchemaStore(SegmentStore(uri, pipeline))
    return schemas.position(path), _names(schemas.load(path, read))


def _names(definitions: Definitions | None) -> frozenset[TableId]:
    return frozenset({*definitions.tables, *definitions.unknown}) if definitions is not None else frozenset()
