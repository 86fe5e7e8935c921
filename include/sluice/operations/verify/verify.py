"""verify: compare what the targets hold with the source while the log flows, and repair what differs through the
pipeline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, partial

import structlog

from sluice.config.masking import SHOWN, Masking
from sluice.config.pipeline import Event, TargetConfig
from sluice.coordination.leases import owner_label
from sluice.coordination.state import PipelineState
from sluice.errors import CheckpointError, ConfigError, DumpRefused, TerminalError
from sluice.flows.capture.lost_tables import lost_tables
from sluice.flows.checkpoints import CheckpointCheck, checkpoints_of
from sluice.flows.dump.key_lists import write_key_pieces
from sluice.flows.dump.other_site import require_overwrite
from sluice.flows.dump.planner import DumpSpec, require_together
from sluice.flows.dump.reconcile import kept_on_purpose, key_plan, why_not
from sluice.flows.dump.start import DumpOrder, captured_tables, named_tables, new_id, record_dump
from sluice.flows.dump.worker import work
from sluice.flows.runtime import Runtime
from sluice.mapping import TableRoute
from sluice.model.dumps import Marking, TableRequest
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId, TableSchema
from sluice.model.verify_method import VerifyMethod
from sluice.operations.verify.digested_columns import digested_columns
from sluice.operations.verify.digests import SweepSpec, TableDigest, sweep
from sluice.operations.verify.expected_rows import ExpectedRows
from sluice.operations.verify.keyless_check import KeylessCheck
from sluice.operations.verify.log_window import LogWindow, require_cursor
from sluice.operations.verify.progress import Progress, Told
from sluice.operations.verify.result import Difference, TableResult, VerifyResult, keep
from sluice.operations.verify.table_check import KEYS_A_LOOK, ComparisonPlan, DifferingRow, Found, KeySpool, TableCheck
from sluice.operations.verify.units import Spread
from sluice.sources.port import ChunkKey, ChunkReader, SourceSession, SourceTable
from sluice.targets.port import (
    Comparer,
    OtherWriter,
    RowCount,
    Target,
    comparer_of,
    key_lister,
    other_writers,
    refuses,
    row_counter,
)
from sluice.targets.registry import comparable_kinds

_log = structlog.get_logger()

READ_BYTES = 8 * 2**20
"""Bytes of the rows of a range, by the server's own estimate of their size.

Some ranges are in memory at the same time.
"""
MOST_RANGE_ROWS = 10_000
SHOWN_COLUMNS = 5
"""Columns that are shown of a row without a key."""
REASON = "repair"
"""The reason of a dump that repairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySpec:
    """The request of a verification.

    Attributes:
        tables: ``schema.table`` names; none: all captured.
        targets: names; none: all.
        sample: share of the key ranges.
        repair: copy what differs.
        values: keep the values that differ, too.
        most: differences of a table that are kept.
        patience_s: how long the pipeline may stand still.
        where: a condition on columns of the one table, at the source.
        overwrite: a repair may overwrite what a channel's other site wrote.
        method: compare: both sides are read; sweep: those tables that digests do not tell equal, see
            :func:`sluice.operations.verify.digests.sweep`.
    """

    tables: Sequence[str] = ()
    targets: Sequence[str] = ()
    sample: float = 1.0
    repair: bool = False
    values: bool = False
    most: int = 100
    by: str = ""
    patience_s: float = 120.0
    where: str = ""
    overwrite: bool = False
    method: VerifyMethod = VerifyMethod.COMPARE


