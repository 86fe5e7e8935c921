"""The merge's work units: how a batch is cut, and what runs in a unit."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.config.connections import ConnectionResolver
from sluice.config.pipeline import PipelineConfig
from sluice.flows.transform.changeset_writer import MergeResult, StageRows, TransformUnit, small_parts, write_part
from sluice.flows.transform.named_files import connections_for_files
from sluice.flows.transform.read_back import ReadBack
from sluice.flows.transform.repair import Repair, Repaired
from sluice.flows.transform.segment_rows import Added, ColumnGroups, MergePart, by_table, cut, read_changes
from sluice.flows.transform.stage_rules import StageRules
from sluice.mapping import Mapping as Routes
from sluice.merge.compact import compact
from sluice.model.packing import pack, unit_size
from sluice.model.tables import KEY_BUCKETS, TableId
from sluice.rules import RuleSet
from sluice.rules.images import row_codes
from sluice.segments.footers import measured
from sluice.segments.manifest import SegmentManifest
from sluice.segments.store import SegmentStore
from sluice.spark.base import give_back


@dataclass(frozen=True, slots=True)
class MergeUnit(TransformUnit[MergePart]):
    """Parts of tables to be merged.

    Attributes:
        read_back: reads rows at the source again; None: no rows.
        repair: tells which of the partner's loads are sent; None: all are.
        columns: tables that send every column that any change changed, and no other.
        clears: tables of which a target deletes the keys that a dump read and for which the rules give nothing.
    """

    read_back: ReadBack | None = None
    repair: Repair | None = None
    columns: Mapping[TableId, ColumnGroups] = field(default_factory=dict)
    clears: Collection[TableId] = ()

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes of a process: its parts run one after the other."""
        return max((part.memory_bytes for part in self.parts), default=0)


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
    pieces: Sequence[MergePart] | None = None,
    read_back: ReadBack | None = None,
    repair: Repair | None = None,
    columns: Mapping[TableId, ColumnGroups] | None = None,
    clears: Collection[TableId] = (),
) -> list[MergeUnit]:
    """Cut a batch into merge units of about equal cost.

    Rule files are read, and loaded once to see that they load, here.

    ``resolver``: for the connections that lookups of rules and files of the mapping name. ``rules``: those to apply, if
    not all of ``rules_path``; ``last``: no other stage of rules follows. ``pieces``: of :func:`plan_pieces`, if some of
    them were shuffled since. ``read_back``, ``repair``, ``columns``, ``clears``: see :class:`MergeUnit`.

    Raises:
        RuleError: a rule is broken. ConfigError: engine.yaml is. MappingError: the mapping is.
    """
    if rules is None:
        rules = RuleSet.of(rules_path)
    rules.validate()
    ruling = StageRules.of(rules, pipeline, rules_path, resolver)
    if pieces is None:
        pieces = plan_pieces(store, manifest, pipeline, parallelism=parallelism)
    size = _size(pieces, pipeline, parallelism)
    groups = pack([(piece, piece.cost) for piece in pieces], size)
    mapping = pipeline.mapping if last else None
    connections = connections_for_files(mapping, resolver)
    return [
        MergeUnit(
            store.uri,
            store.pipeline,
            manifest.batch,
            attempt,
            number,
            tuple(group),
            ruling,
            mapping,
            small,
            connections,
            read_back,
            repair,
            columns or {},
            clears,
        )
        for number, (group, small) in enumerate(zip(groups, small_parts(groups), strict=True))
    ]


def plan_pieces(
    store: SegmentStore, manifest: SegmentManifest, pipeline: PipelineConfig, *, parallelism: int | None = None
) -> list[MergePart]:
    """Return the tables of a batch, large ones cut by key bucket. Raises MappingError."""
    routes = Routes.of(pipeline)
    parts = [
        MergePart(source, measured(store, files), (0, KEY_BUCKETS), routes.route(source).key)
        for source, files in by_table(manifest).items()
    ]
    size = _size(parts, pipeline, parallelism)
    return [piece for part in parts for piece in cut(part, size)]


def _size(parts: Sequence[MergePart], pipeline: PipelineConfig, parallelism: int | None) -> int:
    workers = parallelism or max((t.parallelism for t in pipeline.targets), default=4)
    return unit_size(sum(part.cost for part in parts), workers * 2, pipeline.spark.memory)


def run_merge_unit(unit: MergeUnit) -> MergeResult:
    """Read, merge, apply rules, map, write. Raises SegmentError, RuleError, MappingError, StorageUnavailable."""
    started = time.perf_counter()
    stage = unit.stage()
    result = MergeResult((), (), 0.0)
    for number, part in enumerate(unit.parts):
        buckets = (part.buckets[0], part.buckets[1] - 1)
        rows, added, repaired, read = _merged(stage.store, part, unit)
        if unit.read_back is not None:
            rows, count = unit.read_back.renewed(rows, part.source)
            result = replace(result, read_back=result.read_back + count)
        result = replace(result, repaired=result.repaired + repaired)
        small = number in unit.small
        segments = part.segments or part.files
        stage_rows = StageRows(
            name=unit.name(number),
            source=part.source,
            rows=rows,
            buckets=buckets,
            segments=segments,
            added=added,
            small=small,
        )
        for piece in _by_dump(stage_rows, read):
            result += write_part(stage, piece)
    return replace(result, seconds=time.perf_counter() - started)


def _by_dump(part: StageRows, read: pa.Table | None) -> list[StageRows]:
    """Part the rows whose keys a dump ``read`` from the others."""
    if read is None or not read.num_rows or not part.rows.num_rows:
        return [part]
    key, count = read.schema.names, part.rows.num_rows
    codes = row_codes(pa.concat_tables([part.rows.select(key), read]), key)
    mask = pa.array(np.isin(codes[:count], codes[count:]))
    others = part.rows.filter(pc.invert(mask))
    named = replace(part, rows=part.rows.filter(mask), dumped="read", name=f"{part.name}-read")
    return [replace(part, rows=others), named] if others.num_rows else [named]


def _merged(store: SegmentStore, part: MergePart, unit: MergeUnit) -> tuple[pa.Table, Added, Repaired, pa.Table | None]:
    """Merge a part. Return its rows, and the keys that a dump read if its rules may leave them out.

    The changes that the rows were made from are freed.
    """
    chosen = unit.repair.look(store, part) if unit.repair is not None else None
    read = read_changes(store, part, chosen, unit.columns.get(part.source))
    keys = None
    if part.source in unit.clears and read.key:
        keys = read.changes.filter(pc.equal(read.changes["_op"], "r")).select(read.key)
    repaired = Repaired(chosen.hashes, chosen.conflicts, tuple(read.listed)) if chosen is not None else Repaired()
    key, added, changes = read.key, read.added, [read.changes]
    del read  # compact frees the changes as soon as it has a copy
    give_back(part)
    rows = compact(changes.pop(), key)
    give_back(part)
    return rows, added, repaired, keys
