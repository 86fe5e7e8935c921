"""From what somebody asks for to a dump: which tables, which keys, how many rows, for whom."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import structlog

from sluice.binlog.connection import ServerInfo, collations, open_connection, rows_of, server_info
from sluice.binlog.definitions import read_definition
from sluice.binlog.selection import Selection
from sluice.config.pipeline import PipelineConfig
from sluice.coordination.leases import owner_label
from sluice.coordination.state import PipelineState
from sluice.dump.keys import typed_literal
from sluice.errors import ConfigError
from sluice.flows.dump import key_of
from sluice.flows.dumpkeys import TimeRange, touched_keys, typed_keys, write_keys
from sluice.flows.runtime import Runtime, attempt_id
from sluice.flows.watermarks import choose_marking
from sluice.model.dumps import Dump, TableRequest, Tuning
from sluice.model.tables import TableId

_log = structlog.get_logger()

_TABLES = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, COALESCE(TABLE_ROWS, 0) FROM information_schema.TABLES "
    "WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY TABLE_SCHEMA, TABLE_NAME"
)
_KEYLESS = (
    "SELECT t.TABLE_SCHEMA, t.TABLE_NAME FROM information_schema.TABLES t LEFT JOIN information_schema.TABLE_CONSTRAINTS c "
    "ON c.TABLE_SCHEMA = t.TABLE_SCHEMA AND c.TABLE_NAME = t.TABLE_NAME AND c.CONSTRAINT_TYPE = 'PRIMARY KEY' "
    "WHERE t.TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND c.TABLE_NAME IS NULL"
)


def captured_tables(runtime: Runtime, connection: Any) -> dict[TableId, int]:
    """The tables there are that the pipeline captures, with the server's guess of their rows."""
    selection = Selection.compile(runtime.pipeline.capture)
    found = {TableId(str(s), str(t)): int(n) for s, t, n in rows_of(connection, _TABLES)}
    return {table: rows for table, rows in found.items() if selection.wants(table)}


def keyless_tables(connection: Any) -> set[TableId]:
    """The tables without a primary key."""
    return {TableId(str(s), str(t)) for s, t in rows_of(connection, _KEYLESS)}


def tuning_of(pipeline: PipelineConfig) -> Tuning:
    """What the pipeline's file says."""
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
    """An id that sorts by time."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{attempt_id()[:6]}"


def tuned(pipeline: PipelineConfig, **changes: Any) -> Tuning:
    """What the pipeline's file says, but for what ``changes`` say (None: as the file says). Raises ConfigError for nonsense."""
    wanted = {name: value for name, value in changes.items() if value is not None}
    for name, value in wanted.items():
        if value < (1 if name in {"chunk_rows", "parallelism"} else 0):
            raise ConfigError(f"{name} cannot be {value}")
    return replace(tuning_of(pipeline), **wanted)


def new_dump(
    runtime: Runtime,
    state: PipelineState,
    connection: Any,
    info: ServerInfo,
    tables: Sequence[TableId] | dict[TableId, int] | Sequence[TableRequest],
    *,
    id_: str = "",
    reason: str,
    targets: tuple[str, ...] = (),
    tuning: Tuning | None = None,
    by: str = "",
    from_nothing: bool = False,
) -> Dump:
    """Record a dump; a worker takes it up. One of the same id stays as it is. Raises PreflightError if it can't be marked.

    ``from_nothing``: the targets have no row of these tables yet, and the log is captured from here on. Only then can tables without a
    primary key be copied.
    """
    estimates = captured_tables(runtime, connection)
    keyless = keyless_tables(connection)
    requests = tuple(
        t if isinstance(t, TableRequest) else TableRequest(t, estimate=estimates.get(t, 0), keyless=t in keyless)
        for t in tables
    )
    note = ""
    if not from_nothing:
        left = [str(r.table) for r in requests if r.keyless]
        requests = tuple(r for r in requests if not r.keyless)
        if left:
            note = f"not copied, for they have no primary key: {', '.join(left)}"
            _log.warning("dump_leaves_out", pipeline=runtime.name, tables=left, why="no primary key")
    marking = choose_marking(connection, runtime.pipeline, runtime.source, mariadb=info.is_mariadb)
    dump = Dump(
        id=id_ or new_id(),
        tables=requests,
        targets=targets,
        tuning=tuning or tuning_of(runtime.pipeline),
        marking=marking,
        reason=reason,
        note=note,
        by=by or owner_label(),
        created_ms=int(time.time() * 1000),
    )
    made = state.dumps.create(dump)
    _log.info(
        "dump_recorded",
        pipeline=runtime.name,
        dump=made.id,
        tables=len(made.tables),
        reason=reason,
        marks=marking.value,
    )
    return made


