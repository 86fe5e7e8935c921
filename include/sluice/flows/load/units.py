"""The load's work units: how a changeset is cut into phases of units, and what runs in a unit."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa

from sluice.config.connections import ConnectionResolver
from sluice.config.pipeline import TargetConfig
from sluice.config.resolved import ResolvedConnections
from sluice.flows.dump.reconcile import ReplacePart
from sluice.flows.load import changeset_rows
from sluice.flows.load.unique_keys import Check
from sluice.flows.transform.dead_letter_files import RefusedRows
from sluice.model.positions import Position
from sluice.model.tables import TableId
from sluice.segments.changeset import (
    Changeset,
    ChangesetFile,
    ChangesetReader,
    ChangesetTable,
    key_numbers,
    read_changeset_file,
)
from sluice.segments.footers import measured
from sluice.segments.store import SegmentStore
from sluice.spark import packing
from sluice.spark.packing import pack, unit_size
from sluice.targets import Fence, TableChanges, Target, TargetTable, open_target

SMALL_BYTES = 48 * 2**20
"""Rows of small parts that a unit reads at once; the others piece by piece, however small: a transaction may be of ten thousand tables."""


@dataclass(frozen=True, slots=True)
class LoadPart:
    """Files of one target table; ``deletes``, ``upserts``: the halves this unit writes.

    ``keys``: only rows whose first key column is in ``low <= value < high`` (None: no bound); None: all rows. ``rows``: about what those cost, in
    rows; ``bytes_here``: about their bytes.
    ``replaces``: stretches to clear first; ``in_order``: in the order of the log (see :attr:`ChangesetFile.revived`); ``verify``: nothing is
    written, foreign keys are looked at.
    """

    table: TargetTable
    files: tuple[ChangesetFile, ...]
    deletes: bool = True
    upserts: bool = True
    keys: tuple[int | None, int | None] | None = None
    rows: int = 0
    bytes_here: int = 0
    replaces: tuple[ReplacePart, ...] = ()
    in_order: bool = False
    verify: bool = False

    @property
    def identity(self) -> str:
        """The same in every attempt to load the same changeset."""
        text = "|".join([*(file.path for file in self.files), str(self.keys), str(self.deletes), str(self.upserts)])
        return f"{zlib.crc32(text.encode()):08x}"

    @property
    def cost(self) -> int:
        """In rows."""
        return (self.rows or packing.rows_of(self.files)) + packing.TABLE_COST

    @property
    def size_bytes(self) -> int:
        """Bytes of its rows in memory."""
        return self.bytes_here or sum(packing.bytes_of(file) for file in self.files)


@dataclass(frozen=True, slots=True)
class LoadUnit:
    """Parts that one worker writes over one connection.

    ``one_transaction``: all parts together; ``acknowledge``: and the batch's acknowledgement (consistency batch). ``segments``: manifest of the
    batch's segments, for the position of a dead letter.
    """

    store_uri: str
    pipeline: str
    target: TargetConfig
    endpoints: ResolvedConnections
    fence: Fence
    parts: tuple[LoadPart, ...]
    one_transaction: bool = False
    acknowledge: Position | None = None
    segments: str = ""

    @property
    def cost(self) -> int:
        """In rows."""
        return sum(part.cost for part in self.parts)

    @property
    def memory_bytes(self) -> int:
        """What it takes of a process. Rows of small parts are all there at once; of large ones only of the one that is written."""
        small = sum(part.size_bytes for part in self.parts if not changeset_rows.is_large(part.size_bytes))
        large = [part for part in self.parts if changeset_rows.is_large(part.size_bytes)]
        return packing.memory_of(min(small, SMALL_BYTES)) + max(
            (changeset_rows.memory_of(part.size_bytes, len(part.files)) for part in large), default=0
        )


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a unit wrote: rows upserted and deleted, statements, transactions tried again, seconds, rows kept as dead letters."""

    upserts: int
    deletes: int
    statements: int
    retries: int
    seconds: float
    dead_letters: int = 0


