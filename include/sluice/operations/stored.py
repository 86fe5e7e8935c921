"""segments and tail: show what is stored."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sluice.config.masking import Masking
from sluice.errors import SegmentError
from sluice.flows.runtime import Runtime
from sluice.flows.stored import stored_manifest
from sluice.formats import Format, Statement, format_of
from sluice.model.batches import Batch
from sluice.model.changes import Change
from sluice.model.fields import true_name
from sluice.model.schema_changes import TableChange
from sluice.model.tables import TableId
from sluice.operations.rule_stats import in_words, rules_of
from sluice.segments.changeset import changeset_damage
from sluice.segments.manifest import DdlRecord, SegmentManifest
from sluice.segments.packed import file_of
from sluice.segments.reader import iter_changes, read_file
from sluice.segments.store import SegmentStore

POLL_S = 0.25


def segments(runtime: Runtime, *, batch: int | None = None, verify: bool = False) -> list[dict[str, Any]]:
    """Return one row per batch, or one per file of one batch.

    ``verify`` reads everything and raises SegmentError on damage.
    """
    store = runtime.store
    rows: list[dict[str, Any]] = []
    with runtime.state() as state:
        delivered = state.delivered()
        if batch is not None:
            record = state.batches.get(batch)
            manifest = stored_manifest(store, batch, record)
            if manifest is None:
                raise SegmentError(f"there is no batch {batch} in the store", where=store.uri)
            if verify:
                _verify_changeset(store, record)
            for file in manifest.files:
                if verify:
                    read_file(store, file)
                rows.append({
                    "table": str(file.table_id),
                    "rows": file.rows,
                    "inserts": file.inserts,
                    "updates": file.updates,
                    "deletes": file.deletes,
                    "bytes": file.size_bytes,
                    "crc32": file.crc32,
                    "path": file.path,
                })
            return rows
        for number in store.batches():
            record = state.batches.get(number)
            manifest = stored_manifest(store, number, record)
            if manifest is None:
                rows.append({
                    "batch": number,
                    "state": "orphan",
                    "changes": 0,
                    "files": 0,
                    "bytes": 0,
                    "first": "",
                    "last": "",
                    "rules": "",
                })
                continue
            if verify:
                for file in manifest.files:
                    read_file(store, file)
                _verify_changeset(store, record)
            rows.append({
                "batch": number,
                "state": "acknowledged" if number <= delivered else "in flight",
                "changes": manifest.changes,
                "files": len({file_of(file.path) for file in manifest.files}),
                "bytes": manifest.size_bytes,
                "first": str(manifest.first),
                "last": str(manifest.last),
                "rules": in_words(rules_of(store, record)) if record else "",
            })
    return rows


def _verify_changeset(store: SegmentStore, record: Batch | None) -> None:
    """Read what the merge made of a batch, or what its rules have made so far. Raises SegmentError."""
    if record is None or record.dropped:
        return
    damaged = changeset_damage(store, record.changeset) if record.changeset else ""
    if damaged:
        raise SegmentError(
            f"the merged rows of batch {record.number} are damaged or gone",
            where=f"{store.uri} {damaged}",
            hint=f"`sluice rollback {store.pipeline}` has what waits merged again; the log's segments are whole as "
            "far as they were read",
        )


def documents(
    store: SegmentStore, manifest: SegmentManifest, chosen: Format, source: str, masking: Masking
) -> Iterator[str]:
    """Yield a batch as documents of a format: its changes in log order, and each statement before the first change that
    follows it. Masked columns are left out, as the subscription service leaves them out.
    """
    statements = iter(sorted(manifest.ddl, key=lambda record: record.seq))
    waiting = next(statements, None)
    for change in iter_changes(store, manifest):
        while waiting is not None and waiting.seq <= change.seq:
            yield from chosen.statement(_statement(waiting), source)
            waiting = next(statements, None)
        yield from chosen.row(_without_masked(change, masking), source)
    while waiting is not None:
        yield from chosen.statement(_statement(waiting), source)
        waiting = next(statements, None)


def _without_masked(change: Change, masking: Masking) -> Change:
    hidden = masking.hidden(change.table.schema, change.table.table, map(true_name, change.fields))
    if not hidden:
        return change
    before, after = (
        image and {name: value for name, value in image.items() if name not in hidden}
        for image in (change.before, change.after)
    )
    return replace(
        change,
        before=before,
        after=after,
        fields=tuple(field for field in change.fields if true_name(field) not in hidden),
        key=tuple(name for name in change.key if name not in hidden),
    )


def _statement(record: DdlRecord) -> Statement:
    schema, _, table = (record.table or "").partition(".")
    return Statement(
        file=record.file,
        offset=record.offset,
        gtid=record.gtid,
        commit_time_us=record.commit_time_us,
        schema=record.schema_,
        sql=record.sql,
        changes=tuple(TableChange.from_json(change) for change in record.changes),
        table=TableId(schema, table) if table else None,
    )


def tail(runtime: Runtime, *, fmt: str, from_batch: int | None = None, follow: bool = True) -> Iterator[str]:
    """Yield captured changes and statements as JSON lines in log order; ``from_batch`` None: only batches captured
    after the call. Columns in ``masked`` are left out.
    """
    chosen = format_of(fmt)
    store, masking = runtime.store, Masking(runtime.pipeline.masked)
    with runtime.state() as state:
        cursor = state.cursor()
        following = from_batch if from_batch is not None else cursor.next_batch if cursor else 1
        while True:
            cursor = state.cursor()
            while cursor and following < cursor.next_batch:
                manifest = stored_manifest(store, following, state.batches.get(following))
                if manifest is None:
                    raise SegmentError(
                        f"batch {following} is no longer stored",
                        hint=f"`sluice segments {runtime.name}` lists those that are",
                    )
                yield from documents(store, manifest, chosen, runtime.document_name, masking)
                following += 1
            if not follow:
                return
            time.sleep(POLL_S)
