"""MySQL and MariaDB as a target."""

from __future__ import annotations

import pickle
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import IO, Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pymysql
import structlog
from pydantic import BaseModel, ConfigDict, Field
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError, LoadError
from sluice.model.planned import PlannedTable
from sluice.model.positions import Position
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import TableId, quoted_table
from sluice.targets.base import (
    Capabilities,
    Consistency,
    Feature,
    Fence,
    Finding,
    Guarantee,
    Input,
    Ordering,
    RejectedRows,
    Rejection,
    SchemaChange,
    WriteResult,
)
from sluice.targets.mysql import ddl, load_data, lockwait, partial_updates, range_delete, statements
from sluice.targets.mysql import foreign_keys as families
from sluice.targets.mysql.ack_table import AckTable
from sluice.targets.mysql.checkpoints import AckCheckpoints
from sluice.targets.mysql.compatibility import hidden_tables, read_triggers, refuse_hidden, refuse_triggers, review
from sluice.targets.mysql.connection import (
    CONTENTION,
    DATA_ERRORS,
    LAX,
    LOCK_WAIT_S,
    STRICT,
    Contention,
    TargetConnection,
    code_of,
    connect,
    errors,
    set_lock_wait,
)
from sluice.targets.mysql.ddl import DdlStep
from sluice.targets.mysql.session_pool import Kept
from sluice.targets.mysql.tables import compare_all, definitions_of, read_tables
from sluice.targets.mysql.uniqueness import refuse_spaces
from sluice.targets.options import options_of
from sluice.targets.sql.bisect import Bisection, discreet
from sluice.targets.sql.foreign_keys import ordered
from sluice.targets.sql.loader import DdlProgress
from sluice.targets.sql.tables import TableChanges, TargetTable
from sluice.targets.sql.writer import SqlSession

_log = structlog.get_logger()
_T = TypeVar("_T")

CONTENTION_ATTEMPTS = 8
KEY_NOT_FOUND = 1032
"""The error by which a replica stops, too, at a row that is not there."""
TRUNCATED = 1265
_NOT_FOLLOWED = {
    ChangeKind.CREATE_DATABASE, ChangeKind.ALTER_DATABASE, ChangeKind.DROP_DATABASE, ChangeKind.ROWS_REPLACED, ChangeKind.UNKNOWN,
}  # fmt: skip
_CREATED_IN = re.compile(r"CREATE TABLE (`(?:[^`]|``)+`)\.")


