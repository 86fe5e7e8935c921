"""What runs in a work unit, and how a batch is cut into units.

A unit holds paths, bucket ranges, rule contents and routes, never rows. The number of units follows the rows, not the tables: small tables
share a unit, large ones are cut by key bucket, so a batch of 1,000 tables is as many Spark tasks as one of five.
"""

from __future__ import annotations

import heapq
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.config.connections import ConnectionResolver
from sluice.config.pipeline import PipelineConfig, TableMapping, TargetConfig
from sluice.errors import RuleError, SegmentError
from sluice.flows.changeset import (
    Changeset,
    ChangesetColumn,
    ChangesetFile,
    ChangesetManifest,
    ChangesetTable,
    RuleTotal,
    changeset_file_path,
    changeset_folder,
    columns_of,
    key_numbers,
    read_changeset,
    read_changeset_file,
    write_changeset_file,
)
from sluice.flows.deadletters import RefusedRows, Written
from sluice.flows.endpoints import Endpoints
from sluice.flows.replacing import ReplacePart
from sluice.flows.ruling import Ruling, rule_totals, tagged_as_made
from sluice.mapping import Mapping as Routes
from sluice.mapping import TableRoute
from sluice.merge.compact import compact, thinned, user_columns
from sluice.merge.presence import is_partial, remapped, renewed, unknown_before
from sluice.merge.rekey import rekeyed
from sluice.model.positions import Position
from sluice.model.tables import KEY_BUCKETS, TableId, stored_name
from sluice.rules import RuleCount, RuleSet
from sluice.segments.manifest import SegmentFile, SegmentManifest
from sluice.segments.reader import read_file
from sluice.segments.store import SegmentStore
from sluice.targets import Fence, TableChanges, Target, TargetTable, open_target

UNIT_ROWS = 25_000
"""Rows below which cutting a table costs more than it gains."""

MAX_UNIT_ROWS = 250_000
"""Bounds the memory of a unit."""

TABLE_COST = 300
"""What one more table costs a unit, in rows."""

ROW_BYTES = 200
"""Parquet bytes that count as one row."""

__all__ = [
    "Endpoints", "LoadPart", "LoadResult", "LoadUnit", "MergePart", "MergeResult", "MergeUnit", "MergedPart", "plan_load", "plan_merge",
    "read_changeset", "run_load_unit", "run_merge_unit", "write_changeset_manifest",
]  # fmt: skip

_Part = TypeVar("_Part")
_READ = ("_op", "_seq", "_commit_ts", "_before")


