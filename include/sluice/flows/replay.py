"""replay: dead letters go to their targets after what was wrong is mended, behind the target's fence and never over a newer row.

A letter of batch N is out of date if its row was changed in a later batch that the target holds: what the target has is newer then, and the letter
is settled as *superseded*. That is looked up in the stored batches N+1 to the last one held, by the row's key at the source (in the segments)
and at the target (in the changesets). The target's lease is held meanwhile, so that nothing is loaded between the look and the write. If one of those
batches is no longer stored nobody can say, and the letter stays.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from sluice.config.engine import RuleKind
from sluice.coordination.state import PipelineState
from sluice.errors import RuleError, SegmentError, SluiceError
from sluice.flows.changeset import columns_of, read_changeset, read_changeset_file
from sluice.flows.inspect import manifest_of
from sluice.flows.letters import Letter, letters, read_row, settle, skipped_tables
from sluice.flows.ruling import Ruling, tagged_as_made
from sluice.flows.runtime import Runtime
from sluice.flows.stagefiles import stages_of
from sluice.mapping import Mapping as Routes
from sluice.model.tables import TableId
from sluice.rules import RuleSet
from sluice.segments.manifest import SegmentManifest
from sluice.segments.reader import read_file
from sluice.targets import Fence, PlannedTable, TableChanges, Target, open_target

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of a letter at a target: replayed, superseded, failed or unproven; the last two go on waiting."""

    id: str
    target: str
    outcome: str
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def replay(
    runtime: Runtime, ids: Sequence[str], *, target: str | None = None, by: str, dry_run: bool = False
) -> list[Replayed]:
    """Replay waiting letters, oldest first.

    Args:
        ids: beginnings of ids; none: all that wait. target: only for this target.
        dry_run: only say what would become of each.

    Raises:
        LeaseHeld: a load of the target is under way. Fenced: a newer process took over.
    """
    waiting = [one for one in letters(runtime) if not ids or any(one.id.startswith(wanted) for wanted in ids)]
    done: list[Replayed] = []
    with runtime.state() as state:
        for config in runtime.pipeline.targets:
            mine = [one for one in waiting if config.name in one.waiting and target in {None, config.name}]
            if not mine:
                continue
            with state.consumer(config.name) as lease:
                loader = open_target(config, runtime.resolver, runtime.name)
                held = loader.acked_batch() if dry_run else loader.begin_load(lease.epoch)
                work = _Replay(runtime, state, loader, config.name, lease.epoch, held, dry_run)
                for one in mine:
                    outcome = work.letter(one)
                    done.append(outcome)
                    if not dry_run and outcome.outcome in {"replayed", "superseded"}:
                        settle(runtime.store, [(one, config.name, outcome.outcome)], by=by)
        if not dry_run and done:
            counts: dict[str, int] = {}
            for outcome in done:
                counts[outcome.outcome] = counts.get(outcome.outcome, 0) + 1
            state.audit(by=by, what="replay dead letters", details=counts)
            _log.info("replayed", pipeline=runtime.name, **counts)
    return done


def discard(runtime: Runtime, ids: Sequence[str], *, by: str, reason: str) -> list[Letter]:
    """Settle letters without delivering them. They stay in the store until retention removes them."""
    found = [one for one in letters(runtime) if any(one.id.startswith(wanted) for wanted in ids)]
    settle(runtime.store, [(one, t, "discarded") for one in found for t in one.waiting], by=by, reason=reason)
    with runtime.state() as state:
        state.audit(by=by, what="discard dead letters", details={"ids": [one.id for one in found], "reason": reason})
    return found


