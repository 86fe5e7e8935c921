"""Work units of a stage: files of an earlier stage through the rules of this one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from sluice.config.pipeline import TableMapping
from sluice.config.resolved import ResolvedConnections
from sluice.flows.stage_log import log_batch
from sluice.flows.transform.changeset_writer import MergeResult, StageRows, TransformUnit, small_parts, write_part
from sluice.flows.transform.file_progress import forget_progress
from sluice.flows.transform.spark_rules import Framed, fold_files
from sluice.flows.transform.stage_manifest import StageTable
from sluice.flows.transform.stage_rules import StageRules
from sluice.model import packing
from sluice.model.packing import pack, unit_size
from sluice.model.row_ops import Dumped
from sluice.model.tables import KEY_BUCKETS, TableId
from sluice.row_files.copy_pool import FileTotals
from sluice.rules import RuleCount
from sluice.rules.script import Rule
from sluice.segments.changeset import ChangesetFile, RuleTotal, read_changeset_file
from sluice.segments.footers import measured
from sluice.segments.manifest import SegmentFile
from sluice.segments.store import SegmentStore

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StagePart:
    """A file of one table, or what a rule of type spark made of a share ``(number, of)`` of its keys.

    Attributes:
        files: one of merged rows; with ``framed``, all files of images; inputs: files of which rows may have passed
            ``framed`` by.
        segments: where the table's changes are, for the position of a dead letter.
    """

    source: TableId
    files: tuple[ChangesetFile, ...]
    segments: tuple[SegmentFile, ...] = ()
    framed: Rule | None = None
    inputs: tuple[ChangesetFile, ...] = ()
    share: tuple[int, int] = (0, 1)

    @property
    def cost(self) -> int:
        """Work that the part is, in rows."""
        return packing.rows_of(self.files) // self.share[1] + packing.TABLE_COST

    @property
    def size_bytes(self) -> int:
        """Bytes of its rows in memory; of a share: of the file that is read at a time, and of the share."""
        every = [packing.bytes_of(file) for file in (*self.files, *self.inputs)]
        return sum(every) // self.share[1] + (max(every) if self.share[1] > 1 else 0)


class StageUnit(TransformUnit[StagePart]):
    """A unit of files of an earlier stage."""

    __slots__ = ()


def plan_stage(
    store: SegmentStore,
    batch: int,
    tables: Sequence[StageTable],
    attempt: str,
    *,
    ruling: StageRules,
    mapping: tuple[TableMapping, ...] | None,
    segments: Sequence[SegmentFile],
    parallelism: int,
    framed: tuple[Rule, Framed] | None = None,
    memory: int = 2**30,
    connections: ResolvedConnections = ResolvedConnections({}),  # noqa: B008 - frozen
) -> list[StageUnit]:
    """Return units of about equal cost. A file is never cut: it is as large as the unit that wrote it.

    ``framed``: the output of a rule of type spark. ``connections``: with the logins for files that rows name.
    """
    by_table: dict[TableId, list[SegmentFile]] = {}
    for file in segments:
        by_table.setdefault(file.table_id, []).append(file)
    parts = [
        StagePart(table.table_id, (file,), tuple(by_table.get(table.table_id, segments)))
        for table in tables
        for file in measured(store, table.files)
    ]
    if framed is not None:
        rule, frames = framed
        for table in sorted({*frames.images, *frames.inputs}):
            files, inputs = frames.images.get(table, ()), frames.inputs.get(table, ())
            most = unit_size(1 << 62, 1, memory)
            of = min(max(1, -(-packing.rows_of((*files, *inputs)) // most)), KEY_BUCKETS)
            own_segments = tuple(by_table.get(table, segments))
            parts += [StagePart(table, files, own_segments, rule, inputs, (number, of)) for number in range(of)]
    total = sum(part.cost for part in parts)
    groups = pack([(part, part.cost) for part in parts], unit_size(total, parallelism * 2, memory))
    return [
        StageUnit(store.uri, store.pipeline, batch, attempt, number, tuple(group), ruling, mapping, small, connections)
        for number, (group, small) in enumerate(zip(groups, small_parts(groups), strict=True))
    ]


def run_stage_unit(unit: StageUnit) -> MergeResult:
    """Read, apply rules, map if it is the last stage, write.

    Raises SegmentError, RuleError, MappingError, StorageUnavailable.
    """
    started = time.perf_counter()
    stage = unit.stage()
    result = MergeResult((), (), 0.0)
    for number, part in enumerate(unit.parts):
        if part.framed is not None:
            rows, passed = fold_files(stage.store, part.files, part.inputs, part.framed, part.share)
            buckets, revived = (0, KEY_BUCKETS - 1), any(file.revived for file in part.inputs)
            dumped: Dumped = ""
            result += MergeResult((), (RuleCount(part.framed.name, -passed, 0, 0.0),), 0.0)
        else:
            rows, revived = read_changeset_file(stage.store, part.files[0]), part.files[0].revived
            buckets, dumped = (part.files[0].bucket_min, part.files[0].bucket_max), part.files[0].dumped
        small = number in unit.small
        result += write_part(
            stage,
            StageRows(
                name=unit.name(number),
                source=part.source,
                rows=rows,
                buckets=buckets,
                segments=part.segments,
                revived=revived,
                dumped=dumped,
                small=small,
            ),
        )
    return replace(result, seconds=time.perf_counter() - started)


def log_files(pipeline: str, batch: int, results: Sequence[MergeResult], store: SegmentStore, seconds: float) -> None:
    """Log what became of the files that rows name, and forget the progress of the units.

    ``seconds``: that the stage took.
    """
    files = sum((result.files for result in results), FileTotals())
    if not files:
        return
    forget_progress(store, batch)
    log_batch(
        _log,
        "files_copied",
        pipeline=pipeline,
        batch=batch,
        copied=files.copied,
        unchanged=files.unchanged,
        missing=files.absent + files.refused,
        dead_letters=files.rejected,
        size_bytes=files.size_bytes,
        bytes_per_s=round(files.size_bytes / seconds) if seconds else 0,
        seconds=round(seconds, 3),
    )


def log_totals(pipeline: str, batch: int, totals: Sequence[RuleTotal]) -> None:
    """Log one line per rule in the task's log."""
    for rule in totals:
        log_batch(_log, "rule_applied", pipeline=pipeline, batch=batch, **_figures(rule))


def _figures(rule: RuleTotal) -> dict[str, Any]:
    figures = {"rule": rule.name, "rows_in": rule.rows_in, "rows_out": rule.rows_out, "seconds": round(rule.seconds, 4)}
    return figures | ({"errors": rule.errors, "dead_letters": rule.dead_letters} if rule.errors else {})
