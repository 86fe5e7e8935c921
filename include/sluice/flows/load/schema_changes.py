"""The DDL of a batch, for a target: which statements it follows, by the target's policy and the pipeline's mapping."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from sluice.config.pipeline import DdlKind, DdlPolicy, PipelineConfig, TargetConfig
from sluice.errors import LoadError
from sluice.mapping import Mapping, TableRoute
from sluice.model.dialects import Dialect
from sluice.model.row_effects import REQUIRES, ColumnEffect, Ran
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.source_words import StatementMeaning
from sluice.model.tables import TableId
from sluice.segments.manifest import DdlRecord, SegmentManifest
from sluice.sources.table_filter import Selection
from sluice.sources.words import words_of
from sluice.targets.feature_check import require_kinds, to_ignore
from sluice.targets.port import Capabilities, Feature, Held, SchemaChange, SourceStatement
from sluice.targets.schema.conversions import effects_at

RowEffects = Callable[[TableChange, Ran], Sequence[ColumnEffect]]
"""What a statement did to the values of a table's columns: :meth:`sluice.sources.port.Source.row_effects`."""

CopiedAgain = Callable[[SchemaChange], Collection[TableId]]
"""Tables that a target has only once they were copied again: :meth:`sluice.targets.port.CopiesAgain.copied_again`."""


ConvertedOtherwise = Callable[[SchemaChange], Collection[TableId]]
"""Tables whose rows a target converts otherwise: :meth:`sluice.targets.port.ConvertsRows.converted_otherwise`."""


_K, _D = ChangeKind, DdlKind
KIND_OF = {
    _K.CREATE_TABLE: _D.CREATE_TABLE, _K.DROP_TABLE: _D.DROP_TABLE, _K.RENAME_TABLE: _D.RENAME_TABLE,
    _K.TRUNCATE_TABLE: _D.TRUNCATE_TABLE,
    _K.ADD_COLUMN: _D.ADD_COLUMN, _K.DROP_COLUMN: _D.DROP_COLUMN, _K.RENAME_COLUMN: _D.RENAME_COLUMN,
    _K.WIDEN_COLUMN: _D.CHANGE_COLUMN,
    _K.CHANGE_COLUMN: _D.CHANGE_COLUMN, _K.MOVE_COLUMN: _D.CHANGE_COLUMN, _K.ALLOW_NULL: _D.CHANGE_COLUMN,
    _K.REQUIRE_VALUE: _D.CHANGE_COLUMN,
    _K.COLUMN_ATTRIBUTES: _D.CHANGE_COLUMN, _K.PRIMARY_KEY: _D.PRIMARY_KEY, _K.INDEXES: _D.INDEXES,
    _K.TABLE_OPTIONS: _D.TABLE_OPTIONS,
    _K.PARTITIONS: _D.PARTITIONS, _K.ROWS_REMOVED: _D.TRUNCATE_TABLE, _K.ROWS_REPLACED: _D.PARTITIONS,
    _K.NOTHING: _D.TABLE_OPTIONS,
    _K.UNKNOWN: _D.CHANGE_COLUMN,
}  # fmt: skip
"""The policy that speaks for each kind of change."""

_WIDENS = {
    _K.CREATE_TABLE, _K.ADD_COLUMN, _K.WIDEN_COLUMN, _K.ALLOW_NULL, _K.COLUMN_ATTRIBUTES, _K.MOVE_COLUMN, _K.INDEXES,
    _K.TABLE_OPTIONS,
    _K.PARTITIONS, _K.NOTHING,
}  # fmt: skip
_NEVER = {_K.ROWS_REPLACED, _K.UNKNOWN}
"""Never applied: rows changed without a row event, or the statement is not understood."""

_DATABASES = {_K.CREATE_DATABASE, _K.ALTER_DATABASE, _K.DROP_DATABASE}


def plan_ddl(
    manifest: SegmentManifest,
    pipeline: PipelineConfig,
    target: TargetConfig,
    offered: Capabilities,
    dialect: Dialect,
    row_effects: RowEffects,
    copied_again: CopiedAgain | None = None,
    converted_otherwise: ConvertedOtherwise | None = None,
) -> tuple[SchemaChange, ...]:
    """Return the schema changes of a batch that the target follows, in log order.

    ``dialect``: of the source's statements. ``converted_otherwise``: None: the target converts rows by the steps that
    its capabilities name.

    Raises:
        LoadError: the policy or the mapping needs a person, or the kind of target cannot do it.
    """
    routes, selection = Mapping.of(pipeline), Selection.compile(pipeline.capture)
    changes: list[SchemaChange] = []
    for record in manifest.ddl:
        change = _change(len(changes), record, routes, selection, target, manifest, dialect, offered)
        if change is None:
            continue
        if change.before_rows and changes and not changes[-1].before_rows:
            raise LoadError(
                "a batch contains rows after a DDL statement",
                where=change.where,
                hint="internal error: please report it",
            )
        effects = _effects(change, routes, target, row_effects, offered.held)
        change = replace(change, effects=effects)
        change = replace(change, copies=_copies(change, target, offered, copied_again, converted_otherwise))
        require_kinds(target, offered, change)
        changes.append(change)
    return tuple(changes)