def verify(runtime: Runtime, spec: VerifySpec, on_progress: Told = lambda progress: None) -> VerifyResult:
    """Compare, repair if that is asked for, and store the result.

    Raises:
        ConfigError: a table or target is not known, or no target can be read back; a repair of a channel's site, see
            :func:`sluice.flows.dump.other_site.require_overwrite`.
        OutOfOrder, Paused: the pipeline does not go on.
        CheckpointError: a target and ZooKeeper do not agree on what was delivered.
        RetryableError.
    """
    if not 0 < spec.sample <= 1:
        raise ConfigError(f"a sample of {spec.sample:.0%} cannot be verified", hint="more than 0%, 100% at most")
    configs = [runtime.pipeline.target(name) for name in spec.targets] or list(runtime.pipeline.targets)
    if spec.repair:
        require_overwrite(
            runtime.pipeline, runtime.membership, runtime.loads, spec.targets, overwrite=spec.overwrite, removes=True
        )
    began = int(time.time() * 1000)
    swept = _swept(runtime, spec, on_progress) if spec.method is VerifyMethod.SWEEP else {}
    with runtime.state() as state, ExitStack() as stack:
        cursor = require_cursor(runtime, state)
        source = stack.enter_context(runtime.source.open())
        captured = captured_tables(runtime.pipeline, source)
        names = frozenset(named_tables(captured, spec.tables))
        require_together(DumpSpec(where=spec.where), len(names))
        conditioned = {table: _conditioned(source, table, spec.where) for table in names if spec.where}
        opened = [(config, runtime.open_target(config.name)) for config in configs]
        if all(_comparer(config, target) is None for config, target in opened):
            raise ConfigError(
                "; ".join(_unreadable(config) for config in configs),
                hint=f"targets of type {', '.join(comparable_kinds())} can be verified, where `changes` is latest",
            )
        tables = source.tables(lambda table: table in names)
        verification = _Verification(
            runtime=runtime,
            state=state,
            source=source,
            asked=spec,
            told=on_progress,
            id=_new_id(),
            marking=source.choose_marking(),
            captured=captured,
            sizes=tables,
            conditioned=conditioned,
            keyless=source.keyless(),
            log_epoch=cursor.position.log_epoch,
            swept=swept,
        )
        results, repairs = [], []
        for config, target in opened:
            table_results, repair = verification.target(config, target)
            results += table_results
            repairs += [repair] if repair else []
        if not spec.tables:
            removed_lost_tables = lost_tables(
                runtime, state, source, cursor.position, [config.name for config in configs]
            )
            results += [
                TableResult(
                    table=str(lost.table), target=lost.target, skipped=f"{lost.why}; it was never dropped in the log"
                )
                for lost in removed_lost_tables
                if lost.missing
            ]
        result = VerifyResult(
            id=verification.id,
            pipeline=runtime.name,
            by=spec.by or owner_label(),
            began_ms=began,
            ended_ms=int(time.time() * 1000),
            sample=spec.sample,
            where=next((request.where for request in conditioned.values()), ""),
            repair=tuple(repairs),
            tables=tuple(results),
        )
    keep(runtime.store, result)
    with runtime.state() as state:
        _complete(state, result)
    _log.info(
        "verification_completed",
        pipeline=runtime.name,
        verification=result.id,
        outcome=result.outcome,
        rows=result.rows,
        differ=result.differing,
    )
    return result


def _swept(runtime: Runtime, requested_spec: VerifySpec, on_progress: Told) -> dict[str, dict[str, TableDigest]]:
    """Sweep; return the answers by target and table. Raises ConfigError and what :func:`sweep` raises."""
    if requested_spec.where:
        raise ConfigError(
            "digests are of whole tables, and know no condition",
            hint=f"`sluice verify {runtime.name} --method compare` with the condition",
        )
    spec = SweepSpec(
        tables=requested_spec.tables,
        targets=requested_spec.targets,
        share=requested_spec.sample,
        patience_s=requested_spec.patience_s,
    )
    digests: dict[str, dict[str, TableDigest]] = {}
    for table in sweep(runtime, spec, on_progress).tables:
        digests.setdefault(table.target, {})[table.table] = table
    return digests


