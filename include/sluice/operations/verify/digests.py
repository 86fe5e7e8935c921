"""Digests that are kept from the log: what they say, and reading the tables that they start from.

:func:`read_digests` reads no table. :func:`sweep` reads tables of the target, each as of one moment, and compares them
with what is kept: so a row that somebody else changed is found. Where no digest of the source is kept, it reads the
source, too.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import structlog

from sluice.config.pipeline import TargetConfig
from sluice.coordination.leases import owner_label
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, TerminalError
from sluice.flows.checkpoints import checkpoints_of
from sluice.flows.dump.reconcile import why_not
from sluice.flows.dump.start import captured_tables, named_tables
from sluice.flows.log_digests import deltas_of, redefined, require_digests, target_refuses
from sluice.flows.runtime import Runtime
from sluice.flows.stored import captured_tables_at_cursor, kept_manifest
from sluice.model.digests import RangeDigest
from sluice.model.dumps import Chunk, ChunkId, Marking, TableRequest
from sluice.model.offset import Offset
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId, TableSchema
from sluice.operations.verify.digested_columns import digested_columns
from sluice.operations.verify.expected_rows import ExpectedRows
from sluice.operations.verify.log_window import LogWindow, require_cursor
from sluice.operations.verify.progress import Progress, Told
from sluice.segments.reader import read_file
from sluice.sources.port import (
    ChunkReader,
    DigestsLog,
    SnapshotDigest,
    SnapshotDigestReader,
    SourceSession,
)
from sluice.targets.port import Target, comparer_of
from sluice.targets.port.digests import DigestReading, DigestStore, KeptDigest, KeptDigests, LogDelta, keeping_digests

_log = structlog.get_logger()

EQUAL, DIFFERENT, UNKNOWN = "equal", "different", "unknown"

_READINGS = 8
"""How often the source is read anew because the table was changed while its snapshot was opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDigest:
    """The answer of the kept digests about a table at a target.

    Attributes:
        state: equal, different, unknown. why: it is unknown.
        batch, position: as of which that is so.
        source, target: rows and checksum of each side, as far as they are known.
        read_ms: when the target's table was read last, milliseconds since 1970; 0: never.
        found: what a sweep found that the kept digests did not know.
    """

    table: str
    target: str
    state: str
    why: str = ""
    batch: int = 0
    position: Offset | None = None
    source: RangeDigest | None = None
    at_target: RangeDigest | None = None
    read_ms: int = 0
    found: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether nothing is left to be looked at."""
        return self.state == EQUAL and not self.found

    @property
    def differs(self) -> bool:
        """Whether the table is not that of the source, or was changed by something else."""
        return self.state == DIFFERENT or bool(self.found)

    def to_json(self) -> dict[str, Any]:
        """Return what commands print."""
        return {
            "table": self.table,
            "target": self.target,
            "state": self.state,
            "why": self.why,
            "batch": self.batch,
            "position": self.position.to_json() if self.position else None,
            "source": _digest_json(self.source),
            "at_target": _digest_json(self.at_target),
            "read_ms": self.read_ms,
            "found": list(self.found),
        }


def _digest_json(digest: RangeDigest | None) -> dict[str, Any] | None:
    return None if digest is None else {"rows": digest.rows, "checksum": f"{digest.checksum:016x}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestReport:
    """The answers of the kept digests; ``ms``: how long reading them took."""

    pipeline: str
    tables: tuple[TableDigest, ...]
    ms: float

    @property
    def outcome(self) -> str:
        """Equal; different; or incomplete, if nothing differs and something is unknown."""
        if any(table.differs for table in self.tables):
            return DIFFERENT
        return EQUAL if self.tables and all(table.is_equal for table in self.tables) else "incomplete"

    def to_json(self) -> dict[str, Any]:
        """Return what commands print."""
        return {
            "pipeline": self.pipeline,
            "outcome": self.outcome,
            "ms": round(self.ms, 1),
            "tables": [table.to_json() for table in self.tables],
        }


def read_digests(runtime: Runtime, *, tables: Sequence[str] = (), targets: Sequence[str] = ()) -> DigestReport:
    """Tell from what is kept whether tables are equal; reads no table and no log.

    ``tables``: ``schema.table`` names; none: all captured, and others of which a digest is kept. A table without
    one is unknown. Raises ConfigError, SegmentError, TargetUnavailable.
    """
    began = time.perf_counter()
    require_digests(runtime)
    digests: list[TableDigest] = []
    names = tables or _captured(runtime)
    keeping = {config.name: store for config, _, store in _keeping(runtime, targets)}
    for config in [runtime.pipeline.target(name) for name in targets] or runtime.pipeline.targets:
        if config.name in keeping:
            digests += _kept(runtime, config, keeping[config.name], names, all_kept=not tables)
            continue
        why = target_refuses(config, runtime.open_target(config.name)) or "it keeps no digests"
        digests += [TableDigest(table=name, target=config.name, state=UNKNOWN, why=why) for name in names]
    return DigestReport(pipeline=runtime.name, tables=tuple(digests), ms=(time.perf_counter() - began) * 1000)


def _captured(runtime: Runtime) -> list[str]:
    """Return the names of the captured tables, by the definitions that are stored. Raises SegmentError."""
    with runtime.state() as state:
        return sorted(map(str, captured_tables_at_cursor(runtime.pipeline, runtime.store, runtime.source, state)))


def _keeping(runtime: Runtime, names: Sequence[str]) -> Iterator[tuple[TargetConfig, Target, DigestStore]]:
    """Yield the targets of these names, or all that keep digests. Raises ConfigError for a named one that does not."""
    for config in [runtime.pipeline.target(name) for name in names] or runtime.pipeline.targets:
        target = runtime.open_target(config.name)
        refused = target_refuses(config, target)
        if refused and names:
            raise ConfigError(f"target {config.name}: {refused}", hint=f"`sluice check {runtime.name}` lists why")
        keeping = keeping_digests(target)
        if keeping is not None and not refused:
            yield config, target, keeping.digest_store()


def _kept(
    runtime: Runtime, config: TargetConfig, store: DigestStore, tables: Sequence[str], *, all_kept: bool
) -> list[TableDigest]:
    kept_digests, sweep_it = store.read(), f"`sluice verify sweep {runtime.name}` reads it"
    known_tables = {table.table: table for table in kept_digests.tables} if kept_digests else {}
    digests = []
    for name in dict.fromkeys([*tables, *(known_tables if all_kept else ())]):
        digest = known_tables.get(name)
        if kept_digests is None or digest is None:
            why = f"no digest is kept of it: {sweep_it}, or says why none can be kept"
            digests.append(TableDigest(table=name, target=config.name, state=UNKNOWN, why=why))
            continue
        digests.append(_told(digest, config.name, kept_digests, sweep_it))
    return digests


def _told(digest: KeptDigest, target: str, kept_digests: KeptDigests, sweep_it: str) -> TableDigest:
    why, state = f"{kept_digests.why}; {sweep_it}" if kept_digests.why else "", UNKNOWN
    if not why and digest.source.why:
        why = f"the digest of the source is not known: {digest.source.why}; {sweep_it}"
    if not why and digest.target.why:
        why = f"the digest of the target is not known: {digest.target.why}; {sweep_it}"
    if not why:
        if digest.source.digest == digest.target.digest:
            state = EQUAL
        elif digest.touched <= digest.exact_at:
            state = DIFFERENT
        else:
            why = (
                f"it differed after batch {digest.exact_at}, and rows of it that changed since may be right; {sweep_it}"
            )
    return TableDigest(
        table=digest.table,
        target=target,
        state=state,
        why=why,
        batch=kept_digests.batch,
        position=kept_digests.position,
        source=None if digest.source.why or kept_digests.why else digest.source.digest,
        at_target=None if digest.target.why or kept_digests.why else digest.target.digest,
        read_ms=digest.read_ms,
    )


# -- reading tables ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """The request of a sweep.

    Attributes:
        tables: ``schema.table`` names; none: all captured.
        targets: names; none: all that keep digests.
        share: of the tables: those that were not read for longest. Those of which no digest can be kept are told in
            addition.
        source: read the source's tables, too, where their digests are known.
        patience_s: how long the pipeline may stand still.
    """

    tables: Sequence[str] = ()
    targets: Sequence[str] = ()
    share: float = 1.0
    source: bool = False
    patience_s: float = 120.0


def sweep(runtime: Runtime, spec: SweepSpec, on_progress: Told = lambda progress: None) -> DigestReport:
    """Read tables of the targets, compare them with what is kept, and keep what was read.

    Raises ConfigError, OutOfOrder, Paused, RetryableError.
    """
    began = time.perf_counter()
    require_digests(runtime)
    digests: list[TableDigest] = []
    with runtime.state() as state, ExitStack() as stack:
        cursor = require_cursor(runtime, state)
        source = stack.enter_context(runtime.source.open())
        captured = captured_tables(runtime.pipeline, source)
        names = named_tables(captured, spec.tables)
        for config, target, store in _keeping(runtime, spec.targets):
            side = _Side(
                runtime=runtime,
                state=state,
                source=source,
                config=config,
                target=target,
                store=store,
                asked=spec,
                marking=source.choose_marking(),
                captured=captured,
                log_epoch=cursor.position.log_epoch,
                stretch=cursor.stretch,
                made=ExpectedRows(runtime, source.identity.dialect),
                told=on_progress,
            )
            digests += side.sweep(names)
    return DigestReport(pipeline=runtime.name, tables=tuple(digests), ms=(time.perf_counter() - began) * 1000)


def not_covered(runtime: Runtime) -> list[tuple[str, TableId, str]]:
    """Return (target, table, why) of each captured table of which no digest can be kept. Raises SluiceError."""
    uncovered: list[tuple[str, TableId, str]] = []
    with runtime.source.open() as source:
        captured, marking = captured_tables(runtime.pipeline, source), source.choose_marking()
        expected = ExpectedRows(runtime, source.identity.dialect)
        opened = [(config, runtime.open_target(config.name)) for config in runtime.pipeline.targets]
        with runtime.source.open_chunks(marking, f"{owner_label()}:digest") as reader:
            for table in captured:
                schema = reader.schema(table)
                for config, target in opened:
                    if not target_refuses(config, target):
                        why, _, _ = covered(runtime, target, captured, expected, reader, schema)
                        uncovered += [(config.name, table, why)] if why else []
    return uncovered


def covered(
    runtime: Runtime,
    target: Target,
    captured: Mapping[TableId, int],
    expected: ExpectedRows,
    reader: ChunkReader,
    schema: TableSchema,
) -> tuple[str, tuple[str, ...], PlannedTable | None]:
    """Return why no digest of a table can be kept at a target, or its columns at the source and at the target."""
    table, source, comparer = schema.table, runtime.source, comparer_of(target)
    assert isinstance(source, DigestsLog), "it was asked for"
    assert comparer is not None, "a target that keeps digests is read back"
    why = source.not_digested(schema)
    why = why or why_not(runtime.pipeline, runtime.rules_path, [table], captured, ()).get(table, "")
    if why:
        return why, (), None
    route, plan = expected.routes.route(table), expected.plan(schema)
    columns, _, shared = digested_columns(comparer, reader, schema, route, plan)
    if shared or columns != tuple(column.name for column in schema.columns if not column.generated):
        return (
            "the target's columns are not those of the source, or of other types, charsets or kinds of server",
            (),
            None,
        )
    return "", columns, plan


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One target of a sweep."""

    runtime: Runtime
    state: PipelineState
    source: SourceSession
    config: TargetConfig
    target: Target
    store: DigestStore
    asked: SweepSpec
    marking: Marking
    captured: Mapping[TableId, int]
    log_epoch: str
    stretch: int
    made: ExpectedRows
    told: Told
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def sweep(self, names: Sequence[TableId]) -> list[TableDigest]:
        """Read the tables that were not read for longest."""
        kept_digests = self.store.read()
        known_tables = {table.table: table for table in kept_digests.tables} if kept_digests else {}
        most, read, digests = math.ceil(self.asked.share * len(names)), 0, []
        oldest = sorted(
            (digest.read_ms if (digest := known_tables.get(str(table))) else 0, str(table), table) for table in names
        )
        for _, name, table in oldest:
            if read == most:
                break
            about = known_tables[name].target.digest.rows if name in known_tables else 0
            self.told(Progress(name, self.config.name, 0, about, "sweeping"))
            digests.append(self._table(table))
            read += bool(digests[-1].read_ms)
        return sorted(digests, key=lambda digest: digest.table)

    def _table(self, table: TableId) -> TableDigest:
        try:
            with self.runtime.source.open_chunks(self.marking, f"{owner_label()}:digest") as reader:
                return self._read(reader, table)
        except TerminalError as error:
            _log.warning("digest_not_read", pipeline=self.runtime.name, table=str(table), error=str(error))
            return TableDigest(table=str(table), target=self.config.name, state=UNKNOWN, why=str(error))

    def _read(self, reader: ChunkReader, table: TableId) -> TableDigest:
        schema = reader.schema(table)
        why, columns, plan = covered(self.runtime, self.target, self.captured, self.made, reader, schema)
        if plan is None:
            return TableDigest(
                table=str(table), target=self.config.name, state=UNKNOWN, why=f"no digest can be kept of it: {why}"
            )
        reading = self.store.measure(plan, stretch=self.stretch, within_s=self.asked.patience_s)
        findings = list(_behind_our_back(reading, self.runtime.name, self.config.name))
        if self.asked.source or reading.kept.source.why:
            lost = self._read_source(reader, schema, columns)
            findings += [lost] if lost else []
        [digest] = _kept(self.runtime, self.config, self.store, [str(table)], all_kept=False)
        result = replace(digest, found=tuple(findings))
        _log.info(
            "digest_read",
            pipeline=self.runtime.name,
            table=str(table),
            target=self.config.name,
            outcome=result.state,
            differ=len(findings),
        )
        return result

    # -- the source ----------------------------------------------------------------------------------------------------
    def _read_source(self, reader: ChunkReader, schema: TableSchema, columns: Sequence[str]) -> str:
        """Read the table at the source and keep its digest; return what the kept one did not know.

        Raises OutOfOrder, Paused; TerminalError if the table is changed each time.
        """
        assert isinstance(reader, SnapshotDigestReader), "a source that has digests"
        patience_s = self.asked.patience_s
        checkpoints = checkpoints_of(self.target, self.state)
        log = LogWindow(
            self.runtime, self.state, self.config.name, self.marking, patience_s, self.log_epoch, checkpoints
        )
        table = str(schema.table)
        for _ in range(_READINGS):
            newest = log.newest()
            chunk = Chunk(ChunkId("digest", 0, next(self._numbers)))
            seen_snapshot_digest = reader.snapshot_digest(TableRequest(schema.table), chunk, columns)
            batch = log.wait_for(seen_snapshot_digest.end)
            digest = self._as_of(schema, seen_snapshot_digest, log.visible(seen_snapshot_digest.low, newest), batch)
            if digest is None:
                continue
            before = self.store.set_source(table, digest, batch, lambda after, upto: self._since(table, after, upto))
            if before.why or before.digest == digest:
                return ""
            return (
                f"the source has {digest.rows} rows with the checksum {digest.checksum:016x} after batch {batch}, and "
                f"by its log {before.digest.rows} with {before.digest.checksum:016x}: a change is not in the log that "
                "was captured"
            )
        raise ConfigError(
            f"{table} was changed at the source each of {_READINGS} times while its snapshot was opened",
            hint=f"`sluice verify sweep {self.runtime.name} --table {table}` when less is written",
        )

    def _as_of(self, schema: TableSchema, seen_digest: SnapshotDigest, visible: int, batch: int) -> RangeDigest | None:
        """Return the digest at the end of ``batch`` from one that a snapshot saw, with the changes that it did not see.

        ``visible``: the last batch that it saw in whole. None: a change may have been seen, or not.
        """
        source = self.runtime.source
        assert isinstance(source, DigestsLog), "it was asked for"
        digest = seen_digest.digest
        for number in range(visible + 1, batch + 1):
            manifest = kept_manifest(self.state, self.runtime.store, number)
            if manifest is None:
                return None
            again, every = redefined(manifest)
            if every or str(schema.table) in again:
                return None
            for file in manifest.files:
                if file.table_id != schema.table or not file.inserts + file.updates + file.deletes:
                    continue
                if file.schema_version != schema.version:
                    return None
                rows = read_file(self.runtime.store, file)
                after, odd = self._unseen(seen_digest, rows)
                if odd.any():
                    return None
                more = source.log_digest(schema, rows.filter(after))
                if isinstance(more, str):
                    return None
                digest = digest.plus(more.rows, more.checksum)
        return digest

    def _unseen(self, seen_digest: SnapshotDigest, rows: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return masks of the changes that a snapshot did not see, and of those of which that cannot be told."""
        source = self.runtime.source
        behind_end = source.after_low(Marking.SNAPSHOT, seen_digest.end, rows)
        if self.marking is Marking.SNAPSHOT:
            after = source.after_low(self.marking, seen_digest.low, rows)
            return after, np.zeros(len(after), bool)
        low = (
            (Marking.SNAPSHOT, seen_digest.start) if self.marking is Marking.TABLE else (self.marking, seen_digest.low)
        )
        after = source.after_low(*low, rows)
        return after & behind_end, after & ~behind_end

    def _since(self, table: str, after: int, upto: int) -> LogDelta:
        """Return what batches ``after`` < n <= ``upto`` do to the digest of the source's table."""
        delta = LogDelta()
        for number in range(after + 1, upto + 1):
            manifest = kept_manifest(self.state, self.runtime.store, number)
            if manifest is None:
                return LogDelta(gap=f"batch {number} is no longer stored")
            again, every = redefined(manifest)
            delta += deltas_of(manifest).get(table, LogDelta()) + LogDelta(gap=again.get(table, every))
        return delta


def _behind_our_back(reading: DigestReading, pipeline: str, target: str) -> Sequence[str]:
    loaded, table = reading.kept.target, reading.kept.table
    if loaded.why or loaded.digest == reading.found:
        return ()
    return (
        f"the target has {reading.found.rows} rows with the checksum {reading.found.checksum:016x} after batch "
        f"{reading.batch}, and what was loaded are {loaded.digest.rows} with {loaded.digest.checksum:016x}: something "
        f"else changed the table; `sluice verify {pipeline} --table {table} --target {target}` finds the rows",
    )


__all__ = ["DigestReport", "SweepSpec", "TableDigest", "not_covered", "read_digests", "sweep"]