class MySQLOptions(BaseModel):
    """``options:`` of a target of type mysql."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ack_schema: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        None, description="Schema of the table _sluice_ack. Default: the connection's schema, else sluice."
    )

    foreign_keys: Literal["unchecked", "ordered"] = Field(
        "unchecked",
        description="unchecked: as a replica writes, the source has made the checks. ordered: parents are written before children, the target "
        "checks each row that it gets, and at the end of the batch no row refers to one that is gone.",
    )
    triggers: Literal["refuse", "fire"] = Field(
        "refuse",
        description="A table with triggers is refused, as what the source's triggers wrote arrives as rows: its effect would be there twice. "
        "fire: they are meant for these rows, too.",
    )
    lock_wait: Annotated[int, Field(ge=1, le=300)] = Field(
        LOCK_WAIT_S,
        description="Seconds that a statement waits for a lock that somebody else holds on rows or on a table's definition. Then the transaction is "
        "given back and tried again, up to eight times; a change of definitions is tried again with its task.",
    )


class MySQLTarget:
    """One MySQL or MariaDB server. A session is one verb's, and then kept for the next one for a short time."""

    Options: ClassVar[type[BaseModel]] = MySQLOptions
    CAPABILITIES: ClassVar[Capabilities] = Capabilities(
        inputs=frozenset({Input.MERGED}),
        guarantee=Guarantee.TRANSACTIONAL,
        ordering=frozenset({Ordering.NONE}),
        consistency=frozenset(Consistency),
        schema_changes=frozenset(ChangeKind) - _NOT_FOLLOWED,
        features=frozenset(Feature),
    )

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        self.options = options_of(config, MySQLOptions)
        if self.options.foreign_keys == "ordered" and config.consistency == "table":
            raise ConfigError(
                f"target {config.name!r}: options.foreign_keys: ordered writes a table in several transactions, and consistency: table in one",
                hint="consistency: row or batch; or foreign_keys: unchecked",
            )
        self.config = config
        self.endpoint = endpoint
        self._owner = (pipeline, config.name)
        self.acks = AckTable(self.options.ack_schema or endpoint.schema or "sluice", pipeline, config.name)

    @property
    def capabilities(self) -> Capabilities:
        """What a MySQL server can do."""
        return self.CAPABILITIES

    @property
    def checkpoints(self) -> AckCheckpoints:
        """The table of acknowledgements."""
        return AckCheckpoints(self)

    @contextmanager
    def open(self, epoch: int) -> Iterator[SqlSession]:
        """See :meth:`sluice.targets.base.Target.open`; each call of the writer takes a kept connection."""
        yield SqlSession(self, epoch)

    def schema(self) -> MySQLTarget:
        """Itself: it has tables to compare."""
        return self

    def reconciler(self) -> MySQLTarget:
        """Itself: ranges can be replaced."""
        return self

    def check(self, tables: Sequence[PlannedTable]) -> Mapping[TableId, TargetTable]:
        """Compare with the target's information_schema. Raises MappingError."""
        places = [plan.target for plan in tables]
        with self.session("reading the target's tables") as session:
            infos = read_tables(session.cursor, places)
            refuse_hidden(hidden_tables(session.cursor, [place for place in places if place not in infos]))
            found = compare_all(tables, infos)
            if self.options.triggers == "refuse":
                refuse_triggers(read_triggers(session.cursor, places))
            if self.options.foreign_keys == "ordered":
                found = ordered(found, families.read_references(session.cursor, places))
            return found

    def replaceable(self, plan: PlannedTable) -> tuple[TargetTable | None, str]:
        """The table, if a range of its keys (``plan.columns``; none: the whole table) can be replaced; else None and why not."""
        with self.session("reading the target's tables") as session:
            info = read_tables(session.cursor, [plan.target]).get(plan.target)
            return range_delete.replaceable(plan, info, mariadb=session.mariadb)

    def refuses(self, table: PlannedTable) -> str:
        """See :meth:`sluice.targets.base.Reconciler.refuses`."""
        return self.replaceable(table)[1]

    def others(self) -> tuple[str, ...]:
        """Other pipelines that acknowledge in the same schema."""
        with self.session("reading who else writes here") as session:
            return self.acks.others(session.cursor)

    def compare(self, tables: Sequence[PlannedTable]) -> list[Finding]:
        """Missing tables and columns, losses, triggers; with the DDL that puts them right."""
        with self.session("reading the target's tables") as session:
            places = [plan.target for plan in tables]
            infos, triggers = read_tables(session.cursor, places), read_triggers(session.cursor, places)
            flavour = "MariaDB" if session.mariadb else "MySQL"
            hidden = hidden_tables(session.cursor, [place for place in places if place not in infos])
            found = review(tables, infos, triggers, flavour, fire=self.options.triggers == "fire", hidden=hidden)
            if self.options.foreign_keys == "ordered":
                found += families.remarks(tables, families.read_references(session.cursor, places))
            return found

    def apply(self, statement: str) -> None:
        """Run DDL, its schema made first where a table is created. Raises LoadError that shows the statement."""
        with self.session(f"running {statement[:200]}") as session:
            created = _CREATED_IN.match(statement)
            if created:
                session.cursor.execute(f"CREATE DATABASE IF NOT EXISTS {created[1]}")
            session.cursor.execute(statement)

    def ddl_progress(self, batch: int) -> DdlProgress:
        """How far the batch has come."""
        with self.session("reading how far the batch has come") as session:
            held, state = self.acks.ddl_state(session.cursor)
        return DdlProgress(bool(state.get("rows")), int(state.get("done", 0))) if held == batch else DdlProgress()

    def rows_loaded(self, fence: Fence) -> None:
        """The batch's rows are there. Raises Fenced."""
        with self.session("noting that the rows are written") as session:
            held, state = self.acks.ddl_state(session.cursor)
            self._note(session, fence, {"rows": True, "done": state.get("done", 0) if held == fence.batch else 0})

    def apply_ddl(self, fence: Fence, change: SchemaChange) -> tuple[str, ...]:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.apply_ddl`.

        What will run is noted with the tables' definitions before it: a repeat that finds them changed knows that it has run. While it runs, a
        second connection holds the acknowledgement row shared, so that no other process can take the target over in between.
        """
        step = ddl.step_of(change)
        doing = f"following {step.where}: {step.sql[:200]}"
        with self.session(doing) as session, self.session(doing) as holder:
            held, state = self.acks.ddl_state(session.cursor)
            state = state if held == fence.batch else {}
            lines, kept = self._ddl_lines(session, state, step), {"rows": bool(state.get("rows"))}
            for number, statement in enumerate(lines["statements"]):
                if number < lines["ran"]:
                    continue
                tables = [TableId(*pair) for pair in lines["tables"]]
                now = definitions_of(session.cursor, tables)
                if lines["before"] is None or lines["before"] == now:
                    lines = {**lines, "before": now}
                    self._note(session, fence, {**kept, "done": step.number, "running": lines})
                    self._run_ddl(session, holder, fence, step, statement)
                lines = {**lines, "ran": number + 1, "before": None}
                self._note(session, fence, {**kept, "done": step.number, "running": lines})
            self._note(session, fence, {**kept, "done": step.number + 1})
            return tuple(lines["statements"])

    def _ddl_lines(self, session: _Session, state: dict[str, Any], step: DdlStep) -> dict[str, Any]:
        """The statements of a step: those that were begun, or made now from what the target has."""
        running = state.get("running") if state.get("done") == step.number else None
        if running:
            return dict(running)
        tables = sorted({step.target(t) for change in step.changes for t in change.tables if t.table})
        infos = read_tables(session.cursor, tables)

        def columns(table: TableId) -> set[str] | None:
            info = infos.get(table)
            return {c.name.lower() for c in info.columns} if info else None

        if step.check_only:
            if not ddl.holds(step, columns):
                raise LoadError(
                    f"the source changed a definition, and the policy of target {self.config.name} is to stop: {step.sql[:500]}",
                    where=step.where,
                    hint="make the change at the target by hand, or set the kind of change to apply or ignore in the target's ddl",
                )
            return {"statements": [], "tables": [], "ran": 0, "before": None}
        statements_ = ddl.statements_for(step, columns)
        if statements_:
            self._refuse_irreproducible(session, step, columns)
        return {
            "statements": statements_, "tables": [[t.schema, t.table] for t in tables], "ran": 0, "before": None,
        }  # fmt: skip

    def _refuse_irreproducible(self, session: _Session, step: DdlStep, columns: ddl.Columns) -> None:
        for table, column, why in ddl.irreproducible(step, columns):
            if not session.cursor.execute(f"SELECT 1 FROM {quoted_table(table)} LIMIT 1"):  # noqa: S608 - quoted
                continue
            raise LoadError(
                f"the rows that {table} has would get other values in the new column {column} than at the source: {why}: {step.sql[:300]}",
                where=step.where,
                hint="add the column at the target by hand; the load goes on once it is there. Then copy the table anew (`sluice dump start`), which "
                "copies the source's values",
            )

    def _run_ddl(self, session: _Session, holder: _Session, fence: Fence, step: DdlStep, statement: str) -> None:
        """In a connection of its own, with the settings of the session that ran it at the source."""
        doing = f"following {step.where}"
        with errors(self.endpoint, doing):
            runner = _Statement(connect(self.endpoint), session.mariadb)
        holder.begin()
        lockwait.watch.enter(runner, self.endpoint, self._owner, doing)
        try:
            self.acks.guard(holder.cursor, fence)
            cursor = runner.connection.cursor()
            cursor.execute(set_lock_wait(self.options.lock_wait))
            for setting in ddl.session_settings(step, mariadb=session.mariadb):
                self._set(cursor, setting, step)
            created = _CREATED_IN.match(statement)
            if created:
                cursor.execute(f"CREATE DATABASE IF NOT EXISTS {created[1]}")
            _log.info("target_ddl", consumer=self.config.name, statement=statement[:500], source=step.where)
            cursor.execute(statement)
        except pymysql.err.Error as error:
            session.blocker = runner.blocker
            if code_of(error) in CONTENTION or code_of(error) == 0 or code_of(error) >= 2000:
                raise
            raise LoadError(
                f"the target refused the source's DDL: {error.args[-1]} (error {code_of(error)}): {statement[:500]}",
                where=step.where,
                hint="change the target so that it can run, or run it by hand in another form and set its kind to stop: the load goes on once "
                "the target has the change",
            ) from error
        finally:
            lockwait.watch.leave(runner)
            holder.rollback()
            runner.connection.close()

    @staticmethod
    def _set(cursor: Any, setting: str, step: DdlStep) -> None:
        try:
            cursor.execute(setting)
        except pymysql.err.MySQLError as error:
            if code_of(error) == 0 or code_of(error) >= 2000:
                raise
            raise LoadError(
                f"the target cannot run the source's DDL with its session's settings: {error.args[-1]} (error {code_of(error)}): {setting}: "
                f"{step.sql[:300]}",
                where=step.where,
                hint="a time zone that is not known is loaded with mysql_tzinfo_to_sql; or make the change at the target by hand: the load goes on "
                "once the target has it",
            ) from error

    def _note(self, session: _Session, fence: Fence, state: dict[str, Any]) -> None:
        def work() -> None:
            self.acks.guard(session.cursor, fence)
            self.acks.note_ddl(session.cursor, fence, state)

        self.transaction(session, work, "noting how far the DDL has come")

    def load(
        self,
        fence: Fence,
        changes: Sequence[TableChanges],
        *,
        one_transaction: bool = False,
        acknowledge: Position | None = None,
        rejected: RejectedRows | None = None,
    ) -> WriteResult:
        """Write each table in a transaction of its own, or all in one. Deadlocks and lock waits are tried again."""
        with self.session("loading") as session:
            whole = one_transaction or acknowledge is not None
            groups = [list(changes)] if whole else [list(g) for _, g in groupby(changes, key=lambda c: c.table.table)]
            total = WriteResult()
            for group in groups:
                write = partial(self._write, session, fence, group, acknowledge, rejected)
                done, retries = self.transaction(session, write, _names(group))
                total += done + WriteResult(retries=retries)
            return total

    def _write(
        self,
        session: _Session,
        fence: Fence,
        group: Sequence[TableChanges],
        acknowledge: Position | None,
        rejected: RejectedRows | None,
    ) -> WriteResult:
        self.acks.guard(session.cursor, fence, exclusive=acknowledge is not None)
        total = WriteResult()
        for item in group:
            total += self._clear(session, fence, item)
            if not item.rows.num_columns:
                continue
            if item.verify:
                total += self._verify(session, item)
                continue
            if rejected is None:
                total += self._write_table(session, fence, item)
                continue
            count, refused = self._write_around(session, fence, item)
            rejected(item.part, item.table.table, refused)
            total += count + WriteResult(rejected=len(refused))
        if acknowledge is not None:
            self.acks.acknowledge(session.cursor, fence.epoch, fence.batch, acknowledge)
        return total

    def _write_around(self, session: _Session, fence: Fence, item: TableChanges) -> tuple[WriteResult, list[Rejection]]:
        """All rows but those that the target refuses. Piece by piece where nothing ties the pieces together; else with all rows in memory.

        A refused row of a table with another unique key must not have lost its old state with an earlier piece.
        """
        around = Bisection(partial(self._write_table, session, fence), session.cursor, DATA_ERRORS)
        if item.read is None or not item.table.key or item.table.unique_keys or partial_updates.may_lack(item.rows):
            return around.run(item.whole())
        total, refused = WriteResult(), list[Rejection]()
        halves = [replace(item, upserts=False)] * item.deletes + [replace(item, deletes=False)] * item.upserts
        for piece in (piece for half in halves for piece in half.each()):
            count, more = around.run(piece)
            total += count
            refused += more
        return total, refused

    def _clear(self, session: _Session, fence: Fence, item: TableChanges) -> WriteResult:
        """What the source does not have goes first. A table that remembers the batch (without a key, or with partial rows) has been through it."""
        if not item.replaces:
            return WriteResult()
        scope = item.scope or str(item.table.table)
        if (not item.table.key or self._is_partial(item)) and self.acks.table_done(session.cursor, scope, fence.batch):
            return WriteResult()
        count = WriteResult()
        with errors(
            self.endpoint, f"replacing rows of {item.table.table}", where=f"{self.config.name}: {item.table.table}"
        ):
            for stretch in item.replaces:
                count += range_delete.clear(session, item.table, stretch)
        if count.deleted:
            _log.info("target_replaced", consumer=self.config.name, table=str(item.table.table), deleted=count.deleted)
        return count

    @staticmethod
    def _is_partial(item: TableChanges) -> bool:
        """Of rows that are read piece by piece, it is not known before they are read whether one lacks a column."""
        if item.read is not None:
            return partial_updates.may_lack(item.rows)
        return bool(item.rows.num_columns) and bool(partial_updates.missing(item.rows, item.table).any())

    def _verify(self, session: _Session, item: TableChanges) -> WriteResult:
        doing = f"looking whether foreign keys of {item.table.table} hold"
        with errors(self.endpoint, doing, where=f"{self.config.name}: {item.table.table}"):
            return WriteResult(statements=sum(families.verify(session.cursor, piece) for piece in item.each()))

    def _write_table(self, session: _Session, fence: Fence, item: TableChanges) -> WriteResult:
        refuse_spaces(item.table, item.rows)
        try:
            with errors(self.endpoint, f"loading {item.table.table}", where=f"{self.config.name}: {item.table.table}"):
                if not item.table.key:
                    return self._write_keyless(session, fence, item)
                if self._is_partial(item):
                    return self._write_partial(session, fence, item)
                return self._write_keyed(session, item)
        except LoadError as error:
            shown = discreet(error, item.rows)
            if shown is error:
                raise
            raise shown from None

    def _write_keyed(self, session: _Session, item: TableChanges) -> WriteResult:
        """Of all pieces what goes goes before anything comes: unique values move among them."""
        halves = [replace(item, upserts=False)] * item.deletes + [replace(item, deletes=False)] * item.upserts
        total = WriteResult()
        for half in halves:
            for rows in session.connection.during(half.pieces()):
                total += self._remove(session, half, rows) if half.deletes else self._put(session, half, rows)
        return total

    def _remove(self, session: _Session, item: TableChanges, rows: pa.Table) -> WriteResult:
        gone = pc.equal(rows["_op"], "d")
        removed = rows.filter(gone)
        leaving = statements.leaving_unique_values(item.table, rows.filter(pc.invert(gone)))
        sent = sum(session.run(statements.deletes(item.table, some, session.dialect)) for some in (removed, leaving))
        return WriteResult(0, removed.num_rows, statements=sent)

    def _put(self, session: _Session, item: TableChanges, rows: pa.Table) -> WriteResult:
        live = rows.filter(pc.not_equal(rows["_op"], "d"))
        checked = item.table.generation is not None
        with session.foreign_keys(checked=checked):
            if item.in_order or checked:  # REPLACE would take a parent away from its children
                sent = session.run(statements.upserts(item.table, live, session.dialect))
            else:
                sent = self._upsert(session, item.table, live)
        return WriteResult(live.num_rows, 0, statements=sent)

    def _upsert(self, session: _Session, table: TargetTable, live: pa.Table) -> int:
        """In bulk where that pays and is allowed: every row if it is sent whole, else the new ones; the others by upsert."""
        new = pc.and_(pc.equal(live["_op"], "i"), pc.is_null(live["_before"]))
        if table.key and {name for _, name in statements.sent_fields(live.schema, table)} == set(table.columns):
            new = pc.is_valid(live["_op"])
        new = pc.fill_null(new, False)
        if not session.local_infile or not live.num_rows or pc.sum(new).as_py() < load_data.BULK_ROWS:
            return session.run(statements.upserts(table, live, session.dialect))
        new = pc.and_(new, pa.chunked_array([load_data.wanted(table, live)]))
        sent = session.run(statements.upserts(table, live.filter(pc.invert(new)), session.dialect))
        return sent + session.run(load_data.loads(table, live.filter(new)))

    def _write_keyless(self, session: _Session, fence: Fence, item: TableChanges) -> WriteResult:
        """Without a key a repeat would double rows, so that the table itself remembers the batch, in the same transaction."""
        scope = item.scope or str(item.table.table)
        if self.acks.table_done(session.cursor, scope, fence.batch):
            return WriteResult()
        total = WriteResult()
        for rows in session.connection.during(
            item.pieces()
        ):  # of equal rows any will do, so that the order of the pieces does not matter
            total += self._write_counted(session, item.table, rows)
        self.acks.table_holds(session.cursor, scope, fence)
        return total

    def _write_counted(self, session: _Session, table: TargetTable, rows: pa.Table) -> WriteResult:
        gone = pc.equal(rows["_op"], "d")
        live, removed = rows.filter(pc.invert(gone)), rows.filter(gone)
        sent = session.run(statements.keyless_deletes(table, removed, session.dialect)) if removed.num_rows else 0
        if table.generation is None:
            sent += self._upsert(session, table, live)
        else:
            with session.foreign_keys(checked=True):
                sent += session.run(statements.upserts(table, live, session.dialect))
        return WriteResult(live.num_rows, removed.num_rows, statements=sent)

    def _write_partial(self, session: _Session, fence: Fence, item: TableChanges) -> WriteResult:
        """With rows of which the log lacks some columns; the table remembers the batch, in the same transaction.

        What the target has of rows that leave their place is read before any piece is written: another row may come to that place.
        """
        scope = item.scope or str(item.table.table)
        if self.acks.table_done(session.cursor, scope, fence.batch):
            return WriteResult()
        with tempfile.TemporaryFile(prefix="sluice-rows-") as spool:
            for rows in session.connection.during(item.pieces()):
                for value in self._lacking(item.table, rows).whole(session.cursor):
                    pickle.dump(value, spool)
            total = WriteResult()
            for rows in session.connection.during(item.pieces()):
                leaving = self._lacking(item.table, rows).origins
                total += WriteResult(statements=session.run(statements.deletes(item.table, leaving, session.dialect)))
            total += self._write_keyed(session, replace(_known(item), replaces=()))
            spool.seek(0)
            with session.foreign_keys(checked=item.table.generation is not None):
                total += WriteResult(
                    statements=session.run(
                        partial_updates.insert(item.table, item.rows.schema, _spooled(spool), session.dialect)
                    )
                )
                for rows in session.connection.during(item.pieces()):
                    some = self._lacking(item.table, rows)
                    total += WriteResult(some.rows.num_rows, 0, statements=session.run(some.update()))
        self.acks.table_holds(session.cursor, scope, fence)
        return total

    @staticmethod
    def _lacking(table: TargetTable, rows: pa.Table) -> partial_updates.PartialRows:
        lacks = partial_updates.missing(rows, table)
        some = _some_lack(rows, lacks)
        return partial_updates.PartialRows.of(table, rows.filter(pa.array(some)), lacks[some])

    @contextmanager
    def session(self, doing: str) -> Iterator[_Session]:
        session = _kept.take(self.endpoint)
        connection = session.connection if session else connect(self.endpoint)
        try:
            with errors(self.endpoint, doing):
                session = session or _Session(connection)
                if session.lock_wait_s != self.options.lock_wait:
                    session.cursor.execute(set_lock_wait(self.options.lock_wait))
                    session.lock_wait_s = self.options.lock_wait
                lockwait.watch.enter(session, self.endpoint, self._owner, doing)
                try:
                    yield session
                finally:
                    lockwait.watch.leave(session)
        except Contention as error:
            connection.close()
            error.message += f"; {session.blocker}" if session and session.blocker else ""
            raise
        except BaseException:
            connection.close()
            raise
        _kept.give(self.endpoint, session)

    def interrupt(self) -> None:
        """End what this process is doing at the target for this pipeline: a person said so. Raises TargetUnavailable, ConfigError."""
        lockwait.watch.interrupt(self.endpoint, self._owner)

    def transaction(self, session: _Session, work: Callable[[], _T], doing: str) -> tuple[_T, int]:
        """Run ``work`` in a transaction, again after a deadlock or a lock wait. Returns its result and the number of repeats."""

        def tried_again(state: RetryCallState) -> None:
            _log.info("target_contention", target=self.config.name, doing=doing, attempt=state.attempt_number)

        retrying = Retrying(
            retry=retry_if_exception_type(Contention),
            stop=stop_after_attempt(CONTENTION_ATTEMPTS),
            wait=wait_random_exponential(0.02, 2),
            before_sleep=tried_again,
            reraise=True,
        )
        for attempt in retrying:
            with attempt, errors(self.endpoint, doing, where=doing):
                session.begin()
                try:
                    result = work()
                    session.commit()
                except BaseException:
                    session.rollback()
                    raise
        return result, attempt.retry_state.attempt_number - 1


@dataclass
class _Statement:
    """A connection for one DDL statement, watched while it waits for a lock."""

    connection: TargetConnection
    mariadb: bool
    blocker: str = ""


class _Session:
    """A connection with its cursor and what its server understands."""

    def __init__(self, connection: TargetConnection) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self.cursor.execute("SELECT VERSION(), @@max_allowed_packet, @@GLOBAL.local_infile")
        version, packet, local_infile = self.cursor.fetchone()
        self.local_infile = bool(int(local_infile))
        self.connection.packet_limit = int(packet)
        self.mariadb = "mariadb" in version.lower()
        numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:3])
        self.dialect = statements.Dialect(
            row_alias=not self.mariadb and numbers >= (8, 0, 19),
            row_constructors=not self.mariadb,
            max_bytes=min(statements.MAX_BYTES, int(packet) - 1024),
            exact_collation="utf8mb4_nopad_bin"
            if self.mariadb
            else "utf8mb4_0900_bin"
            if numbers >= (8, 0, 17)
            else "utf8mb4_bin",
        )
        self._lax = False
        self.lock_wait_s = LOCK_WAIT_S
        self.blocker = ""

    def fileno(self) -> int:
        sock: Any = self.connection._sock  # type: ignore[attr-defined]
        return int(sock.fileno()) if sock is not None else -1

    def close(self) -> None:
        self.connection.close()

    def begin(self) -> None:
        self.connection.ahead("BEGIN")

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        try:
            self.connection.rollback()
        except (
            Exception
        ) as error:  # the connection is gone, and the server rolls back by itself; the first error is the one to show
            _log.debug("rollback_failed", error=str(error))

    @contextmanager
    def foreign_keys(self, *, checked: bool) -> Iterator[None]:
        """Rows written inside are checked, or are not."""
        if not checked:
            yield
            return
        self.cursor.execute("SET SESSION foreign_key_checks = 1")
        try:
            yield
        finally:
            with suppress(
                pymysql.err.Error
            ):  # the connection is gone, and its session with it; the first error is the one to show
                self.cursor.execute("SET SESSION foreign_key_checks = 0")

    def _refuse_warnings(self) -> None:
        """LOAD DATA LOCAL only warns of values that do not fit, in a strict session too."""
        self.cursor.execute("SHOW WARNINGS")
        level, code, text = self.cursor.fetchone() or ("Warning", 0, "unknown")
        refused = LoadError(f"the target would have changed a value: {text} ({level.lower()} {code})")
        refused.code = int(code)
        raise refused

    def run(self, todo: Iterator[statements.Statement]) -> int:
        """Execute; returns the number of statements. Raises LoadError if one does not do exactly what it should."""
        count = 0
        for statement in todo:
            if bool(statement.lax) != self._lax:
                self.cursor.execute("SET SESSION sql_mode = %s", (LAX if statement.lax else STRICT,))
                self._lax = bool(statement.lax)
            if statement.data is None:
                changed = int(self.connection.query(statement.sql) or 0)
                self._require(statement, changed)
                if statement.absent is not None and not changed:
                    self._require_row(statement.absent)
            elif self.connection.load(statement.sql, statement.data):
                self._refuse_warnings()
            if statement.lax:
                self._refuse_other_warnings(statement.lax)
            count += 1
        return count

    def _require(self, statement: statements.Statement, changed: int) -> None:
        if statement.removes and changed > statement.rows:
            raise LoadError(
                f"a DELETE of {statement.rows} rows would have removed {changed} rows of the target",
                where=statement.where,
                hint="the target's key holds values for equal that the source tells apart: compare its collation (`sluice check`)",
            )
        if not statement.exactly or changed == statement.rows:
            return
        missing = LoadError(
            f"the target has {changed} of the {statement.rows} rows to delete{statement.wanted} (error {KEY_NOT_FOUND})",
            where=statement.where,
            hint="somebody else changed the table, or it never had these rows: copy it anew (`sluice dump start`)",
        )
        missing.code = KEY_NOT_FOUND
        raise missing

    def _require_row(self, absent: statements.Absent) -> None:
        """An UPDATE changes no row, too, if the row has the values already."""
        self.cursor.execute(absent.query)
        if self.cursor.fetchone() is None:
            raise absent.error

    def _refuse_other_warnings(self, columns: Sequence[str]) -> None:
        """A session that is not strict cuts values to fit: only what made it necessary may be warned of."""
        self.cursor.execute("SHOW WARNINGS")
        for level, code, text in self.cursor.fetchall():
            if level == "Note" or (code == TRUNCATED and any(f"'{column}'" in text for column in columns)):
                continue
            refused = LoadError(f"the target would have changed a value: {text} ({level.lower()} {code})")
            refused.code = int(code)
            raise refused


def _some_lack(rows: pa.Table, lacks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rows that are there at the end, and of which some column is not known."""
    live: np.ndarray[Any, Any] = ~pc.equal(rows["_op"], "d").to_numpy(zero_copy_only=False)
    return live & lacks.any(axis=1)


def _known(item: TableChanges) -> TableChanges:
    """Only the rows of which all that is sent is known."""

    def of(rows: pa.Table) -> pa.Table:
        return rows.filter(pa.array(~_some_lack(rows, partial_updates.missing(rows, item.table))))

    if item.read is None:
        return replace(item, rows=of(item.rows))
    return replace(item, read=lambda: map(of, item.pieces()))


def _spooled(spool: IO[bytes]) -> Iterator[partial_updates.WholeRow]:
    with suppress(EOFError):
        while True:
            yield pickle.load(spool)  # noqa: S301 - a file without a name, written above


def _names(group: Sequence[TableChanges]) -> str:
    names = [str(item.table.table) for item in group]
    return f"loading {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")


_kept: Kept[_Session] = Kept()
