"""The contract of every kind of target, by capability: 27 checks over the port alone.

A kind provides a :class:`Bench`: how to make its tables, read its rows from outside, and kill its connections. A test then is three lines::

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_contract(check: Check, bench: MyBench) -> None:
        check.run(bench) if check.applies(bench) else pytest.skip("not offered")

A check raises AssertionError if the target does not keep it. The suite itself is tested: for each check there is a
target that is wrong in just that.
"""

from __future__ import annotations

import datetime as dt
import re
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError, Fenced, LoadError, MappingError, SluiceError
from sluice.mapping import Mapping as Routes
from sluice.model.changes import Change
from sluice.model.column_types import ColumnKind
from sluice.model.definitions import ColumnDefinition, IndexDefinition, TableDefinition
from sluice.model.dialects import MARIADB, MYSQL, UNKNOWN, Dialect
from sluice.model.offset import Offset
from sluice.model.planned import CreatedTable, PlannedTable
from sluice.model.row_effects import REQUIRES, ColumnEffect, Ran, Step, StepKind
from sluice.model.schema_changes import ChangeKind, TableChange, column_changes
from sluice.model.source_words import StatementMeaning
from sluice.model.tables import Column, TableId, TableSchema, quoted_table, stored_name
from sluice.sources.words import words_of
from sluice.targets.bundles import joined
from sluice.targets.feature_check import require_features, require_kinds, require_offered
from sluice.targets.memory.checkpoints import MemoryCheckpoints
from sluice.targets.memory.store import MemoryStore
from sluice.targets.port import (
    BatchInput,
    BatchWriter,
    Checkpoint,
    CheckpointStore,
    Feature,
    Fence,
    Guarantee,
    Input,
    KeyRange,
    LeavesOutIndexes,
    Ordering,
    RangeDifferences,
    RejectedRows,
    Rejection,
    SchemaChange,
    SourceStatement,
    StatementRunner,
    StoredRange,
    TableInput,
    Target,
    WriteResult,
    comparer_of,
    key_lister,
    leaving_out_indexes,
)
from sluice.targets.registry import KINDS
from sluice.targets.rows_in_memory import MemoryReader, RowsInMemory, planned_table
from sluice.targets.schema.conversions import effects_at

Row = dict[str, Any]
_STRICT, _CUTS_TIME = 1 << 22, 1 << 32
"""Bits of sql_mode: STRICT_ALL_TABLES, and MySQL's TIME_TRUNCATE_FRACTIONAL."""


@dataclass(frozen=True)
class Received:
    """A message as an appending target has it, from outside. ``id``: its idempotency key."""

    id: str
    table: str
    op: str
    before: Row | None
    after: Row | None


class Bench(ABC):
    """One kind of target, for the suite. Each check gets a fresh one.

    Attributes:
        schema: name of the schema in which tables are made. changes: what the target is given. appends: it receives
            messages, see ``received``; else it has tables, see ``rows``. secret: the connection's password.
        consistency: the setting that is checked. dialect: of schema changes that it can run. spark: what batches are
            given.
    """

    schema: str = "shop"
    changes: Input = Input.MERGED
    appends: bool = False
    secret: str = "s3cret-of-the-suite"  # noqa: S105 - made up
    consistency: str = "row"
    dialect: Dialect = MYSQL
    spark: StatementRunner | None = None

    @abstractmethod
    def target(self, *, pipeline: str = "p", name: str = "copy", **config: Any) -> Target:
        """Build the target, anew at each call.

        ``config``: further keys in the pipeline file; ``options`` are added to the bench's own.
        """

    def create_table(self, table: TableSchema) -> None:
        """Make a table; a value in ``email`` of more than 80 characters is refused."""

    def rows(self, table: TableSchema) -> list[tuple[Any, ...]]:
        """Return all rows in any order, values in the order of ``table.columns``; read from outside."""
        raise NotImplementedError

    def columns(self, table: TableId) -> list[str] | None:
        """Return the names of the table's columns; None if there is no such table."""
        raise NotImplementedError

    def indexes(self, table: TableId) -> list[str]:
        """Return the names of the table's secondary indexes, for kinds that leave them out."""
        raise NotImplementedError

    def received(self) -> list[Received]:
        """Return what arrived at an appending target, in order, including repeats."""
        raise NotImplementedError

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Let ``email`` refuse values of more than 80 characters inside the context; most kinds do anyway."""
        yield

    def stored(self, column: Column, value: Any) -> Any:
        """Return what the target stores for a value, as it declares: the value itself, unless the kind converts it."""
        return value

    def refuses(self, column: Column, value: Any) -> bool:
        """Return True for a value that the target cannot hold, as it declares: its row is refused."""
        return False

    def kill(self) -> None:
        """End every connection of this process to the target, as a crash does."""

    def config(self, kind: str, *, name: str = "copy", **more: Any) -> TargetConfig:
        """Return the target's entry in the pipeline file."""
        defaults = {"name": name, "type": kind, "connection": "target", "changes": str(self.changes)}
        return TargetConfig.model_validate({**defaults, "consistency": self.consistency, **more})

    def endpoint(self, kind: str) -> Endpoint:
        """Return an endpoint for kinds that need no server."""
        return Endpoint("target", kind, "localhost", password=self.secret)


def people(schema: str, table: str = "people", *, key: bool = True) -> TableSchema:
    """Return the table (id, email of at most 80 characters, points)."""
    columns = (
        Column("id", ColumnKind.INT, "int", nullable=not key),
        Column("email", ColumnKind.VARCHAR, "varchar(80)", charset="utf8mb4"),
        Column("points", ColumnKind.INT, "int"),
    )
    return TableSchema(TableId(schema, table), columns, ("id",) if key else ())


@dataclass(frozen=True)
class Op:
    """A change of one row: values in column order; ``before`` None: it is new; ``after`` None: it is gone."""

    before: tuple[Any, ...] | None
    after: tuple[Any, ...] | None

    @property
    def op(self) -> str:
        """The operation as a letter: ``i``, ``u`` or ``d``."""
        return "d" if self.after is None else "i" if self.before is None else "u"


def new(*row: Any) -> Op:
    """Return the insert of a row."""
    return Op(None, row)


def gone(*row: Any) -> Op:
    """Return the delete of a row."""
    return Op(row, None)


def changed(before: tuple[Any, ...], after: tuple[Any, ...]) -> Op:
    """Return the update of a row; another key in ``after`` moves it."""
    return Op(before, after)


Tables = Sequence[tuple[TableSchema, Sequence[Op]]]


