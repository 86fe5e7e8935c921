"""Rules inside a work unit: what they need is sent with the unit, what they reject goes to the dead-letter store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from sluice.config.connections import ConnectionResolver
from sluice.config.engine import RuleKind
from sluice.config.masking import Masking
from sluice.config.pipeline import Event, PipelineConfig
from sluice.config.resolved import ResolvedConnections
from sluice.errors import ConfigError
from sluice.flows.transform.dead_letter_files import Written, write_rejected
from sluice.flows.transform.lookups import LookupReader
from sluice.mapping import Mapping as Routes
from sluice.model.fields import declared_type, described, true_name
from sluice.model.row_ops import Dumped
from sluice.model.tables import META_COLUMNS, TableId
from sluice.rules import RuleCount, Ruled, RuleSet
from sluice.rules.script import Rule
from sluice.segments.changeset import RuleTotal
from sluice.segments.manifest import SegmentFile
from sluice.segments.store import SegmentStore


@dataclass(frozen=True)
class StageRules:
    """The rules of one stage of a batch, and what they need. Picklable.

    Attributes:
        rules: with the contents of their files when the stage began. A task of Spark that is run again uses the same
            ones.
        masking: columns whose values stay out of errors. endpoints: of the connections that lookups name.
        folder: of engine.yaml; files of lookups are relative to it. stage: number of the stage.
    """

    rules: RuleSet = field(default_factory=RuleSet)
    masking: Masking = field(default_factory=Masking)
    endpoints: ResolvedConnections = field(default_factory=lambda: ResolvedConnections({}))
    folder: str = ""
    stage: int = 0

    @classmethod
    def of(
        cls, rules: RuleSet, pipeline: PipelineConfig, rules_path: Path | None, resolver: ConnectionResolver | None
    ) -> StageRules:
        """Build the rules of a stage, with the connections of lookups resolved. Raises ConfigError."""
        wanted_connections = {
            lookup.connection for rule in rules for lookup in rule.config.lookups.values() if lookup.connection
        }
        if wanted_connections and resolver is None:
            raise ConfigError(
                f"lookups need the connection {min(wanted_connections)!r}, and no connection resolver was given"
            )
        endpoints = (
            ResolvedConnections.of(resolver, wanted_connections) if resolver is not None else ResolvedConnections({})
        )
        return cls(rules, Masking(pipeline.masked), endpoints, str(rules_path.parent.resolve()) if rules_path else "")

    def concerning(self, table: TableId) -> bool:
        """Return True if a rule may apply to ``table``."""
        return bool(self.rules.matching(table).rules)

    def reader(self, rule: Rule) -> LookupReader:
        """Return the reader of the lookups of ``rule``."""
        return LookupReader(rule.name, rule.engine, self.folder, self.endpoints)

    def apply(self, merged: pa.Table, source: TableId, *, each: bool = False, dumped: Dumped = "") -> Ruled:
        """Run the rules over merged rows of ``source``, see :meth:`sluice.rules.RuleSet.apply`. Raises RuleError."""
        readers = {rule.name: self.reader(rule) for rule in self.rules if rule.config.lookups}
        return self.rules.apply(merged, source, lookups=readers, masking=self.masking, each=each, dumped=dumped)

    def hides(self, rows: pa.Table, source: TableId) -> bool:
        """Return True if values of some column must not be shown."""
        return bool(self.masking.hidden(source.schema, source.table, map(true_name, rows.schema)))

    def tagged(self, rows: pa.Table, source: TableId) -> pa.Table:
        """Mark masked columns; the mark stays with the rows."""
        hidden = self.masking.hidden(source.schema, source.table, map(true_name, rows.schema))
        return with_mark(rows, lambda field: true_name(field) in hidden) if hidden else rows

    def keep_rejected(
        self,
        store: SegmentStore,
        batch: int,
        attempt: str,
        part: str,
        *,
        source: TableId,
        ruled: Ruled,
        segments: Sequence[SegmentFile],
    ) -> list[Written]:
        """Write what the rules rejected, before anything that lacks those rows is written."""
        return [
            write_rejected(
                store,
                batch,
                attempt,
                f"{part}-{re.sub('[^A-Za-z0-9_-]', '_', rejected.rule)}",
                source=source,
                rejected=rejected,
                segments=segments,
                masking=self.masking,
                stage_number=self.stage,
            )
            for rejected in ruled.rejected
        ]


def why_not_cleared(
    pipeline: PipelineConfig, rules: RuleSet, tables: Iterable[TableId], captured: Iterable[TableId]
) -> dict[TableId, str]:
    """Return the tables whose target may hold rows of other origin under a key of the source, with the reason."""
    routes = Routes.of(pipeline)
    ways: dict[TableId, set[TableId]] = {}
    for table in captured:
        ways.setdefault(routes.route(table).target, set()).add(table)
    reasons = {}
    for table in tables:
        route = routes.route(table)
        sharing = ways.get(route.target, set()) - {table}
        if not {Event.DELETE, Event.INSERT} <= set(pipeline.capture.events):
            reasons[table] = "the pipeline does not capture deletes and inserts: the targets hold other rows on purpose"
        elif sharing or route.shared:
            reasons[table] = f"{route.target} is written from other source tables, too"
        elif any(str(table) in rule.config.emits for rule in rules):
            reasons[table] = "rules send rows of other tables to it"
    return reasons


def cleared_tables(
    pipeline: PipelineConfig,
    rules: RuleSet,
    tables: Iterable[TableId],
    captured: Iterable[TableId],
    *,
    in_channel: bool,
) -> frozenset[TableId]:
    """Return the tables of which a target deletes the keys that a dump read and for which the rules give nothing.

    A table is left out if other rows may come to such a key (:func:`why_not_cleared`), as are those of a pipeline in a
    channel, whose other site has rows of its own, and those with a rule of type spark, which loses what a dump read.
    """
    ruled = [table for table in tables if rules.matching(table).rules]
    if in_channel or not ruled:
        return frozenset()
    framed = {table for table in ruled if any(rule.kind is RuleKind.SPARK for rule in rules.matching(table))}
    return frozenset(ruled) - framed - set(why_not_cleared(pipeline, rules, ruled, captured))


def with_mark(rows: pa.Table, is_masked: Callable[[pa.Field], bool]) -> pa.Table:
    """Set ``sluice.masked`` on the user fields for which ``is_masked``."""
    fields = [
        described(field, masked="1") if field.name not in META_COLUMNS and is_masked(field) else field
        for field in rows.schema
    ]
    return pa.table(rows.columns, schema=pa.schema(fields))


def tagged_as_made(rows: pa.Table) -> pa.Table:
    """Mark columns that rules made of a table with masked columns, as they may hold masked values."""
    return with_mark(rows, lambda field: not declared_type(field))


def rule_totals(counts: Iterable[RuleCount], written: Iterable[Written]) -> tuple[RuleTotal, ...]:
    """Sum up each rule over all units, in the order in which the rules ran."""
    letters: dict[str, int] = {}
    for file in written:
        letters[file.by] = letters.get(file.by, 0) + file.rows
    totals: dict[str, RuleCount] = {}
    for count in counts:
        known_total = totals.get(count.name, RuleCount(count.name, 0, 0, 0.0))
        totals[count.name] = RuleCount(
            count.name,
            known_total.rows_in + count.rows_in,
            known_total.rows_out + count.rows_out,
            known_total.seconds + count.seconds,
            known_total.errors + count.errors,
            None if known_total.changed is None or count.changed is None else known_total.changed + count.changed,
        )
    return tuple(
        RuleTotal(
            name=c.name,
            rows_in=c.rows_in,
            rows_out=c.rows_out,
            seconds=round(c.seconds, 6),
            errors=c.errors,
            dead_letters=letters.get(c.name, 0),
            changed=c.changed,
        )
        for c in totals.values()
    )
