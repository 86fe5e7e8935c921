"""replay: deliver dead letters to their targets after the cause is fixed, under the target's fence and never over a
newer row.

A letter of batch N is out of date if its row was changed in a later batch that the target holds, or its table
truncated: the target's row is newer then, and the letter is settled as *superseded* (see
:mod:`sluice.operations.deadletters.staleness`). The target's lease is held meanwhile, so that nothing is loaded between
the check and the write. If it cannot be known, the letter stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from sluice.config.engine import RuleKind
from sluice.coordination.state import PipelineState
from sluice.errors import RuleError, SegmentError, SluiceError
from sluice.flows.checkpoints import CheckpointCheck
from sluice.flows.planned_columns import planned_columns
from sluice.flows.runtime import Runtime
from sluice.flows.transform.named_files import FileWork, connections_for_files
from sluice.flows.transform.stage_manifest import stages_of
from sluice.flows.transform.stage_rules import StageRules, tagged_as_made
from sluice.mapping import Mapping as Routes
from sluice.model.layouts import without_origin
from sluice.model.offset import NOWHERE
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.operations.deadletters.staleness import LaterBatches, Undecidable
from sluice.operations.deadletters.store import DeadLetter, chosen, read_row, settle, skipped_manifest, skipped_tables
from sluice.rules import Ruled, RuleSet
from sluice.segments.changeset import columns_of
from sluice.segments.manifest import SegmentManifest
from sluice.targets.port import BatchInput, NoFacts, TableInput, Target
from sluice.targets.port.digests import keeping_digests
from sluice.targets.rows_in_memory import MemoryReader, RowsInMemory

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """The outcome of a dead letter at a target: replayed, superseded, failed or unproven.

    Failed and unproven letters stay open.

    An outcome of ``settled`` means that it was settled earlier.
    """

    id: str
    target: str
    outcome: str
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as the command prints it."""
        return asdict(self)


def replay(
    runtime: Runtime, ids: Sequence[str], *, target: str | None = None, by: str, dry_run: bool = False
) -> list[ReplayOutcome]:
    """Replay waiting letters, oldest first.

    Args:
        ids: ids, or the beginning of each; none: all that wait. target: only for this target.
        dry_run: only say what would become of each.

    Raises:
        ConfigError: there is no such letter. LeaseHeld: a load of the target is under way. Fenced: a newer process took
            over.
    """
    wanted_letters = chosen(runtime, ids)
    waiting = [letter for letter in wanted_letters if letter.waiting]
    outcomes = [
        ReplayOutcome(letter.id, name, "settled", f"was {outcome} before")
        for letter in wanted_letters
        for name, outcome in letter.settled.items()
        if target in {None, name} and ids
    ]
    with runtime.state() as state:
        for config in runtime.pipeline.targets:
            own = [letter for letter in waiting if config.name in letter.waiting and target in {None, config.name}]
            if not own:
                continue
            with state.consumer(config.name) as lease:
                loader = runtime.open_target(config.name)
                check = CheckpointCheck(runtime, state, config.name, loader)
                if dry_run:
                    checkpoint = check.read()
                    held_batch = checkpoint.batch if checkpoint else 0
                else:
                    held_batch = check.take_over(lease)
                work = _Replay(
                    runtime=runtime,
                    state=state,
                    loader=loader,
                    target=config.name,
                    epoch=lease.epoch,
                    held=held_batch,
                    dry_run=dry_run,
                )
                outcomes += work.letters(own, by=by)
        if not dry_run and outcomes:
            counts: dict[str, int] = {}
            for outcome in outcomes:
                counts[outcome.outcome] = counts.get(outcome.outcome, 0) + 1
            state.audit.note(by=by, what="replay dead letters", details=counts)
            _log.info("dead_letters_replayed", pipeline=runtime.name, **counts)
    return outcomes


def discard(runtime: Runtime, ids: Sequence[str], *, by: str, reason: str) -> list[DeadLetter]:
    """Settle letters without delivering them. They stay in the store until retention removes them.

    Raises ConfigError: there is no such letter.
    """
    letters = [letter for letter in chosen(runtime, ids) if letter.waiting] if ids else []
    settle(
        runtime.store, [(letter, t, "discarded") for letter in letters for t in letter.waiting], by=by, reason=reason
    )
    with runtime.state() as state:
        state.audit.note(
            by=by, what="discard dead letters", details={"ids": [letter.id for letter in letters], "reason": reason}
        )
    return letters