@dataclass
class Pipe:
    """One pipeline's way to one target of the bench."""

    bench: Bench
    pipeline: str = "p"
    name: str = "copy"
    config: Mapping[str, Any] = field(default_factory=dict)
    epoch: int = 1
    batch: int = 0
    seq: int = 0
    _outside: MemoryStore = field(default_factory=lambda: MemoryStore("checkpoints"))

    @property
    def target(self) -> Target:
        """The target, made anew."""
        return self.bench.target(pipeline=self.pipeline, name=self.name, **self.config)

    @property
    def checkpoints(self) -> CheckpointStore:
        """The target's own, else one outside of it."""
        own = self.target.checkpoints
        return own if own is not None else MemoryCheckpoints(self._outside, (self.pipeline, self.name))

    @property
    def held(self) -> int:
        """The number of the batch in the checkpoint; 0 if there is no checkpoint."""
        checkpoint = self.checkpoints.read()
        return checkpoint.batch if checkpoint else 0

    def position(self, batch: int) -> Offset:
        """Return the position at which a batch ends."""
        return Offset.at("uuid", "log.000001", 100 * batch + 4)

    def given(self, tables: Tables, **more: Any) -> BatchInput:
        """Return the next batch."""
        self.batch += 1
        merged: list[TableInput] = []
        log: list[Change] = []
        for schema, ops in tables:
            first = self.seq
            self.seq += len(ops)
            if self.bench.changes is Input.CHANGES:
                log += [self._change(schema, first + number, operation) for number, operation in enumerate(ops)]
            else:
                data = _table(schema, ops, first)
                merged.append(TableInput(planned_table(schema), (RowsInMemory(schema.table, data),)))
        reader = MemoryReader(tuple(log))
        return BatchInput(
            self.batch, self.position(self.batch), self.batch - 1, reader, tuple(merged), changes=len(log),
            spark=self.bench.spark, **more
        )  # fmt: skip

    def _change(self, schema: TableSchema, seq: int, operation: Op) -> Change:
        names = [column.name for column in schema.columns]
        before, after = (
            dict(zip(names, row, strict=True)) if row else None for row in (operation.before, operation.after)
        )
        fields = tuple(schema.field(column) for column in schema.columns)
        return Change(
            schema.table, operation.op, seq, "log.000001", 4 + seq, 0, 1_763_683_200_000_000 + seq, f"uuid:{self.batch}",
            self.batch, 7,
            before, after, fields, schema.primary_key, txn_row=seq,
        )  # fmt: skip

    def take_over(self) -> int:
        """Take the target over under the present epoch. Return the batch that it holds."""
        return self.checkpoints.take_over(self.epoch).batch

    def writer(self, batch: BatchInput) -> BatchWriter:
        """Open a session and return its writer. Raises ConfigError if the batch needs an undeclared feature."""
        target = self.target
        require_features(target.config, target.capabilities, batch)
        with target.open(self.epoch) as session:
            return session.begin(batch)

    def write(
        self,
        batch: BatchInput,
        *,
        rejected: RejectedRows | None = None,
        after: Callable[[str], None] = lambda call: None,
        times: int = 1,
    ) -> None:
        """Write a batch through all of its steps.

        ``after`` is told each call that is done, and may raise. ``times``: how often each unit is written.
        """
        self.take_over()
        after("take_over")
        writer = self.writer(batch)
        try:
            writer.prepare()
            after("prepare")
            results: list[WriteResult] = []
            for phase in writer.plan(2):
                after("plan")
                for unit in phase:
                    for _ in range(times - 1):
                        unit.write(rejected)
                    results.append(unit.write(rejected))
                    after("write")
            writer.commit(results)
            after("commit")
        except BaseException:
            with suppress(SluiceError):
                writer.abort()
            raise
        self.advance(batch)
        after("advance")

    def advance(self, batch: BatchInput) -> None:
        """Move the checkpoint past a batch, for a target that keeps none itself."""
        if self.target.checkpoints is None:
            self.checkpoints.advance(Checkpoint(self.epoch, batch.number, batch.position))

    def deliver(self, *tables: tuple[TableSchema, Sequence[Op]]) -> BatchInput:
        """Write the next batch and return it."""
        batch = self.given(tables)
        self.write(batch)
        return batch

    def state(self, table: TableSchema) -> Counter[tuple[Any, ...]]:
        """Return the rows as read from outside; for an appending target the state that the received changes add up
        to.
        """
        if not self.bench.appends:
            return Counter(self.bench.rows(table))
        names = [column.name for column in table.columns]
        rows_by_key: dict[Any, tuple[Any, ...]] = {}
        seen_ids: set[str] = set()
        for received in self.bench.received():
            if received.table != str(table.table) or received.id in seen_ids:
                continue
            seen_ids.add(received.id)
            for image in (received.before, received.after):
                if image is not None:
                    rows_by_key.pop(tuple(image[name] for name in table.primary_key), None)
            if received.after is not None:
                rows_by_key[tuple(received.after[name] for name in table.primary_key)] = tuple(
                    received.after[n] for n in names
                )
        return Counter(rows_by_key.values())


def _table(schema: TableSchema, ops: Sequence[Op], first: int) -> pa.Table:
    """Return merged rows, as a changeset has them."""
    fields = [schema.field(column) for column in schema.columns]
    names = [stored_name(column.name) for column in schema.columns]
    meta = [
        pa.field("_op", pa.string()), pa.field("_seq", pa.uint64()),
        pa.field("_commit_ts", pa.timestamp("us", tz="UTC")),
        pa.field("_before", pa.struct(fields)),
    ]  # fmt: skip
    rows = []
    for number, operation in enumerate(ops):
        values = operation.after if operation.after is not None else operation.before
        assert values is not None
        before = dict(zip(names, operation.before, strict=True)) if operation.before is not None else None
        rows.append({
            **dict(zip(names, values, strict=True)), "_op": operation.op, "_seq": first + number, "_before": before,
            "_commit_ts": dt.datetime(2026, 11, 21, tzinfo=dt.UTC),
        })  # fmt: skip
    return pa.Table.from_pylist(rows, schema=pa.schema([*fields, *meta]))


@dataclass(frozen=True)
class Check:
    """One of the suite. ``applies``: the bench's target offers what it is about."""

    number: int
    title: str
    run: Callable[[Bench], None]
    applies: Callable[[Bench], bool]

    def __str__(self) -> str:
        return f"{self.number:02d} {self.title}"


CHECKS: list[Check] = []


def _always(bench: Bench) -> bool:
    return True


