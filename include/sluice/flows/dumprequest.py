"""From what somebody asks for to a dump: which tables, which keys, how many rows, for whom."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pymysql
import structlog

from sluice.binlog.connection import ServerInfo, collations, open_connection, rows_of, server_info
from sluice.binlog.definitions import Definition, read_definition
from sluice.binlog.resultset import open_reader, text_rows
from sluice.binlog.selection import Selection
from sluice.config.pipeline import PipelineConfig
from sluice.coordination.leases import owner_label
from sluice.coordination.state import PipelineState
from sluice.dump.keys import quoted, typed_literal
from sluice.errors import ConfigError
from sluice.flows.dump import key_of, range_of, selection_sql
from sluice.flows.dumpkeys import Key, TimeRange, touched_keys, typed_keys, write_keys
from sluice.flows.replacing import key_plan, why_not
from sluice.flows.runtime import Runtime, attempt_id
from sluice.flows.watermarks import choose_marking
from sluice.mapping import Mapping as Routes
from sluice.model.dumps import Dump, TableRequest, Tuning
from sluice.model.tables import TableId
from sluice.targets import open_target

_log = structlog.get_logger()

_TABLES = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, COALESCE(TABLE_ROWS, 0) FROM information_schema.TABLES "
    "WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY TABLE_SCHEMA, TABLE_NAME"
)
_KEYLESS = (  # a user who may only select sees no TABLE_CONSTRAINTS at a MariaDB
    "SELECT t.TABLE_SCHEMA, t.TABLE_NAME FROM information_schema.TABLES t LEFT JOIN information_schema.STATISTICS s "
    "ON s.TABLE_SCHEMA = t.TABLE_SCHEMA AND s.TABLE_NAME = t.TABLE_NAME AND s.INDEX_NAME = 'PRIMARY' AND s.SEQ_IN_INDEX = 1 "
    "WHERE t.TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND s.TABLE_NAME IS NULL"
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
    note: str = "",
    from_nothing: bool = False,
    replace_rows: bool = False,
) -> Dump:
    """Record a dump; a worker takes it up. One of the same id stays as it is. Raises PreflightError if it can't be marked.

    ``from_nothing``: the targets have no row of these tables yet, and the log is captured from here on. ``replace_rows``: what the targets hold
    and the source does not, goes, where that can be told. A table without a key needs one of the two.
    """
    estimates = captured_tables(runtime, connection)
    keyless = keyless_tables(connection)
    routes = Routes.compile(runtime.pipeline.mapping)
    wanted = [t for t in tables if not isinstance(t, TableRequest)]
    reasons = why_not(runtime, wanted, estimates, keyless) if replace_rows else {}
    requests = tuple(
        t
        if isinstance(t, TableRequest)
        else TableRequest(
            t,
            estimate=estimates.get(t, 0),
            keyless=t in keyless and not routes.route(t).key,
            identity=routes.route(t).key if t in keyless else (),
            replace=replace_rows and t not in reasons and not (t in keyless and routes.route(t).key),
        )
        for t in tables
    )
    notes = [note] if note else []
    if not from_nothing:
        left = [str(r.table) for r in requests if r.keyless and not r.replace]
        requests = tuple(r for r in requests if not r.keyless or r.replace)
        if left:
            notes.append(f"not copied, for they have no primary key: {', '.join(left)}")
            _log.warning("dump_leaves_out", pipeline=runtime.name, tables=left, why="no primary key")
    stay = [f"{t} ({why})" for t, why in reasons.items() if any(r.table == t for r in requests)]
    if stay:
        notes.append(f"rows that the source no longer has may stay in {', '.join(stay)}")
        _log.warning("dump_replaces_not", pipeline=runtime.name, tables=stay)
    marking = choose_marking(connection, runtime.pipeline, runtime.source, mariadb=info.is_mariadb)
    dump = Dump(
        id=id_ or new_id(),
        tables=requests,
        targets=targets,
        tuning=tuning or tuning_of(runtime.pipeline),
        marking=marking,
        reason=reason,
        note="; ".join(notes),
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


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows somebody asks for.

    Attributes:
        tables: ``schema.table`` names; none: all captured tables that have a key. targets: names; none: all.
        where: the user's SQL condition, on one table. lower, upper: first and last key, a text a key column; on one table.
        keys: keys as text, columns joined by commas; on one table. since, until: ISO 8601 moments: the keys that the log touched between them,
            as far as segments are retained; the rows dumped are the current ones.
        index: chunk one table by this index, not by its primary key.
        replace: rows of the targets in what is asked for, that the source does not have, go.
    """

    tables: Sequence[str] = ()
    where: str = ""
    lower: Sequence[str] = ()
    upper: Sequence[str] = ()
    keys: Sequence[str] = ()
    since: str = ""
    until: str = ""
    targets: Sequence[str] = ()
    index: str = ""
    replace: bool = False


