"""Schema changes of the source at a target of lake tables: which columns of which table they are about, whatever the
format does with them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import structlog

from sluice.config.pipeline import SNAPSHOT
from sluice.errors import LoadError, TargetUnavailable
from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.model.row_effects import ColumnEffect
from sluice.model.schema_changes import ChangeKind, ColumnChange, TableChange
from sluice.model.tables import TableId
from sluice.targets.feature_check import to_ignore
from sluice.targets.lake.changelog import BEFORE, SCOPE, column_name, columns_of
from sluice.targets.lake.conversions import Refused
from sluice.targets.lake.format import CommitNote, Edits, Raced
from sluice.targets.lake.schema import LakeSchema
from sluice.targets.lake.tables import STATEMENTS, LakeTables
from sluice.targets.lake.types import TOO_WIDE, LakeColumn, Shape, TableInfo, own_type, takes, widens
from sluice.targets.lake.values import converted
from sluice.targets.port import Fence, SchemaChange
from sluice.targets.schema.conversions import broken, effects_on, not_converted
from sluice.targets.schema.plan import (
    AlterTable,
    CreateTable,
    DropTable,
    EmptyTable,
    Planner,
    RenameTable,
    name_taken,
    type_of,
)
from sluice.targets.schema.policy import (
    Answer,
    Followed,
    OnlyColumns,
    followed,
    has,
    not_filled,
    not_followed,
    require_held,
)


class LakeHeld(OnlyColumns):
    """See :class:`sluice.targets.schema.policy.Held`."""

    def __init__(self, change: SchemaChange, tables: LakeTables) -> None:
        super().__init__(change)
        self.tables = tables
        self._infos: dict[TableId, TableInfo | None] = {}

    def _info(self, table: TableId) -> TableInfo | None:
        if table not in self._infos:
            lake_table = self.tables.open(table)
            self._infos[table] = self.tables.format.info(lake_table) if lake_table is not None else None
        return self._infos[table]

    def column(self, table_change: TableChange, name: str) -> str | None:
        """Return the name by the mapping, escaped in a table of changes if it is one of Sluice's columns."""
        target_name = super().column(table_change, name)
        return column_name(target_name) if target_name is not None and self.tables.every else target_name

    def columns(self, table: TableId) -> Mapping[str, str] | None:
        """Return the columns of the table, case-folded name -> name; None if the table is missing."""
        info = self._info(table)
        return {column.name.casefold(): column.name for column in info.columns} if info is not None else None

    def type(self, table: TableId, name: str, part: ColumnChange, effect: ColumnEffect | None) -> Answer:
        """Return HAS if the table's column takes the values of the new type; UNSEEN if its rows were converted."""
        info, new = self._info(table), part.new
        assert info is not None
        assert new is not None
        column, column_type = info.find(name), self.change.meaning.types.get(new)
        if column is None or column_type is None or not isinstance(column.kind, str):
            return Answer.UNSEEN
        fits = takes(column_type, column.kind)
        return has(fits) if effect is None or not fits else Answer.UNSEEN


K = ChangeKind
_NO_NAMES = frozenset({K.TRUNCATE_TABLE, K.ROWS_REMOVED, K.ROWS_REPLACED, K.UNKNOWN})
"""Rows went that no change names."""
_BY_HAND = frozenset({K.DROP_TABLE, K.RENAME_TABLE, K.DROP_DATABASE})
FOLLOWED_MERGED = (frozenset(ChangeKind) - _NO_NAMES - _BY_HAND) | {K.TRUNCATE_TABLE}
"""The kinds that are followed with merged rows. Keys, indexes, NULL, defaults, comments and options need nothing."""
FOLLOWED_CHANGES = frozenset(ChangeKind) - _NO_NAMES
"""The kinds that are followed with every change: old columns stay, as the changes that have them do."""

