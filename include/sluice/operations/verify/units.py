"""Ranges of a large table as work units: a worker reads them at the source, applies the rules, and asks the target.

A difference is only a suspect.

A unit does not wait for the log, so rows in flight are suspects, too. A range with many of them is left to the task,
which waits first.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace

from sluice.flows.runtime import Runtime
from sluice.model.dumps import Chunk, ChunkId, Marking
from sluice.operations.verify.expected_rows import ExpectedRows
from sluice.operations.verify.table_check import ComparisonPlan, RangeFound, RowComparer, SourceRange
from sluice.sources.port import KeyText
from sluice.spark.base import UnitRunner
from sluice.targets.port import Target, comparer_of
from sluice.targets.registry import Kind, kind_of

RANGES_A_UNIT = 8
MOST_SUSPECTS = 1_000
"""Suspects of one range that a worker returns, at most."""


@dataclass(frozen=True, kw_only=True)
class VerifyUnit:
    """Some ranges of one table. Picklable.

    Attributes:
        made: with a runtime that knows only the source's connection.
        target: pickled, after ``kind`` is loaded.
        rows: of a range, for the cost.
    """

    made: ExpectedRows
    texts: KeyText
    marking: Marking
    kind: Kind
    target: bytes
    way: ComparisonPlan
    source_ranges: tuple[SourceRange, ...]

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return len(self.source_ranges) * self.way.range_rows


def run_verify_unit(unit: VerifyUnit) -> list[RangeFound]:
    """Compare the unit's ranges. Raises SourceUnavailable, TargetUnavailable, RuleError, MappingError, LoadError."""
    unit.kind.load()
    target: Target = pickle.loads(unit.target)  # noqa: S301 - what this program pickled
    comparer = comparer_of(target)
    assert comparer is not None
    verify_unit = []
    with unit.made.runtime.source.open_chunks(unit.marking, "verify") as reader:
        reader.schema(unit.way.request.table)
        row_comparer = RowComparer(comparer, unit.made, unit.texts, unit.way)
        for number, source_range in enumerate(unit.source_ranges, 1):
            chunk = Chunk(ChunkId("verify", 0, number), after=source_range.after, upto=source_range.upto)
            pieces = list(reader.rows(unit.way.request, chunk))
            item = row_comparer.key_range(source_range) if unit.way.ranged else None
            odd, differences = row_comparer.compared(pieces, unit.made(unit.way.schema, pieces), item, values=False)
            rows = sum(piece.num_rows for piece in pieces)
            suspects = None if differences.more or len(odd) > MOST_SUSPECTS else tuple(odd)
            verify_unit.append(RangeFound(source_range, rows, suspects, row_comparer.hashes(pieces)))
    return verify_unit


@dataclass(frozen=True)
class Spread:
    """Sends ranges to workers. ``unit``: a unit without ranges."""

    runner: UnitRunner
    unit: VerifyUnit
    parallelism: int

    @classmethod
    def of(
        cls,
        runtime: Runtime,
        expected: ExpectedRows,
        marking: Marking,
        target: Target,
        way: ComparisonPlan,
        parallelism: int,
    ) -> Spread:
        """Build it with the connections resolved in this process."""
        travels = copy(expected)
        with runtime.state() as state:
            travels.runtime = runtime.at_workers(state)
        kind = kind_of(target.config.type, target.config.name)
        unit = VerifyUnit(
            made=travels,
            texts=runtime.source.keys,
            marking=marking,
            kind=kind,
            target=pickle.dumps(target),
            way=way,
            source_ranges=(),
        )
        return cls(runtime.runner, unit, parallelism)

    @property
    def ranges(self) -> int:
        """The number of ranges that are sent together."""
        return self.parallelism * 2 * RANGES_A_UNIT

    def __call__(self, source_ranges: Sequence[SourceRange]) -> Iterator[RangeFound]:
        """Compare ranges by workers; yield the results in any order."""
        units = [
            replace(self.unit, source_ranges=tuple(source_ranges[at : at + RANGES_A_UNIT]))
            for at in range(0, len(source_ranges), RANGES_A_UNIT)
        ]
        table = self.unit.way.request.table
        for results in self.runner.run(
            run_verify_unit, units, parallelism=self.parallelism, description=f"verify {table}"
        ):
            yield from results


__all__ = ["Spread", "VerifyUnit", "run_verify_unit"]