def start(
    runtime: Runtime,
    *,
    tuning: Tuning | None = None,
    by: str = "",
    reason: str = "asked for",
    dry_run: bool = False,
    id_: str = "",
    **wanted: Any,
) -> Dump:
    """Begin a dump that somebody asks for; ``wanted`` are the fields of :class:`Wanted`.

    Args:
        dry_run: only say what it would be: the dump returned is not recorded.

    Raises:
        ConfigError: a table is not captured, has no key, or the condition is not one condition; a target is unknown; the pieces asked for
            do not go together.
    """
    asked = Wanted(**wanted)
    for name in asked.targets:
        if name not in [t.name for t in runtime.pipeline.targets]:
            raise ConfigError(
                f"{runtime.name} has no target {name!r}",
                hint=f"its targets are: {', '.join(t.name for t in runtime.pipeline.targets)}",
            )
    require_condition(asked.where)
    with runtime.state() as state, open_connection(runtime.source) as connection:
        info = server_info(connection)
        captured = captured_tables(runtime, connection)
        tables = [_named(captured, name) for name in dict.fromkeys(asked.tables)] or list(captured)
        _require_together(asked, len(tables))
        keyless = keyless_tables(connection)
        reasons = why_not(runtime, tables, captured, keyless) if asked.replace else {}
        plan = _Planner(runtime, state, connection, info, asked, keyless, id_ or new_id(), dry_run)
        requests, left, stay = [], [], []
        for ordinal, table in enumerate(tables):
            why = reasons.get(table, "")
            if asked.tables and why:
                raise ConfigError(f"rows of {table} cannot be replaced: {why}")
            if not asked.tables and plan.is_keyless(table) and (why or not asked.replace):
                left.append(f"{table} ({why or 'no primary key'})")
                continue
            request, why = plan.request(ordinal, table, captured[table], replace_rows=asked.replace and not why) or (
                None,
                why,
            )
            if request is not None:
                requests.append(request)
                stay += [f"{table} ({why})"] if why else []
        notes = [f"not copied: {', '.join(left)}"] if left else []
        notes += [f"rows that the source no longer has may stay in {', '.join(stay)}"] if stay else []
        note = "; ".join(notes)
        if left and not requests and not plan.span:
            raise ConfigError(
                f"nothing to copy; {note}",
                hint="`replace` copies a table without a key in one piece, and removes what it held",
            )
        if dry_run:
            return Dump(
                "dry-run",
                tuple(requests),
                tuple(asked.targets),
                tuning=tuning or tuning_of(runtime.pipeline),
                reason=reason,
                note=note,
            )
        dump = new_dump(
            runtime,
            state,
            connection,
            info,
            requests,
            id_=plan.id,
            reason=reason,
            targets=tuple(asked.targets),
            tuning=tuning,
            by=by,
            note=note,
        )
        details = {"dump": dump.id, "tables": [str(t.table) for t in dump.tables]}
        state.audit(
            by=by or owner_label(), what="dump", details={**details, "replace": True} if asked.replace else details
        )
        return dump


def _require_together(asked: Wanted, tables: int) -> None:
    """Raises ConfigError for a request that contradicts itself."""
    if (asked.lower or asked.upper or asked.where or asked.keys or asked.index) and tables != 1:
        raise ConfigError(
            f"a key range, a list of keys, a condition or an index is for one table, not for {tables}",
            hint="name the table",
        )
    listed = [name for name, given in (("keys", asked.keys), ("a span of time", asked.since or asked.until)) if given]
    if len(listed) == 2 or (listed and (asked.lower or asked.upper)):
        raise ConfigError(
            f"{' and '.join([*listed, 'a key range'][:2])} do not go together", hint="ask for one of them"
        )
    if asked.index and listed:
        raise ConfigError(
            f"an index and {listed[0]} do not go together",
            hint="keys are those that tell rows apart; leave the index out",
        )
    if asked.replace and (asked.where or asked.index):
        raise ConfigError(
            f"rows cannot be replaced {'under a condition' if asked.where else 'by another index than the key'}: what the target holds "
            "beyond it cannot be told from what the source lost",
            hint="ask for a key range, or for the whole table",
        )


