"""The merge's work units: how a batch is cut, and what runs in a unit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from sluice.config.connections import ConnectionResolver
from sluice.config.pipeline import PipelineConfig
from sluice.flows.finishing import MergeResult, RuledUnit, StageRows, finish_part
from sluice.flows.mergeread import MergePart, by_table, read_part
from sluice.flows.ruling import Ruling
from sluice.flows.units import pack, unit_size
from sluice.mapping import Mapping as Routes
from sluice.merge.compact import compact
from sluice.model.tables import KEY_BUCKETS
from sluice.rules import RuleSet
from sluice.segments.manifest import SegmentManifest
from sluice.segments.store import SegmentStore


class MergeUnit(RuledUnit[MergePart]):
    """Parts of tables to be merged."""

    __slots__ = ()


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
        for source, files in by_table(manifest).items()
    ]
    workers = parallelism or max((t.parallelism for t in pipeline.targets), default=4)
    total = sum(part.cost for part in parts)
    size = unit_size(total, workers * 2)
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


def run_merge_unit(unit: MergeUnit) -> MergeResult:
    """Read, merge, apply rules, map, write. Raises SegmentError, RuleError, MappingError, StorageUnavailable."""
    started = time.perf_counter()
    stage = unit.stage()
    result = MergeResult((), (), 0.0)
    for number, part in enumerate(unit.parts):
        read = read_part(stage.store, part)
        buckets = (part.buckets[0], part.buckets[1] - 1)
        rows = compact(read.changes, read.key)
        result += finish_part(stage, StageRows(unit.name(number), part.source, rows, buckets, part.files, read.added))
    return replace(result, seconds=time.perf_counter() - started)
