"""Rows of the source as they would be loaded: through the pipeline's own rules and mapping."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.config.engine import RuleKind
from sluice.errors import RuleError
from sluice.flows.planned_columns import planned_columns
from sluice.flows.runtime import Runtime
from sluice.flows.transform.spark_rules import framed_rows
from sluice.flows.transform.stage_rules import StageRules, cleared_tables
from sluice.mapping import Mapping as Routes
from sluice.model.dialects import Dialect
from sluice.model.planned import PlannedTable
from sluice.model.tables import META_COLUMNS, TableId, TableSchema
from sluice.rules import Ruled, RuleSet
from sluice.segments.changeset import columns_of


@dataclass(frozen=True, slots=True)
class Loaded:
    """Rows (CHANGESET_ROWS) for one target table.

    ``origin``: for each row the number of the source row it was made from. ``cleared``: the rules give nothing for
    these source rows, and a dump deletes their keys.
    """

    plan: PlannedTable
    rows: pa.Table
    origin: np.ndarray[tuple[int], np.dtype[np.int64]]
    cleared: bool = False


@dataclass
class ExpectedRows:
    """Computes what the pipeline makes of source rows.

    Attributes:
        dialect: the source's.
        captured: all tables that the pipeline captures.
        ruling: the rules, as their files are now.
        clears: see :func:`sluice.flows.transform.stage_rules.cleared_tables`.
    """

    runtime: Runtime
    dialect: Dialect
    captured: Collection[TableId] = ()
    routes: Routes = field(init=False)
    ruling: StageRules = field(init=False)
    clears: frozenset[TableId] = field(init=False)

    def __post_init__(self) -> None:
        runtime = self.runtime
        self.routes = Routes.of(runtime.pipeline)
        rules = RuleSet.of(runtime.rules_path)
        rules.validate()
        in_channel = runtime.membership is not None
        self.clears = cleared_tables(runtime.pipeline, rules, self.captured, self.captured, in_channel=in_channel)
        self.ruling = StageRules.of(rules, runtime.pipeline, runtime.rules_path, runtime.resolver)

    def is_ruled(self, table: TableId) -> bool:
        """Return True if a rule may apply to the table."""
        return self.ruling.concerning(table)

    def plan(self, schema: TableSchema) -> PlannedTable:
        """Return the plan of a table without rules at the target."""
        return self._mapped(schema.table, schema.table, merged(schema, ())).plan

    def __call__(self, schema: TableSchema, pieces: Sequence[pa.Table]) -> list[Loaded]:
        """Return SELECTED_ROWS as they would be loaded, by target table. Raises RuleError, MappingError."""
        return self._loaded(schema, merged(schema, pieces))

    def _loaded(self, schema: TableSchema, rows: pa.Table) -> list[Loaded]:
        if not self.is_ruled(schema.table):
            return [self._mapped(schema.table, schema.table, rows)]
        tables, cleared = self._ruled(self.ruling.tagged(rows, schema.table), schema.table)
        return [
            *(self._mapped(schema.table, place, out) for place, out in tables.items() if out.num_rows),
            *(replace(self._mapped(schema.table, place, out), cleared=True) for place, out in cleared),
        ]

    def needs_spark(self, table: TableId) -> bool:
        """Return True if a rule of type spark may apply to the table."""
        return any(rule.kind is RuleKind.SPARK for rule in self.ruling.rules.matching(table))

    def _ruled(
        self, rows: pa.Table, source: TableId
    ) -> tuple[Mapping[TableId, pa.Table], Sequence[tuple[TableId, pa.Table]]]:
        """Apply the rules in their order; one of type spark is its own job. Return the rows, and those to clear."""
        cleared: list[tuple[TableId, pa.Table]] = []
        tables: dict[TableId, pa.Table] = {source: rows}
        for is_frame, some in groupby(self.ruling.rules, lambda rule: rule.kind is RuleKind.SPARK):
            rules = tuple(some)
            steps = [RuleSet((rule,)) for rule in rules] if is_frame else [RuleSet(rules)]
            for step in steps:
                by_place: dict[TableId, list[pa.Table]] = {}
                for place, part in tables.items():
                    ruled = self._stepped(step, place, part, source, is_frame=is_frame)
                    for table, out in ruled.tables.items():
                        mask = ruled.cleared.get(table)
                        if mask is not None and pc.any(mask).as_py():
                            cleared.append((table, out.filter(mask)))
                        by_place.setdefault(table, []).append(out if mask is None else out.filter(pc.invert(mask)))
                tables = {
                    place: pa.concat_tables([part for part in parts if part.num_rows] or parts[:1])
                    for place, parts in by_place.items()
                }
        return tables, cleared

    def _stepped(self, step: RuleSet, place: TableId, rows: pa.Table, source: TableId, *, is_frame: bool) -> Ruled:
        ruling = replace(self.ruling, rules=step)
        if not is_frame:
            reads = source in self.clears and "u" not in rows["_op"].unique().to_pylist()
            return ruling.apply(rows, place, dumped="read" if reads else "")
        [rule] = step.rules
        framed = framed_rows(
            self.runtime.runner,
            self.runtime.name,
            rule,
            place,
            rows,
            masking=ruling.masking,
            lookups=ruling.reader(rule),
        )
        return Ruled(framed, [])

    def require_same(self, schema: TableSchema, pieces: Sequence[pa.Table], first: Sequence[Loaded]) -> None:
        """Apply the rules again, and as to updates.

        Raises RuleError if something else comes out: nothing can be compared then.
        """
        again = self(schema, pieces)
        if [loaded.plan.target for loaded in again] != [loaded.plan.target for loaded in first] or not all(
            _users(again_rows.rows).equals(_users(first_rows.rows))
            for again_rows, first_rows in zip(again, first, strict=True)
        ):
            raise self._other_rows(schema.table, "each time", "the time or on chance")
        updates = self._of_updates(schema, pieces)
        left_out = [loaded.origin for loaded in first if loaded.cleared]
        some = any(np.isin(cleared_origin, loaded.origin).any() for cleared_origin in left_out for loaded in updates)
        if some or not _alike([loaded for loaded in first if not loaded.cleared], updates):
            raise self._other_rows(
                schema.table, "of an update than of an insert", "the kind of change or on who made it"
            )

    def _of_updates(self, schema: TableSchema, pieces: Sequence[pa.Table]) -> list[Loaded]:
        """Return what the rules make of the same rows as updates; nothing if they need to know more about an update."""
        try:
            return self._loaded(schema, merged(schema, pieces, updated=True))
        except RuleError:
            return []

    def _other_rows(self, table: TableId, when: str, depends: str) -> RuleError:
        return RuleError(
            f"the rules make other rows of {table} {when}: what is at the target cannot be compared with them",
            where=str(self.runtime.rules_path),
            hint=f"a rule whose result depends on {depends} cannot be verified; let it use the row's own values",
        )

    def _mapped(self, source: TableId, place: TableId, rows: pa.Table) -> Loaded:
        route = self.routes.whole_route(place)
        mapped = route.apply(rows)
        columns = planned_columns(columns_of(mapped.schema))
        plan = PlannedTable(route.target, source, columns, dialect=self.dialect)
        return Loaded(plan, mapped, rows["_seq"].to_numpy().astype(np.int64))


def _users(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([name for name in META_COLUMNS if name in rows.schema.names])


def _alike(first: Sequence[Loaded], second: Sequence[Loaded]) -> bool:
    """Return True if the sides have equal rows wherever each has exactly one for a source row."""
    by_target = {loaded.plan.target: loaded for loaded in second}
    return all(
        _only(loaded, both).equals(_only(match, both))
        for loaded in first
        if (match := by_target.get(loaded.plan.target)) is not None
        for both in [np.intersect1d(_single(loaded.origin), _single(match.origin))]
    )


def _single(numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the numbers that occur once."""
    values, counts = np.unique(numbers, return_counts=True)
    value: np.ndarray[tuple[int], np.dtype[np.int64]] = values[counts == 1]
    return value


