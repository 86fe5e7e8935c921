"""Cut a batch for an SQL target: parts of tables, and phases of units that respect unique and foreign keys."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

from sluice.config.pipeline import TargetConfig
from sluice.model import packing
from sluice.model.key_ranges import borders, samples
from sluice.model.offset import Offset
from sluice.model.packing import pack, unit_size
from sluice.model.tables import TableId
from sluice.targets.port import RowFile, StoredRange, TableInput
from sluice.targets.sql.tables import TargetTable


@dataclass(frozen=True, slots=True)
class LoadPart:
    """Files of one target table; ``deletes``, ``upserts``: the halves that this unit writes.

    Attributes:
        keys: only rows whose first key column is in ``low <= value < high`` (None: no bound); None: all rows.
        rows: about what those cost, in rows.
        bytes_here: about their bytes.
        replaces: ranges to clear first.
        in_order: in log order (see :attr:`RowFile.revived`).
        verify: nothing is written, foreign keys are checked.
    """

    table: TargetTable
    files: tuple[RowFile, ...]
    deletes: bool = True
    upserts: bool = True
    keys: tuple[int | None, int | None] | None = None
    rows: int = 0
    bytes_here: int = 0
    replaces: tuple[StoredRange, ...] = ()
    in_order: bool = False
    verify: bool = False

    @property
    def identity(self) -> str:
        """The same in every attempt to load the same changeset."""
        text = "|".join([*(file.path for file in self.files), str(self.keys), str(self.deletes), str(self.upserts)])
        return f"{zlib.crc32(text.encode()):08x}"

    @property
    def cost(self) -> int:
        """The cost of the part, in rows."""
        return (self.rows or packing.rows_of(self.files)) + packing.TABLE_COST

    @property
    def size_bytes(self) -> int:
        """Bytes of its rows in memory."""
        return self.bytes_here or sum(packing.bytes_of(file) for file in self.files)


Ranges = Mapping[TableId, tuple[TargetTable, tuple[StoredRange, ...]]]


@dataclass(frozen=True, slots=True)
class PlannedUnit:
    """The parts that one unit writes over one connection.

    ``one_transaction``: all parts together; ``acknowledge``: with the batch's checkpoint.
    """

    parts: tuple[LoadPart, ...]
    one_transaction: bool = False
    acknowledge: Offset | None = None

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return sum(part.cost for part in self.parts)


def plan_phases(
    tables: Sequence[TableInput],
    target_tables: Mapping[TableId, TargetTable],
    config: TargetConfig,
    parallelism: int,
    *,
    acknowledge: Offset | None = None,
    ranges: Ranges | None = None,
) -> list[list[PlannedUnit]]:
    """Cut a batch into phases of units; the units of a phase may run in parallel, phases run one after the other.

    ``target_tables``: by name.

    * consistency row: lighter tables first. A small table is written whole by one unit, a large one by several, in two
      phases: deletes (and rows that leave a unique value), then upserts. After them the tables of which the target
      checks foreign keys: see :func:`_in_order_of_families`.
    * A small batch is written whole by one unit, in one transaction with the checkpoint (row; ``acknowledge`` given):
      phases, commits and round trips would cost more than its rows.
    * table: a table is one transaction. schema: a schema is, and those that foreign keys connect are one together;
      schemas are written in parallel. batch: everything and the checkpoint are one transaction (``acknowledge`` None:
      it is moved later).

    A table of which the log has only some columns is one piece, as it remembers the batch; so is one of which deleted
    rows stay under a key that may have several spellings. A table with another unique key is one piece if refused rows
    are to be left out (``on_error: dead_letter``): a refused row must not have lost its old state in an earlier phase.
    ``ranges``: ranges of target tables to clear before their rows are written; a table that is replaced whole is one
    piece.
    """
    if not tables and not ranges:
        return []
    phases = _Phases(target_tables, config, parallelism, dict(ranges or {}))
    if config.consistency == "batch" or (
        config.consistency == "row" and acknowledge and not ranges and _is_small(tables)
    ):
        return [[PlannedUnit(phases.everything(tables), True, acknowledge)]]
    if config.consistency == "schema":
        return [phases.by_schema(tables)]
    phases.clear_others({table.target for table in tables})
    for weight in sorted({table.weight for table in tables}):
        phases.add([table for table in tables if table.weight == weight])
    phases.add_families()
    return phases.planned


def _connected(tables: Iterable[TableId], known_target_tables: Mapping[TableId, TargetTable]) -> dict[str, str]:
    """Return, for each schema, the first of those that foreign keys connect it with, itself if there is none."""
    first = {schema: schema for schema in sorted({table.schema for table in tables})}
    for reference in (reference for info in known_target_tables.values() for reference in info.references):
        ends = [first.get(end.schema) for end in (reference.child, reference.parent)]
        if None not in ends and ends[0] != ends[1]:
            low, high = sorted(str(end) for end in ends)
            first = {schema: low if group == high else group for schema, group in first.items()}
    return first


def _is_small(tables: Sequence[TableInput]) -> bool:
    """Return True for few rows in few tables: a fifth of a unit."""
    cost = sum(packing.rows_of(table.files) + packing.TABLE_COST for table in tables)
    return cost <= packing.UNIT_ROWS // 5


@dataclass(slots=True)
class _Phases:
    """The phases of a batch, made table by table.

    Attributes:
        known, config, parallelism: as for :func:`plan_phases`. ranges: those of tables that were not met yet.
        planned: the phases so far.
        leaving, coming, verifying: parts of the tables of which the target checks foreign keys, which come after all
            others.
    """

    known: Mapping[TableId, TargetTable]
    config: TargetConfig
    parallelism: int
    ranges: dict[TableId, tuple[TargetTable, tuple[StoredRange, ...]]]
    planned: list[list[PlannedUnit]] = field(default_factory=list)
    leaving: list[LoadPart] = field(default_factory=list)
    coming: list[LoadPart] = field(default_factory=list)
    verifying: list[LoadPart] = field(default_factory=list)

    @property
    def _apart(self) -> bool:
        """True if deletes and upserts of a table may be two phases: a refused row stops the batch anyway."""
        return self.config.on_error == "stop"

    def _ranges_of(self, info: TargetTable) -> tuple[StoredRange, ...]:
        """Take the ranges of a table whose parts are planned now."""
        return self.ranges.pop(info.table, (info, ()))[1]

    def everything(self, tables: Sequence[TableInput]) -> tuple[LoadPart, ...]:
        """Return all of the batch in the order in which one transaction writes it."""
        per_target = _per_target(_lighter_first(tables), self.known)
        wholes = [replace(_whole(files, info), replaces=self._ranges_of(info)) for files, info in per_target]
        clearing = [LoadPart(info, (), replaces=ranges) for info, ranges in self.ranges.values()]
        return (*clearing, *_parents_first(wholes, apart=self._apart))

    def by_schema(self, tables: Sequence[TableInput]) -> list[PlannedUnit]:
        """Return units that write each schema, with all of its tables and ranges, in one transaction."""
        group_of = _connected([*(table.target for table in tables), *self.ranges], self.known)
        units, others = [], self.ranges
        for group in sorted(set(group_of.values())):
            self.ranges = {table: some for table, some in others.items() if group_of[table.schema] == group}
            own_tables = [table for table in tables if group_of[table.target.schema] == group]
            units.append(PlannedUnit(self.everything(own_tables), True))
        return units

    def clear_others(self, here: set[TableId]) -> None:
        """Clear in the first phase the ranges of tables to which nothing is written; ``here``: the other tables."""
        alone = [
            LoadPart(info, (), replaces=ranges) for table, (info, ranges) in self.ranges.items() if table not in here
        ]
        if alone:
            self.planned.append([PlannedUnit((part,), True) for part in alone])

    def add(self, group: Sequence[TableInput]) -> None:
        """Add two phases for tables of one weight."""
        size = unit_size(sum(packing.rows_of(table.files) for table in group), self.parallelism)
        first: list[LoadPart] = []
        second: list[LoadPart] = []
        for files, info in _per_target(group, self.known):
            before, after = self._of_table(_whole(files, info), files, size)
            first += before
            second += after
        for parts in (first, second):
            packed = pack([(part, part.cost) for part in parts], size)
            if packed:
                together = self.config.consistency == "row"
                self.planned.append([PlannedUnit(tuple(some), together) for some in packed])

    def _of_table(self, part: LoadPart, files: Sequence[RowFile], size: int) -> tuple[list[LoadPart], list[LoadPart]]:
        """Return parts of a table for the first and the second phase; none for a table whose foreign keys are
        checked.
        """
        info, ranges = part.table, self._ranges_of(part.table)
        cut = (
            info.key and self.config.consistency == "row" and part.cost > size and (self._apart or not info.unique_keys)
        )
        cut = cut and not part.in_order and not any(file.partial for file in files)
        pieces = _by_key(part, size) if cut and all(one.plan.columns for one in ranges) else [part]
        self.verifying += [piece for part in pieces for piece in _verifying(part)]
        if info.generation is not None or info.references:
            self._add_to_family(part, pieces, ranges)
            return [], []
        if len(pieces) == 1:
            parts = [replace(part, replaces=ranges)]
            return (parts, []) if part.cost <= size else ([], parts)
        clearing = [LoadPart(info, (), replaces=ranges)] if ranges else []
        deletes = [replace(piece, upserts=False) for piece in pieces] if leaves(part) else []
        return [*clearing, *deletes], [replace(piece, deletes=False) for piece in pieces]

    def _add_to_family(self, part: LoadPart, pieces: Sequence[LoadPart], ranges: tuple[StoredRange, ...]) -> None:
        if not _in_halves(part, apart=self._apart) or not all(stored_range.plan.columns for stored_range in ranges):
            self.coming.append(replace(part, replaces=ranges))
            return
        self.leaving += [LoadPart(part.table, (), replaces=ranges)] if ranges else []
        self.leaving += [replace(piece, upserts=False) for piece in pieces] if leaves(part) else []
        self.coming += [replace(piece, deletes=False) for piece in pieces]

    def add_families(self) -> None:
        """Add the last phases: tables whose foreign keys are checked. Few rows are one transaction."""
        levels = _in_order_of_families(self.leaving, self.coming, self.verifying)  # consistency row: see the target
        if levels and sum(part.cost for level in levels for part in level) <= packing.UNIT_ROWS:
            self.planned.append([PlannedUnit(tuple(part for level in levels for part in level), True)])
            return
        for level in levels:
            size = unit_size(sum(part.cost for part in level), self.parallelism)
            packed = pack([(part, part.cost) for part in level], size)
            self.planned.append([PlannedUnit(tuple(parts), True) for parts in packed])


def while_copied(info: TargetTable, copying: frozenset[TableId]) -> TargetTable:
    """Return the table without foreign-key checks to and from tables that a dump is filling: it fills them in
    pieces.
    """
    remaining_references = tuple(r for r in info.references if r.parent not in copying and r.child not in copying)
    early = any(r.child == info.table and r.parent in copying for r in info.references)
    generation = None if early else info.generation
    return replace(info, being_copied=info.table in copying, generation=generation, references=remaining_references)


def _in_halves(part: LoadPart, *, apart: bool) -> bool:
    """Return True if deletes and upserts of a table may be written separately."""
    return bool(part.table.key) and (apart or not part.table.unique_keys) and not any(f.partial for f in part.files)


def leaves(part: LoadPart) -> bool:
    """Return True if some row may have to be deleted before others are inserted."""
    return any(f.deletes or (part.table.unique_keys and (f.updates or f.inserts)) for f in part.files)


def _verifying(part: LoadPart) -> list[LoadPart]:
    """Return what to check once all of the batch is written: deleted rows that others may refer to, and rows that were
    written unchecked.
    """
    table = part.table
    key = {name.casefold() for name in table.key}
    unkeyed = any(
        not {c.casefold() for c in r.parent_columns} <= key for r in table.references if r.parent == table.table
    )
    parted = any(r.parent == table.table for r in table.references) and any(f.deletes or unkeyed for f in part.files)
    child = table.generation is None and any(r.child == table.table for r in table.references)
    came = child and any(f.inserts or f.updates for f in part.files)
    return [replace(part, deletes=False, upserts=False, verify=True, replaces=())] if parted or came else []


def _in_order_of_families(
    leaving: Sequence[LoadPart], coming: Sequence[LoadPart], verifying: Sequence[LoadPart]
) -> list[list[LoadPart]]:
    """Return the order of writing under foreign-key checks: delete children before parents, insert parents before
    children, then check all.

    What fits one unit is one transaction: readers see no child without its parent in between.
    """
    place = lambda part: part.table.generation or 0  # noqa: E731
    down = [list(same) for _, same in groupby(sorted(leaving, key=place, reverse=True), key=place)]
    up = [list(same) for _, same in groupby(sorted(coming, key=place), key=place)]
    return [*down, *up, *([list(verifying)] if verifying else [])]


def _parents_first(parts: Sequence[LoadPart], *, apart: bool) -> tuple[LoadPart, ...]:
    """Order the parts of one transaction: deletes first, then parents before children if the target checks that; then
    the check.
    """
    verifying = [piece for part in parts for piece in _verifying(part)]
    if all(part.table.generation is None for part in parts):
        return (*parts, *verifying)
    halves = [part for part in parts if _in_halves(part, apart=apart)]
    coming = [replace(part, deletes=False, replaces=()) if part in halves else part for part in parts]
    leaving = [replace(part, upserts=False) for part in halves]
    return (
        *sorted(leaving, key=lambda part: -(part.table.generation or 0)),
        *sorted(coming, key=lambda part: part.table.generation or 0),
        *verifying,
    )


def _whole(files: tuple[RowFile, ...], info: TargetTable) -> LoadPart:
    return LoadPart(info, files, in_order=any(file.revived for file in files))


def _by_key(part: LoadPart, size: int) -> list[LoadPart]:
    """Cut a part into ranges of the first key column of about ``size`` each, so that every unit writes its own section
    of the target's tree.

    Files whose keys are no numbers stay whole: one unit per file.
    """
    if not all(file.key_starts for file in part.files):
        return [replace(part, files=(file,)) for file in part.files]
    count, key_samples = -(-part.cost // size), samples(file.key_starts for file in part.files)
    edges: list[int | None] = [None, *borders(key_samples, -(-len(key_samples) // count)), None]
    pieces = []
    for low, high in pairwise(edges):
        files = tuple(file for file in part.files if file.groups(low, high))
        if files:
            share = len(edges) - 1
            rows, size_bytes = part.cost // share + 1, part.size_bytes // share + 1
            pieces.append(replace(part, files=files, keys=(low, high), rows=rows, bytes_here=size_bytes))
    return pieces


def _lighter_first(tables: Sequence[TableInput]) -> list[TableInput]:
    return sorted(tables, key=lambda table: table.weight)


def _per_target(
    tables: Sequence[TableInput], known_target_tables: Mapping[TableId, TargetTable]
) -> list[tuple[tuple[RowFile, ...], TargetTable]]:
    """Return the files by target table: several sources may share one."""
    files: dict[TableId, tuple[RowFile, ...]] = {}
    for table in tables:
        files[table.target] = files.get(table.target, ()) + table.files
    return [(file, known_target_tables[target]) for target, file in files.items()]