def _change(
    number: int,
    record: DdlRecord,
    routes: Mapping,
    selection: Selection,
    target: TargetConfig,
    manifest: SegmentManifest,
    dialect: Dialect,
    offered: Capabilities,
) -> SchemaChange | None:
    where = f"{record.file}:{record.offset}"
    changes = tuple(
        c
        for c in map(TableChange.from_json, record.changes)
        if not set(c.kinds) & _DATABASES and (_K.DROP_TABLE in offered.schema_changes or not c.never_was)
    )
    if not changes:
        return None
    kinds = tuple(dict.fromkeys(kind for change in changes for kind in change.kinds))
    policies = {kind: _policy(kind, target) for kind in kinds}
    if set(policies.values()) == {DdlPolicy.IGNORE}:
        return None
    changed_routes = [routes.route(table) for change in changes for table in change.tables]
    shared = next((r for r in changed_routes if r.shared and set(kinds) - _WIDENS), None)
    if shared is not None:
        raise LoadError(
            f"{record.sql[:300]} changes {shared.source}, one of several tables that are written to {shared.target}: "
            "it is not run there",
            where=where,
            hint=f"apply by hand what {shared.target} needs, then "
            f"{to_ignore(target.name, ', '.join(sorted({KIND_OF[k] for k in kinds})))}",
        )
    stops = DdlPolicy.STOP in policies.values() or bool(set(kinds) & _NEVER)
    wanted_policies = {DdlPolicy.APPLY, DdlPolicy.STOP} if stops else {DdlPolicy.APPLY}
    partly = DdlPolicy.IGNORE in policies.values() or any(route.shared for route in changed_routes)
    statement = SourceStatement(
        dialect,
        record.sql,
        record.schema_,
        record.sql_mode,
        record.session,
        record.file,
        record.offset,
        record.gtid,
        record.commit_time_us,
    )
    return SchemaChange(
        number=number,
        where=where,
        statement=statement,
        tables=changes,
        mapping=routes,
        before_rows=record.seq < manifest.changes,
        not_captured=frozenset(t for change in changes for t in change.tables if not selection.wants(t)),
        columns=tuple((r.source, old, new) for r in changed_routes for old, new in r.rename if old != new),
        excluded=tuple((r.source, name) for r in changed_routes for name in _left_out(r, changes)),
        check_only=stops,
        kinds=frozenset(k for k, p in policies.items() if p in wanted_policies) if partly else None,
        recopies=Feature.RECOPIES in offered.features,
        consumer=target.name,
        ddl_kinds=tuple(sorted({str(KIND_OF[kind]) for kind in kinds})),
        stop_kinds=tuple(sorted({str(KIND_OF[kind]) for kind, policy in policies.items() if policy is DdlPolicy.STOP})),
        meaning=StatementMeaning.read(words_of(dialect), _ran(statement), changes),
    )


def _ran(statement: SourceStatement) -> Ran:
    return Ran(statement.text, statement.schema, statement.mode, statement.session)


_NEW_OR_GONE = frozenset({_K.CREATE_TABLE, _K.DROP_TABLE})


def _effects(
    change: SchemaChange, routes: Mapping, target: TargetConfig, row_effects: RowEffects, held: Held
) -> tuple[ColumnEffect, ...]:
    """Return what the statement did to rows that the target has, but for values that stay the same there.

    Of a target with ``changes: all``, and where the policy is to ignore changes of columns, nothing: old rows stay as
    they were.
    """
    if target.changes == "all" or target.ddl_policy(_D.CHANGE_COLUMN) is DdlPolicy.IGNORE:
        return ()
    ran = _ran(change.statement)
    effects = []
    for table_change in change.changes:
        if table_change.table in change.not_captured or _NEW_OR_GONE & set(table_change.kinds):
            continue
        route = routes.route(table_change.table)
        stays = {name for name, _ in route.convert}
        for effect in effects_at(held, change, table_change, row_effects(table_change, ran)):
            if route.target_name(effect.old.name) is None and route.target_name(effect.new.name) is None:
                continue
            if {effect.old.name, effect.new.name} & stays:
                effect = replace(effect, unknown="mapping.columns.convert makes another type of it at the target")
            effects.append(effect)
    return tuple(effects)


def _copies(
    change: SchemaChange,
    target: TargetConfig,
    offered: Capabilities,
    copied_again: CopiedAgain | None,
    converted_otherwise: ConvertedOtherwise | None,
) -> frozenset[TableId]:
    """Return tables that are copied again, as this kind of target cannot surely do to their rows what the source
    did.
    """
    if target.on_conversion != "copy" or change.check_only:
        return frozenset()
    converts = offered.conversions - REQUIRES
    unsure = frozenset(
        converted_otherwise(change)
        if converted_otherwise is not None
        else (e.table for e in change.effects if e.unknown or not {step.kind for step in e.steps} <= converts)
    )
    return unsure | frozenset(copied_again(change) if copied_again is not None else ())


def _policy(kind: ChangeKind, target: TargetConfig) -> DdlPolicy:
    """Return apply, ignore or stop."""
    policy = target.ddl_policy(KIND_OF[kind])
    if policy is DdlPolicy.WIDEN_ONLY:
        return DdlPolicy.APPLY if kind in _WIDENS else DdlPolicy.STOP
    return policy


def _left_out(route: TableRoute, changes: Sequence[TableChange]) -> list[str]:
    tables = [d for c in changes for d in (c.before, c.after) if d is not None and d.table == route.source]
    keys = {name for table in tables for name in table.primary_key}
    names = dict.fromkeys(column.name for table in tables for column in table.columns)
    stays = {name for name, _ in route.convert}  # of another type there, which no statement of the source knows
    return [name for name in names if name not in keys and (route.target_name(name) is None or name in stays)]
