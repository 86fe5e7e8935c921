"""Start a dump of what a user asks for: which tables, which keys, how many rows, for whom."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from sluice.config.pipeline import PipelineConfig
from sluice.coordination.leases import owner_label
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError
from sluice.flows.dump.other_site import require_overwrite
from sluice.flows.dump.planner import DumpPlanner, DumpSpec, require_together
from sluice.flows.dump.progress import sensible
from sluice.flows.dump.reconcile import why_not
from sluice.flows.runtime import Runtime, attempt_id
from sluice.mapping import Mapping as Routes
from sluice.model.dumps import Dump, TableRequest, Tuning
from sluice.model.nearest import meant
from sluice.model.tables import TableId
from sluice.sources.port import SourceSession
from sluice.sources.table_filter import Selection

_log = structlog.get_logger()


def captured_tables(pipeline: PipelineConfig, source: SourceSession) -> dict[TableId, int]:
    """Return the tables that exist and that the pipeline captures, with the server's estimate of their rows."""
    selection = Selection.compile(pipeline.capture)
    return {table: rows for table, rows in source.table_rows().items() if selection.wants(table)}


def named_tables(captured: Mapping[TableId, int], names: Iterable[str]) -> list[TableId]:
    """Return the captured tables that a person named, ``schema.table``, each once; all of them if none is named.

    Raises ConfigError.
    """
    known_tables = {str(table): table for table in captured}
    unique_names = list(dict.fromkeys(names))
    for name in unique_names:
        if name not in known_tables:
            raise ConfigError(
                f"table {name!r} is not captured, or the source does not have it{meant(name, known_tables)}",
                hint=f"captured are: {', '.join(list(known_tables)[:20]) or 'none'}",
            )
    return [known_tables[name] for name in unique_names] or list(captured)


def tuning_of(pipeline: PipelineConfig) -> Tuning:
    """Return the tuning that the pipeline's file sets."""
    config = pipeline.dump
    return Tuning(
        chunk_rows=config.chunk_rows,
        delay_ms=int(config.delay.total_seconds() * 1000),
        parallelism=config.parallelism,
        max_rows_per_second=config.max_rows_per_second,
        max_threads_running=config.max_threads_running,
        max_replica_lag_s=config.max_replica_lag.total_seconds(),
    )


