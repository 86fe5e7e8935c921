"""The contract suite is tested: for each check there is a target that is wrong in just that, and fails it; the right
one passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pydantic import BaseModel, ConfigDict

from sluice.errors import LoadError
from sluice.model.definitions import TableDefinition
from sluice.model.planned import PlannedTable
from sluice.model.row_effects import Ran
from sluice.model.schema_changes import TableChange, column_changes
from sluice.model.tables import TableId
from sluice.mysql.ddl.row_effects import row_effects
from sluice.targets.memory import target as module
from sluice.targets.memory.checkpoints import MemoryCheckpoints
from sluice.targets.memory.compare import MemoryComparer
from sluice.targets.memory.store import MemoryStore, Message, Row, Table
from sluice.targets.memory.target import MemoryOptions, MemorySession, MemoryTarget, MemoryUnit, MemoryWriter, Work
from sluice.targets.port import (
    BatchInput,
    Capabilities,
    Checkpoint,
    Fence,
    KeyRange,
    RangeDifferences,
    RejectedRows,
    SchemaChange,
    Share,
    WriteResult,
)
from sluice.testing.targets import CHECKS, CONVERSIONS, effect_of
from tests.support.benches.target_benches import MemoryBench


class Wrong(MemoryTarget):
    """A memory target of which some part is replaced."""

    Checkpoints: ClassVar[type[MemoryCheckpoints]] = MemoryCheckpoints
    Writer: ClassVar[type[MemoryWriter]] = MemoryWriter

    @property
    def checkpoints(self) -> MemoryCheckpoints | None:
        return self.Checkpoints(self.store, self.owner) if self.options.keeps_checkpoint else None

    @contextmanager
    def open(self, epoch: int) -> Iterator[MemorySession]:
        target = self

        class Session(MemorySession):
            def begin(self, batch: BatchInput) -> MemoryWriter:
                return target.Writer(target, epoch, batch)

        yield Session(self, epoch)


def with_work(change: Callable[[Work], Work]) -> type[Wrong]:
    """A target whose units do other work."""

    @dataclass(frozen=True)
    class Unit(MemoryUnit):
        def _work(self, store: MemoryStore, rejected: RejectedRows | None) -> tuple[Work, WriteResult]:
            work, result = super()._work(store, rejected)
            return change(work), result

    return with_unit(Unit)


def with_unit(unit: type[MemoryUnit]) -> type[Wrong]:
    class Writer(MemoryWriter):
        def plan(self, parallelism: int) -> list[list[MemoryUnit]]:
            return [
                [unit(**{name: getattr(one, name) for name in MemoryUnit.__dataclass_fields__}) for one in phase]
                for phase in super().plan(parallelism)
            ]

    return type("WrongUnit", (Wrong,), {"Writer": Writer})


def with_checkpoints(checkpoints: type[MemoryCheckpoints]) -> type[Wrong]:
    return type("WrongCheckpoints", (Wrong,), {"Checkpoints": checkpoints})


def with_writer(writer: type[MemoryWriter]) -> type[Wrong]:
    return type("WrongWriter", (Wrong,), {"Writer": writer})


class SaysSomethingAtFirst(MemoryCheckpoints):
    def read(self) -> Checkpoint | None:
        return super().read() or Checkpoint(0, 0)


class DoesNotRewind(MemoryCheckpoints):
    def rewind(self, to: Checkpoint, *, anew: bool = False) -> None:
        self.take_over(to.epoch)


class SharedByAll(Wrong):
    def __init__(self, config: Any, endpoint: Any, pipeline: str) -> None:
        super().__init__(config, endpoint, pipeline)
        self.owner = ("all", "all")


class IgnoresUpdates(Work):
    def _write(self, table: Table) -> None:
        new = tuple(put for put in self.puts if put[0] not in table.rows)
        Work._write(replace(self, puts=new), table)


@dataclass(frozen=True)
class OnlyOnce(MemoryUnit):
    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        name = f"written {self.fence} {self.table.target if self.table else ''}"
        if self.target.store.done.get((self.target.owner, name)):
            raise LoadError("these rows are there already")
        self.target.store.done[self.target.owner, name] = 1
        return super().write(rejected)


class BelievesItIsDone(MemoryWriter):
    """After a crash it takes the first unit for the whole batch."""

    def plan(self, parallelism: int) -> list[list[MemoryUnit]]:
        scope = (self._target.owner, "begun")
        if self._target.store.done.get(scope, 0) >= self._batch.number:
            return []
        self._target.store.done[scope] = self._batch.number
        return super().plan(parallelism)


class NoFence(MemoryWriter):
    def plan(self, parallelism: int) -> list[list[MemoryUnit]]:
        return [[unfenced(one) for one in phase] for phase in super().plan(parallelism)]


@dataclass(frozen=True)
class Unfenced(MemoryUnit):
    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        work, result = self._work(self.target.store, rejected)
        newest = replace(work.fence, epoch=10**9, batch=10**9)
        replace(work, fence=newest).run(self.target.store)
        return result


def unfenced(one: MemoryUnit) -> MemoryUnit:
    return Unfenced(**{name: getattr(one, name) for name in MemoryUnit.__dataclass_fields__})


class TooEarly(MemoryWriter):
    def prepare(self) -> None:
        assert self._target.checkpoints is not None
        self._target.checkpoints.advance(Checkpoint(self._fence.epoch, self._batch.number, self._batch.position))
        self._fence = replace(self._fence, held=self._batch.number)


class LeavesMissingTablesOut(MemoryWriter):
    def plan(self, parallelism: int) -> list[list[MemoryUnit]]:
        there = tuple(table for table in self._batch.tables if table.target in self._target.store.tables)
        self._batch = replace(self._batch, tables=there)
        return super().plan(parallelism)


@dataclass(frozen=True)
class ForgetsLetters(MemoryUnit):
    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        return super().write(rejected and (lambda part, table, rows: None))


@dataclass(frozen=True)
class NullsWhatIsUnknown(MemoryUnit):
    def _full(self, table: Table, row: Any, key: tuple[str, ...]) -> Row:
        return {name: row.values.get(name) for name in table.columns}


@dataclass(frozen=True)
class Trims(MemoryUnit):
    def _full(self, table: Table, row: Any, key: tuple[str, ...]) -> Row:
        full = super()._full(table, row, key)
        return {name: value.strip() if isinstance(value, str) else value for name, value in full.items()}


@dataclass(frozen=True)
class Backwards(MemoryUnit):
    def _changes(self, share: Share) -> Iterator[Message]:
        return iter(list(super()._changes(share))[::-1])


class IgnoresSchemaChanges(MemoryWriter):
    def _follow(self, *, before_rows: bool) -> None:
        pass


def with_changes(change: Callable[[SchemaChange], SchemaChange]) -> type[Wrong]:
    """A target that follows other schema changes than it is given."""

    class Writer(MemoryWriter):
        def _follow(self, *, before_rows: bool) -> None:
            given = self._batch
            self._batch = replace(given, schema_changes=tuple(map(change, given.schema_changes)))
            super()._follow(before_rows=before_rows)
            self._batch = given

    return with_writer(Writer)


def _texts_of_defaults(change: SchemaChange) -> SchemaChange:
    found = {
        column: replace(value, value=pa.scalar(column.default, pa.string()))
        for column, value in change.meaning.defaults.items()
    }
    return replace(change, meaning=replace(change.meaning, defaults=found))


def _loses_the_last_row_of_a_bundle(work: Work) -> Work:
    return replace(work, puts=work.puts[:-1]) if work.fence.batch - work.fence.held > 1 else work


_random = itertools.count()


class VisibleAtOnce(Wrong):
    class Writer(MemoryWriter):
        def plan(self, parallelism: int) -> list[list[MemoryUnit]]:
            at_once = copy(self._target)
            at_once.config = self._target.config.model_copy(update={"consistency": "row"})
            return [[replace(one, target=at_once) for one in phase] for phase in super().plan(parallelism)]


class ShowsItsEndpoint(Wrong):
    def __init__(self, config: Any, endpoint: Any, pipeline: str) -> None:
        super().__init__(config, endpoint, pipeline)
        self.endpoint = endpoint

    def __repr__(self) -> str:
        return f"ShowsItsEndpoint({self.endpoint.password})"


class LooseOptions(MemoryOptions):
    model_config = ConfigDict(extra="ignore", frozen=True)


class TakesAnyOption(Wrong):
    Options: ClassVar[type[BaseModel]] = LooseOptions

    def __init__(self, config: Any, endpoint: Any, pipeline: str) -> None:
        known = {key: value for key, value in config.options.items() if key in MemoryOptions.model_fields}
        super().__init__(config.model_copy(update={"options": known}), endpoint, pipeline)


class ClaimsTooMuch(Wrong):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, guarantee=module.Guarantee.TRANSACTIONAL)


def _as(kind: type[Work]) -> Callable[[Work], Work]:
    return lambda work: kind(**{name: getattr(work, name) for name in Work.__dataclass_fields__})


def _new_ids(work: Work) -> Work:
    return replace(work, messages=tuple(replace(m, id=f"{m.id}{next(_random)}") for m in work.messages))


class FindsEverythingEqual(Wrong):
    def comparer(self) -> MemoryComparer:
        class Blind(MemoryComparer):
            def compare(
                self, plan: PlannedTable, rows: pa.Table, item: KeyRange | None, *, values: bool = False
            ) -> RangeDifferences:
                return RangeDifferences()

        return Blind(self.store)


class NotesNoIndex(Wrong):
    def leave_out_indexes(self, fence: Fence, tables: Sequence[TableId]) -> tuple[TableId, ...]:
        left = super().leave_out_indexes(fence, tables)
        self.store.left_out.clear()
        return left


WRONG: dict[int, tuple[type[MemoryTarget], dict[str, Any]]] = {
    1: (with_checkpoints(SaysSomethingAtFirst), {}),
    2: (with_work(_as(IgnoresUpdates)), {}),
    3: (with_unit(OnlyOnce), {}),
    4: (with_writer(BelievesItIsDone), {}),
    5: (with_writer(NoFence), {}),
    6: (with_writer(NoFence), {"options": {"guarantee": "idempotent", "keeps_checkpoint": False}}),
    7: (with_checkpoints(DoesNotRewind), {}),
    8: (SharedByAll, {}),
    9: (with_writer(TooEarly), {}),
    10: (with_writer(LeavesMissingTablesOut), {}),
    11: (with_unit(ForgetsLetters), {}),
    12: (with_unit(NullsWhatIsUnknown), {}),
    13: (with_work(lambda work: replace(work, scope="")), {}),
    14: (with_unit(Trims), {}),
    15: (with_unit(Backwards), {"changes": "all"}),
    16: (with_writer(IgnoresSchemaChanges), {}),
    17: (with_work(lambda work: replace(work, clears=())), {}),
    18: (with_work(_new_ids), {"changes": "all", "options": {"guarantee": "at_least_once"}}),
    19: (VisibleAtOnce, {"consistency": "batch"}),
    20: (ShowsItsEndpoint, {}),
    21: (TakesAnyOption, {}),
    23: (FindsEverythingEqual, {}),
    22: (ClaimsTooMuch, {"options": {"guarantee": "idempotent", "keeps_checkpoint": False}}),
    24: (with_work(_loses_the_last_row_of_a_bundle), {"options": {"features": ["delete", "bundles"]}}),
    25: (with_changes(_texts_of_defaults), {}),
    26: (with_changes(lambda change: replace(change, effects=())), {}),
    27: (NotesNoIndex, {}),
}


@pytest.mark.parametrize("number", [check.number for check in CHECKS])
def test_a_target_that_is_wrong_fails_the_check(number: int) -> None:
    kind, settings = WRONG[number]
    check = CHECKS[number - 1]
    right, wrong = MemoryBench(**settings), MemoryBench(**settings, kind=kind)
    try:
        assert check.applies(right)
        check.run(right)
        with pytest.raises((AssertionError, LoadError)):
            check.run(wrong)
    finally:
        right.close()
        wrong.close()


@pytest.mark.parametrize(
    "declared",
    [
        {"compares": False},
        {"maintains_files": True},
        {"keeps_versions": True},
        {"marks_loads": True},
        {"copies_again": True},
        {"converts_rows": True},
        {"lists_keys": False},
        {"counts_rows": True},
        {"removes_listed_keys": True},
    ],
    ids=lambda declared: next(iter(declared)),
)
def test_an_ability_that_is_declared_and_missing_or_not_declared_fails_a_check(declared: dict[str, bool]) -> None:
    class Declares(Wrong):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, **declared)

    bench = MemoryBench(kind=Declares)
    try:
        with pytest.raises(AssertionError, match=next(iter(declared))):
            CHECKS[21].run(bench)
    finally:
        bench.close()


def test_a_wrong_target_is_wrong_in_few_things() -> None:
    """Most of the other checks pass: the suite says what is wrong, not only that something is."""
    failed: dict[int, list[int]] = {}
    for number, (kind, settings) in WRONG.items():
        for check in CHECKS:
            bench = MemoryBench(**settings, kind=kind)
            try:
                if check.applies(bench):
                    check.run(bench)
            except Exception:
                failed.setdefault(number, []).append(check.number)
            finally:
                bench.close()
    assert {number for number, checks in failed.items() if number in checks} == set(WRONG), failed
    few: Sequence[list[int]] = [checks for checks in failed.values() if len(checks) <= 11]
    assert len(few) == len(WRONG), failed


def test_conversions_are_what_the_source_makes_of_the_statement() -> None:
    """The suite says so itself, as it knows no dialect."""
    table = TableId("shop", "c")
    for one in CONVERSIONS:
        said = effect_of(one, table)
        before, after = (TableDefinition(table, (column,)) for column in (said.old, said.new))
        columns = column_changes(before, after)
        change = TableChange(table, tuple(part.kind for part in columns), before, after, columns)
        charset = " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" if one.after.charset else ""
        null = " NOT NULL" if one.required else ""
        ran = Ran(f"ALTER TABLE c MODIFY v {one.new}{charset}{null}", table.schema, one.mode)
        assert row_effects(change, ran, mariadb=False) == (said,), one