def _only(loaded: Loaded, numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
    """Return the user columns of the rows made from these source rows, in their order."""
    order = np.argsort(loaded.origin, kind="stable")
    return _users(loaded.rows).take(pa.array(order[np.isin(loaded.origin[order], numbers)]))


def merged(schema: TableSchema, pieces: Sequence[pa.Table], *, updated: bool = False) -> pa.Table:
    """Return SELECTED_ROWS as MERGED_ROWS of inserts, numbered by ``_seq``; ``updated``: of updates by another server
    that change nothing.
    """
    fields = [schema.field(column) for column in schema.columns]
    tables = [pa.Table.from_arrays(piece.columns, schema=pa.schema(fields)) for piece in pieces]
    users = pa.concat_tables(tables) if tables else pa.schema(fields).empty_table()
    count = users.num_rows
    columns = [column.combine_chunks() for column in users.columns]
    meta = {
        "_op": pa.array(["u" if updated else "i"] * count, pa.string()),
        "_seq": pa.array(np.arange(count, dtype=np.uint64)),
        "_commit_ts": pa.array(np.full(count, time.time_ns() // 1000, np.int64)).cast(pa.timestamp("us", tz="UTC")),
        **({"_origin": pa.array(np.ones(count, np.uint32))} if updated else {}),
        "_before": pa.StructArray.from_arrays(columns, fields=fields)
        if updated
        else pa.nulls(count, pa.struct(fields)),
    }
    named = [pa.field(name, values.type) for name, values in meta.items()]
    return pa.Table.from_arrays([*columns, *meta.values()], schema=pa.schema([*fields, *named]))


__all__ = ["ExpectedRows", "Loaded", "merged"]
