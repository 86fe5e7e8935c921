"""Turn what a user asks to dump into one checked request per table: which keys, under which condition, about how many
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError
from sluice.flows.dump.key_lists import TimeRange, touched_keys, typed_keys, write_keys
from sluice.flows.dump.reconcile import key_plan
from sluice.flows.runtime import Runtime
from sluice.mapping import Mapping as Routes
from sluice.model.dumps import TableRequest
from sluice.model.tables import TableId
from sluice.model.whole_rows import LOG_WHOLE_ROWS
from sluice.sources.port import ChunkKey, ChunkTable, SourceSession


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpSpec:
    """The rows that a user asks for.

    Attributes:
        tables: ``schema.table`` names; none: all captured tables that have a key.
        targets: names; none: all.
        where: the user's SQL condition, on one table.
        lower, upper: first and last key, one text per key column; on one table.
        keys: keys as text, columns joined by commas; on one table.
        since, until: ISO 8601 timestamps: the keys that the log touched between them, as far as segments are retained;
            the current rows are dumped.
        index: chunk one table by this index, not by its primary key.
        replace: delete the targets' rows in this selection that the source does not have.
    """

    tables: Sequence[str] = ()
    where: str = ""
    lower: Sequence[str] = ()
    upper: Sequence[str] = ()
    keys: Sequence[str] = ()
    since: str = ""
    until: str = ""
    targets: Sequence[str] = ()
    index: str = ""
    replace: bool = False


def require_together(spec: DumpSpec, tables: int) -> None:
    """Raise ConfigError for a request that contradicts itself."""
    if (spec.lower or spec.upper or spec.where or spec.keys or spec.index) and tables != 1:
        raise ConfigError(
            f"a key range, a list of keys, a condition or an index is for one table, not for {tables}",
            hint="name the table",
        )
    listed = [name for name, choice in (("keys", spec.keys), ("a span of time", spec.since or spec.until)) if choice]
    if len(listed) == 2 or (listed and (spec.lower or spec.upper)):
        raise ConfigError(
            f"{' and '.join([*listed, 'a key range'][:2])} cannot be combined", hint="ask for one of them"
        )
    if spec.index and listed:
        raise ConfigError(
            f"an index and {listed[0]} cannot be combined",
            hint="keys are those that tell rows apart; leave the index out",
        )
    if spec.replace and (spec.where or spec.index):
        raise ConfigError(
            f"rows cannot be replaced {'under a condition' if spec.where else 'by another index than the key'}: what "
            "the target holds outside of it cannot be told from rows that the source deleted",
            hint="ask for a key range, or for the whole table",
        )


@dataclass(kw_only=True)
class DumpPlanner:
    """Turns what a user asks for into one request per table."""

    runtime: Runtime
    state: PipelineState
    source: SourceSession
    asked: DumpSpec
    keyless: set[TableId]
    id: str
    dry_run: bool

    def __post_init__(self) -> None:
        self.span = TimeRange.parse(self.asked.since, self.asked.until)
        self.routes = Routes.of(self.runtime.pipeline)

    def is_keyless(self, table: TableId) -> bool:
        """Return True if neither a primary key nor the mapping tells the table's rows apart."""
        return table in self.keyless and not self.routes.route(table).key

    def request(
        self, ordinal: int, table: TableId, estimate: int, *, replace_rows: bool
    ) -> tuple[TableRequest, str] | None:
        """Return the request, and why its rows are not replaced although all tables should be; None if there is nothing
        to dump.

        Raises ConfigError.
        """
        chunk_table = self.source.chunk_table(table)
        request = self._whole(chunk_table, table, estimate, replace_rows)
        key = chunk_table.key(request)
        why = self._not_replaceable(chunk_table, key, request.identity) if replace_rows and not request.keyless else ""
        if why and self.asked.tables:
            of = f"{self.runtime.name}{''.join(f' --target {target}' for target in self.asked.targets)} --table {table}"
            hint = f"`sluice dump start {of}` copies it, `sluice verify run {of} --repair` then removes other rows"
            raise ConfigError(f"rows of {table} cannot be replaced: {why}", hint=hint)
        if why:
            request = replace(request, replace=False)
        request = self._bounded(chunk_table, request, key)
        if not self.asked.keys and not self.span:
            return request, why
        keys = self._listed(chunk_table, request, key)
        if not keys:
            return None
        path = f"dumps/{self.id}/keys-{ordinal:04d}.parquet"
        if not self.dry_run:
            write_keys(self.runtime.store, path, keys)
        return replace(request, key_file=path, estimate=len(keys)), why

    def _whole(self, chunk_table: ChunkTable, table: TableId, estimate: int, replace_rows: bool) -> TableRequest:
        """Return the request without its key range or keys. Raises ConfigError if such rows cannot be asked for."""
        requested_spec = self.asked
        keyless = replace_rows and self.is_keyless(table)
        request = TableRequest(
            table,
            where=chunk_table.condition(requested_spec.where) if requested_spec.where else "",
            estimate=estimate,
            index=requested_spec.index,
            keyless=keyless,
            identity=self.routes.route(table).key if table in self.keyless else (),
            replace=replace_rows,
        )
        if keyless and (requested_spec.lower or requested_spec.upper or requested_spec.keys or self.span):
            raise ConfigError(
                f"{table} has no primary key: it can only be replaced whole",
                hint="leave out keys, the key range and the span of time",
            )
        if (request.index or request.identity) and not chunk_table.whole_rows_logged:
            raise ConfigError(
                f"{table} can only be cut by its primary key: a row may move from one piece to another, and the log "
                "does not contain whole rows",
                hint=LOG_WHOLE_ROWS,
            )
        return request

    def _bounded(self, chunk_table: ChunkTable, request: TableRequest, key: ChunkKey) -> TableRequest:
        """Add the key range that was asked for, and an estimate of the rows in it. Raises ConfigError."""
        requested_spec, table = self.asked, request.table
        bounds = []
        for bound in (requested_spec.lower, requested_spec.upper):
            if len(bound) > len(key.columns):
                raise ConfigError(
                    f"{len(bound)} values for the key of {table}, which has {len(key.columns)} columns: "
                    f"{', '.join(key.names)}"
                    if key.columns
                    else f"{table} has no index to cut a range by",
                    hint="give one value per key column; a prefix of the key is enough",
                )
            typed = self.runtime.source.keys.typed
            bounds.append(tuple(typed(column, text) for column, text in zip(key.columns, bound, strict=False)))
        if chunk_table.is_reversed(bounds[0], bounds[1]):
            raise ConfigError(
                f"the key range of {table} begins after its end: {', '.join(requested_spec.lower)} is more than "
                f"{', '.join(requested_spec.upper)}"
            )
        request = replace(request, lower=bounds[0], upper=bounds[1])
        if requested_spec.where or requested_spec.lower or requested_spec.upper:
            request = replace(request, estimate=chunk_table.estimate(request, key))
        return request

    def _listed(self, chunk_table: ChunkTable, request: TableRequest, key: ChunkKey) -> list[tuple[str, ...]]:
        """Return the keys that were asked for, or those that the log changed in the given span. Raises ConfigError."""
        identity = request.identity
        if identity:
            key = ChunkKey(tuple(c for n in identity for c in chunk_table.schema.columns if c.name == n), key.index)
        if self.span is not None:
            return touched_keys(
                self.runtime.source.keys,
                self.runtime.store,
                self.state,
                request.table,
                key,
                self.span,
                primary=not identity,
            )
        keys = typed_keys(self.runtime.source.keys, key, self.asked.keys)
        chunk_table.require_taken(request, key, keys)
        return keys

    def _not_replaceable(self, chunk_table: ChunkTable, key: ChunkKey, identity: tuple[str, ...]) -> str:
        """Return why rows cannot be replaced, target by target: it sorts the key differently or has no such table;
        ``""`` if all can.
        """
        schema = chunk_table.schema
        if identity:
            return "its key is one by the mapping only; give it a primary key at the source"
        if chunk_table.has_prefix_key(key):
            return "its key is a prefix of a column"
        plan = key_plan(
            schema.table, schema.arrow_schema, key.names, self.routes.route(schema.table), self.source.identity.dialect
        )
        reasons = []
        for config in self.runtime.pipeline.targets:
            if self.asked.targets and config.name not in self.asked.targets:
                continue
            target = self.runtime.open_target(config.name)
            reconciler = target.reconciler()
            why = reconciler.refuses(plan) if reconciler else f"a target of type {config.type} cannot"
            if why:
                reasons.append(f"target {config.name}: {why}")
        return "; ".join(reasons)