# merge -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MergePart:
    """A range of key buckets of one table: ``buckets`` is (lo, hi), hi excluded; ``key``: its key, if it has no primary key."""

    source: TableId
    files: tuple[SegmentFile, ...]
    buckets: tuple[int, int]
    key: tuple[str, ...] = ()

    @property
    def cost(self) -> int:
        """In rows."""
        share = (self.buckets[1] - self.buckets[0]) / KEY_BUCKETS
        return int(sum(max(f.rows, f.size_bytes // ROW_BYTES) for f in self.files) * share) + TABLE_COST


@dataclass(frozen=True, slots=True)
class MergeUnit:
    """Parts that one worker merges one after the other; ``mapping`` None: another stage of rules follows."""

    store_uri: str
    pipeline: str
    batch: int
    attempt: str
    number: int
    parts: tuple[MergePart, ...]
    ruling: Ruling
    mapping: tuple[TableMapping, ...] | None = ()

    @property
    def cost(self) -> int:
        """In rows."""
        return sum(part.cost for part in self.parts)


@dataclass(frozen=True, slots=True)
class MergedPart:
    """What came of a part; ``file`` is None if nothing did."""

    source: TableId
    route: TableRoute
    columns: tuple[ChangesetColumn, ...]
    file: ChangesetFile | None


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What came of a unit."""

    parts: tuple[MergedPart, ...]
    rules: tuple[RuleCount, ...]
    seconds: float
    dead_letters: tuple[Written, ...] = ()

    @property
    def rows(self) -> int:
        """Merged rows."""
        return sum(part.file.rows for part in self.parts if part.file)

    def __add__(self, other: MergeResult) -> MergeResult:
        return MergeResult(
            self.parts + other.parts,
            self.rules + other.rules,
            self.seconds + other.seconds,
            self.dead_letters + other.dead_letters,
        )


def plan_merge(
    store: SegmentStore,
    manifest: SegmentManifest,
    pipeline: PipelineConfig,
    rules_path: Path | None,
    attempt: str,
    *,
    parallelism: int | None = None,
    resolver: ConnectionResolver | None = None,
    rules: RuleSet | None = None,
    last: bool = True,
) -> list[MergeUnit]:
    """Cut a batch into merge units of about equal cost. Rule files are read, and loaded once to see that they load, here.

    ``resolver``: for the connections that lookups of rules name. ``rules``: those to apply, if not all of ``rules_path``; ``last``: no other
    stage of rules follows.

    Raises:
        RuleError: a rule is broken. ConfigError: engine.yaml is. MappingError: the mapping is.
    """
    if rules is None:
        rules = RuleSet.load(rules_path) if rules_path else RuleSet()
    rules.validate()
    ruling = Ruling.of(rules, pipeline, rules_path, resolver)
    routes = Routes.compile(pipeline.mapping)
    parts = [
        MergePart(source, tuple(files), (0, KEY_BUCKETS), routes.route(source).key)
        for source, files in _by_table(manifest).items()
    ]
    workers = parallelism or max((t.parallelism for t in pipeline.targets), default=4)
    total = sum(part.cost for part in parts)
    size = min(max(UNIT_ROWS, total // (workers * 2) + 1), MAX_UNIT_ROWS)
    pieces = [piece for part in parts for piece in _cut(part, size)]
    return [
        MergeUnit(
            store.uri,
            store.pipeline,
            manifest.batch,
            attempt,
            number,
            tuple(group),
            ruling,
            pipeline.mapping if last else None,
        )
        for number, group in enumerate(pack([(piece, piece.cost) for piece in pieces], size))
    ]


def _by_table(manifest: SegmentManifest) -> dict[TableId, list[SegmentFile]]:
    tables: dict[TableId, list[SegmentFile]] = {}
    for file in manifest.files:
        tables.setdefault(file.table_id, []).append(file)
    return tables


def _cut(part: MergePart, size: int) -> Iterator[MergePart]:
    """By key bucket. One piece: a table without a key, whose rows are counted as a whole, and one whose rows are followed from key to key."""
    pieces = min(-(-part.cost // size), KEY_BUCKETS)
    whole = any(file.moved_partially or not file.primary_key for file in part.files)
    if pieces <= 1 or whole:
        yield part
        return
    borders = [round(i * KEY_BUCKETS / pieces) for i in range(pieces + 1)]
    for lo, hi in pairwise(borders):
        files = tuple(f for f in part.files if f.bucket_min < hi and f.bucket_max >= lo)
        if files:
            yield MergePart(part.source, files, (lo, hi), part.key)


def pack(items: Sequence[tuple[_Part, int]], size: int) -> list[list[_Part]]:
    """Groups of about ``size`` (cost) each: the dearest first, each to the group that has least."""
    count = max(1, min(len(items), -(-sum(cost for _, cost in items) // size)))
    heap: list[tuple[int, int, list[_Part]]] = [(0, number, []) for number in range(count)]
    for item, cost in sorted(items, key=lambda entry: -entry[1]):
        load, number, group = heapq.heappop(heap)
        group.append(item)
        heapq.heappush(heap, (load + cost, number, group))
    return [group for _, _, group in sorted(heap, key=lambda entry: entry[1]) if group]


def run_merge_unit(unit: MergeUnit) -> MergeResult:
    """Read, merge, apply rules, map, write. Raises SegmentError, RuleError, MappingError, StorageUnavailable."""
    started = time.perf_counter()
    store = SegmentStore(unit.store_uri, unit.pipeline)
    routes = Routes.compile(unit.mapping) if unit.mapping is not None else None
    result = MergeResult((), (), 0.0)
    for number, part in enumerate(unit.parts):
        read = _read(store, part)
        buckets = (part.buckets[0], part.buckets[1] - 1)
        name = f"{unit.number:05d}-{number:04d}"
        merged = compact(read.changes, read.key)
        result += finish_part(
            store,
            unit.batch,
            unit.attempt,
            name,
            unit.ruling,
            routes,
            part.source,
            merged,
            buckets,
            part.files,
            added=read.added,
        )
    return replace(result, seconds=time.perf_counter() - started)


def finish_part(
    store: SegmentStore,
    batch: int,
    attempt: str,
    name: str,
    ruling: Ruling,
    routes: Routes | None,
    source: TableId,
    merged: pa.Table,
    buckets: tuple[int, int],
    segments: Sequence[SegmentFile],
    *,
    added: Sequence[tuple[int, str]] = (),
    revived: bool = False,
) -> MergeResult:
    """Merged rows of ``source`` through rules and mapping into files. ``routes`` None: another stage follows, names stay the source's.

    ``name`` tells the files of an attempt apart; ``segments``: where the changes are, for the position of a dead letter;
    ``added``: columns that older rows of the batch do not have (see :class:`_Read`); ``revived``: an earlier stage kept deleted rows.
    """
    if is_partial(merged) and ruling.concerning(source):
        raise _needs_whole_rows(source)
    hides = ruling.hides(merged, source)
    ruled = ruling.apply(ruling.tagged(merged, source), source)
    letters = ruling.keep_rejected(store, batch, attempt, name, source, ruled, segments)
    done = []
    for table, rows in ruled.tables.items():
        route = routes.route(table) if routes is not None else TableRoute(table, table)
        rows = tagged_as_made(rows) if hides else rows
        mapped = _known_columns(rows, route.apply(rows), route)
        pieces = [(mapped, name, revived)]
        kept = ruled.revived.get(table)
        if kept is not None and not revived:
            pieces = [(mapped.filter(pc.invert(kept)), name, False), (mapped.filter(kept), f"{name}-kept", True)]
        for piece, stem, marked in pieces:
            for version, same in enumerate(_by_version(piece, route, added if routes is not None else ())):
                file = None
                if same.num_rows:
                    own = f"{stem}-v{version}" if version else stem
                    path = changeset_file_path(store, batch, attempt, route.target, own)
                    file = write_changeset_file(store, path, same, buckets, revived=marked)
                done.append(MergedPart(table, route, columns_of(same.schema), file))
    return MergeResult(tuple(done), tuple(ruled.counts), 0.0, tuple(letters))


def _needs_whole_rows(source: TableId) -> RuleError:
    return RuleError(
        f"rules work on whole rows, and the log of {source} brings only the columns that changed",
        where=str(source),
        hint="SET GLOBAL binlog_row_image = 'FULL' at the source and reconnect its applications; for what is in the log already: take the table out "
        "of the rules' match until it is delivered, then copy it through the rules (`sluice dump start`)",
    )


def _known_columns(rows: pa.Table, mapped: pa.Table, route: TableRoute) -> pa.Table:
    """``_present`` for the columns of the mapped rows."""
    if mapped is rows or not is_partial(rows):
        return mapped
    before = user_columns(rows.schema)
    origin = {column_name(rows.schema.field(name)): name for name in before}
    back = {route.target_name(name) or name: stored for name, stored in origin.items()}
    after = [back.get(column_name(mapped.schema.field(name))) for name in user_columns(mapped.schema)]
    index = mapped.schema.get_field_index("_present")
    return mapped.set_column(index, mapped.schema.field(index), remapped(rows, before, after))


def column_name(field_: pa.Field) -> str:
    """A column's own name."""
    return str((field_.metadata or {}).get(b"sluice.name", field_.name.encode()).decode())


def merged_tables(store: SegmentStore, manifest: SegmentManifest) -> Iterator[tuple[TableId, pa.Table]]:
    """All tables of a batch, each merged whole: for looking at, not for work."""
    for source, files in sorted(_by_table(manifest).items()):
        read = _read(store, MergePart(source, tuple(files), (0, KEY_BUCKETS)))
        yield source, compact(read.changes, read.key)


@dataclass(frozen=True, slots=True)
class _Read:
    """Rows of a part in the newest definition of its table, and the key's stored names.

    ``added``: (sequence number from which rows have it, stored name) of columns that older rows of the batch do not have.
    """

    changes: pa.Table
    key: list[str]
    added: tuple[tuple[int, str], ...] = ()


def _read(store: SegmentStore, part: MergePart) -> _Read:
    tables = []
    for file in part.files:
        with store.open_input(file.path) as source:
            try:
                schema = pq.read_schema(source)
            except (pa.ArrowException, OSError) as error:
                raise SegmentError("the segment file is damaged", where=file.path) from error
        wanted = [*user_columns(schema), *_READ, *(["_present"] if "_present" in schema.names else [])]
        table = read_file(store, file, part.buckets, wanted)
        if not is_partial(table) and "_present" in table.schema.names:
            table = table.drop_columns(["_present"])
        tables.append(table.drop_columns(["_bucket"]) if "_bucket" in table.schema.names else table)
        if (
            sum(table.num_rows for table in tables) > MAX_UNIT_ROWS and not part.key
        ):  # few keys have most of the changes
            tables = _thinned(tables)
    newest = max(tables, key=_last_seq).schema
    added = []
    for name in user_columns(newest):
        having = [table for table in tables if name in table.schema.names]
        if len(having) < len(tables):
            added.append((min(_first_seq(table) for table in having), name))
    if any("_present" in table.schema.names for table in tables) and "_present" not in newest.names:
        newest = newest.append(pa.field("_present", pa.binary()))
    changes = pa.concat_tables([_as(table, newest) for table in tables])
    key = _key_of(newest)
    if part.key and not key:
        changes = rekeyed(changes, part.source, part.key)
        return _Read(changes, [stored_name(name) for name in part.key], tuple(added))
    return _Read(changes, key, tuple(added))


def _thinned(tables: list[pa.Table]) -> list[pa.Table]:
    """One table of the rows that a merge needs, if all have one definition."""
    schema = tables[0].schema
    if not all(table.schema.equals(schema, check_metadata=True) for table in tables):
        return tables
    return [thinned(pa.concat_tables(tables), _key_of(schema))]


def _key_of(schema: pa.Schema) -> list[str]:
    key = [(int(f.metadata[b"sluice.key"]), f.name) for f in schema if f.metadata and b"sluice.key" in f.metadata]
    return [name for _, name in sorted(key)]


def _by_version(rows: pa.Table, route: TableRoute, added: Sequence[tuple[int, str]]) -> list[pa.Table]:
    """``rows``, split where a column was added in the middle of the batch: the target's default stands in rows that never had it."""
    borders = sorted({seq for seq, _ in added})
    if not borders or not rows.num_rows:
        return [rows]
    if "_present" in rows.schema.names:  # which says itself what a row has
        names = {stored_name(name): start for start, old in added if (name := route.target_name(old))}
        return [unknown_before(rows, user_columns(rows.schema), names)]
    pieces = []
    seq = rows["_seq"].to_numpy().astype(np.int64)
    for low, high in pairwise([-1, *borders, 1 << 62]):
        piece = rows.filter(pa.array((seq >= low) & (seq < high)))
        missing = [route.target_name(name) for start, name in added if start >= high]
        pieces.append(_without(piece, {stored_name(name) for name in missing if name}))
    return pieces[::-1]  # the newest definition first: its columns are the table's


def _without(rows: pa.Table, names: set[str]) -> pa.Table:
    present = names & set(rows.schema.names)
    if not present:
        return rows
    before = rows["_before"].combine_chunks()
    kept = [field for field in before.type if field.name not in names]
    children = [pc.struct_field(before, field.name) for field in kept]
    struct = pa.StructArray.from_arrays(children, fields=kept, mask=pc.is_null(before))
    index = rows.schema.get_field_index("_before")
    return rows.set_column(index, pa.field("_before", struct.type), struct).drop_columns(sorted(present))


def _first_seq(table: pa.Table) -> int:
    return int(pc.min(table["_seq"]).as_py() or 0)


def _last_seq(table: pa.Table) -> int:
    return int(pc.max(table["_seq"]).as_py() or 0)


def _as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """``table`` in a newer definition: new columns are null, dropped ones go, types are converted."""
    if table.schema.equals(schema, check_metadata=True):
        return table
    columns = []
    for field_ in schema:
        if field_.name == "_present":
            columns.append(renewed(table, user_columns(table.schema), user_columns(schema)))
        elif field_.name not in table.schema.names:
            columns.append(pa.nulls(table.num_rows, field_.type))
        elif field_.name == "_before":
            struct = table["_before"].combine_chunks()
            present = {child.name for child in struct.type}
            children = [
                pc.struct_field(struct, child.name).cast(child.type)
                if child.name in present
                else pa.nulls(table.num_rows, child.type)
                for child in field_.type
            ]
            columns.append(pa.StructArray.from_arrays(children, fields=list(field_.type), mask=pc.is_null(struct)))
        else:
            columns.append(table[field_.name].cast(field_.type))
    return pa.table(columns, schema=schema)


def write_changeset_manifest(
    store: SegmentStore,
    manifest: SegmentManifest,
    attempt: str,
    results: Sequence[MergeResult],
    earlier: Sequence[RuleTotal] = (),
    letters_before: tuple[Sequence[str], int] = ((), 0),
) -> Changeset:
    """Write what all units of an attempt made; the changeset exists from here on.

    ``earlier``, ``letters_before``: totals of the rules, and files and rows of dead letters, of earlier stages.
    """
    tables: dict[tuple[TableId, TableId], list[MergedPart]] = {}
    for result in results:
        for part in result.parts:
            tables.setdefault((part.source, part.route.target), []).append(part)
    entries = []
    for (source, target), parts in sorted(tables.items()):
        files = tuple(part.file for part in parts if part.file)
        if files:
            columns = {c.name: c for part in parts if part.file for c in part.columns}
            entries.append(
                ChangesetTable(
                    schema_=target.schema,
                    table=target.table,
                    source_schema=source.schema,
                    source_table=source.table,
                    weight=parts[0].route.weight,
                    columns=tuple(columns.values()),
                    files=files,
                )
            )
    every = [file for entry in entries for file in entry.files]
    letters = [letter for result in results for letter in result.dead_letters]
    changeset = ChangesetManifest(
        batch=manifest.batch,
        attempt=attempt,
        last=manifest.last,
        tables=tuple(entries),
        rules=(*earlier, *rule_totals((c for r in results for c in r.rules), letters)),
        dead_letters=(*letters_before[0], *(letter.path for letter in letters)),
        counts={
            "changes": manifest.changes,
            "ddl": len(manifest.ddl),
            "replaces": len(manifest.replaces),
            "rows": sum(f.rows for f in every),
            "inserts": sum(f.inserts for f in every),
            "updates": sum(f.updates for f in every),
            "deletes": sum(f.deletes for f in every),
            "dead_letters": letters_before[1] + sum(letter.rows for letter in letters),
        },
    )
    path = f"{changeset_folder(store, manifest.batch, attempt)}/manifest.json"
    store.write_bytes(path, (changeset.model_dump_json(by_alias=True, indent=1) + "\n").encode())
    return Changeset(path, changeset)


# load ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadPart:
    """Files of one target table; ``deletes``, ``upserts``: the halves this unit writes.

    ``keys``: only rows whose first key column is in ``low <= value < high`` (None: no bound); None: all rows. ``rows``: about how many those are.
    ``replaces``: stretches to clear first; ``in_order``: in the order of the log (see :attr:`ChangesetFile.revived`); ``verify``: nothing is
    written, foreign keys are looked at.
    """

    table: TargetTable
    files: tuple[ChangesetFile, ...]
    deletes: bool = True
    upserts: bool = True
    keys: tuple[int | None, int | None] | None = None
    rows: int = 0
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
        return (self.rows or sum(max(f.rows, f.size_bytes // ROW_BYTES) for f in self.files)) + TABLE_COST


@dataclass(frozen=True, slots=True)
class LoadUnit:
    """Parts that one worker writes over one connection.

    ``one_transaction``: all parts together; ``acknowledge``: and the batch's acknowledgement (consistency batch). ``segments``: manifest of the
    batch's segments, for the position of a dead letter.
    """

    store_uri: str
    pipeline: str
    target: TargetConfig
    endpoints: Endpoints
    fence: Fence
    parts: tuple[LoadPart, ...]
    one_transaction: bool = False
    acknowledge: Position | None = None
    segments: str = ""

    @property
    def cost(self) -> int:
        """In rows."""
        return sum(part.cost for part in self.parts)


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
    copying: frozenset[TableId] = frozenset(),
    acknowledge: bool = True,
    replaces: Mapping[TableId, tuple[TargetTable, tuple[ReplacePart, ...]]] | None = None,
) -> list[list[LoadUnit]]:
    """Cut a changeset into phases of load units; the units of a phase may run in parallel, phases run one after the other.

    Compares with the target's tables first: nothing is written if one does not fit (MappingError). ``copying``: source tables that a dump
    of the time of the batch, or later, copies.

    * consistency row: lighter tables first. A small table is written whole by one unit, a large one by several, in two phases: deletes (and rows
      that leave a unique value), then upserts. Behind them the tables of which the target checks foreign keys: see :func:`_in_order_of_families`.
    * table: a table is one transaction. batch: everything and the acknowledgement are one transaction (``acknowledge`` False: it comes later).

    A table of which the log brought only some columns is one piece, as it remembers the batch (see ``incomplete``); so is one of which deleted rows
    stay under a key that may have several spellings. A table with another unique key is one piece if refused rows are to be left out
    (``on_error: dead_letter``): a refused row must not have lost its old state in an earlier phase. ``segments``: path of the segments' manifest.
    ``replaces``: stretches of target tables to clear before their rows are written; a table that goes whole is one piece.
    """
    tables = changeset.manifest.tables
    stretches = dict(replaces or {})
    if not tables and not stretches:
        return []
    known = dict(target.check([table.plan for table in tables]))
    for table in tables:  # source tables whose rows a dump brings
        if TableId(table.source_schema, table.source_table) in copying:
            known[table.target] = replace(known[table.target], being_copied=True)
    number = changeset.manifest.batch
    fence = Fence(epoch, number - 1, number)
    endpoints = Endpoints.of(resolver, [config.connection])
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
        total = sum(file.rows for table in group for file in table.files)
        size = min(max(UNIT_ROWS, total // config.parallelism + 1), MAX_UNIT_ROWS)
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
    if levels and sum(part.cost for level in levels for part in level) <= UNIT_ROWS:
        return [*phases, [unit(tuple(part for level in levels for part in level), True)]]
    for level in levels:
        size = min(max(UNIT_ROWS, sum(part.cost for part in level) // config.parallelism + 1), MAX_UNIT_ROWS)
        phases.append([unit(tuple(parts), True) for parts in pack([(part, part.cost) for part in level], size)])
    return phases


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
    came = table.generation is None and any(f.inserts or f.updates for f in part.files)
    asks = table.references and (parted or came)
    return [replace(part, deletes=False, upserts=False, verify=True, replaces=())] if asks else []


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
            pieces.append(replace(part, files=files, keys=(low, high), rows=part.cost // (len(edges) - 1) + 1))
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
    for part in unit.parts:
        groups = _groups(store, part, whole=unit.target.on_error == "dead_letter")
        found = _changes(part, groups or [pa.table({})])
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


def _changes(part: LoadPart, groups: Sequence[pa.Table]) -> list[TableChanges]:
    """What a part writes: rows of several sets of columns leave together before any arrives, as unique values move among them."""
    every = [
        TableChanges(
            part.table,
            rows,
            part.deletes,
            part.upserts,
            scope=f"{part.table.table}#{number}" if number else "",
            in_order=part.in_order,
            verify=part.verify,
        )
        for number, rows in enumerate(groups)
    ]
    halves = part.deletes and part.upserts and part.table.key
    if len(every) == 1 or not halves or any("_present" in rows.schema.names for rows in groups):
        return every
    return [replace(one, upserts=False) for one in every] + [replace(one, deletes=False) for one in every]


def _groups(store: SegmentStore, part: LoadPart, *, whole: bool) -> list[pa.Table]:
    """The part's rows, one table for each set of columns: what a row never had is not written. ``whole``: with all that is known of a row."""
    alike: dict[frozenset[str], list[pa.Table]] = {}
    for file in sorted(part.files, key=lambda file: not file.revived) if part.in_order else part.files:
        lean = not (whole or part.table.unique_keys or part.in_order)
        table = read_changeset_file(store, file, part.keys, lean=lean)
        alike.setdefault(frozenset(table.schema.names), []).append(table)
    return [_rows(tables, part) for tables in alike.values()]


def _rows(tables: list[pa.Table], part: LoadPart) -> pa.Table:
    if part.in_order:  # a kept row whose key moved to another spelling has the number of the row that came
        rows = pa.concat_tables(tables, promote_options="permissive")
        return rows.take(pa.array(np.argsort(rows["_seq"].to_numpy(), kind="stable")))
    if len(tables) == 1:
        return tables[0]
    rows = pa.concat_tables(tables, promote_options="permissive")
    numbers = key_numbers(rows) if part.keys else None
    return rows if numbers is None else rows.take(pa.array(np.argsort(numbers, kind="stable")))