@dataclass
class _Replay:
    """One target's turn; its lease is held."""

    runtime: Runtime
    state: PipelineState
    loader: Target
    target: str
    epoch: int
    held: int
    dry_run: bool

    def letter(self, one: Letter) -> Replayed:
        """One letter; what is wrong with it is its outcome."""
        if one.batch > self.held:
            return Replayed(one.id, self.target, "failed", f"the target does not hold batch {one.batch} yet")
        try:
            if one.stage == "skip":
                parts = list(skipped_tables(self.runtime.store, one))
            else:
                row = read_row(self.runtime.store, one)
                parts = [
                    (
                        TableId(*one.table.split(".", 1)),
                        row.drop_columns([n for n in row.schema.names if n.startswith("_dl_")]),
                    )
                ]
            written = sum(self._rows(one, table, rows) for table, rows in parts)
        except _Unproven as error:
            return Replayed(one.id, self.target, "unproven", str(error))
        except SegmentError as error:
            return Replayed(one.id, self.target, "failed", str(error))
        except SluiceError as error:
            if error.retryable:
                raise
            return Replayed(one.id, self.target, "failed", str(error))
        return Replayed(one.id, self.target, "replayed" if written else "superseded")

    def _rows(self, one: Letter, table: TableId, rows: pa.Table) -> int:
        """Rows written (or that would be): those that nothing newer replaced."""
        if one.stage == "load":
            return self._write(one, table, rows)
        fresh = rows.filter(pc.invert(_among(rows, self._changed_since(one.batch, table, rows))))
        if not fresh.num_rows:
            return 0
        written = 0
        for place, mapped in self._transformed(one, table, fresh):
            written += self._write(one, place, mapped)
        return max(written, int(fresh.num_rows))  # a rule may leave them out: that is delivered, too

    def _transformed(self, one: Letter, table: TableId, rows: pa.Table) -> Iterator[tuple[TableId, pa.Table]]:
        """Through the rules, from the stage in which the row was rejected, and the mapping, as they are now."""
        path = self.runtime.rules_path
        stages = stages_of(RuleSet.load(path) if path else RuleSet())
        begun = next((i for i, stage in enumerate(stages) if one.by in {rule.name for rule in stage}), one.stage_number)
        rules = RuleSet(tuple(rule for stage in stages[begun if one.stage == "rule" else 0 :] for rule in stage))
        frames = [r.name for r in rules.matching(table) if r.kind is RuleKind.SPARK]
        if frames:
            raise RuleError(
                f"rule {frames[0]!r} is of type spark: rows of {table} cannot be replayed one by one",
                hint="`sluice dump` reads them anew from the source",
            )
        ruling = Ruling.of(rules, self.runtime.pipeline, path, self.runtime.resolver)
        ruled = ruling.apply(ruling.tagged(rows, table), table)
        if ruled.rejected:
            raise RuleError(ruled.rejected[0].reasons[0], where=ruled.rejected[0].places[0])
        hides = ruling.hides(rows, table)
        routes = Routes.compile(self.runtime.pipeline.mapping)
        for place, out in ruled.tables.items():
            if out.num_rows:
                route = routes.route(place)
                yield route.target, route.apply(tagged_as_made(out) if hides else out)

    def _write(self, one: Letter, table: TableId, rows: pa.Table) -> int:
        fresh = rows.filter(pc.invert(_among(rows, self._loaded_since(one.batch, table, rows))))
        if not fresh.num_rows or self.dry_run:
            return int(fresh.num_rows)
        plan = replace_columns(table, fresh)
        known = self.loader.check([plan])[table]
        scope = f"dead letter {one.id} {table}"[:200]
        self.loader.load(
            Fence(self.epoch, self.held, one.batch), [TableChanges(known, fresh, scope=scope)], one_transaction=True
        )
        return int(fresh.num_rows)

    def _later(self, batch: int) -> Iterator[SegmentManifest]:
        """Manifests of the batches after ``batch`` that the target holds. Raises _Unproven if one is no longer stored."""
        stored = set(self.runtime.store.batches())
        for number in range(batch + 1, self.held + 1):
            manifest = manifest_of(self.runtime, self.runtime.store, number) if number in stored else None
            if manifest is None:
                raise _Unproven(
                    f"batch {number} is no longer stored, so nobody can say whether this row was changed since; `sluice dump` reads it anew "
                    "from the source, then `sluice dead-letters discard`"
                )
            if not manifest.targets or self.target in manifest.targets:
                yield manifest

    def _changed_since(self, batch: int, table: TableId, rows: pa.Table) -> list[pa.Table]:
        """Keys of ``table`` at the source that later batches changed."""
        key = _key_names(rows)
        return [
            read_file(self.runtime.store, file, columns=key).select(key)
            for manifest in self._later(batch)
            for file in manifest.files
            if file.table_id == table and key
        ]

    def _loaded_since(self, batch: int, table: TableId, rows: pa.Table) -> list[pa.Table]:
        """Keys of ``table`` at the target that later batches wrote."""
        store, key = self.runtime.store, _key_names(rows)
        found = []
        for manifest in self._later(batch) if key else ():
            record = self.state.batch(manifest.batch)
            stored = (p for p, _ in store.files(manifest.batch) if "/changeset-" in p and p.endswith("/manifest.json"))
            for path in [record.changeset] if record and record.changeset else sorted(stored):
                for entry in read_changeset(store, path).manifest.tables:
                    if entry.target == table:
                        found += [read_changeset_file(store, file).select(key) for file in entry.files]
        return found


class _Unproven(Exception):
    """A batch that would have to be looked into is gone."""


def replace_columns(table: TableId, rows: pa.Table) -> PlannedTable:
    """What the target has to have for these rows."""
    from sluice.flows.changeset import ChangesetTable

    entry = ChangesetTable(
        schema_=table.schema,
        table=table.table,
        source_schema=table.schema,
        source_table=table.table,
        columns=columns_of(rows.schema),
        files=(),
    )
    return replace(entry.plan)


def _key_names(rows: pa.Table) -> list[str]:
    keys = [(int(f.metadata[b"sluice.key"]), f.name) for f in rows.schema if f.metadata and b"sluice.key" in f.metadata]
    return [name for _, name in sorted(keys)]


def _among(rows: pa.Table, later: Sequence[pa.Table]) -> pa.Array:
    """Which rows have a key of ``later``."""
    key = _key_names(rows)
    if not key or not later:
        return pa.array([False] * rows.num_rows)
    seen = {item for table in later for item in _key_values(table, key, rows.schema)}
    return pa.array([item in seen for item in _key_values(rows, key, rows.schema)], pa.bool_())


def _key_values(rows: pa.Table, key: Sequence[str], schema: pa.Schema) -> Iterator[tuple[Any, ...]]:
    """Keys in a form in which those are equal that the server holds equal, as far as its collation says."""
    columns = []
    for name in key:
        collation = (schema.field(name).metadata or {}).get(b"sluice.collation", b"").decode()
        values = (
            rows[name].to_pylist()
            if not pa.types.is_temporal(rows[name].type)
            else rows[name].cast(pa.int64() if rows[name].type.bit_width == 64 else pa.int32()).to_pylist()
        )
        columns.append([_folded(v, collation) for v in values])
    return zip(*columns, strict=True)


def _folded(value: Any, collation: str) -> Any:
    if not isinstance(value, str) or collation.endswith("_bin"):
        return value
    text = unicodedata.normalize("NFKD", value)
    if "_as" not in collation:
        text = "".join(c for c in text if not unicodedata.combining(c))
    return (text if "_cs" in collation else text.casefold()).rstrip(" ")
