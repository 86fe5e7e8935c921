"""Replacing: rows in a range of a table that a target holds and the source does not are deleted.

The capture notes the range, the load clears it.

Why this is correct. A chunk holds every row that the source had in its range at one position between its two marks. A
key of the range that is neither in the chunk nor changed by the log from the batch of the low mark to the end of the
batch that the chunk is placed in, was absent all that time, and is absent at the end of that batch: if a target has it,
the log that removed it never arrived. Keys that the log did change are right anyway. So the keys of the chunk and the
changed ones are kept and the others deleted, before the batch's own rows are written and under the same fence; and a
repeat of the batch finds the same keys kept.

It is about the whole range, so that a condition excludes it; and target keys have to be source keys: one source table
per target table, no rule on it, and key columns that both sides sort alike. A table without a key is one piece: all of
its rows are deleted and inserted again in one transaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from sluice.config.pipeline import DdlKind, DdlPolicy, Event, PipelineConfig
from sluice.errors import MappingError, SegmentError
from sluice.flows.dump.key_lists import stored_keys
from sluice.flows.planned_columns import planned_columns
from sluice.flows.runtime import Runtime
from sluice.flows.transform.stage_rules import why_not_cleared
from sluice.mapping import Mapping as Routes
from sluice.mapping import TableRoute
from sluice.model.dialects import Dialect
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId, TableSchema, distinct, stored_name
from sluice.rules import RuleSet
from sluice.segments.changeset import ChangesetManifest, columns_of
from sluice.segments.manifest import ReplaceRecord
from sluice.segments.store import SegmentStore
from sluice.targets.port import KeyRange, OtherWriter, StoredRange, Target, other_writers, refuses

_log = structlog.get_logger()


def why_not(
    pipeline: PipelineConfig,
    rules_path: Path | None,
    tables: Iterable[TableId],
    captured: Iterable[TableId],
    keyless: Iterable[TableId],
) -> dict[TableId, str]:
    """Return the tables whose rows cannot be replaced, with the reason, as far as the pipeline's file and rules
    tell.
    """
    rules, keyless_tables, tables = RuleSet.of(rules_path), set(keyless), list(tables)
    reasons = why_not_cleared(pipeline, rules, tables, captured)
    for table in tables:
        if table not in reasons and table not in keyless_tables and rules.matching(table).rules:
            reasons[table] = (
                "rules apply to it, and only they know which rows of the target come from which key (without "
                "`replace`, a dump deletes the keys for which they give nothing, and so does "
                f"`sluice verify run {pipeline.pipeline} --repair`)"
            )
    return reasons


# -- the capture's side ------------------------------------------------------------------------------------------------


def write_kept(
    store: SegmentStore, path: str, schema: TableSchema, key: Sequence[str], keys: Sequence[pa.Table]
) -> None:
    """Store the keys that stay: columns of the key alone, as segments have them, each key once."""
    layout = schema.arrow_schema
    names = [stored_name(name) for name in key]
    fields = pa.schema([layout.field(name) for name in names])
    plain = pa.schema([pa.field(f.name, f.type) for f in fields])
    every = pa.concat_tables([table.select(names).cast(plain) for table in keys])
    once = distinct(every) if every.num_rows else every
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(once.columns, schema=fields), sink, compression="zstd", write_page_checksum=True)
    store.write_bytes(path, sink.getvalue().to_pybytes())


# -- the load's side ---------------------------------------------------------------------------------------------------


def read_range(store: SegmentStore, stored: StoredRange) -> KeyRange:
    """Read a range with its keys, under their names at the target. Raises SegmentError, UnsupportedType."""
    record, route, keys = stored.stored
    if not record.key:
        return KeyRange()
    if record.mapped:
        return KeyRange(record.key, kept=_kept(store, record))
    stays = _kept(store, record)
    mapped_keys = route.apply(stays)
    names = tuple(route.target_name(name) or name for name in record.key)
    columns = {column.name: column.value_type for column in planned_columns(columns_of(stays.schema))}
    types = {name: columns[name] for name in record.key}
    listed = None
    if record.listed:
        listed = keys.values(types, list(itertools.chain.from_iterable(stored_keys(store, record.listed, 0, 2**62))))

    def bound(key: Sequence[str]) -> pa.Table | None:
        return keys.values(types, [key]) if key else None

    lower, upper, after, upto = map(bound, (record.lower, record.upper, record.after, record.upto))
    return KeyRange(names, lower, upper, after, upto, listed, mapped_keys)


def _kept(store: SegmentStore, record: ReplaceRecord) -> pa.Table:
    try:
        data = pa.BufferReader(store.read_bytes(record.kept))
        return pq.ParquetFile(data, page_checksum_verification=True).read()
    except (pa.ArrowException, OSError) as error:
        raise SegmentError(
            f"the keys that a dump keeps cannot be read: {error}",
            where=record.kept,
            hint="`sluice segments PIPELINE --verify` verifies every file",
        ) from error


def plan_replaces(
    runtime: Runtime, target: Target, name: str, records: Sequence[ReplaceRecord]
) -> tuple[list[StoredRange], dict[str, str]]:
    """Return the ranges to clear; and, by dump, why an automatic range is left out.

    Raises:
        MappingError: a user asked for the range, and the target cannot remove it any more.
    """
    routes = Routes.of(runtime.pipeline)
    ranges: list[StoredRange] = []
    left_out: dict[str, str] = {}
    reasons: dict[tuple[TableId, bool], tuple[PlannedTable, str]] = {}
    needs_writers = any(record.optional or record.mapped for record in records)
    others = other_writers(target) if needs_writers else ()
    for record in records:
        route = routes.route(record.table_id)
        reason_key = record.table_id, bool(record.listed)
        if reason_key not in reasons:
            plan = planned(runtime.store, record, route)
            reasons[reason_key] = plan, refuses(target, plan, listed=bool(record.listed))
        plan, why = reasons[reason_key]
        if (record.optional or record.mapped) and not why:
            why = kept_on_purpose(runtime.pipeline, name, others, route.target)
        if why and record.optional:
            left_out[record.dump] = why
            continue
        if why:
            by = "the snapshot" if record.mapped else f"dump {record.dump}"
            hint = f"; or `sluice dump start {runtime.name} --target {name}` copies the tables" if record.mapped else ""
            raise MappingError(
                f"{by} is to remove rows from {route.target} that {record.table_id} does not have: {why}",
                where=f"target {name}",
                hint=f"fix the target's table; the batch is retried{hint}",
            )
        ranges.append(StoredRange(plan, (record, route, runtime.source.keys), listed=bool(record.listed)))
    return ranges, left_out


def without_cleared(runtime: Runtime, target: Target, name: str, changeset: ChangesetManifest) -> ChangesetManifest:
    """Leave out deletes of keys for which the rules give nothing, where the target may hold another pipeline's rows."""
    if not any(file.dumped == "cleared" for table in changeset.tables for file in table.files):
        return changeset
    others, tables = other_writers(target), []
    for table in changeset.tables:
        place = TableId(table.schema_, table.table)
        why = kept_on_purpose(runtime.pipeline, name, others, place)
        files = tuple(file for file in table.files if not why or file.dumped != "cleared")
        if len(files) < len(table.files):
            _log.warning("stale_rows_kept", pipeline=runtime.name, target=name, tables=[str(place)], reason=why)
        tables += [table.model_copy(update={"files": files})] if files else []
    return changeset.model_copy(update={"tables": tuple(tables)})