OF_COLUMNS = frozenset({K.ADD_COLUMN, K.DROP_COLUMN, K.RENAME_COLUMN, K.WIDEN_COLUMN, K.CHANGE_COLUMN})

_ATTEMPTS = 10
_log = structlog.get_logger()


@dataclass(frozen=True)
class LakeFollower:
    """Follows one change."""

    tables: LakeTables
    fence: Fence
    change: SchemaChange

    def run(self) -> None:
        """Follow the change. Raises LoadError, Fenced, TargetUnavailable."""
        if self.change.check_only:
            require_held(self.change, LakeHeld(self.change, self.tables))
            return
        for part in followed(self.change):
            for attempt in range(_ATTEMPTS):
                try:
                    self._follow(part)
                    break
                except Raced:
                    time.sleep(0.02 * 2**attempt)
            else:
                raise TargetUnavailable(
                    f"following {self.change.statement.text[:200]}: other writers were quicker", where=self.change.where
                )

    # -- inside ----------------------------------------------------------------------------------------------------
    def note(self, source: TableId, what: str, lake_table: Any) -> CommitNote | None:
        """Return the commit note for part ``what`` of the statement; None if the table has noted it already.

        Raises Fenced. Raises CheckpointError if the table was set back.
        """
        scope, number = f"{source}/{what}", self.fence.batch * STATEMENTS + self.change.number + 1
        rows = SCOPE if self.tables.every else str(source)
        checkpoint = self.tables.checkpoints.guard(self.fence)
        self.tables.require_ahead(self.change.target(source), lake_table, rows, checkpoint.delivery)
        if self.tables.noted(lake_table, scope, checkpoint.delivery) >= number:
            return None
        doing = f"following {self.change.where}"
        return self.tables.note(self.fence, scope, number, checkpoint.delivery, doing, {"sluice.scope": rows})

    def _follow(self, part: Followed) -> None:
        if self.tables.every:
            self._extend(part)
            return
        for step in Planner(self.change, LakeHeld(self.change, self.tables)).steps(part):
            match step:
                case DropTable(table) | RenameTable(table):
                    raise self.by_hand(f"no table is dropped or renamed, and {table} would be")
                case EmptyTable():
                    self._empty(step.source, step.table)
                case CreateTable():
                    self._create(step.one, step.after, step.table)
                case AlterTable():
                    self._change(step, part.kinds)

    def _extend(self, part: Followed) -> None:
        """Extend a table of changes: it keeps its name and all columns; a table or column with a new name is another
        one.
        """
        table_change, after = part.one, part.one.after
        renamed = table_change.renamed_to if K.RENAME_TABLE in part.kinds else None
        name = renamed or table_change.table
        if after is None or name in self.change.not_captured or K.DROP_TABLE in part.kinds:
            return
        target = self.change.target(name)
        table = self.tables.open(target)
        if table is None:
            if renamed is not None or part.cut_over or K.CREATE_TABLE in part.kinds:
                self._create(table_change, after, target)
        elif part.kinds & (OF_COLUMNS | {K.RENAME_TABLE, K.CREATE_TABLE}):
            info, pairs = self.tables.format.info(table), self._wanted(table_change, after.columns)
            wider = self._wider(info, pairs, {})
            edits = Edits(table_change.table, target, wider=wider, wanted=tuple(pairs), every=True)
            self.tables.format.edit_schema(edits, table, self)

    def _change(self, step: AlterTable, kinds: frozenset[ChangeKind]) -> None:
        table = self.tables.required(step.table)
        if step.copied:
            self._empty(step.source, step.table, "emptied")
            table = self.tables.required(step.table)
        if self._converted(step, table):
            table = self.tables.required(step.table)
        if OF_COLUMNS & kinds:
            edits = self._edits(step, self.tables.format.info(table), kinds)
            self.tables.format.edit_schema(edits, table, self)

    def _create(self, table_change: TableChange, after: TableDefinition, target: TableId) -> None:
        users = [column for _, column in self._wanted(table_change, after.columns)]
        columns = {column.name: column for column in (columns_of(users) if self.tables.every else users)}
        unfit = LakeSchema(self.tables).unfit_layout(target, list(columns.values()))
        if unfit and self.tables.open(target) is None:
            raise self.by_hand(f"the table cannot be made as the options say: {unfit[0].why}")
        self.say(f"CREATE TABLE {target}")
        partitions = self.tables.options.partitions(target)
        self.tables.format.create(self.tables.format.names(target), list(columns.values()), partitions)

    def _empty(self, source: TableId, target: TableId, what: str = "ddl") -> None:
        """Remove all rows, in a commit that notes part ``what`` of the statement."""
        table = self.tables.open(target)
        note = self.note(source, what, table) if table is not None else None
        if note is not None and not self.tables.format.is_empty(table):
            self.say(f"TRUNCATE TABLE {target}")
            self.tables.format.empty(target, table, note)

    def _edits(self, step: AlterTable, info: TableInfo, kinds: frozenset[ChangeKind]) -> Edits:
        """Return the edits of a table. Raises LoadError for what the format cannot do."""
        if step.one.reuses_names:
            raise self.by_hand("a column is dropped and another of its name is added, which would have its values")
        drops, names = (
            frozenset(step.drops),
            {old: new for old, new in step.renames if old.casefold() != new.casefold()},
        )
        parted = drops & set(info.partitions)
        if parted:
            raise self.by_hand(f"the table is partitioned by {min(parted)}")
        odd = next((name for name in names.values() if self.tables.format.odd_name(name)), None)
        if odd is not None:
            raise self.by_hand(f"no column has the name {odd!r} there")
        pairs = tuple(self._wanted(step.one, step.after.columns))
        wider = self._wider(info, pairs, names) if kinds & {K.WIDEN_COLUMN, K.CHANGE_COLUMN} else {}
        return Edits(
            step.source, step.table, drops, names, wider, pairs, step.adds, step.clash, emptied=bool(self.change.copies)
        )

    def _converted(self, step: AlterTable, table: Any) -> bool:
        """Convert existing rows as the source did; return False if there was nothing to convert.

        Raises LoadError.
        """
        info, steps, effects = self.tables.format.info(table), {}, {}
        for effect in effects_on(self.change, step.source):
            name = self._name(step.one, effect.old.name)
            column = info.find(name) if name is not None else None
            if column is None or self._name(step.one, effect.new.name) is None:
                continue
            if effect.unknown:
                raise not_converted(self.change, effect, step.table)
            steps[column.name], effects[column.name] = effect.steps, effect
        if not steps:
            return False
        self._edits(step, info, OF_COLUMNS)  # no row is converted before it is known that the columns can be changed
        try:
            note = self.note(step.source, "convert", table)
            if note is not None and not self.tables.format.is_empty(table):
                self.tables.format.convert(step.table, table, note, steps, self.say)
        except Refused as error:
            why = broken(error.kind) if error.kind is not None else error.why
            raise not_converted(self.change, effects[error.column], step.table, why) from error
        return True

    def _name(self, table_change: TableChange, column: str) -> str | None:
        """Return the target's name of a source column, None for one that is not delivered."""
        return LakeHeld(self.change, self.tables).column(table_change, column)

    def _wanted(
        self, table_change: TableChange, columns: Sequence[ColumnDefinition]
    ) -> list[tuple[ColumnDefinition, LakeColumn]]:
        pairs = []
        for column in columns:
            name = self._name(table_change, column.name)
            if name is None or column.generated is not None:
                continue
            kind = own_type(type_of(self.change, column), self.tables.options.wide_decimals)
            if not kind:
                raise self.by_hand(f"column {column.name} is {column.type}, and {TOO_WIDE}")
            if self.tables.format.odd_name(name):
                raise self.by_hand(f"no column has the name {name!r} there")
            pairs.append((column, LakeColumn(name, kind)))
        return pairs

    def _wider(
        self, info: TableInfo, pairs: Sequence[tuple[ColumnDefinition, LakeColumn]], names: Mapping[str, str]
    ) -> dict[str, Shape]:
        """Return wider types by current column names; in a table of changes also that of the before image."""
        types: dict[str, Shape] = {}
        now = {new.casefold(): old for old, new in names.items()}
        inner = info.find(BEFORE) if self.tables.every else None
        before = list(inner.kind) if inner is not None and not isinstance(inner.kind, str) else []
        parts = {part.name.casefold(): place for place, part in enumerate(before)}
        for column, lake_column in pairs:
            stored = info.find(now.get(lake_column.name.casefold(), lake_column.name))
            if stored is not None and (kind := self._widened(column, lake_column, stored)) is not None:
                types[stored.name] = kind
            place = parts.get(lake_column.name.casefold())
            if place is not None and (kind := self._widened(column, lake_column, before[place])) is not None:
                before[place] = replace(before[place], kind=kind)
        if inner is not None and tuple(before) != inner.kind:
            types[inner.name] = tuple(before)
        return types

    def _widened(self, column: ColumnDefinition, lake_column: LakeColumn, stored: LakeColumn) -> str | None:
        """Return the wider type that a column needs, None if its own is enough. Raises LoadError."""
        if isinstance(stored.kind, str) and takes(type_of(self.change, column), stored.kind):
            return None
        if isinstance(stored.kind, str) and isinstance(lake_column.kind, str) and widens(stored.kind, lake_column.kind):
            return lake_column.kind
        if self.change.copies and isinstance(stored.kind, str) and isinstance(lake_column.kind, str):
            return lake_column.kind  # the table is empty
        raise self.by_hand(f"column {lake_column.name} is {stored.kind}, which cannot hold values of {column.type}")

    def fill(self, column: ColumnDefinition, lake_column: LakeColumn, target: TableId) -> pa.Scalar | None:
        """Return the value that existing rows get in a new column, as at the source; None for NULL.

        Raises LoadError.
        """
        default = self.change.meaning.default_value(column)
        if default.value is None:
            raise self._not_filled(column, target, default.why)
        assert isinstance(lake_column.kind, str)
        try:
            values, odd = converted(pa.repeat(default.value, 1), type_of(self.change, column), lake_column.kind)
        except pa.ArrowException as error:
            raise self._not_filled(
                column, target, f"no {lake_column.kind} holds its default {column.default}"
            ) from error
        if odd is not None and self.tables.options.zero_dates == "refuse":
            why = "it is a date that no calendar has (options: {zero_dates: 'null'} writes NULL for such dates)"
            raise self._not_filled(column, target, why)
        value = values[0]
        return value if value.is_valid else None

    def _not_filled(self, column: ColumnDefinition, target: TableId, why: str) -> LoadError:
        ignored = to_ignore(self.change.consumer, "add_column")
        hint = f"{ignored}; before the copy, add the column (`sluice check PIPELINE --apply`)"
        if self.change.consumer != SNAPSHOT:
            hint = (
                f"{ignored}, add the column (`sluice check PIPELINE --apply`), then copy the table anew (`sluice dump "
                "start`), which copies the source's values"
            )
        return not_filled(self.change, target, column.name, why, hint)

    def refuse_clash(self, edits: Edits) -> None:
        """Raise LoadError for a clash.

        Ask it for a statement that is not noted yet: where it is, the names are as after it.
        """
        if edits.clash:
            raise name_taken(self.change, edits.clash)

    def say(self, sql: str) -> None:
        """Log a statement that this follower runs."""
        _log.info(
            "target_ddl_issued", target=self.tables.owner.replace("/", "."), statement=sql, source=self.change.where
        )

    def by_hand(self, why: str) -> LoadError:
        """Return the error that people have to follow the change."""
        return not_followed(self.change, why, self.tables.format.BY_HAND)