def _check(
    number: int, title: str, applies: Callable[[Bench], bool] = _always
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    def registered(run: Callable[[Bench], None]) -> Callable[[Bench], None]:
        CHECKS.append(Check(number, title, run, applies))
        return run

    return registered


def _has(feature: Feature) -> Callable[[Bench], bool]:
    return lambda bench: feature in bench.target().capabilities.features


def _tables(bench: Bench) -> bool:
    return not bench.appends


def _merged(bench: Bench) -> bool:
    return bench.changes is Input.MERGED


def _own(bench: Bench) -> bool:
    return bench.target().checkpoints is not None


def _both(*conditions: Callable[[Bench], bool]) -> Callable[[Bench], bool]:
    return lambda bench: all(condition(bench) for condition in conditions)


def _made(bench: Bench, *names: str, key: bool = True) -> list[TableSchema]:
    tables = [people(bench.schema, name, key=key) for name in names]
    for table in tables:
        bench.create_table(table)
    return tables


def _rows(*rows: tuple[Any, ...]) -> Counter[tuple[Any, ...]]:
    return Counter(rows)


@_check(1, "first meeting, and a target that joins later", _own)
def first_meeting(bench: Bench) -> None:
    """Check that a new target holds nothing, and that one that joins later holds what the first meeting said."""
    pipe, late = Pipe(bench), Pipe(bench, name="late")
    assert pipe.checkpoints.read() is None, "a new target says that it holds something"
    assert pipe.checkpoints.take_over(1).batch == 0
    assert pipe.checkpoints.take_over(1).batch == 0
    assert late.checkpoints.take_over(1, 41).batch == 41, "a target that joins later begins where it is told"
    assert late.checkpoints.take_over(2, 7).batch == 41, "what it holds is the first answer's"


_FIRST = (new(1, "a", None), new(2, "b", 2), new(3, "ü😀", 1))


@_check(2, "insert, update, delete, key change, delete and insert")
def rows_arrive(bench: Bench) -> None:
    """Check the rows after each operation, a change of a unique value and a repeated copy."""
    [table] = _made(bench, "people")
    pipe = Pipe(bench)
    pipe.deliver((table, _FIRST))
    assert pipe.state(table) == _rows((1, "a", None), (2, "b", 2), (3, "ü😀", 1))
    ops = [changed((1, "a", None), (1, "A", 5)), changed((2, "b", 2), (2, "b2", None))]
    if Feature.DELETE in bench.target().capabilities.features:
        ops += [gone(3, "ü😀", 1), new(4, "ü😀", 1)]
    pipe.deliver((table, ops))
    last_row = (4, "ü😀", 1) if len(ops) > 2 else (3, "ü😀", 1)
    expected = [(1, "A", 5), (2, "b2", None), last_row]
    assert pipe.state(table) == _rows(*expected), pipe.state(table)
    assert pipe.held == 2
    if not bench.appends:
        pipe.deliver((
            table,
            [new(1, "a", None), new(9, None, -1)],
        ))  # a repeated copy contains existing rows
        assert pipe.state(table) == _rows((1, "a", None), *expected[1:], (9, None, -1))


@_check(3, "each unit repeated, in another order, twice at once")
def units_repeat(bench: Bench) -> None:
    """Check that repeated and concurrent writes of a unit leave each row once."""
    tables = _made(bench, "one", "two", "three")
    pipe = Pipe(bench)
    batch = pipe.given([(table, _FIRST) for table in tables])
    pipe.take_over()
    writer = pipe.writer(batch)
    writer.prepare()
    results = []
    for phase in writer.plan(2):
        for unit in reversed(phase):
            unit.write()
        failed: list[BaseException] = []
        threads = [threading.Thread(target=_into, args=(failed, unit.write)) for unit in phase for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed or all(isinstance(error, Fenced) for error in failed), failed
        results += [_last(unit.write) for unit in phase]
    writer.commit(results)
    pipe.advance(batch)
    for table in tables:
        assert pipe.state(table) == _rows((1, "a", None), (2, "b", 2), (3, "ü😀", 1)), table.table


def _into(failed: list[BaseException], work: Callable[[], Any]) -> None:
    try:
        work()
    except BaseException as error:
        failed.append(error)


def _last(write: Callable[[], WriteResult]) -> WriteResult:
    """Write again; a unit that moved the checkpoint itself is refused then, and has nothing left for the commit."""
    try:
        return write()
    except Fenced:
        return WriteResult()


class _Crash(Exception):
    """The crash that the suite simulates."""


@_check(4, "a crash after every call, then the whole batch again")
def crash_anywhere(bench: Bench) -> None:
    """Crash after each call in turn, deliver the batch again, and check rows and checkpoint."""
    for point in range(40):
        tables = _made(bench, f"one{point}", f"two{point}")
        pipe = Pipe(bench, name=f"copy{point}")
        pipe.deliver(*[(table, _FIRST) for table in tables])
        batch = pipe.given([(table, [changed((1, "a", None), (1, "z", 1)), new(4, "d", 4)]) for table in tables])
        calls: list[str] = []

        def crash(call: str, point: int = point, calls: list[str] = calls) -> None:
            calls.append(call)
            if len(calls) > point:
                raise _Crash

        with suppress(_Crash):
            pipe.write(batch, after=crash)
        bench.kill()
        pipe.epoch += 1
        if pipe.checkpoints.take_over(pipe.epoch).batch < batch.number:
            pipe.write(batch)
        for table in tables:
            expected = _rows((1, "z", 1), (2, "b", 2), (3, "ü😀", 1), (4, "d", 4))
            assert pipe.state(table) == expected, f"after a crash at call {point} ({calls[-1]}): {pipe.state(table)}"
        assert pipe.held == batch.number
        if len(calls) <= point:
            return
    raise AssertionError("a batch of two tables takes more than 40 calls")


@_check(5, "an old epoch can do nothing")
def old_epoch(bench: Bench) -> None:
    """Check that every call of an older epoch raises Fenced and changes nothing."""
    [table] = _made(bench, "people")
    pipe = Pipe(bench)
    batch = pipe.given([(table, _FIRST)])
    pipe.take_over()
    writer = pipe.writer(batch)
    writer.prepare()
    [[*units]] = writer.plan(1)
    pipe.checkpoints.take_over(2)
    old = Checkpoint(1, 1, batch.position)
    acts: list[tuple[str, Callable[[], Any]]] = [
        ("advance", lambda: pipe.checkpoints.advance(old)),
        ("take_over", lambda: pipe.checkpoints.take_over(1)),
        ("rewind", lambda: pipe.checkpoints.rewind(replace(old, batch=0))),
    ]
    if _own(bench):
        acts += [("write", units[0].write), ("commit", lambda: writer.commit([]))]
    for name, act in acts:
        try:
            act()
        except Fenced:
            continue
        raise AssertionError(f"{name} of an old epoch was not refused")
    assert pipe.held == 0
    assert not pipe.state(table)


@_check(6, "a paused writer that comes back after a newer commit changes nothing")
def paused_writer(bench: Bench) -> None:
    """Check that a writer of an older epoch cannot undo what a newer one committed."""
    [table] = _made(bench, "people")
    pipe = Pipe(bench)
    batch = pipe.given([(table, [new(1, "old", 1)])])
    pipe.take_over()
    writer = pipe.writer(batch)
    writer.prepare()
    [[*units]] = writer.plan(1)
    pipe.epoch = 2
    pipe.write(batch)
    pipe.deliver((table, [changed((1, "old", 1), (1, "new", 2))]))
    results = []
    for unit in units:
        with suppress(Fenced):
            results.append(unit.write())
    with suppress(Fenced):
        writer.commit(results)
    assert pipe.state(table) == _rows((1, "new", 2)), pipe.state(table)
    assert pipe.held == 2


@_check(7, "rewind, and the same batches again")
def rewound(bench: Bench) -> None:
    """Check that a rewound checkpoint takes the same batches again, and that it can be forgotten."""
    [table] = _made(bench, "people")
    pipe = Pipe(bench)
    first = pipe.deliver((table, [new(1, "a", 1)]))
    second = pipe.deliver((table, [changed((1, "a", 1), (1, "b", 2)), new(2, "c", 3)]))
    pipe.epoch = 2
    pipe.checkpoints.rewind(Checkpoint(2, 0, first.position))
    assert pipe.held == 0, "after a rewind the target holds what it was told"
    pipe.epoch = 3
    for batch in (first, second):
        pipe.write(batch)
    assert pipe.state(table) == _rows((1, "b", 2), (2, "c", 3))
    assert pipe.held == 2
    pipe.checkpoints.forget()
    assert pipe.checkpoints.read() is None


@_check(8, "two pipelines, two targets, apart", _own)
def apart(bench: Bench) -> None:
    """Check that pipelines and targets in one store have checkpoints of their own."""
    tables = _made(bench, "one", "two", "three")
    pipes = [Pipe(bench), Pipe(bench, name="second"), Pipe(bench, pipeline="other")]
    pipes[0].epoch = 9
    for number, (pipe, table) in enumerate(zip(pipes, tables, strict=True)):
        assert pipe.checkpoints.read() is None, f"{pipe.pipeline}.{pipe.name} sees the checkpoint of another"
        for _ in range(number + 1):
            pipe.deliver((table, [new(pipe.batch, "a", 1)]))
    assert [pipe.held for pipe in pipes] == [1, 2, 3]
    assert pipes[0].checkpoints.read() == Checkpoint(9, 1, pipes[0].position(1))


@_check(9, "the checkpoint is never ahead of the rows")
def checkpoint_behind(bench: Bench) -> None:
    """Check after every call that the checkpoint names no batch whose rows are missing."""
    tables = _made(bench, "one", "two")
    pipe = Pipe(bench)
    batch = pipe.given([(table, _FIRST) for table in tables])

    def look(call: str) -> None:
        last = pipe.held
        complete = all(len(list(pipe.state(table).elements())) == 3 for table in tables)
        assert last < batch.number or complete, f"after {call} the checkpoint says batch {last}, and rows are missing"

    pipe.write(batch, after=look)
    bench.kill()
    look("a kill")
    assert pipe.held == 1


@_check(10, "a missing table is named before the first row", _tables)
def missing_table(bench: Bench) -> None:
    """Check that MappingError names a missing table and that no row of another table was written."""
    [table] = _made(bench, "people")
    pipe = Pipe(bench)
    batch = pipe.given([(table, _FIRST), (people(bench.schema, "zz"), _FIRST)])
    try:
        pipe.write(batch)
    except MappingError as error:
        assert f"{bench.schema}.zz" in str(error), f"the table is not named: {error}"
    else:
        raise AssertionError("rows of a table that is not there were taken")
    assert not pipe.state(table), "rows of another table were written before the missing one was found"


@dataclass
class _Letters:
    """Stores rejected rows, and looks at the target meanwhile."""

    look: Callable[[], None]
    kept: list[Rejection] = field(default_factory=list)
    parts: set[tuple[str, TableId]] = field(default_factory=set)

    def __call__(self, part: str, table: TableId, rejected: Sequence[Rejection]) -> None:
        self.look()
        assert (part, table) not in self.parts, f"{part}: a second part of that name replaces the first one's letters"
        self.parts.add((part, table))
        self.kept += rejected


@_check(
    11,
    "a rejected row does not stop the others, and is kept before they are visible",
    _both(_tables, _has(Feature.ROW_REJECTION)),
)
def rejected_row(bench: Bench) -> None:
    """Check that a rejected row is kept before the others are visible, or that ``on_error: stop`` stops."""
    [table] = _made(bench, "people")
    pipe = Pipe(bench, config={"on_error": "dead_letter"})
    pipe.deliver((table, [new(1, "a", 1), new(2, "b", 2)]))
    batch = pipe.given([
        (table, [changed((1, "a", 1), (1, "x" * 100, 9)), changed((2, "b", 2), (2, "c", 3)), new(3, "d", 4)])
    ])

    def not_yet() -> None:
        assert pipe.held == 1, "the checkpoint moved before the rejected rows were kept"

    letters = _Letters(not_yet)
    with bench.refusing():
        pipe.write(batch, rejected=letters)
    ids = {rejection.row["id"].to_pylist()[0] for rejection in letters.kept}
    assert ids == {1}, f"rejected were {ids}"
    assert all(rejection.reason for rejection in letters.kept), "a rejected row without a reason"
    assert pipe.state(table) == _rows((1, "a", 1), (2, "c", 3), (3, "d", 4))
    stops = Pipe(bench, name="stops")
    batch = stops.given([(table, [new(7, "y" * 100, 1)])])
    with bench.refusing():
        try:
            stops.write(batch)
        except LoadError:
            return
    raise AssertionError("on_error: stop let a refused row pass")


@_check(12, "partial rows change the columns they have", _both(_tables, _merged, _has(Feature.PARTIAL_ROWS)))
def partial_rows(bench: Bench) -> None:
    """Check that columns which the log does not have keep their values."""
    [table] = _made(bench, "people")
    pipe = Pipe(bench)
    pipe.deliver((table, [new(1, "a", 1), new(2, "b", 2)]))
    batch = pipe.given([(table, [changed((1, None, None), (1, None, 7))])])
    [table_input] = batch.tables
    [file] = table_input.files
    assert isinstance(file, RowsInMemory)
    present = pa.array([bytes([0b101, 0b001])], pa.binary())  # id and points are known; of the old row only id
    partly = replace(table_input, files=(RowsInMemory(file.table, file.data.append_column("_present", present)),))
    pipe.write(replace(batch, tables=(partly,)), times=2 if bench.consistency == "row" else 1)
    assert pipe.state(table) == _rows((1, "a", 7), (2, "b", 2)), pipe.state(table)


@_check(
    13, "of equal rows without a key as many stay as the source has", _both(_tables, _merged, _has(Feature.KEYLESS))
)
def keyless(bench: Bench) -> None:
    """Check the number of equal rows of a table without a key, also after a crash."""
    [table] = _made(bench, "heap", key=False)
    pipe = Pipe(bench)
    pipe.deliver((table, [new(1, "a", 1)] * 3 + [new(2, "b", None)]))
    assert pipe.state(table) == Counter({(1, "a", 1): 3, (2, "b", None): 1})
    batch = pipe.given([(table, [gone(1, "a", 1), new(2, "b", None)])])
    with suppress(_Crash):
        pipe.write(batch, after=_crash_at("write"))
    bench.kill()
    pipe.epoch += 1
    if pipe.take_over() < batch.number:
        pipe.write(batch)
    assert pipe.state(table) == Counter({(1, "a", 1): 2, (2, "b", None): 2}), pipe.state(table)


def _crash_at(call: str) -> Callable[[str], None]:
    def crash(completed_call: str) -> None:
        if completed_call == call:
            raise _Crash

    return crash


_LONG = dt.timedelta(hours=838, minutes=59, seconds=59)
VALUES: tuple[tuple[Column, tuple[Any, ...]], ...] = (
    (Column("i8", ColumnKind.TINYINT, "tinyint"), (-128, 127)),
    (Column("u8", ColumnKind.TINYINT, "tinyint unsigned", unsigned=True), (0, 255)),
    (Column("i16", ColumnKind.SMALLINT, "smallint"), (-(2**15), 2**15 - 1)),
    (Column("i32", ColumnKind.INT, "int"), (-(2**31), 2**31 - 1)),
    (Column("i64", ColumnKind.BIGINT, "bigint"), (-(2**63), 2**63 - 1)),
    (Column("u64", ColumnKind.BIGINT, "bigint unsigned", unsigned=True), (0, 2**64 - 1)),
    (Column("f64", ColumnKind.DOUBLE, "double"), (-1.7976931348623157e308, 5e-324, 0.1)),
    (Column("d", ColumnKind.DECIMAL, "decimal(20,4)", precision=20, scale=4),
        (Decimal("-9999999999999999.9999"), Decimal("0.0001"))),
    (Column("t", ColumnKind.VARCHAR, "varchar(60)", charset="utf8mb4"), ("", " ä😀'\"\\\n\t\x00 ", "NULL", "\\N")),
    (Column("b", ColumnKind.VARBINARY, "varbinary(60)"), (b"", bytes(range(60)), b"\xff\x00")),
    (Column("day", ColumnKind.DATE, "date"), (dt.date(1000, 1, 1), dt.date(9999, 12, 31))),
    (Column("at", ColumnKind.DATETIME, "datetime(6)", fsp=6),
        (dt.datetime(1000, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999))),
    (Column("span", ColumnKind.TIME, "time(6)", fsp=6), (-_LONG, _LONG, dt.timedelta(microseconds=1))),
)  # fmt: skip
"""The values at the edge of each type."""


@_check(14, "values at the edge of each type are stored, or refused, never changed")
def boundary_values(bench: Bench) -> None:
    """Check that each extreme value is stored with its type, or that the load stops."""
    columns = [Column("id", ColumnKind.INT, "int", nullable=False), *(column for column, _ in VALUES)]
    table = TableSchema(TableId(bench.schema, "edges"), tuple(columns), ("id",))
    bench.create_table(table)
    pipe = Pipe(bench)
    most = max(len(values) for _, values in VALUES)
    accepted = [[value for value in values if not bench.refuses(column, value)] for column, values in VALUES]
    rows = [(number, *(values[number % len(values)] for values in accepted)) for number in range(most)]
    rows.append((most, *(None for _ in VALUES)))
    pipe.deliver((table, [new(*row) for row in rows]))
    stored_rows = {row[0]: row for row in pipe.state(table)}
    for row in rows:
        for column, sent, stored in zip(columns, row, stored_rows[row[0]], strict=True):
            expected = bench.stored(column, sent)
            same = stored == expected and type(stored) is type(expected)
            assert same, f"{column.sql_type}: {sent!r} became {stored!r}"
    refused = [
        (place, value)
        for place, (column, values) in enumerate(VALUES)
        for value in values
        if bench.refuses(column, value)
    ]
    for number, (place, value) in enumerate(refused):
        odd = [100 + number, *(value if place == column_number else None for column_number in range(len(VALUES)))]
        try:
            Pipe(bench, name=f"refused{number}").deliver((table, [new(*odd)]))
        except LoadError:
            continue
        raise AssertionError(f"{VALUES[place][0].sql_type}: {value!r} was to be refused")
    assert {row[0] for row in pipe.state(table)} == set(range(most + 1)), "a refused row is there"


def _changes(bench: Bench) -> bool:
    return bench.changes is Input.CHANGES


@_check(15, "changes keep the declared order", _changes)
def order(bench: Bench) -> None:
    """Check the order of received changes within the declared scope: key, table or all."""
    tables = _made(bench, "one", "two")
    pipe = Pipe(bench)
    first_table, second_table = (table for table in tables)
    first = [new(n, "a", 0) for n in range(8)]
    for table in (first_table, second_table):
        pipe.deliver((table, first))
    steps = [changed((n, "a", p), (n, "a", p + 1)) for p in range(12) for n in range(8)]
    batch = pipe.given([entry for step in steps for entry in ((first_table, [step]), (second_table, [step]))])
    pipe.write(batch)
    [ordering] = bench.target().capabilities.ordering
    updates = [
        (received.table, received.after["id"], received.after["points"])
        for received in bench.received()
        if received.op == "u" and received.after is not None
    ]
    groups: dict[Any, list[Any]] = {}
    for place, key, points in updates:
        groups.setdefault((place, key), []).append((points,))
        groups.setdefault(place, []).append((points, key))
        groups.setdefault("all", []).append((points, key, place))
    named = {str(first_table.table), str(second_table.table)}
    ordered_groups = {
        Ordering.NONE: [], Ordering.KEY: [g for g in groups if isinstance(g, tuple)],
        Ordering.TABLE: [g for g in groups if g in named], Ordering.GLOBAL: ["all"],
    }[ordering]  # fmt: skip
    assert len(updates) == len(steps) * 2
    for group in ordered_groups:
        assert groups[group] == sorted(groups[group]), f"changes of {group} are out of order"


def _schema_change(
    pipe: Pipe, number: int, sql: str, kinds: tuple[ChangeKind, ...], before: TableDefinition | None,
    after: TableDefinition | None,
    renamed_to: TableId | None = None,
) -> SchemaChange:  # fmt: skip
    table = before.table if before is not None else after.table if after is not None else TableId("", "")
    columns = column_changes(before, after) if before and after and renamed_to is None else ()
    change = TableChange(table, kinds, before, after, columns, renamed_to)
    statement = SourceStatement(pipe.bench.dialect, sql, table.schema)
    words = words_of(MARIADB if pipe.bench.dialect == MARIADB else MYSQL)
    meaning = StatementMeaning.read(words, Ran(sql, table.schema), (change,))
    return SchemaChange(number, f"log.000001:{number}", statement, (change,), Routes.compile(()), meaning=meaning)


def _definition(schema: str, table: str, *more: str) -> TableDefinition:
    columns = [
        ColumnDefinition("id", "int", nullable=False),
        ColumnDefinition("email", "varchar(80)", charset="utf8mb4", collation="utf8mb4_bin"),
    ]
    columns += [ColumnDefinition("points", "int"), *(ColumnDefinition(name, "int") for name in more)]
    return TableDefinition(TableId(schema, table), tuple(columns), (IndexDefinition("PRIMARY", (("id", 0),), True),))


@_check(16, "schema changes of the declared kinds, once over a repeat; others stop", _both(_tables, _merged))
def schema_changes(bench: Bench) -> None:
    """Apply each declared schema change, over crashes and a repeat; check that LoadError refuses the others."""
    offered = bench.target().capabilities.schema_changes
    K, s = ChangeKind, bench.schema
    moved = TableId(s, "moved")
    steps = [
        (K.NOTHING, f"CREATE TABLE IF NOT EXISTS `{s}`.`t` (id INT PRIMARY KEY)", _definition(s, "t"),
            _definition(s, "t"), None),
        (K.ADD_COLUMN, f"ALTER TABLE `{s}`.`t` ADD COLUMN extra INT", _definition(s, "t"), _definition(s, "t", "extra"),
            None),
        (K.DROP_COLUMN, f"ALTER TABLE `{s}`.`t` DROP COLUMN extra", _definition(s, "t", "extra"), _definition(s, "t"),
            None),
        (K.TRUNCATE_TABLE, f"TRUNCATE TABLE `{s}`.`t`", _definition(s, "t"), _definition(s, "t"), None),
        (K.RENAME_TABLE, f"RENAME TABLE `{s}`.`t` TO `{s}`.`moved`", _definition(s, "t"), _definition(s, "moved"),
            moved),
        (K.CREATE_TABLE, f"CREATE TABLE `{s}`.`born` (id INT NOT NULL PRIMARY KEY, email VARCHAR(80), points INT)",
            None, _definition(s, "born"), None),
        (K.DROP_TABLE, f"DROP TABLE `{s}`.`born`", _definition(s, "born"), None, None),
    ]  # fmt: skip
    [table] = _made(bench, "t")
    pipe = Pipe(bench)
    pipe.deliver((table, _FIRST))
    leftover_columns: list[str] = []
    for kind, sql, before, after, renamed in steps:
        change = _schema_change(pipe, 0, sql, (kind,), before, after, renamed)
        config, capabilities = pipe.target.config, pipe.target.capabilities
        if kind not in offered | {K.NOTHING}:
            try:
                require_kinds(config, capabilities, change)
            except LoadError:
                leftover_columns += ["extra"] * (kind is K.DROP_COLUMN and K.ADD_COLUMN in offered)
                continue
            raise AssertionError(f"{kind} is not declared, and was not refused")
        require_kinds(config, capabilities, change)
        batch = pipe.given([], schema_changes=(change,))
        with suppress(_Crash):
            pipe.write(batch, after=_crash_at("plan"))
        if pipe.held < batch.number:
            writer = pipe.writer(batch)
            writer.prepare()
            writer.commit([])
        pipe.epoch += 1
        if pipe.take_over() < batch.number:
            pipe.write(batch)
        place = renamed or (after or before).table  # type: ignore[union-attr]
        names = bench.columns(place)
        wanted_names = [column.name for column in after.columns] if after is not None else None
        if wanted_names is not None and place.table == "t":
            wanted_names += leftover_columns  # a column that the source dropped stays if that is not followed
        assert names == wanted_names, f"after {sql} the target has {names}"
        if kind is K.TRUNCATE_TABLE:
            assert not pipe.state(table), "a table that was emptied has rows"
        elif kind in {K.ADD_COLUMN, K.DROP_COLUMN} and kind is K.DROP_COLUMN:
            assert pipe.state(table) == _rows((1, "a", None), (2, "b", 2), (3, "ü😀", 1)), "rows were lost"


def _ids(*ids: int) -> pa.Table:
    """Return keys of the table ``people``."""
    return pa.table({"id": pa.array(ids, pa.int32())})


def _extra(differences: RangeDifferences) -> list[int]:
    assert differences.extra is not None, "rows that only the target has are not reported"
    assert differences.extra.schema.types == [pa.int32()], (
        f"keys are reported in the source's type: {differences.extra.schema}"
    )
    return sorted(differences.extra.column(0).to_pylist())


@_check(
    17, "a reconciled range has what the source has, and others stay", _both(_tables, _merged, _has(Feature.RECONCILE))
)
def reconciled(bench: Bench) -> None:
    """Check that exactly the rows of the range that the source lacks are removed, also after a crash."""
    [table] = _made(bench, "people")
    pipe = Pipe(bench)
    reconciler = pipe.target.reconciler()
    assert reconciler is not None, "the capability is declared"
    assert reconciler.others() == (), "before anything was delivered there are other pipelines"
    Pipe(bench, pipeline="begun").take_over()
    writers = [writer.pipeline for writer in reconciler.others() if writer.may_write(planned_table(table).target)]
    assert not writers, "a pipeline that wrote nothing yet counts as a writer of the table"
    pipe.deliver((table, [new(n, f"m{n}", n) for n in range(1, 11)]))
    plan = planned_table(table)
    key = replace(plan, columns=plan.columns[:1], dialect=UNKNOWN)
    assert not reconciler.refuses(key), reconciler.refuses(key)
    kept_table = pa.table({"id": pa.array([4, 6], pa.int32())}, schema=pa.schema([table.field(table.columns[0])]))
    stretch = KeyRange(("id",), lower=_ids(3), upper=_ids(7), kept=kept_table)
    batch = pipe.given([(table, [new(5, "again", 5)])], reconcile=(StoredRange(key, stretch),))
    with suppress(_Crash):
        pipe.write(batch, after=_crash_at("write"))
    pipe.epoch += 1
    if pipe.take_over() < batch.number:
        pipe.write(batch)
    ids = sorted(row[0] for row in pipe.state(table))
    assert ids == [1, 2, 4, 5, 6, 8, 9, 10], f"left are {ids}"


@_check(18, "the declared guarantee holds when a batch is written twice")
def delivered_twice(bench: Bench) -> None:
    """Check rows, idempotency keys and number of messages after a batch that was written twice."""
    [table] = _made(bench, "people")
    pipe = Pipe(bench)
    batch = pipe.given([(table, _FIRST)])
    with suppress(_Crash):
        pipe.write(batch, after=_crash_at("write"))
    pipe.epoch += 1
    if pipe.take_over() < batch.number:
        pipe.write(batch)
    assert pipe.state(table) == _rows((1, "a", None), (2, "b", 2), (3, "ü😀", 1))
    if not bench.appends:
        return
    arrived = [received.id for received in bench.received()]
    assert len(set(arrived)) == 3, f"3 changes have {len(set(arrived))} idempotency keys"
    if bench.target().capabilities.guarantee is not Guarantee.AT_LEAST_ONCE:
        assert len(arrived) == 3, "a repeat is seen, and the guarantee says it is not"


@_check(
    19,
    "consistency schema and batch: readers see all that a batch has of a schema, or nothing",
    lambda bench: bench.consistency in {"schema", "batch"},
)
def all_or_nothing(bench: Bench) -> None:
    """Check after every call that readers see each table's rows of the batch, or none."""
    tables = _made(bench, "one", "two", "three")
    pipe = Pipe(bench)
    batch = pipe.given([(table, _FIRST) for table in tables])

    def look(call: str) -> None:
        counts = [sum(pipe.state(table).values()) for table in tables]
        assert counts in ([0, 0, 0], [3, 3, 3]), f"after {call} readers see {counts} rows of 3, 3, 3"

    pipe.write(batch, after=look)
    assert all(pipe.state(table) for table in tables)


@_check(20, "no secret in an error or in what travels")
def no_secrets(bench: Bench) -> None:
    """Check that no repr, location or error shows the password."""
    pipe = Pipe(bench)
    texts: list[str] = [repr(pipe.target), repr(pipe.target.config)]
    if pipe.target.checkpoints is not None:
        texts.append(pipe.checkpoints.place)
        pipe.take_over()
        try:
            pipe.checkpoints.take_over(0)
        except SluiceError as error:
            texts += [str(error), repr(error)]
    [table] = _made(bench, "people")
    batch = pipe.given([(table, _FIRST), (people(bench.schema, "absent"), _FIRST)])
    try:
        pipe.take_over()
        writer = pipe.writer(batch)
        texts += [repr(unit) for phase in writer.plan(1) for unit in phase]
    except SluiceError as error:
        texts += [str(error), repr(error)]
    for text in texts:
        assert bench.secret not in text, f"the password is shown: {text.replace(bench.secret, '***')}"


@_check(21, "options refuse unknown keys")
def unknown_options(bench: Bench) -> None:
    """Check that ConfigError names an option that does not exist."""
    try:
        bench.target(options={"no_such_option": 1})
    except ConfigError as error:
        assert "no_such_option" in str(error), f"the option is not named: {error}"
        return
    raise AssertionError("an option that does not exist was taken")


_PARTS = {
    "compares": "comparer", "maintains_files": "maintainer", "keeps_versions": "versions", "marks_loads": "mark",
    "copies_again": "copied_again", "converts_rows": "converted_otherwise", "keeps_digests": "digest_store",
    "leaves_out_indexes": "leave_out_indexes",
}  # fmt: skip
"""A declared ability -> the attribute of the target that it stands for."""
_PARTS_OF_PARTS = {
    "lists_keys": ("comparer", "keys"), "counts_rows": ("comparer", "count"),
    "removes_listed_keys": ("reconciler", "refuses_listed"),
}  # fmt: skip
"""A declared ability -> the part of the target, and its attribute."""


@_check(22, "capabilities say what the target does")
def capabilities_hold(bench: Bench) -> None:
    """Check that the declared capabilities agree with each other, with the target's parts and the registry."""
    target = bench.target()
    offered = target.capabilities
    assert isinstance(target, Target)
    require_offered(target.config, target)
    assert offered.inputs and offered.consistency and offered.ordering, "something is offered"
    assert (Feature.RECONCILE not in offered.features) or bench.appends or target.reconciler() is not None
    assert offered.guarantee is not Guarantee.TRANSACTIONAL or target.checkpoints is not None, (
        "rows and checkpoint cannot commit together"
    )
    assert Ordering.GLOBAL not in offered.ordering or offered.max_writers == 1, "a global order needs a single writer"
    assert bench.changes in offered.inputs
    for declares, part in _PARTS.items():
        assert getattr(offered, declares) is hasattr(target, part), (
            f"{declares} is {getattr(offered, declares)}, and the target has {'a' if hasattr(target, part) else 'no'} "
            f"{part}"
        )
    owners = {"comparer": comparer_of(target), "reconciler": target.reconciler()}
    for declares, (owner, part) in _PARTS_OF_PARTS.items():
        if (owner_part := owners[owner]) is not None:
            assert getattr(offered, declares) is hasattr(owner_part, part), (
                f"{declares} is {getattr(offered, declares)}, and the {owner} has "
                f"{'a' if hasattr(owner_part, part) else 'no'} {part}"
            )
    built_in = KINDS.get(target.config.type)
    assert built_in is None or (built_in.maintains_files, built_in.marks_loads) == (
        offered.maintains_files, offered.marks_loads,
    ), "the registry says the same"  # fmt: skip
    if Feature.DELETE not in offered.features or bench.appends:
        return
    [table] = _made(bench, "people")
    pipe = Pipe(bench)
    pipe.deliver((table, [new(1, "a", 1), new(2, "b", 2)]))
    pipe.deliver((table, [gone(1, "a", 1)]))
    assert pipe.state(table) == _rows((2, "b", 2)), "DELETE is declared, and a deleted row stayed"


@_check(
    23,
    "rows are compared with what the target holds",
    _both(_merged, lambda bench: comparer_of(bench.target()) is not None),
)
def compared(bench: Bench) -> None:
    """Check the missing, different and extra rows that the comparer finds: in tables, ranges, lists of keys."""
    [table] = _made(bench, "people")
    pipe, plan = Pipe(bench), planned_table(table)
    comparer = comparer_of(pipe.target)
    assert comparer is not None

    def look(*rows: tuple[Any, ...], item: KeyRange | None = None) -> Any:
        return comparer.compare(plan, _table(table, [new(*row) for row in rows], 0), item, values=True)

    pipe.deliver((table, [new(1, "a", None), new(2, "b", 2), new(3, "ü😀", 1), new(4, "", 0)]))
    comparison = look((4, "", 0), (1, "a", None), (3, "ü😀", 1), (2, "b", 2))
    assert (comparison.missing, comparison.different, comparison.extra) == ((), (), None), (
        f"equal rows are said to differ: {comparison}"
    )
    comparison = look((1, "a", 1), (2, "B", 2), (3, "ü😀 ", 1), (4, None, 0), (5, "e", 5))
    assert comparison.missing == (4,), f"missing is row 4, said are {comparison.missing}"
    columns = {
        difference.row: tuple(name.casefold() for name in difference.columns) for difference in comparison.different
    }
    blank = bench.stored(table.columns[1], "")
    odd = {0: ("points",), 1: ("email",), 2: ("email",), **({3: ("email",)} if blank is not None else {})}
    assert columns == odd, f"columns that differ: {columns}"
    values = {difference.row: difference.values for difference in comparison.different}
    assert (values[0], values[1]) == ((("1", None),), (("B", "b"),)), f"values: {values}"
    assert blank is None or values[3] == ((None, blank),), f"values: {values}"
    features = bench.target().capabilities.features
    removed = [gone(2, "b", 2)] if Feature.DELETE in features else []
    pipe.deliver((table, [*removed, changed((1, "a", None), (1, "a", 1)), new(6, "f", 6)]))
    comparison = look((1, "a", 1), (2, "b", 2))
    assert (len(comparison.missing), comparison.different) == (len(removed), ()), f"after another batch: {comparison}"
    lister = key_lister(bench.target(), comparer)
    if lister is not None and not lister.not_listed(plan):
        keys = sorted(key for piece in lister.keys(plan) for key in piece.column(0).to_pylist())
        here = [1, 3, 4, 6] if removed else [1, 2, 3, 4, 6]
        assert keys == here, f"the keys {here} are there, and it lists {keys}"
        comparison = look((3, "ü😀", 1), item=KeyRange(("id",), listed=_ids(3, 5, 6)))
        assert _extra(comparison) == [6], f"of the listed keys: {comparison}"
    if bench.appends or not {Feature.RECONCILE, Feature.DELETE} <= features:
        return
    comparison = look((3, "ü😀", 1), item=KeyRange(("id",), after=_ids(1), upto=_ids(4)))
    assert (comparison.missing, comparison.different, _extra(comparison)) == ((), (), [4]), (
        f"in the range from 1 to 4: {comparison}"
    )
    comparison = look(item=KeyRange(("id",), listed=_ids(3, 5, 6)))
    assert _extra(comparison) == [3, 6], f"of the listed keys: {comparison}"


@_check(24, "several batches as one, again after a crash, with others", _has(Feature.BUNDLES))
def batches_as_one(bench: Bench) -> None:
    """Check that several batches in one commit leave the newest row of each key, also after a crash."""
    tables = _made(bench, "one", "two")
    pipe = Pipe(bench)
    batches = [
        pipe.given([(table, [new(1, "a", 1), new(2, "b", 1)]) for table in tables]),
        pipe.given([(tables[0], [changed((1, "a", 1), (1, "a", 2)), gone(2, "b", 1), new(3, "c", 2)])]),
        pipe.given([(tables[0], [new(2, "b", 3), gone(3, "c", 2)]), (tables[1], [changed((2, "b", 1), (2, "b", 3))])]),
        pipe.given([(table, [new(4, "d", 4)]) for table in tables]),
    ]
    with suppress(_Crash):
        pipe.write(joined(batches[:2]), after=_crash_at("write"))
    assert pipe.held == 0, "the checkpoint is ahead of the rows"
    pipe.epoch += 1
    pipe.write(joined(batches))
    assert pipe.held == 4
    assert pipe.state(tables[0]) == _rows((1, "a", 2), (2, "b", 3), (4, "d", 4))
    assert pipe.state(tables[1]) == _rows((1, "a", 1), (2, "b", 3), (4, "d", 4))
    if bench.appends:
        received = bench.received()
        assert len(received) == len({change.id for change in received}) == 12, (
            "12 changes arrive once, and are told apart"
        )


_ADDED: tuple[tuple[Column, str, str, Any], ...] = (
    (Column("flag", ColumnKind.TINYINT, "tinyint", nullable=False), "TINYINT NOT NULL", "0", 0),
    (Column("small", ColumnKind.SMALLINT, "smallint"), "SMALLINT", "'-7'", -7),
    (Column("near", ColumnKind.INT, "int"), "INT", "1.5", 2),
    (Column("u64", ColumnKind.BIGINT, "bigint unsigned", unsigned=True), "BIGINT UNSIGNED", str(2**64 - 1), 2**64 - 1),
    (Column("cents", ColumnKind.DECIMAL, "decimal(5,2)", precision=5, scale=2), "DECIMAL(5,2)", "1.005",
        Decimal("1.01")),
    (Column("long_d", ColumnKind.DECIMAL, "decimal(38,10)", precision=38, scale=10), "DECIMAL(38,10)",
        "1234567890123456789012345678.0123456789",
     Decimal("1234567890123456789012345678.0123456789")),
    (Column("f", ColumnKind.DOUBLE, "double(9,2)"), "DOUBLE(9,2)", "0.126", 0.13),
    (Column("y", ColumnKind.YEAR, "year"), "YEAR", "24", 2024),
    (Column("c", ColumnKind.CHAR, "char(5)", length=5, charset="utf8mb4"), "CHAR(5)", "'ab '", "ab"),
    (Column("t", ColumnKind.VARCHAR, "varchar(20)", length=20, charset="utf8mb4"), "VARCHAR(20) NOT NULL",
        "'it''s \\\\ ä'", "it's \\ ä"),
    (Column("b", ColumnKind.VARBINARY, "varbinary(9)", length=9), "VARBINARY(9)", "x'00ff27'", b"\x00\xff'"),
    (Column("e", ColumnKind.ENUM, "enum('a','b')", labels=("a", "b"), charset="utf8mb4"), "ENUM('a','b')", "'B'", "b"),
    (Column("s", ColumnKind.SET, "set('a','b')", labels=("a", "b"), charset="utf8mb4"), "SET('a','b')", "'b,a'", "a,b"),
    (Column("day", ColumnKind.DATE, "date"), "DATE", "'24-2-29'", dt.date(2024, 2, 29)),
    (Column("at", ColumnKind.DATETIME, "datetime(3)", fsp=3), "DATETIME(3)", "20240229010203.5",
        dt.datetime(2024, 2, 29, 1, 2, 3, 500_000)),
    (Column("span", ColumnKind.TIME, "time(1)", fsp=1), "TIME(1)", "'-1:2:3.4'",
        -dt.timedelta(hours=1, minutes=2, seconds=3, milliseconds=400)),
    (Column("none", ColumnKind.INT, "int"), "INT", "NULL", None),
)  # fmt: skip
"""Columns that are added: type, text of the default, and the value that the source's server has for it."""


def _follows_columns(bench: Bench) -> bool:
    return _tables(bench) and _merged(bench) and ChangeKind.ADD_COLUMN in bench.target().capabilities.schema_changes


@_check(
    25, "a column that comes with a default has the source's own value of it in rows that are there", _follows_columns
)
def defaults_of_new_columns(bench: Bench) -> None:
    """Check that stored rows get the source's own default in each column that is added."""
    [table] = _made(bench, "t")
    pipe = Pipe(bench)
    for first in range(0, 90, 30):  # several files, if the target has files
        pipe.deliver((table, [new(n, f"m{n}", n) for n in range(first, first + 30)]))
    before = _definition(bench.schema, "t")
    columns = [
        ColumnDefinition(
            column.name,
            column.sql_type,
            nullable="NOT NULL" not in declared,
            charset=column.charset,
            collation="utf8mb4_general_ci" if column.charset else None,
            labels=column.labels,
            default=None if default == "NULL" else default,
        )
        for column, declared, default, _ in _ADDED
    ]
    after = replace(before, columns=(*before.columns, *columns))
    parts = ", ".join(
        f"ADD COLUMN {column.name} {declared} DEFAULT {default}" for column, declared, default, _ in _ADDED
    )
    change = _schema_change(
        pipe, 0, f"ALTER TABLE `{bench.schema}`.`t` {parts}", (ChangeKind.ADD_COLUMN,), before, after
    )
    pipe.write(pipe.given([], schema_changes=(change,)))
    wide = TableSchema(table.table, (*table.columns, *(column for column, *_ in _ADDED)), ("id",))
    values = tuple(value for *_, value in _ADDED)
    pipe.deliver((wide, [changed((7, "m7", 7, *values), (7, "m7", 8, *values))]))
    rows = {row[0]: row for row in pipe.state(wide)}
    assert set(rows) == set(range(90)), "rows were lost, or came"
    for key, row in rows.items():
        assert row[:3] == (key, f"m{key}", key + (key == 7))
        for (column, declared, default, value), stored in zip(_ADDED, row[3:], strict=True):
            expected = bench.stored(column, value)
            assert stored == expected, (
                f"{column.name} {declared} DEFAULT {default} is {stored!r} in row {key}, not {expected!r}"
            )


@dataclass(frozen=True)
class Conversion:
    """An ALTER that converts stored values.

    Attributes:
        old, new: the type before and after it, in the source's words. values: each with what the source's server makes
            of it.
        mode: bits of the session's sql_mode. required: it makes the column NOT NULL.
        step: what the source says of it; unknown: why it can say nothing.
    """

    old: str
    new: str
    values: tuple[tuple[Any, Any], ...]
    mode: int = _STRICT
    required: bool = False
    step: Step | None = None
    unknown: str = ""

    def __str__(self) -> str:
        return f"{self.old} to {self.new}{' NOT NULL' if self.required else ''}"

    @property
    def before(self) -> Column:
        """The column before it."""
        return _column(self.old)

    @property
    def after(self) -> Column:
        """The column after it."""
        return replace(_column(self.new), nullable=not self.required)


def _column(declared: str) -> Column:
    column_type = words_of(MYSQL).column_type(ColumnDefinition("v", declared))
    assert column_type is not None, declared
    text = column_type.arrow_type == pa.string()
    return Column(
        "v", column_type.kind, declared, unsigned=column_type.unsigned, precision=column_type.precision, scale=column_type.scale, fsp=column_type.digits,
        length=column_type.length,
        charset="utf8mb4" if text else None, labels=column_type.labels,
    )  # fmt: skip


def _day(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def _span(**parts: int) -> dt.timedelta:
    return dt.timedelta(**parts)


_OWN_WAY = "the server converts the values in its own way"

CONVERSIONS: tuple[Conversion, ...] = (
    Conversion("decimal(20,5)", "decimal(10,1)", (
        (Decimal("2.25"), Decimal("2.3")), (Decimal("-2.25"), Decimal("-2.3")), (Decimal("99999.95"), Decimal(100000)),
        (Decimal("0.04"), Decimal(0))), step=Step(StepKind.ROUND, 1)),
    Conversion("decimal(10,2)", "int", ((Decimal("2.5"), 3), (Decimal("-2.5"), -3), (Decimal("3.49"), 3)),
        step=Step(StepKind.ROUND, 0)),
    Conversion("datetime(6)", "datetime(2)", (
        (_day("2024-01-01 23:59:59.995000"), _day("2024-01-02 00:00:00")),
        (_day("1969-07-20 20:17:40.004999"), _day("1969-07-20 20:17:40"))), step=Step(StepKind.ROUND_TIME, 2)),
    Conversion("datetime(6)", "datetime", ((_day("2024-01-01 23:59:59.995000"), _day("2024-01-01 23:59:59")),),
        _STRICT | _CUTS_TIME, step=Step(StepKind.CUT_TIME, 0)),
    Conversion("time(6)", "time(1)", (
        (_span(hours=12, milliseconds=50), _span(hours=12, milliseconds=100)),
        (-_span(hours=12, milliseconds=50), -_span(hours=12, milliseconds=100)),
        (_span(microseconds=49_999), _span())), step=Step(StepKind.ROUND_TIME, 1)),
    Conversion("varchar(10)", "char(10)", (("ab  ", "ab"), (" ", ""), ("  y", "  y")), step=Step(StepKind.TRIM_BLANKS)),
    Conversion("varchar(300)", "varchar(3)", (("ab      ", "ab "), ("äbc", "äbc"), ("", "")),
        step=Step(StepKind.LEFT, 3)),
    Conversion("varbinary(5)", "binary(5)", ((b"ab", b"ab\0\0\0"), (b"", b"\0\0\0\0\0"), (b"abcde", b"abcde")),
        step=Step(StepKind.PAD_ZEROS, 5)),
    Conversion("set('a','b','c')", "set('c','b','a')", (("a,b", "b,a"), ("a,b,c", "c,b,a"), ("b", "b"), ("", "")),
        step=Step(StepKind.REORDER, labels=("c", "b", "a"))),
    Conversion("enum('a','b')", "enum('new','a','b')", (("a", "a"), ("b", "b"))),
    Conversion("int", "varchar(12)", ((7, "7"), (-12345, "-12345"), (0, "0")), step=Step(StepKind.TO_TEXT, 0)),
    Conversion("decimal(10,3)", "varchar(20)", ((Decimal(7), "7.000"), (Decimal("-0.5"), "-0.500")),
        step=Step(StepKind.TO_TEXT, 3)),
    Conversion("date", "datetime", ((dt.date(2024, 7, 1), _day("2024-07-01")),
        (dt.date(1960, 1, 1), _day("1960-01-01"))), step=Step(StepKind.AT_MIDNIGHT)),
    Conversion("float", "double", ((0.10000000149011612, 0.10000000149011612), (0.5, 0.5))),
    Conversion("int", "decimal(12,2)", ((7, Decimal("7.00")),)),
    Conversion("int", "bigint", ((1, 1), (-5, -5))),
    Conversion("varchar(10)", "varchar(20)", (("a", "a"), ("ab  ", "ab  "))),
    Conversion("int", "int", ((7, 7), (0, 0)), 0, required=True, step=Step(StepKind.NO_NULL)),
    Conversion("int", "int", ((7, 7), (None, 0)), 0, required=True, step=Step(StepKind.NO_NULL)),
    Conversion("bigint", "int", ((5, 5), (-(2**31), -(2**31))), 0,
        step=Step(StepKind.WITHIN, low=-(2**31), high=2**31 - 1)),
    Conversion("bigint", "int", ((5, 5), (2**40, 2**31 - 1)), 0,
        step=Step(StepKind.WITHIN, low=-(2**31), high=2**31 - 1)),
    Conversion("text", "tinytext", (("ä", "ä"), ("x" * 255, "x" * 255)), 0, step=Step(StepKind.AT_MOST, 63)),
    Conversion("text", "tinytext", (("ä", "ä"), ("x" * 300, "x" * 255)), 0, step=Step(StepKind.AT_MOST, 63)),
    Conversion("double", "double(9,2)", ((1.239, 1.24), (-7.126, -7.13)), unknown=_OWN_WAY),
    Conversion("int(5) unsigned zerofill", "varchar(10)", ((7, "00007"), (12345, "12345")),
        unknown="the text has the zeros of ZEROFILL"),
    Conversion("year", "varchar(4)", ((2024, "2024"),), unknown=_OWN_WAY),
    Conversion("int", "enum('a','b')", ((1, "a"), (2, "b")), unknown=_OWN_WAY),
    Conversion("varchar(10)", "int", (("7", 7), ("-5", -5)), unknown=_OWN_WAY),
)  # fmt: skip
"""Every step that is known, values of which nothing is known, and conversions that the source makes in its own way.

AUTO_INCREMENT, which needs a key, is not among them.
"""


def _converts(bench: Bench) -> bool:
    offered = bench.target().capabilities.schema_changes
    return _tables(bench) and _merged(bench) and {ChangeKind.WIDEN_COLUMN, ChangeKind.CHANGE_COLUMN} <= offered


def _definition_with(table: TableId, column: Column) -> TableDefinition:
    definition = ColumnDefinition(
        column.name, column.sql_type, nullable=column.nullable, charset=column.charset, labels=column.labels,
        collation="utf8mb4_bin" if column.charset else None,
    )  # fmt: skip
    columns = (ColumnDefinition("id", "int", nullable=False), definition)
    return TableDefinition(table, columns, (IndexDefinition("PRIMARY", (("id", 0),), True),))


@_check(26, "rows that the source converts are what they are there, or the load stops and names the column", _converts)
def rows_that_are_converted(bench: Bench) -> None:
    """Check each conversion of a column's values; a load that stops has to name the column."""
    key, declared = Column("id", ColumnKind.INT, "int", nullable=False), bench.target().capabilities.conversions
    for number, conversion in enumerate(CONVERSIONS):
        was, now = (
            TableSchema(TableId(bench.schema, f"c{number}"), (key, c), ("id",))
            for c in (conversion.before, conversion.after)
        )
        bench.create_table(was)
        pipe = Pipe(bench, name=f"copy{number}")
        values = (*conversion.values, *([] if conversion.required else [(None, None)]))
        for first in (0, 100, 200):  # several files, if the target has files
            pipe.deliver((was, [new(first + place, value) for place, (value, _) in enumerate(values)]))
        change = _conversion(pipe, was.table, conversion)
        had = pipe.state(was)
        steps = {step.kind for effect in change.effects for step in effect.steps}
        try:
            require_kinds(pipe.target.config, pipe.target.capabilities, change)
            pipe.write(pipe.given([], schema_changes=(change,)))
        except LoadError as error:
            assert re.search(r"\bv\b", error.message), f"{conversion}: the column is not named: {error}"
            assert pipe.held == 3, f"{conversion}: the load stopped, and its batch is acknowledged"
            assert pipe.state(was) == had, f"{conversion}: the load stopped, and rows were changed"
            is_described = not any(effect.unknown for effect in change.effects) and not steps & REQUIRES
            same_type = conversion.before.kind is conversion.after.kind
            assert not (is_described and same_type and steps <= declared), (
                f"{conversion}: the steps are declared, and the load stopped: {error}"
            )
            continue
        pipe.deliver((now, [new(900, conversion.values[0][1])]))
        expected = [(first + place, after) for first in (0, 100, 200) for place, (_, after) in enumerate(values)]
        expected.append((900, conversion.values[0][1]))
        stored_rows = {row[0]: row[1] for row in pipe.state(now)}
        assert set(stored_rows) == {row for row, _ in expected}, f"{conversion}: rows were lost, or came"
        for row, value in expected:
            assert stored_rows[row] == bench.stored(conversion.after, value), (
                f"{conversion}: {stored_rows[row]!r} in row {row}, not {value!r}"
            )


def effect_of(conversion: Conversion, table: TableId) -> ColumnEffect:
    """Return what the source says that a conversion did to the values of a table."""
    old, new = (_definition_with(table, column).columns[1] for column in (conversion.before, conversion.after))
    return ColumnEffect(table, old, new, (conversion.step,) if conversion.step is not None else (), conversion.unknown)


def _conversion(pipe: Pipe, table: TableId, conversion: Conversion) -> SchemaChange:
    before, after = _definition_with(table, conversion.before), _definition_with(table, conversion.after)
    charset = " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" if conversion.after.charset else ""
    sql = (
        f"ALTER TABLE `{table.schema}`.`{table.table}` MODIFY v "
        f"{conversion.after.sql_type}{charset}{' NOT NULL' if conversion.required else ''}"
    )
    kinds = tuple(part.kind for part in column_changes(before, after))
    change = _schema_change(pipe, 0, sql, kinds, before, after)
    one_table, held = change.tables[0], pipe.target.capabilities.held
    effects = tuple(effects_at(held, change, one_table, [effect_of(conversion, table)]))
    statement = SourceStatement(pipe.bench.dialect, sql, table.schema, conversion.mode)
    return replace(change, statement=statement, effects=effects, consumer=pipe.name)


def _indexed(bench: Bench, name: str) -> PlannedTable:
    """Return a table with a secondary index, made as ``sluice check --apply`` makes it."""
    table = people(bench.schema, name)
    place, index = quoted_table(table.table), IndexDefinition("by_points", (("points", 0),))
    plan = replace(
        planned_table(table),
        create_sql=f"CREATE TABLE {place} (id INT PRIMARY KEY, email VARCHAR(80), points INT, KEY by_points (points))",
        created=CreatedTable(indexes=(index,)),
    )
    schema = bench.target().schema()
    assert schema is not None
    offered = (schema.compare([replace(plan, dialect=dialect)]) for dialect in (MYSQL, MARIADB))
    statements = [finding.statement for findings in offered for finding in findings if finding.absent]
    schema.apply(
        next(statement for statement in statements if index.name in statement)
    )  # a server makes it by the text of its own dialect
    return plan


@_check(
    27,
    "indexes of a new table are left out until it is filled, and stand afterwards",
    _both(_tables, _own, lambda bench: leaving_out_indexes(bench.target()) is not None),
)
def late_indexes(bench: Bench) -> None:
    """Check that a new process builds them, that others keep theirs, and that an older process builds and drops
    nothing.
    """
    table, filled = (_indexed(bench, name).target for name in ("made", "filled"))
    pipe = Pipe(bench)
    pipe.deliver((people(bench.schema, "filled"), _FIRST))
    fence = Fence(pipe.epoch, pipe.held, pipe.held + 1)

    def able() -> LeavesOutIndexes:
        out_indexes = leaving_out_indexes(bench.target())
        assert out_indexes is not None
        return out_indexes

    for _ in range(2):
        assert able().leave_out_indexes(fence, [table, filled]) == (table,), "only an empty table is filled without"
        assert bench.indexes(table) == [], "it has no index while it is filled"
    assert bench.indexes(filled) == ["by_points"]
    assert list(able().left_out_indexes()) == [table], "it is noted at the target"
    pipe.checkpoints.take_over(pipe.epoch + 1)
    for refused in (able().leave_out_indexes, able().build_indexes):
        with suppress(Fenced):
            refused(fence, [table, filled])
        assert (bench.indexes(table), bench.indexes(filled)) == ([], ["by_points"]), "an older process changed indexes"
    newer = replace(fence, epoch=pipe.epoch + 1)
    for _ in range(2):
        able().build_indexes(newer, [table])
        assert bench.indexes(table) == ["by_points"], "the index stands again"
    assert not able().left_out_indexes()
    assert able().leave_out_indexes(newer, [table]) == (), "it is left out for the first copy only"