def _by_digests(digest: TableDigest) -> TableResult:
    assert digest.at_target is not None, "it is equal"
    rows = digest.at_target.rows
    return TableResult(table=digest.table, target=digest.target, way="digests", rows=rows, equal=rows)


def _complete(state: PipelineState, result: VerifyResult) -> None:
    """Mark the tables as complete that a verification compared whole and found equal, or made equal."""
    if result.sample < 1 or result.where:
        return
    equal = {
        (table.table, table.target)
        for table in result.tables
        if not (table.skipped or table.undecided or table.differing)
    }
    state.incomplete.complete(
        lambda note: (str(note.source), note.target) in equal and note.since_ms <= result.began_ms
    )


def _new_id() -> str:
    """Return an id that sorts by time, also after another one of the same second."""
    stamp, _, rest = new_id().partition("-")
    return f"{stamp}.{time.time_ns() // 1_000_000 % 1000:03d}-{rest}"


def _conditioned(source: SourceSession, table: TableId, condition: str) -> TableRequest:
    """Return the request for the rows that meet a condition.

    Raises ConfigError, also if the server rejects the condition.
    """
    chunk_table = source.chunk_table(table)
    request = TableRequest(table, where=chunk_table.condition(condition))
    return replace(request, estimate=chunk_table.estimate(request, ChunkKey((), "")))


def _comparer(config: TargetConfig, target: Target) -> Comparer | None:
    return None if config.changes == "all" else comparer_of(target)


def _unreadable(config: TargetConfig) -> str:
    why = (
        "it gets every change, and not the newest row of each key"
        if config.changes == "all"
        else "what it holds is not read back"
    )
    return f"target {config.name} (type {config.type}) cannot be verified: {why}"


@dataclass(frozen=True, kw_only=True)
class _Verification:
    """One verification.

    ``sizes``: the wanted tables; ``conditioned``: of one of them only some rows; ``log_epoch``: when it began.
    """

    runtime: Runtime
    state: PipelineState
    source: SourceSession
    asked: VerifySpec
    told: Told
    id: str
    marking: Marking
    captured: Mapping[TableId, int]
    sizes: Sequence[SourceTable]
    conditioned: Mapping[TableId, TableRequest]
    keyless: Collection[TableId]
    log_epoch: str = ""
    swept: Mapping[str, Mapping[str, TableDigest]] = field(default_factory=dict)

    def target(self, config: TargetConfig, target: Target) -> tuple[list[TableResult], str]:
        """Verify all tables at one target; return the results and the dump that repaired them, "" for none."""
        comparer = _comparer(config, target)
        if comparer is None:
            why, names = _unreadable(config), [str(table.id) for table in self.sizes]
            return [TableResult(table=name, target=config.name, skipped=why) for name in names], ""
        CheckpointCheck(self.runtime, self.state, config.name, target).read()
        expected = ExpectedRows(self.runtime, self.source.identity.dialect, tuple(self.captured))
        side = _Side(self, config, target, comparer, expected, other_writers(target))
        digests = self.swept.get(config.name)
        sizes = [size for size in self.sizes if digests is None or str(size.id) in digests]
        checked = [side.table(table) for table in sizes]
        wanted = [table for table in checked if table.check is not None and table.check.found.differing]
        repair = side.repair(wanted) if self.asked.repair and wanted else ""
        return [table.result for table in checked], repair


@dataclass
class _Checked:
    """A table after its check; ``check`` None: it was not compared."""

    result: TableResult
    check: TableCheck | None = None
    replace: bool = False