def start(
    runtime: Runtime,
    *,
    tables: Sequence[str] = (),
    where: str = "",
    lower: Sequence[str] = (),
    upper: Sequence[str] = (),
    keys: Sequence[str] = (),
    since: str = "",
    until: str = "",
    targets: Sequence[str] = (),
    tuning: Tuning | None = None,
    dry_run: bool = False,
    by: str = "",
    reason: str = "asked for",
    id_: str = "",
) -> Dump:
    """Record a dump of captured tables; empty ``tables``: all.

    Args:
        where: the user's SQL condition. lower, upper: first and last key, as a person types them, one text a key column.
        keys: keys of one table, columns joined by commas. since, until: ISO 8601 moments: the keys that the log touched between them, as far as
            segments are retained; the rows dumped are the current ones.
        dry_run: only say what it would be: the dump returned is not recorded.

    Raises:
        ConfigError: a table is not captured, has no key, or the condition is not one condition; a target is unknown.
    """
    for name in targets:
        if name not in [t.name for t in runtime.pipeline.targets]:
            raise ConfigError(f"{runtime.name} has no target {name!r}")
    require_condition(where)
    with runtime.state() as state, open_connection(runtime.source) as connection:
        info = server_info(connection)
        captured = captured_tables(runtime, connection)
        wanted = [_named(captured, name) for name in tables] or list(captured)
        if (lower or upper or where or keys) and len(wanted) != 1:
            raise ConfigError(
                f"a key range or a condition is for one table, not for {len(wanted)}", hint="name the table"
            )
        id_ = id_ or new_id()
        span = TimeRange.parse(since, until)
        known = collations(connection)
        requests = []
        for ordinal, table in enumerate(wanted):
            definition = read_definition(connection, table, lambda: known)
            request = TableRequest(table, where=where, estimate=captured[table])
            key = key_of(definition, request)
            bounds = []
            for bound in (lower, upper):
                if len(bound) > len(key.columns):
                    raise ConfigError(f"the key of {table} has {len(key.columns)} columns: {', '.join(key.names)}")
                bounds.append(tuple(typed_literal(c, text) for c, text in zip(key.columns, bound, strict=False)))
            request = replace(request, lower=bounds[0], upper=bounds[1])
            if keys or span:
                found = typed_keys(key, keys) if keys else touched_keys(runtime, state, table, key, span)
                if not found and span:
                    continue
                path = f"dumps/{id_}/keys-{ordinal:04d}.parquet"
                if not dry_run:
                    write_keys(runtime.store, path, found)
                request = replace(request, key_file=path, estimate=len(found))
            requests.append(request)
        if dry_run:
            return Dump(
                "dry-run", tuple(requests), tuple(targets), tuning=tuning or tuning_of(runtime.pipeline), reason=reason
            )
        dump = new_dump(
            runtime,
            state,
            connection,
            info,
            requests,
            id_=id_,
            reason=reason,
            targets=tuple(targets),
            tuning=tuning,
            by=by,
        )
        state.audit(
            by=by or owner_label(),
            what="dump",
            details={"dump": dump.id, "tables": [str(t.table) for t in dump.tables]},
        )
        return dump


def _named(captured: dict[TableId, int], name: str) -> TableId:
    for table in captured:
        if str(table) == name:
            return table
    raise ConfigError(
        f"table {name!r} is not captured, or the source does not have it",
        hint=f"captured are: {', '.join(map(str, list(captured)[:20])) or 'none'}",
    )


def require_condition(where: str) -> None:
    """Raises ConfigError if ``where`` is not exactly one SQL condition (it is put into parentheses, and runs read-only)."""
    if not where:
        return
    import sqlglot
    from sqlglot import exp

    try:
        parsed = sqlglot.parse(f"SELECT 1 FROM t WHERE ({where}\n)", dialect="mysql")  # noqa: S608 - parsed, not run
    except sqlglot.errors.SqlglotError as error:
        raise ConfigError(f"the condition {where!r} is not SQL: {str(error).splitlines()[0]}") from error
    select = parsed[0] if len(parsed) == 1 else None
    clause = select.args.get("where") if isinstance(select, exp.Select) else None
    more = [k for k, v in select.args.items() if v and k not in _PARTS] if select else []
    if clause is None or not isinstance(clause.this, exp.Paren) or more:
        raise ConfigError(f"{where!r} is not one condition", hint="write what may stand in parentheses behind WHERE")


_PARTS = {"expressions", "from", "from_", "where", "kind"}