def new_id() -> str:
    """Return an id that sorts by time."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{attempt_id()[:6]}"


def tuned(pipeline: PipelineConfig, **changes: Any) -> Tuning:
    """Apply ``changes`` to the tuning of the pipeline's file; None keeps a value.

    Raises ConfigError if a value is invalid.
    """
    return replace(tuning_of(pipeline), **sensible(changes))


@dataclass(frozen=True, slots=True)
class DumpOrder:
    """The reason for a dump, and the targets that it is for.

    Attributes:
        reason: ``initial``, ``backfill``, …
        id: "" for one that sorts by time.
        targets: names; none: all.
        tuning: None: as the pipeline's file says.
        by: who asked; "" for this process.
    """

    reason: str
    id: str = ""
    targets: tuple[str, ...] = ()
    tuning: Tuning | None = None
    by: str = ""


def dump_tables(
    pipeline: PipelineConfig,
    rules_path: Path | None,
    state: PipelineState,
    source: SourceSession,
    tables: Mapping[TableId, int],
    order: DumpOrder,
    *,
    from_nothing: bool = False,
    replace_rows: bool = False,
) -> Dump:
    """Record a dump of whole tables. Raises PreflightError if it can't be marked.

    ``from_nothing``: the targets have no row of these tables yet, and the log is captured from here on.
    ``replace_rows``: what the targets hold and the source does not, goes, where that can be told. A table without a key
    needs one of the two, and is left out otherwise.
    """
    routes = Routes.of(pipeline)
    keyless = source.keyless() if tables else set()
    rows = source.estimates(list(tables))
    reasons = (
        why_not(pipeline, rules_path, list(tables), captured_tables(pipeline, source), keyless)
        if replace_rows and tables
        else {}
    )

    def request(table: TableId) -> TableRequest:
        key = routes.route(table).key if table in keyless else ()
        return TableRequest(
            table,
            estimate=rows.get(table, 0),
            keyless=table in keyless and not key,
            identity=key,
            replace=replace_rows and table not in reasons and not key,
        )

    requests = list(map(request, tables))
    remaining_requests = [] if from_nothing else [r for r in requests if r.keyless and not r.replace]
    copied = [r for r in requests if r not in remaining_requests]
    stay = [f"{r.table} ({reasons[r.table]})" for r in copied if r.table in reasons]
    notes = []
    if remaining_requests:
        names = [str(r.table) for r in remaining_requests]
        notes.append(f"not copied, for they have no primary key: {', '.join(names)}")
        _log.warning("dump_tables_skipped", pipeline=pipeline.pipeline, tables=names, reason="no primary key")
    if stay:
        notes.append(f"rows that the source no longer has may stay in {', '.join(stay)}")
        _log.warning("stale_rows_kept", pipeline=pipeline.pipeline, tables=stay)
    return record_dump(pipeline, state, source, copied, order, note="; ".join(notes))


def record_dump(
    pipeline: PipelineConfig,
    state: PipelineState,
    source: SourceSession,
    requests: Sequence[TableRequest],
    order: DumpOrder,
    *,
    note: str = "",
) -> Dump:
    """Record a dump; a worker takes it up. One of the same id stays as it is.

    Raises PreflightError if it can't be marked.
    """
    marking, cursor = source.choose_marking(), state.cursor()
    dump = Dump(
        id=order.id or new_id(),
        tables=tuple(requests),
        targets=order.targets,
        tuning=order.tuning or tuning_of(pipeline),
        marking=marking,
        reason=order.reason,
        note=note,
        by=order.by or owner_label(),
        created_ms=int(time.time() * 1000),
        since_batch=cursor.next_batch if cursor is not None else 0,
    )
    stored_dump = state.dumps.create(dump)
    _log.info(
        "dump_recorded",
        pipeline=pipeline.pipeline,
        dump=stored_dump.id,
        tables=len(stored_dump.tables),
        reason=order.reason,
        marks=marking.value,
    )
    return stored_dump


def start(
    runtime: Runtime,
    *,
    tuning: Tuning | None = None,
    by: str = "",
    reason: str = "asked for",
    dry_run: bool = False,
    overwrite: bool = False,
    id_: str = "",
    **fields: Any,
) -> Dump:
    """Begin a dump that somebody asks for; ``fields`` are the fields of :class:`DumpSpec`.

    Args:
        dry_run: only say what it would be: the dump returned is not recorded. overwrite: also what a channel's other
            site wrote.

    Raises:
        ConfigError: a table is not captured, has no key, or the condition is not one condition; a target is unknown;
            the pieces asked for cannot be combined; a target is a site of a channel, see :func:`require_overwrite`.
    """
    requested_spec = DumpSpec(**fields)
    for name in requested_spec.targets:
        runtime.pipeline.target(name)
    if not dry_run:
        require_overwrite(
            runtime.pipeline,
            runtime.membership,
            runtime.loads,
            requested_spec.targets,
            overwrite=overwrite,
            removes=requested_spec.replace,
        )
    tuning = tuning or tuning_of(runtime.pipeline)
    order = DumpOrder(reason, id_ or new_id(), tuple(requested_spec.targets), tuning, by or owner_label())
    with runtime.state() as state, runtime.source.open() as source:
        requests, note = _requests(runtime, state, source, requested_spec, order.id, dry_run)
        if dry_run:
            return Dump("dry-run", tuple(requests), order.targets, tuning=tuning, reason=reason, note=note)
        dump = record_dump(runtime.pipeline, state, source, requests, order, note=note)
        details = {"dump": dump.id, "tables": [str(t.table) for t in dump.tables]}
        state.audit.note(
            by=order.by, what="dump", details={**details, "replace": True} if requested_spec.replace else details
        )
        return dump


def _requests(
    runtime: Runtime, state: PipelineState, source: SourceSession, requested_spec: DumpSpec, dump: str, dry_run: bool
) -> tuple[list[TableRequest], str]:
    """Return a request per table, and a note on tables and rows that are left out. Raises ConfigError."""
    captured = captured_tables(runtime.pipeline, source)
    tables = named_tables(captured, requested_spec.tables)
    require_together(requested_spec, len(tables))
    keyless = source.keyless()
    reasons = why_not(runtime.pipeline, runtime.rules_path, tables, captured, keyless) if requested_spec.replace else {}
    rows = source.estimates(tables)
    plan = DumpPlanner(
        runtime=runtime, state=state, source=source, asked=requested_spec, keyless=keyless, id=dump, dry_run=dry_run
    )
    requests, left_out, stay = [], [], []
    for ordinal, table in enumerate(tables):
        why = reasons.get(table, "")
        if requested_spec.tables and why:
            raise ConfigError(f"rows of {table} cannot be replaced: {why}")
        if not requested_spec.tables and plan.is_keyless(table) and (why or not requested_spec.replace):
            left_out.append(f"{table} ({why or 'no primary key'})")
            continue
        planned = plan.request(ordinal, table, rows.get(table, 0), replace_rows=requested_spec.replace and not why)
        if planned is None:
            continue
        request, why = planned
        requests.append(request)
        stay += [f"{table} ({why})"] if why else []
    notes = [f"not copied: {', '.join(left_out)}"] if left_out else []
    notes += [f"rows that the source no longer has may stay in {', '.join(stay)}"] if stay else []
    note = "; ".join(notes)
    if left_out and not requests and not plan.span:
        raise ConfigError(
            f"nothing to copy; {note}",
            hint="`replace` copies a table without a key in one piece, after deleting its rows at the target",
        )
    return requests, note