def kept_on_purpose(pipeline: PipelineConfig, name: str, others: Sequence[OtherWriter], table: TableId) -> str:
    """Return why a target may hold rows of its ``table`` that the source lacks and that are to stay, "" if it does not.

    Other pipelines count if they write the same table. The sentence says what to do about each.
    """
    writers = [writer for writer in others if writer.may_write(table)]
    if pipelines := [writer.pipeline for writer in writers if writer.tables is not None]:
        return (
            f"{table} at target {name} is written by {', '.join(pipelines[:3])}, too, whose rows they may be (if such "
            f"a pipeline is gone: {writers[0].forget})"
        )
    if writers:
        first = writers[0]
        return (
            f"{first.pipeline} acknowledged at target {name} {first.idle_s / 60:.0f} minutes ago, and did not note "
            f"which tables it writes: run it once with this version, or, if it is gone, {first.forget}"
        )
    ignores = pipeline.target(name).ddl_policy(DdlKind.TRUNCATE_TABLE) is DdlPolicy.IGNORE
    if ignores or Event.DDL not in pipeline.capture.events:
        return f"target {name} does not follow TRUNCATE, and may keep rows for that"
    return ""


def planned(store: SegmentStore, record: ReplaceRecord, route: TableRoute) -> PlannedTable:
    """Return the key of a range as the target compares it with its own. Raises SegmentError."""
    if record.mapped:
        schema = _kept(store, record).schema
        columns = tuple(
            replace(column, key=number) for number, column in enumerate(planned_columns(columns_of(schema)), 1)
        )
        return PlannedTable(route.target, record.table_id, columns, dialect=record.dialect)
    return key_plan(
        record.table_id, _kept(store, record).schema if record.key else pa.schema([]), record.key, route, record.dialect
    )


def key_plan(
    table: TableId, schema: pa.Schema, key: Sequence[str], route: TableRoute, dialect: Dialect
) -> PlannedTable:
    """Return the columns ``key`` of a stored schema, named and numbered for the target; without ``key`` the whole
    table.
    """
    ordinals = {(route.target_name(name) or name): number for number, name in enumerate(key, 1)}
    wanted_schema = pa.schema([schema.field(stored_name(name)) for name in key])
    full_route = replace(route, changed_only=False)  # keys are no changes
    columns = planned_columns(columns_of(full_route.apply(wanted_schema.empty_table()).schema)) if key else ()
    return PlannedTable(
        route.target,
        table,
        tuple(replace(column, key=ordinals[column.name]) for column in columns),
        dialect=dialect,
    )
