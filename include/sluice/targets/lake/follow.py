"""Schema changes of the source at a target of lake tables: which columns of which table they are about, whatever the format does with them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from sluice.config.pipeline import SNAPSHOT
from sluice.errors import DecodeError, LoadError, TargetUnavailable
from sluice.model.column_types import ColumnType
from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.model.row_effects import Step
from sluice.model.schema_changes import ChangeKind, ColumnChange, TableChange
from sluice.model.tables import TableId
from sluice.targets.lake.changelog import BEFORE, column_name, columns_of
from sluice.targets.lake.checkpoints import Raced
from sluice.targets.lake.column_types import TOO_WIDE, own_type, takes
from sluice.targets.lake.columns import LakeColumn, Shape, TableInfo, widens
from sluice.targets.lake.conversions import NotConvertedError
from sluice.targets.lake.conversions import converted as after_steps
from sluice.targets.lake.held import LakeHeld
from sluice.targets.lake.site import LakeSite, Note
from sluice.targets.lake.values import converted
from sluice.targets.offers import to_ignore
from sluice.targets.port import Fence, SchemaChange
from sluice.targets.schema.conversions import broken, effects_on, not_converted
from sluice.targets.schema.policy import require_held

K = ChangeKind
_NO_NAMES = frozenset({K.TRUNCATE_TABLE, K.ROWS_REMOVED, K.ROWS_REPLACED, K.UNKNOWN})
"""Rows went that no change names."""
_BY_HAND = frozenset({K.DROP_TABLE, K.RENAME_TABLE, K.DROP_DATABASE})
FOLLOWED_MERGED = (frozenset(ChangeKind) - _NO_NAMES - _BY_HAND) | {K.TRUNCATE_TABLE}
"""With merged rows. Keys, indexes, NULL, defaults, comments and options need nothing here."""
FOLLOWED_CHANGES = frozenset(ChangeKind) - _NO_NAMES
"""With every change: old columns stay, as the changes that have them do."""

OF_COLUMNS = frozenset({K.ADD_COLUMN, K.DROP_COLUMN, K.RENAME_COLUMN, K.WIDEN_COLUMN, K.CHANGE_COLUMN})

_ATTEMPTS = 10
_STATEMENTS = 1 << 20
"""More than a batch has."""
_log = structlog.get_logger()


class Refused(Exception):
    """Values of ``column`` cannot be converted as the source did."""

    def __init__(self, column: str, error: NotConvertedError) -> None:
        super().__init__(column)
        self.column, self.kind, self.why = column, error.kind, str(error)


def converted_rows(
    rows: pa.Table, steps: Mapping[str, Sequence[Step]], partitions: Collection[str] = ()
) -> pa.Table | None:
    """Return rows with converted values, None if every value is what it was. ``partitions``: columns by which the table is partitioned.

    Raises Refused.
    """
    changed = False
    for name, todo in steps.items():
        place = rows.schema.get_field_index(name)
        old = rows.column(place).combine_chunks()
        old = old.combine_chunks() if isinstance(old, pa.ChunkedArray) else old
        try:
            new = after_steps(old, todo)
        except NotConvertedError as error:
            raise Refused(name, error) from error
        if name in partitions and pa.types.is_string(new.type) and pc.any(pc.equal(new, "")).as_py():
            why = "an empty text is NULL in a column by which the table is partitioned"
            raise Refused(name, NotConvertedError(None, why))
        if not new.equals(old):
            changed = True
            rows = rows.set_column(place, rows.schema.field(place), new)
    return rows if changed else None


@dataclass(frozen=True)
class LakeFollower(ABC):
    """Follows one change."""

    BY_HAND: ClassVar[str] = ""
    """What people can do about a change that is not followed."""

    site: LakeSite
    fence: Fence
    change: SchemaChange

    @abstractmethod
    def _create(self, one: TableChange, after: TableDefinition, target: TableId) -> None:
        """Make the table."""

    @abstractmethod
    def _alter(
        self, one: TableChange, after: TableDefinition, target: TableId, table: Any, kinds: set[ChangeKind]
    ) -> None:
        """Columns that come, go, have another name or type."""

    @abstractmethod
    def _empty(self, source: TableId, target: TableId, what: str = "ddl") -> None:
        """Remove all rows, in a commit that notes ``what`` of the statement."""

    @abstractmethod
    def _convert(self, one: TableChange, target: TableId, table: Any, steps: Mapping[str, Sequence[Step]]) -> None:
        """Convert values of columns (by their names now) as the source did, in one commit. Raises Refused, LoadError."""

    def run(self) -> None:
        """Raises LoadError, Fenced, TargetUnavailable."""
        if self.change.statement.dialect not in {"mysql", "mariadb"}:
            raise self._by_hand(f"statements of {self.change.statement.dialect} are not understood")
        if self.change.check_only:
            require_held(self.change, LakeHeld(self.change, self.site))
            return
        for one in self.change.tables:
            kinds = set(one.kinds) if self.change.kinds is None else set(one.kinds) & self.change.kinds
            for attempt in range(_ATTEMPTS):
                try:
                    self._follow(one, kinds)
                    break
                except Raced:
                    time.sleep(0.02 * 2**attempt)
            else:
                raise TargetUnavailable(
                    f"following {self.change.statement.text[:200]}: other writers were quicker", where=self.change.where
                )

    # -- inside ----------------------------------------------------------------------------------------------------
    def _note(self, source: TableId, what: str, table: Any) -> Note | None:
        """For the commit that does ``what`` of this statement; None: the table has noted it already. Raises Fenced."""
        scope, number = f"{source}/{what}", self.fence.batch * _STATEMENTS + self.change.number + 1
        held = self.site.checkpoints.guard(self.fence)
        if (self.site.noted(table, scope, held.delivery) or 0) >= number:
            return None
        return self.site.note(self.fence, scope, number, held.delivery)

    def _follow(self, one: TableChange, kinds: set[ChangeKind]) -> None:
        captured = one.table not in self.change.not_captured
        target = self.change.target(one.table)
        if K.TRUNCATE_TABLE in kinds and captured:
            self._empty(one.table, target)
        renamed = one.renamed_to if one.renamed_to is not None and K.RENAME_TABLE in kinds else None
        if renamed is not None:
            captured, target = renamed not in self.change.not_captured, self.change.target(renamed)
        if one.after is None or not captured or K.DROP_TABLE in kinds:
            return
        table = self.site.open(target)
        if table is None:
            if renamed is not None or K.CREATE_TABLE in kinds:
                self._create(one, one.after, target)
            return
        if one.table in self.change.copies:
            self._empty(one.table, target, "emptied")
            table = self.site.required(target)
        if self._converted(one, one.after, target, table, kinds):
            table = self.site.required(target)
        if kinds & OF_COLUMNS or (self.site.every and K.RENAME_TABLE in kinds):
            self._alter(one, one.after, target, table, kinds)

    def _converted(
        self, one: TableChange, after: TableDefinition, target: TableId, table: Any, kinds: set[ChangeKind]
    ) -> bool:
        """Convert the rows that are there as the source did; return False if nothing had to be done. Raises LoadError."""
        info, steps, effects = self.site.info(table), {}, {}
        for effect in effects_on(self.change, one.table):
            name = self._name(one, effect.old.name)
            there = info.find(name) if name is not None else None
            if there is None or self._name(one, effect.new.name) is None:
                continue
            if effect.unknown:
                raise not_converted(self.change, effect, target)
            steps[there.name], effects[there.name] = effect.steps, effect
        if not steps:
            return False
        self._require_alterable(one, after, info, kinds)
        try:
            self._convert(one, target, table, steps)
        except Refused as error:
            why = broken(error.kind) if error.kind is not None else error.why
            raise not_converted(self.change, effects[error.column], target, why) from error
        return True

    def _require_alterable(
        self, one: TableChange, after: TableDefinition, info: TableInfo, kinds: set[ChangeKind]
    ) -> None:
        """Raise LoadError if the columns cannot be changed as the source's were: no row is converted before that is known."""
        gone, names = self._gone(one, info, kinds)
        self._wider(info, self._wanted(one, after.columns), names)
        if gone & set(info.partitions):
            raise self._by_hand(f"the table is partitioned by {min(gone & set(info.partitions))}")
        if one.reuses_names:
            raise self._by_hand("a column is dropped and another of its name is added, which would have its values")

    def _name(self, one: TableChange, column: str) -> str | None:
        """Source column -> target column, None for one that does not go over."""
        tables, lowered = set(one.tables), column.lower()
        if any(t in tables and name.lower() == lowered for t, name in self.change.excluded):
            return None
        renamed = (new for t, old, new in self.change.columns if t in tables and old.lower() == lowered)
        name = next(renamed, column)
        return column_name(name) if self.site.every else name

    def _type(self, column: ColumnDefinition) -> ColumnType:
        made = self.change.meaning.types.get(column)
        if made is None:
            raise self._by_hand(f"the type {column.type} of column {column.name} is not known")
        return made

    def _wanted(
        self, one: TableChange, columns: Sequence[ColumnDefinition]
    ) -> list[tuple[ColumnDefinition, LakeColumn]]:
        found = []
        for column in columns:
            name = self._name(one, column.name)
            if name is None or column.generated is not None:
                continue
            kind = own_type(self._type(column), self.site.wide_decimals)
            if not kind:
                raise self._by_hand(f"column {column.name} is {column.type}, and {TOO_WIDE}")
            if self.site.odd_name(name):
                raise self._by_hand(f"no column has the name {name!r} there")
            found.append((column, LakeColumn(name, kind)))
        return found

    def _columns_of(self, one: TableChange, after: TableDefinition) -> tuple[LakeColumn, ...]:
        """Of a table that is made."""
        wanted = [made for _, made in self._wanted(one, after.columns)]
        return columns_of(wanted) if self.site.every else tuple(wanted)

    def _gone(self, one: TableChange, info: TableInfo, kinds: set[ChangeKind]) -> tuple[frozenset[str], dict[str, str]]:
        """Columns of the table that go, and new names by the names now."""
        gone, names = set(), {}
        for part in self._parts(one) if kinds & {K.DROP_COLUMN, K.RENAME_COLUMN} else ():
            old = self._name(one, part.old.name) if part.old is not None else None
            new = self._name(one, part.new.name) if part.new is not None else None
            there = info.find(old) if old is not None else None
            if part.kind not in kinds or there is None:
                continue
            if part.kind is K.DROP_COLUMN or (part.kind is K.RENAME_COLUMN and new is None):
                gone.add(there.name)
            elif part.kind is K.RENAME_COLUMN and new is not None and new.casefold() != there.name.casefold():
                if self.site.odd_name(new):
                    raise self._by_hand(f"no column has the name {new!r} there")
                names[there.name] = new
        staying = [names.get(column.name, column.name).casefold() for column in info.columns if column.name not in gone]
        if len(set(staying)) < len(staying):
            raise self._by_hand("the table has a column of the new name already")
        return frozenset(gone), names

    def _parts(self, one: TableChange) -> tuple[ColumnChange, ...]:
        if one.before is None or one.after is None:
            raise self._by_hand("what it changed is not known")
        try:
            found = self.change.meaning.altered_columns(one)
        except DecodeError as error:
            raise self._by_hand(f"it is not understood: {error.message}") from error
        if found is None:
            raise self._by_hand("which columns it changed is not known")
        return found

    def _wider(
        self, info: TableInfo, wanted: Sequence[tuple[ColumnDefinition, LakeColumn]], names: Mapping[str, str]
    ) -> dict[str, Shape]:
        """New types by the names now. In a table of changes the values before a change become wider, too."""
        found: dict[str, Shape] = {}
        now = {new.casefold(): old for old, new in names.items()}
        inner = info.find(BEFORE) if self.site.every else None
        before = list(inner.kind) if inner is not None and not isinstance(inner.kind, str) else []
        parts = {one.name.casefold(): place for place, one in enumerate(before)}
        for column, made in wanted:
            there = info.find(now.get(made.name.casefold(), made.name))
            if there is not None and (kind := self._widened(column, made, there)) is not None:
                found[there.name] = kind
            place = parts.get(made.name.casefold())
            if place is not None and (kind := self._widened(column, made, before[place])) is not None:
                before[place] = replace(before[place], kind=kind)
        if inner is not None and tuple(before) != inner.kind:
            found[inner.name] = tuple(before)
        return found

    def _widened(self, column: ColumnDefinition, made: LakeColumn, there: LakeColumn) -> str | None:
        """The type that a column needs; None: the one that it has is enough. Raises LoadError."""
        if isinstance(there.kind, str) and takes(self._type(column), there.kind):
            return None
        if isinstance(there.kind, str) and isinstance(made.kind, str) and widens(there.kind, made.kind):
            return made.kind
        if self.change.copies and isinstance(there.kind, str) and isinstance(made.kind, str):
            return made.kind  # the table is empty
        raise self._by_hand(f"column {made.name} is {there.kind}, which cannot hold values of {column.type}")

    def _fill(self, column: ColumnDefinition, made: LakeColumn, target: TableId) -> pa.Scalar | None:
        """Return the value that the rows which are there get in a new column, as at the source; None for NULL. Raises LoadError."""
        found = self.change.meaning.default_value(column)
        if found.value is None:
            raise self._not_filled(column, target, found.why)
        assert isinstance(made.kind, str)
        try:
            values, odd = converted(pa.repeat(found.value, 1), self._type(column), made.kind)
        except pa.ArrowException as error:
            raise self._not_filled(column, target, f"no {made.kind} holds its default {column.default}") from error
        if odd is not None and self.site.options.zero_dates == "refuse":
            why = "it is a date that no calendar has (options: {zero_dates: 'null'} writes NULL for such dates)"
            raise self._not_filled(column, target, why)
        value = values[0]
        return value if value.is_valid else None

    def _not_filled(self, column: ColumnDefinition, target: TableId, why: str) -> LoadError:
        return LoadError(
            f"the rows that {target} has would get other values in the new column {column.name} than at the source: {why}: "
            f"{self.change.statement.text[:300]}",
            where=self.change.where,
            hint=f"{to_ignore(self.change.consumer, 'add_column')}; before the copy, add the column (`sluice check PIPELINE --apply`)"
            if self.change.consumer == SNAPSHOT
            else f"{to_ignore(self.change.consumer, 'add_column')}, add the column (`sluice check PIPELINE --apply`), then copy the table anew "
            "(`sluice dump start`), which copies the source's values",
        )

    def _say(self, done: str) -> None:
        _log.info("target_ddl", consumer=self.site.owner.replace("/", "."), statement=done, source=self.change.where)

    def _by_hand(self, why: str) -> LoadError:
        return LoadError(
            f"the source's DDL cannot be followed at a target of type {self.site.FORMAT}: {why}: {self.change.statement.text[:500]}",
            where=self.change.where,
            hint=f"{self.BY_HAND}, or make it anew and copy it (`sluice dump start`); {to_ignore(self.change.consumer, 'its kind')}",
        )