def plan_load(
    store: SegmentStore,
    changeset: Changeset,
    config: TargetConfig,
    target: Target,
    pipeline: str,
    epoch: int,
    resolver: ConnectionResolver,
    *,
    segments: str = "",
    copying: Callable[[], frozenset[TableId]] = frozenset,
    acknowledge: bool = True,
    replaces: Mapping[TableId, tuple[TargetTable, tuple[ReplacePart, ...]]] | None = None,
    check: Check | None = None,
) -> list[list[LoadUnit]]:
    """Cut a changeset into phases of load units; the units of a phase may run in parallel, phases run one after the other.

    Compares with the target's tables first, by ``check``: nothing is written if one does not fit (MappingError). ``copying``: target tables that
    a dump of the time of the batch, or later, fills; asked only where foreign keys or partial rows make a difference of it.

    * consistency row: lighter tables first. A small table is written whole by one unit, a large one by several, in two phases: deletes (and rows
      that leave a unique value), then upserts. Behind them the tables of which the target checks foreign keys: see :func:`_in_order_of_families`.
    * table: a table is one transaction. batch: everything and the acknowledgement are one transaction (``acknowledge`` False: it comes later).

    A table of which the log brought only some columns is one piece, as it remembers the batch (see ``incomplete``); so is one of which deleted rows
    stay under a key that may have several spellings. A table with another unique key is one piece if refused rows are to be left out
    (``on_error: dead_letter``): a refused row must not have lost its old state in an earlier phase. ``segments``: path of the segments' manifest.
    ``replaces``: stretches of target tables to clear before their rows are written; a table that goes whole is one piece.
    """
    tables = [table.model_copy(update={"files": measured(store, table.files)}) for table in changeset.manifest.tables]
    stretches = dict(replaces or {})
    if not tables and not stretches:
        return []
    plans = [table.plan for table in tables]
    known = dict(check(target, plans) if check else target.check(plans))
    partly = any(file.partial for table in tables for file in table.files)
    if partly or any(info.references or info.generation is not None for info in known.values()):
        filled = copying()
        known = {table: _while_copied(info, filled) for table, info in known.items()}
    number = changeset.manifest.batch
    fence = Fence(epoch, number - 1, number)
    endpoints = ResolvedConnections.of(resolver, [config.connection])
    unit = partial(LoadUnit, store.uri, pipeline, config, endpoints, fence, segments=segments)
    apart = config.on_error == "stop"
    if config.consistency == "batch":
        wholes = [
            replace(_whole(files, info), replaces=stretches.pop(info.table, (info, ()))[1])
            for files, info in _per_target(_lighter_first(tables), known)
        ]
        clearing = [LoadPart(info, (), replaces=those) for info, those in stretches.values()]
        parts = (*clearing, *_parents_first(wholes, apart=apart))
        return [[unit(parts, True, changeset.manifest.last.position if acknowledge else None)]]
    phases: list[list[LoadUnit]] = []
    leaving: list[LoadPart] = []
    coming: list[LoadPart] = []
    verifying: list[LoadPart] = []
    here = {table.target for table in tables}
    alone = [LoadPart(info, (), replaces=those) for target_, (info, those) in stretches.items() if target_ not in here]
    if alone:  # tables of which nothing is written
        phases.append([unit((part,), True) for part in alone])
    for weight in sorted({table.weight for table in tables}):
        first: list[LoadPart] = []
        second: list[LoadPart] = []
        group = [table for table in tables if table.weight == weight]
        total = sum(packing.rows_of(table.files) for table in group)
        size = unit_size(total, config.parallelism)
        for files, info in _per_target(group, known):
            those = stretches.pop(info.table, (info, ()))[1]
            whole = _whole(files, info)
            cut = info.key and config.consistency == "row" and whole.cost > size and (apart or not info.unique_keys)
            cut = cut and not whole.in_order and not any(file.partial for file in files)
            pieces = _by_key(whole, size) if cut and all(one.record.key for one in those) else [whole]
            verifying += [piece for part in pieces for piece in _verifying(part)]
            if info.generation is not None or info.references:
                if _in_halves(whole, apart=apart) and all(one.record.key for one in those):
                    leaving += [LoadPart(info, (), replaces=those)] if those else []
                    leaving += [replace(piece, upserts=False) for piece in pieces] if _leaves(whole) else []
                    coming += [replace(piece, deletes=False) for piece in pieces]
                else:
                    coming.append(replace(whole, replaces=those))
                continue
            if len(pieces) == 1:
                (first if whole.cost <= size else second).append(replace(whole, replaces=those))
                continue
            if those:
                first.append(LoadPart(info, (), replaces=those))
            if _leaves(whole):
                first += [replace(piece, upserts=False) for piece in pieces]
            second += [replace(piece, deletes=False) for piece in pieces]
        together = config.consistency == "row"
        for parts_ in (first, second):
            packed = pack([(part, part.cost) for part in parts_], size)
            if packed:
                phases.append([unit(tuple(parts), together) for parts in packed])
    levels = _in_order_of_families(leaving, coming, verifying)  # consistency row: see the target
    if levels and sum(part.cost for level in levels for part in level) <= packing.UNIT_ROWS:
        return [*phases, [unit(tuple(part for level in levels for part in level), True)]]
    for level in levels:
        size = unit_size(sum(part.cost for part in level), config.parallelism)
        phases.append([unit(tuple(parts), True) for parts in pack([(part, part.cost) for part in level], size)])
    return phases