@dataclass(frozen=True)
class _Side:
    """One target of a verification. ``others``: pipelines that deliver to the same place."""

    whole: _Verification
    config: TargetConfig
    target: Target
    comparer: Comparer
    made: ExpectedRows
    others: tuple[OtherWriter, ...] = ()

    def table(self, size: SourceTable) -> _Checked:
        """Compare one table. What makes it impossible is in the result."""
        verification, table = self.whole, size.id
        began = time.monotonic()
        digest = self._digest(table)
        if digest is not None and digest.is_equal:
            return _Checked(_by_digests(digest))
        try:
            refused = self._refused()
            if refused:
                return _Checked(TableResult(table=str(table), target=self.config.name, skipped=refused))
            return self._checked(size, began)
        except CheckpointError:
            raise
        except DumpRefused as error:
            if self.whole.asked.where:
                hint = "ask for a condition that can be computed for every row, of a table with a key"
                raise ConfigError(error.message, hint=hint) from error
            return _Checked(TableResult(table=str(table), target=self.config.name, skipped=str(error)))
        except TerminalError as error:
            _log.warning(
                "table_verification_failed", pipeline=verification.runtime.name, table=str(table), error=str(error)
            )
            return _Checked(TableResult(table=str(table), target=self.config.name, skipped=str(error)))

    def _digest(self, table: TableId) -> TableDigest | None:
        return self.whole.swept.get(self.config.name, {}).get(str(table))

    def _sample(self, table: TableId) -> float:
        """Return the share of the table's ranges that is compared: all if its digests differ."""
        digest = self._digest(table)
        return 1.0 if digest is not None and digest.differs else self.whole.asked.sample

    def _refused(self) -> str:
        """Return why it cannot be known what the target should hold, "" if it can."""
        lost = {Event.INSERT, Event.UPDATE} - set(self.whole.runtime.pipeline.capture.events)
        if lost:
            return f"the pipeline does not capture every {min(lost)}: the target holds other rows on purpose"
        return ""

    def _checked(self, size: SourceTable, began: float) -> _Checked:
        verification, table = self.whole, size.id
        with self._reader() as reader, ExitStack() as more:
            if table in verification.keyless:
                return self._counted(reader, size, began)
            way, note, may_replace = self._way(reader, size)
            spread = self._spread(way, size)
            check = self._check(
                reader, way, of_about=way.request.estimate or size.rows, keeps=verification.asked.repair
            )
            if spread is not None:
                check.spread, check.spread_ranges = spread, spread.ranges
            if size.rows > way.digest_rows:
                check.lanes = cache(partial(self._lanes, more, table))
            findings = check.run()
        result = TableResult(
            table=str(table),
            target=self.config.name,
            way=way.name,
            rows=findings.rows,
            ranges=findings.ranges,
            ranges_compared=findings.compared,
            differences=self._shown(way, findings.odd),
            note="; ".join(filter(None, (note, *(digest.found if (digest := self._digest(table)) else ())))),
            seconds=round(time.monotonic() - began, 3),
            **_counts(findings, findings.rows, findings.undecided),
        )
        return _Checked(result, check, may_replace)

    def _log(self) -> LogWindow:
        verification = self.whole
        checkpoints = checkpoints_of(self.target, verification.state)
        patience_s = verification.asked.patience_s + verification.runtime.commit_every.get(self.config.name, 0.0)
        return LogWindow(
            verification.runtime,
            verification.state,
            self.config.name,
            verification.marking,
            patience_s,
            verification.log_epoch,
            checkpoints,
        )

    def _reader(self) -> AbstractContextManager[ChunkReader]:
        return self.whole.runtime.source.open_chunks(self.whole.marking, f"{owner_label()}:verify")

    def _lanes(self, stack: ExitStack, table: TableId) -> list[ChunkReader]:
        """Open further readers at the source: as many as a dump has and the target accepts."""
        lanes = min(self.whole.runtime.pipeline.dump.parallelism, self.config.parallelism)
        readers = [stack.enter_context(self._reader()) for _ in range(lanes)]
        for reader in readers:
            reader.schema(table)
        return readers

    def _spread(self, way: ComparisonPlan, size: SourceTable) -> Spread | None:
        """Return Spark workers if many row ranges are to be compared, by the same rule as for loading batches; else
        None.
        """
        runtime = self.whole.runtime
        small = runtime.mode != "connect" or size.rows < max(runtime.pipeline.spark.from_changes, way.range_rows)
        alone = self.target.capabilities.compares_in_one_process or self.made.needs_spark(size.id)
        if way.digested or small or alone:
            return None
        return Spread.of(runtime, self.made, self.whole.marking, self.target, way, self.config.parallelism)

    def _counted(self, reader: ChunkReader, size: SourceTable, began: float) -> _Checked:
        """Compare a table without a key. Raises TerminalError."""
        verification, table, counter = self.whole, size.id, row_counter(self.target, self.comparer)
        runtime, schema = verification.runtime, reader.schema(table)
        why = why_not(runtime.pipeline, runtime.rules_path, [table], verification.captured, ()).get(table, "")
        if why or counter is None:
            why = why or f"a target of type {self.config.type} does not count rows"
            raise ConfigError(f"{table} has no primary key, and {why}", hint="give it a primary key")
        request = replace(verification.conditioned.get(table) or TableRequest(table), keyless=True)
        names = [column.name for column in schema.columns]
        hidden = Masking(runtime.pipeline.masked).hidden(table.schema, table.table, names)
        route = self.made.routes.route(table)
        shown_names = [name for n in names if n not in hidden and (name := route.target_name(n)) is not None]
        log = self._log()
        check = KeylessCheck(
            reader=reader,
            comparer=counter,
            log=log,
            made=self.made,
            request=request,
            schema=schema,
            whole=not request.where,
            shown=shown_names[:SHOWN_COLUMNS],
            most=verification.asked.most,
        )
        rows = 0

        def told(more: int) -> None:
            nonlocal rows
            rows += more
            verification.told(Progress(str(table), self.config.name, rows, request.estimate or size.rows))

        check.told = told
        counts = check.run()
        differing = counts.missing + counts.extra
        notes = ["it has no key: rows are counted by all of their values"]
        if request.where:
            notes.append(
                "rows that only the target has were not looked for: the condition is one on rows of the source: "
                f"{request.where}"
            )
        if counts.more:
            notes.append("more rows differ than were counted")
        if differing and verification.asked.repair:
            again = f"`sluice dump start {runtime.name} --table {table} --replace`"
            notes.append(f"it is not repaired, as nothing tells its rows apart: {again} copies it whole")
        result = TableResult(
            table=str(table),
            target=self.config.name,
            way="counts",
            rows=counts.rows,
            equal=max(counts.rows - counts.missing - counts.undecided, 0),
            missing=counts.missing,
            extra=counts.extra,
            undecided=counts.undecided,
            ranges=1,
            ranges_compared=1,
            differences=tuple(_of_count(row_count) for row_count in counts.first),
            note="; ".join(notes),
            seconds=round(time.monotonic() - began, 3),
        )
        return _Checked(result)

    def _check(
        self,
        reader: ChunkReader,
        way: ComparisonPlan,
        of_about: int = 0,
        doing: str = "verifying",
        *,
        keeps: bool = False,
    ) -> TableCheck:
        """Return the check of a table. ``keeps``: keep the keys of all rows that differ."""
        verification = self.whole
        log = self._log()
        texts = verification.runtime.source.keys
        findings = Found(most=verification.asked.most, keys=KeySpool() if keeps else None)
        check = TableCheck(
            reader=reader,
            comparer=self.comparer,
            log=log,
            made=self.made,
            texts=texts,
            way=way,
            values=verification.asked.values,
            found=findings,
        )

        def told(rows: int) -> None:
            verification.told(Progress(str(way.request.table), self.config.name, check.found.rows, of_about, doing))

        check.told = told
        return check

    # -- how -----------------------------------------------------------------------------------------------------------
    def _way(self, reader: ChunkReader, size: SourceTable) -> tuple[ComparisonPlan, str, bool]:
        """Return the way a table is compared, a note, and True if a repair may delete rows. Raises TerminalError."""
        verification, table = self.whole, size.id
        chunk_table = verification.source.chunk_table(table)
        request = verification.conditioned.get(table) or TableRequest(table)
        key = chunk_table.key(request)
        if not key.columns or chunk_table.has_prefix_key(key):
            raise ConfigError(
                f"the key of {table} is a prefix of a column", hint="give it a primary key of whole columns"
            )
        schema = reader.schema(table)
        route = self.made.routes.route(table)
        plan = self.made.plan(schema)
        why = self._no_range(schema, key.names, route)
        if request.where:
            why = f"the condition is one on rows of the source: {request.where}"
        digested, digest_plan, shared = (
            ((), None, False) if why else digested_columns(self.comparer, reader, schema, route, plan)
        )
        lists, why = self._lists(plan, key.names, route, why) if why and not request.where else (False, why)
        rows = max(100, min(MOST_RANGE_ROWS, READ_BYTES * max(size.rows, 1) // max(size.size_bytes, 1)))
        way = ComparisonPlan(
            request=request,
            schema=schema,
            key=key,
            plan=plan,
            ranged=not why and not lists,
            digested=digested,
            digest_plan=digest_plan,
            shared=shared,
            range_rows=rows,
            digest_rows=verification.runtime.pipeline.dump.chunk_rows,
            sample=self._sample(table),
            lists=lists,
        )
        if why and table not in self.made.clears:
            return way, f"rows that only the target has were not looked for: {why}", False
        stays = kept_on_purpose(verification.runtime.pipeline, self.config.name, self.others, route.target)
        if lists and not stays:
            stays = refuses(self.target, self._key_plan(schema, key.names, route), listed=True)
        notes = [f"a repair removes no rows: {stays}"] if stays else []
        if why:
            notes.append("rows that only the target has were looked for under keys for which the rules give nothing")
        return way, "; ".join(notes), not stays and not why

    def _lists(self, plan: PlannedTable, key: Sequence[str], route: TableRoute, why: str) -> tuple[bool, str]:
        """Return whether rows that only the target has are found by listing its keys, as it has no range (``why``); and
        why not.
        """
        runtime, table, lister = self.whole.runtime, plan.source, key_lister(self.target, self.comparer)
        not_by_table = why_not(runtime.pipeline, runtime.rules_path, [table], self.whole.captured, ()).get(table, "")
        if not_by_table or lister is None:
            return False, why
        if self._sample(table) < 1:
            return False, "that needs all rows of the source, and a sample was asked for"
        if any(route.conversion(name) is not None for name in key):
            return False, "the mapping converts values of its key"
        not_listed = lister.not_listed(plan)
        return not not_listed, not_listed

    def _no_range(self, schema: TableSchema, key: Sequence[str], route: TableRoute) -> str:
        """Return why a range of the source's keys is no range at the target, "" if it is one."""
        verification, table = self.whole, schema.table
        why = why_not(
            verification.runtime.pipeline, verification.runtime.rules_path, [table], verification.captured, ()
        ).get(table, "")
        if why:
            return why
        reconciler = self.target.reconciler()
        if reconciler is None:
            return f"a target of type {self.config.type} has no ranges"
        return reconciler.refuses(self._key_plan(schema, key, route))

    def _key_plan(self, schema: TableSchema, key: Sequence[str], route: TableRoute) -> PlannedTable:
        return key_plan(schema.table, schema.arrow_schema, key, route, self.whole.source.identity.dialect)

    # -- repair --------------------------------------------------------------------------------------------------------
    def repair(self, differing: Sequence[_Checked]) -> str:
        """Copy exactly the keys that differ, as a dump; look at them again. Returns the dump's id."""
        verification, runtime = self.whole, self.whole.runtime
        dump, by = new_id(), verification.asked.by or owner_label()
        requests, counts = [], {}
        for ordinal, checked in enumerate(differing):
            assert checked.check is not None
            way, keys = checked.check.way, checked.check.found.keys
            assert keys is not None
            path = f"dumps/{dump}/keys-{ordinal:04d}.parquet"
            write_key_pieces(runtime.store, path, keys.pieces(KEYS_A_LOOK))
            requests.append(replace(way.request, where="", key_file=path, estimate=len(keys), replace=checked.replace))
            counts[str(way.request.table)] = len(keys)
            verification.told(Progress(str(way.request.table), self.config.name, 0, len(keys), "repairing"))
        targets = (self.config.name,) if len(runtime.pipeline.targets) > 1 else ()
        order = DumpOrder(REASON, dump, targets, by=by)
        recorded = record_dump(
            runtime.pipeline, verification.state, verification.source, requests, order, note=f"verify {verification.id}"
        )
        details = {"verify": verification.id, "dump": recorded.id, "target": self.config.name, "rows": counts}
        verification.state.audit.note(by=by, what="repair", details=details)
        stop = threading.Event()
        with self._log().while_it_moves(stop, f"the rows of repair {recorded.id}"):
            work(replace(runtime, _state=None), recorded.id, stop=stop, why_stop="the pipeline stands still")
        for checked in differing:
            self._looked_again(checked)
        return recorded.id

    def _looked_again(self, checked: _Checked) -> None:
        """Compare the same keys again after the repair."""
        assert checked.check is not None
        before = checked.check
        keys = before.found.keys
        assert keys is not None
        with self._reader() as reader:
            reader.schema(before.way.request.table)
            check = self._check(reader, before.way, len(keys), "repairing")
            for piece in keys.pieces(KEYS_A_LOOK):
                check.look_again(piece)
        result, after = checked.result, check.found
        undecided = result.undecided + after.undecided
        repaired = len(keys) - after.differing - after.undecided
        checked.result = result.model_copy(update={**_counts(after, result.rows, undecided), "repaired": repaired})

    # -- for people ----------------------------------------------------------------------------------------------------
    def _shown(self, way: ComparisonPlan, odd: Sequence[DifferingRow]) -> tuple[Difference, ...]:
        """Return the differences for display, masked values hidden."""
        runtime, table = self.whole.runtime, way.request.table
        names = [column.name for column in way.schema.columns]
        hidden = Masking(runtime.pipeline.masked).hidden(table.schema, table.table, names)
        route = self.made.routes.route(table)
        secret = {(route.target_name(name) or name).casefold() for name in hidden}
        every = bool(hidden) and self.made.is_ruled(table)  # a rule may have copied masked values into any column

        def key(row: DifferingRow) -> tuple[str, ...]:
            texts = runtime.source.keys.shown(row.key)
            return tuple(SHOWN if n in hidden else text for n, text in zip(way.key.names, texts, strict=True))

        def values(row: DifferingRow) -> tuple[tuple[str | None, str | None], ...]:
            pairs = zip(row.columns, row.values, strict=True) if row.values else ()
            return tuple((SHOWN, SHOWN) if every or name.casefold() in secret else pair for name, pair in pairs)

        return tuple(Difference(key=key(row), kind=row.kind, columns=row.columns, values=values(row)) for row in odd)


def _of_count(count: RowCount) -> Difference:
    key = tuple("NULL" if value is None else value for value in count.values)
    return Difference(
        key=key, kind="missing" if count.here > count.there else "extra", copies=abs(count.here - count.there)
    )


def _counts(findings: Found, rows: int, undecided: int) -> dict[str, int]:
    counts = {"different": findings.different, "missing": findings.missing, "extra": findings.extra}
    equal = max(rows - findings.different - findings.missing - undecided, 0)
    return {**counts, "equal": equal, "undecided": undecided}


__all__ = ["Progress", "VerifySpec", "verify"]