@dataclass
class _Planner:
    """From what is asked for to a request a table."""

    runtime: Runtime
    state: PipelineState
    connection: Any
    info: ServerInfo
    asked: Wanted
    keyless: set[TableId]
    id: str
    dry_run: bool

    def __post_init__(self) -> None:
        self.span = TimeRange.parse(self.asked.since, self.asked.until)
        self.routes = Routes.compile(self.runtime.pipeline.mapping)
        self._collations = collations(self.connection)

    def is_keyless(self, table: TableId) -> bool:
        """True if nothing tells its rows apart, neither a primary key nor the mapping."""
        return table in self.keyless and not self.routes.route(table).key

    def request(
        self, ordinal: int, table: TableId, estimate: int, *, replace_rows: bool
    ) -> tuple[TableRequest, str] | None:
        """The request, and why its rows are not replaced though somebody asked for that (of all tables). None: nothing of it is wanted.

        Raises ConfigError.
        """
        asked = self.asked
        definition = read_definition(self.connection, table, lambda: self._collations)
        whole = replace_rows and self.is_keyless(table)
        identity = self.routes.route(table).key if table in self.keyless else ()
        request = TableRequest(
            table,
            where=asked.where,
            estimate=estimate,
            index=asked.index,
            keyless=whole,
            identity=identity,
            replace=replace_rows,
        )
        if whole and (asked.lower or asked.upper or asked.keys or self.span):
            raise ConfigError(
                f"{table} has no primary key: it can only be replaced whole",
                hint="leave out keys, the key range and the span of time",
            )
        if (request.index or identity) and self.info.variables.get("binlog_row_image", "FULL").upper() != "FULL":
            raise ConfigError(
                f"{table} can only be cut by its primary key: a row may move from one piece to another, and the log does not bring whole rows",
                hint="SET GLOBAL binlog_row_image = 'FULL' at the source and reconnect its applications",
            )
        key = key_of(definition, request)
        why = self._not_replaceable(definition, key, identity) if replace_rows and not whole else ""
        if why and asked.tables:
            raise ConfigError(f"rows of {table} cannot be replaced: {why}")
        if why:
            request = replace(request, replace=False)
        bounds = []
        for bound in (asked.lower, asked.upper):
            if len(bound) > len(key.columns):
                raise ConfigError(
                    f"{len(bound)} values for the key of {table}, which has {len(key.columns)} columns: {', '.join(key.names)}"
                    if key.columns
                    else f"{table} has no index to cut a range by",
                    hint="a value a key column, the first ones suffice",
                )
            bounds.append(tuple(typed_literal(c, text) for c, text in zip(key.columns, bound, strict=False)))
        request = replace(request, lower=bounds[0], upper=bounds[1])
        if asked.where or asked.lower or asked.upper:
            request = replace(request, estimate=self._estimate(definition, key, request))
        if not asked.keys and not self.span:
            return request, why
        if identity:
            key = Key(tuple(c for n in identity for c in definition.plan.schema.columns if c.name == n), key.index)
        if asked.keys:
            found = typed_keys(key, asked.keys)
        else:
            found = touched_keys(self.runtime, self.state, table, key, self.span)
            if not found:
                return None
        path = f"dumps/{self.id}/keys-{ordinal:04d}.parquet"
        if not self.dry_run:
            write_keys(self.runtime.store, path, found)
        return replace(request, key_file=path, estimate=len(found)), why

    def _estimate(self, definition: Definition, key: Key, request: TableRequest) -> int:
        """Rows, as the server's optimizer guesses. Raises ConfigError if the server does not take the condition."""
        conditions = (*range_of(request, key), f"({request.where})" if request.where else "")
        sql = selection_sql(request.table, definition.plan.schema.columns[:1], key, *conditions)
        with open_reader(self.runtime.source) as reader:
            try:
                rows_of(reader, f"USE {quoted(request.table.schema)}")
                words = "EXPLAIN" if self.info.is_mariadb else "EXPLAIN FORMAT=TRADITIONAL"
                told = text_rows(reader, f"{words} {sql}")[0]
            except pymysql.err.MySQLError as error:
                if not request.where or (
                    isinstance(error.args[0], int) and error.args[0] >= 2000 and error.args[0] < 3000
                ):
                    raise  # the connection, not the condition
                raise ConfigError(
                    f"the source does not take the condition {request.where!r} on {request.table}: {error.args[-1]}",
                    hint="write what may stand behind WHERE in a select of this one table",
                ) from error
        rows, share = (told[8], 100.0) if self.info.is_mariadb else (told[9], float(told[10] or 100))
        return round(int(rows or 0) * share / 100)

    def _not_replaceable(self, definition: Definition, key: Key, identity: tuple[str, ...]) -> str:
        """Why not: a target sorts the key in another way, or has no such table; ``""`` if it can be done."""
        schema = definition.plan.schema
        if identity:
            return "its key is one by the mapping only; give it a primary key at the source"
        if definition.indexes[key.index].prefix:
            return "its key is a prefix of a column"
        plan = key_plan(
            schema.table, schema.arrow_schema, key.names, self.routes.route(schema.table), self.info.flavour
        )
        for config in self.runtime.pipeline.targets:
            if self.asked.targets and config.name not in self.asked.targets:
                continue
            target = open_target(config, self.runtime.resolver, self.runtime.name)
            why = (
                target.replaceable(plan)[1]
                if target.capabilities.replaces
                else f"a target of type {config.type} cannot"
            )
            if why:
                return f"target {config.name}: {why}"
        return ""


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