def _while_copied(info: TargetTable, copying: frozenset[TableId]) -> TargetTable:
    """A dump brings rows as they come: foreign keys from and to its tables are not checked until it is over."""
    left = tuple(r for r in info.references if r.parent not in copying and r.child not in copying)
    early = any(r.child == info.table and r.parent in copying for r in info.references)
    generation = None if early else info.generation
    return replace(info, being_copied=info.table in copying, generation=generation, references=left)


def _in_halves(part: LoadPart, *, apart: bool) -> bool:
    """True if deletes and upserts of a table may be written apart."""
    return bool(part.table.key) and (apart or not part.table.unique_keys) and not any(f.partial for f in part.files)


def _leaves(part: LoadPart) -> bool:
    """True if some row may have to go before others come."""
    return any(f.deletes or (part.table.unique_keys and (f.updates or f.inserts)) for f in part.files)


def _verifying(part: LoadPart) -> list[LoadPart]:
    """What has to be looked at when all of the batch is there: rows that others may refer to and that go, and rows that came unchecked."""
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
    """What is written behind what, where foreign keys are checked: children go before parents, parents come before children, then all is looked at.

    What fits one unit is one transaction: readers see no child without its parent in between.
    """
    place = lambda part: part.table.generation or 0  # noqa: E731
    down = [list(same) for _, same in groupby(sorted(leaving, key=place, reverse=True), key=place)]
    up = [list(same) for _, same in groupby(sorted(coming, key=place), key=place)]
    return [*down, *up, *([list(verifying)] if verifying else [])]


def _parents_first(parts: Sequence[LoadPart], *, apart: bool) -> tuple[LoadPart, ...]:
    """In one transaction: what goes goes first, then parents come before children, where the target checks that; then it is looked at."""
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


def _whole(files: tuple[ChangesetFile, ...], info: TargetTable) -> LoadPart:
    return LoadPart(info, files, in_order=any(file.revived for file in files))