@dataclass(kw_only=True)
class _Replay:
    """One target's turn; its lease is held."""

    runtime: Runtime
    state: PipelineState
    loader: Target
    target: str
    epoch: int
    held: int
    dry_run: bool
    own: SegmentManifest | None = None
    """The manifest of the letter's batch, if the store may no longer have it."""

    def letters(self, waiting: Sequence[DeadLetter], *, by: str) -> list[ReplayOutcome]:
        """Replay the letters one by one and settle each at once.

        Failed ones are tried again after others succeeded: they may refer to their rows.
        """
        letters: list[ReplayOutcome] = []
        keeping = keeping_digests(self.loader)
        if keeping is not None and waiting and not self.dry_run:
            keeping.digest_store().forget((), "dead letters were replayed")
        while waiting:
            outcomes = []
            for letter in waiting:
                outcomes.append((letter, self.letter(letter)))
                if not self.dry_run and outcomes[-1][1].outcome in {"replayed", "superseded"}:
                    settle(self.runtime.store, [(letter, self.target, outcomes[-1][1].outcome)], by=by)
            went = not self.dry_run and any(outcome.outcome == "replayed" for _, outcome in outcomes)
            waiting = [letter for letter, outcome in outcomes if outcome.outcome == "failed"] if went else []
            letters += [outcome for letter, outcome in outcomes if letter not in waiting]
        return letters

    def letter(self, letter: DeadLetter) -> ReplayOutcome:
        """Replay one letter. An error of the letter itself becomes its outcome."""
        self.own = None
        if letter.batch > self.held:
            return ReplayOutcome(letter.id, self.target, "failed", f"the target does not hold batch {letter.batch} yet")
        try:
            if letter.stage == "skip":
                self.own = skipped_manifest(self.runtime.store, letter)
                parts = skipped_tables(self.runtime.store, letter, Routes.of(self.runtime.pipeline))
            else:
                row = read_row(self.runtime.store, letter)
                own = row.drop_columns([n for n in row.schema.names if n.startswith("_dl_")])
                parts = iter([(TableId(*letter.table.split(".", 1)), own)])
            written = sum(self._rows(letter, table, rows) for table, rows in parts)
        except Undecidable as error:
            return ReplayOutcome(letter.id, self.target, "unproven", str(error))
        except SegmentError as error:
            return ReplayOutcome(letter.id, self.target, "failed", str(error))
        except SluiceError as error:
            if error.retryable:
                raise
            return ReplayOutcome(letter.id, self.target, "failed", str(error))
        return ReplayOutcome(letter.id, self.target, "replayed" if written else "superseded")

    def _rows(self, letter: DeadLetter, table: TableId, rows: pa.Table) -> int:
        """Replay the rows that nothing newer replaced. Return how many were written, or would be in a dry run."""
        if letter.stage == "load":
            return self._write(letter, table, rows)
        fresh = self._fresh(letter, table, rows, at_target=False)
        if not fresh.num_rows:
            return 0
        written = 0
        for place, mapped in self._transformed(letter, table, fresh):
            written += self._write(letter, place, mapped)
        return max(written, int(fresh.num_rows))  # a rule may leave rows out, which counts as delivered, too

    def _fresh(self, letter: DeadLetter, table: TableId, rows: pa.Table, *, at_target: bool) -> pa.Table:
        """Return the rows that are not out of date. Raises Unproven if that cannot be known."""
        afterwards = LaterBatches(self.runtime, self.state, self.target, self.held)
        return rows.filter(pc.invert(afterwards.overtaken(rows, table, letter.batch, self.own, at_target=at_target)))

    def _transformed(self, letter: DeadLetter, table: TableId, rows: pa.Table) -> Iterator[tuple[TableId, pa.Table]]:
        """Apply the current rules, from the stage in which the row was rejected, and then the current mapping."""
        path = self.runtime.rules_path
        stages = stages_of(RuleSet.of(path))
        begun = next(
            (i for i, stage in enumerate(stages) if letter.by in {rule.name for rule in stage}), letter.stage_number
        )
        rules = RuleSet(tuple(rule for stage in stages[begun if letter.stage == "rule" else 0 :] for rule in stage))
        frames = [r.name for r in rules.matching(table) if r.kind is RuleKind.SPARK]
        if frames:
            raise RuleError(
                f"rule {frames[0]!r} is of type spark: rows of {table} cannot be replayed one by one",
                hint=f"`sluice dump start {self.runtime.name} --table {table}` reads them anew from the source, and "
                f"then `sluice dead-letters discard {self.runtime.name}` discards the letters",
            )
        ruling = StageRules.of(rules, self.runtime.pipeline, path, self.runtime.resolver)
        tagged = ruling.tagged(rows, table)
        ruled = ruling.apply(tagged, table)
        if ruled.rejected:
            raise RuleError(ruled.rejected[0].reasons[0], where=ruled.rejected[0].places[0])
        hides = ruling.hides(rows, table)
        routes = Routes.of(self.runtime.pipeline)
        if not self.dry_run:
            self._copy_files(letter, ruled, tagged, table, routes)
        for place, out in ruled.tables.items():
            if out.num_rows:
                route = routes.route(place)
                yield route.target, route.apply(without_origin(tagged_as_made(out) if hides else out))

    def _copy_files(self, letter: DeadLetter, ruled: Ruled, rows: pa.Table, table: TableId, routes: Routes) -> None:
        """Copy the files that the rows name. Raises FileMissing if one is not there and its row may not go without."""
        connections = connections_for_files(self.runtime.pipeline.mapping, self.runtime.resolver)
        FileWork(connections, self.runtime.store, letter.batch, f"replay-{letter.id}", rejects=False).copy(
            ruled, rows, table, routes
        )

    def _write(self, letter: DeadLetter, table: TableId, rows: pa.Table) -> int:
        fresh = self._fresh(letter, table, rows, at_target=True)
        if not fresh.num_rows or self.dry_run:
            return int(fresh.num_rows)
        lines = self.runtime.pipeline.mapping
        promised = [line.unique for line in lines if line.to == str(table) or line.to.endswith(".*") or "\\" in line.to]
        plan = replace(_planned(table, fresh), promised=tuple(key for keys in promised for key in keys))
        given_batch = BatchInput(
            letter.batch,
            NOWHERE,  # the checkpoint stays where it is
            self.held,
            MemoryReader(),
            (TableInput(plan, (RowsInMemory(table, fresh),)),),
            facts=NoFacts(self.runtime.document_name),
            replay=f"dead letter {letter.id} {table}"[:200],
        )
        with self.loader.open(self.epoch) as session:
            writer = session.begin(given_batch)
            writer.prepare()
            writer.commit([unit.write() for phase in writer.plan(1) for unit in phase])
        return int(fresh.num_rows)


def _planned(table: TableId, rows: pa.Table) -> PlannedTable:
    """Return the table with the columns that the target needs for these rows."""
    return PlannedTable(table, table, planned_columns(columns_of(rows.schema)))