def _by_key(part: LoadPart, size: int) -> list[LoadPart]:
    """Ranges of the first key column of about ``size`` each, so that every unit writes its own stretch of the target's tree, in order.

    Files whose keys are no numbers stay whole: a unit a file.
    """
    if not all(file.key_starts for file in part.files):
        return [replace(part, files=(file,)) for file in part.files]
    count = -(-part.cost // size)
    samples = sorted(start for file in part.files for start in file.key_starts[:-1])
    borders = sorted({samples[i * len(samples) // count] for i in range(1, count)} - {samples[0]})
    edges: list[int | None] = [None, *borders, None]
    pieces = []
    for low, high in pairwise(edges):
        files = tuple(file for file in part.files if file.groups(low, high))
        if files:
            share = len(edges) - 1
            rows, size_bytes = part.cost // share + 1, part.size_bytes // share + 1
            pieces.append(replace(part, files=files, keys=(low, high), rows=rows, bytes_here=size_bytes))
    return pieces


def _lighter_first(tables: Sequence[ChangesetTable]) -> list[ChangesetTable]:
    return sorted(tables, key=lambda table: table.weight)


def _per_target(
    tables: Sequence[ChangesetTable], known: Mapping[TableId, TargetTable]
) -> list[tuple[tuple[ChangesetFile, ...], TargetTable]]:
    """Files by target table: several sources may share one."""
    files: dict[TableId, tuple[ChangesetFile, ...]] = {}
    for table in tables:
        files[table.target] = files.get(table.target, ()) + table.files
    return [(found, known[target]) for target, found in files.items()]


def run_load_unit(unit: LoadUnit) -> LoadResult:
    """Read files and write them to the target, under the fence. Raises SegmentError, TargetUnavailable, LoadError, Fenced."""
    started = time.perf_counter()
    store = SegmentStore(unit.store_uri, unit.pipeline)
    target = open_target(unit.target, unit.endpoints, unit.pipeline)
    identities: list[str] = []
    changes: list[TableChanges] = []
    left = SMALL_BYTES
    for part in unit.parts:
        streamed = changeset_rows.is_large(part.size_bytes) or part.size_bytes > left
        left -= 0 if streamed else part.size_bytes
        groups = _groups(store, part, whole=unit.target.on_error == "dead_letter", streamed=streamed)
        found = _changes(part, groups or [(pa.table({}), None)])
        found[0] = replace(found[0], replaces=tuple(one.read(store) for one in part.replaces))
        changes += found
        identities += [f"{part.identity}-{number}" if number else part.identity for number in range(len(found))]
    keep = None
    if unit.target.on_error == "dead_letter":
        keep = RefusedRows(store, unit.target.name, unit.fence.batch, unit.segments, identities, changes)
    count = target.load(
        unit.fence, changes, one_transaction=unit.one_transaction, acknowledge=unit.acknowledge, on_refused=keep
    )
    seconds = time.perf_counter() - started
    return LoadResult(count.upserted, count.deleted, count.statements, count.retries, seconds, count.refused)


_Rows = tuple[pa.Table, Callable[[], Iterator[pa.Table]] | None]
"""All rows; or only their columns, and what reads the rows."""


def _changes(part: LoadPart, groups: Sequence[_Rows]) -> list[TableChanges]:
    """What a part writes: rows of several sets of columns leave together before any arrives, as unique values move among them."""
    every = [
        TableChanges(
            part.table,
            rows,
            part.deletes and (read is None or not part.table.key or _leaves(part)),
            part.upserts,
            scope=f"{part.table.table}#{number}" if number else "",
            in_order=part.in_order,
            verify=part.verify,
            read=read,
        )
        for number, (rows, read) in enumerate(groups)
    ]
    halves = part.deletes and part.upserts and part.table.key
    if len(every) == 1 or not halves or any("_present" in rows.schema.names for rows, _ in groups):
        return every
    return [replace(one, upserts=False) for one in every] + [replace(one, deletes=False) for one in every]


def _groups(store: SegmentStore, part: LoadPart, *, whole: bool, streamed: bool) -> list[_Rows]:
    """The part's rows, once for each set of columns: what a row never had is not written. ``whole``: with all that is known of a row."""
    lean = not (whole or part.table.unique_keys or part.in_order)
    if streamed:
        same: dict[frozenset[str], list[ChangesetFile]] = {}
        for file in part.files:
            same.setdefault(frozenset(ChangesetReader(store, file).schema.names), []).append(file)
        return [
            changeset_rows.reading(store, files, part.keys, lean=lean, in_order=part.in_order)
            for files in same.values()
        ]
    alike: dict[frozenset[str], list[pa.Table]] = {}
    for file in sorted(part.files, key=lambda file: not file.revived) if part.in_order else part.files:
        table = read_changeset_file(store, file, part.keys, lean=lean)
        alike.setdefault(frozenset(table.schema.names), []).append(table)
    return [(_rows(tables, part), None) for tables in alike.values()]


def _rows(tables: list[pa.Table], part: LoadPart) -> pa.Table:
    if part.in_order:  # a kept row whose key moved to another spelling has the number of the row that came
        rows = pa.concat_tables(tables, promote_options="permissive")
        return rows.take(pa.array(np.argsort(rows["_seq"].to_numpy(), kind="stable")))
    if len(tables) == 1:
        return tables[0]
    rows = pa.concat_tables(tables, promote_options="permissive")
    numbers = key_numbers(rows) if part.keys else None
    return rows if numbers is None else rows.take(pa.array(np.argsort(numbers, kind="stable")))
