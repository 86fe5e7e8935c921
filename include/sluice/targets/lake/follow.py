"""Schema changes of the source at a target of lake tables: which columns of which table they are about, whatever the format does with them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from sluice.config.pipeline import SNAPSHOT
from sluice.errors import LoadError, TargetUnavailable
from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.model.row_effects import Step
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.tables import TableId
from sluice.targets.lake.changelog import BEFORE, columns_of
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
from sluice.targets.schema.plan import (
    AddColumn,
    AlterTable,
    CreateTable,
    DropTable,
    EmptyTable,
    Planner,
    RenameTable,
    name_taken,
    type_of,
)
from sluice.targets.schema.policy import Followed, followed, not_filled, not_followed, require_held

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


@dataclass(frozen=True, slots=True)
class Edits:
    """The changes of a table's columns.

    Attributes:
        source, table: at the source, and at the target. gone: names of columns that go. names: new names by the names now.
        wider: new types by the names now. wanted: all columns after the change. adds: new ones among them; a table of changes has none.
        clash: a name that two columns would have, unless the edits were made already; "" if there is none.
    """

    source: TableId
    table: TableId
    gone: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)
    wider: Mapping[str, Shape] = field(default_factory=dict)
    wanted: tuple[tuple[ColumnDefinition, LakeColumn], ...] = ()
    adds: tuple[AddColumn, ...] = ()
    clash: str = ""

    @property
    def new(self) -> list[tuple[ColumnDefinition, LakeColumn]]:
        """Columns that come."""
        names = {one.name for one in self.adds}
        return [(column, made) for column, made in self.wanted if made.name in names]


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
    def _alter(self, edits: Edits, table: Any) -> None:
        """Make the edits, each once over a repeat of the statement."""

    @abstractmethod
    def _empty(self, source: TableId, target: TableId, what: str = "ddl") -> None:
        """Remove all rows, in a commit that notes ``what`` of the statement."""

    @abstractmethod
    def _convert(self, source: TableId, target: TableId, table: Any, steps: Mapping[str, Sequence[Step]]) -> None:
        """Convert values of columns (by their names now) as the source did, in one commit. Raises Refused, LoadError."""

    def run(self) -> None:
        """Follow the change. Raises LoadError, Fenced, TargetUnavailable."""
        if self.change.check_only:
            require_held(self.change, LakeHeld(self.change, self.site))
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
    def _note(self, source: TableId, what: str, table: Any) -> Note | None:
        """Return the note for the commit that does ``what`` of this statement, None if the table has it already. Raises Fenced."""
        scope, number = f"{source}/{what}", self.fence.batch * _STATEMENTS + self.change.number + 1
        held = self.site.checkpoints.guard(self.fence)
        if (self.site.noted(table, scope, held.delivery) or 0) >= number:
            return None
        return self.site.note(self.fence, scope, number, held.delivery)

    def _follow(self, part: Followed) -> None:
        if self.site.every:
            self._extend(part)
            return
        for step in Planner(self.change, LakeHeld(self.change, self.site)).steps(part):
            match step:
                case DropTable(table) | RenameTable(table):
                    raise self._by_hand(f"no table is dropped or renamed, and {table} would be")
                case EmptyTable():
                    self._empty(step.source, step.table)
                case CreateTable():
                    self._create(step.one, step.after, step.table)
                case AlterTable():
                    self._change(step, part.kinds)

    def _extend(self, part: Followed) -> None:
        """Extend a table of changes: it keeps its name and all columns; a table or column with a new name is another one."""
        one, after = part.one, part.one.after
        renamed = one.renamed_to if K.RENAME_TABLE in part.kinds else None
        name = renamed or one.table
        if after is None or name in self.change.not_captured or K.DROP_TABLE in part.kinds:
            return
        target = self.change.target(name)
        table = self.site.open(target)
        if table is None:
            if renamed is not None or part.cut_over or K.CREATE_TABLE in part.kinds:
                self._create(one, after, target)
        elif part.kinds & (OF_COLUMNS | {K.RENAME_TABLE, K.CREATE_TABLE}):
            info, wanted = self.site.info(table), self._wanted(one, after.columns)
            wider = self._wider(info, wanted, {})
            self._alter(Edits(one.table, target, wider=wider, wanted=tuple(wanted)), table)

    def _change(self, step: AlterTable, kinds: frozenset[ChangeKind]) -> None:
        table = self.site.required(step.table)
        if step.copied:
            self._empty(step.source, step.table, "emptied")
            table = self.site.required(step.table)
        if self._converted(step, table):
            table = self.site.required(step.table)
        if OF_COLUMNS & kinds:
            self._alter(self._edits(step, self.site.info(table), kinds), table)

    def _edits(self, step: AlterTable, info: TableInfo, kinds: frozenset[ChangeKind]) -> Edits:
        """Return the edits of a table. Raises LoadError for what the format cannot do."""
        if step.one.reuses_names:
            raise self._by_hand("a column is dropped and another of its name is added, which would have its values")
        gone, names = frozenset(step.drops), {old: new for old, new in step.renames if old.casefold() != new.casefold()}
        parted = gone & set(info.partitions)
        if parted:
            raise self._by_hand(f"the table is partitioned by {min(parted)}")
        odd = next((name for name in names.values() if self.site.odd_name(name)), None)
        if odd is not None:
            raise self._by_hand(f"no column has the name {odd!r} there")
        wanted = tuple(self._wanted(step.one, step.after.columns))
        wider = self._wider(info, wanted, names) if kinds & {K.WIDEN_COLUMN, K.CHANGE_COLUMN} else {}
        return Edits(step.source, step.table, gone, names, wider, wanted, step.adds, step.clash)

    def _converted(self, step: AlterTable, table: Any) -> bool:
        """Convert the rows that are there as the source did; return False if nothing had to be done. Raises LoadError."""
        info, steps, effects = self.site.info(table), {}, {}
        for effect in effects_on(self.change, step.source):
            name = self._name(step.one, effect.old.name)
            there = info.find(name) if name is not None else None
            if there is None or self._name(step.one, effect.new.name) is None:
                continue
            if effect.unknown:
                raise not_converted(self.change, effect, step.table)
            steps[there.name], effects[there.name] = effect.steps, effect
        if not steps:
            return False
        self._edits(step, info, OF_COLUMNS)  # no row is converted before it is known that the columns can be changed
        try:
            self._convert(step.source, step.table, table, steps)
        except Refused as error:
            why = broken(error.kind) if error.kind is not None else error.why
            raise not_converted(self.change, effects[error.column], step.table, why) from error
        return True

    def _name(self, one: TableChange, column: str) -> str | None:
        """Return the target's name of a source column, None for one that does not go over."""
        return LakeHeld(self.change, self.site).column(one, column)

    def _wanted(
        self, one: TableChange, columns: Sequence[ColumnDefinition]
    ) -> list[tuple[ColumnDefinition, LakeColumn]]:
        found = []
        for column in columns:
            name = self._name(one, column.name)
            if name is None or column.generated is not None:
                continue
            kind = own_type(type_of(self.change, column), self.site.wide_decimals)
            if not kind:
                raise self._by_hand(f"column {column.name} is {column.type}, and {TOO_WIDE}")
            if self.site.odd_name(name):
                raise self._by_hand(f"no column has the name {name!r} there")
            found.append((column, LakeColumn(name, kind)))
        return found

    def _columns_of(self, one: TableChange, after: TableDefinition) -> tuple[LakeColumn, ...]:
        """Return the columns of a table that is made."""
        wanted = [made for _, made in self._wanted(one, after.columns)]
        return columns_of(wanted) if self.site.every else tuple(wanted)

    def _wider(
        self, info: TableInfo, wanted: Sequence[tuple[ColumnDefinition, LakeColumn]], names: Mapping[str, str]
    ) -> dict[str, Shape]:
        """Return new types by the names now. In a table of changes the values before a change become wider, too."""
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
        """Return the type that a column needs, None if the one that it has is enough. Raises LoadError."""
        if isinstance(there.kind, str) and takes(type_of(self.change, column), there.kind):
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
            values, odd = converted(pa.repeat(found.value, 1), type_of(self.change, column), made.kind)
        except pa.ArrowException as error:
            raise self._not_filled(column, target, f"no {made.kind} holds its default {column.default}") from error
        if odd is not None and self.site.options.zero_dates == "refuse":
            why = "it is a date that no calendar has (options: {zero_dates: 'null'} writes NULL for such dates)"
            raise self._not_filled(column, target, why)
        value = values[0]
        return value if value.is_valid else None

    def _not_filled(self, column: ColumnDefinition, target: TableId, why: str) -> LoadError:
        ignored = to_ignore(self.change.consumer, "add_column")
        hint = f"{ignored}; before the copy, add the column (`sluice check PIPELINE --apply`)"
        if self.change.consumer != SNAPSHOT:
            hint = (
                f"{ignored}, add the column (`sluice check PIPELINE --apply`), then copy the table anew (`sluice dump start`), which copies the "
                "source's values"
            )
        return not_filled(self.change, target, column.name, why, hint)

    def _say(self, done: str) -> None:
        _log.info(
            "target_ddl_issued", target=self.site.owner.replace("/", "."), statement=done, source=self.change.where
        )

    def _refuse_clash(self, edits: Edits) -> None:
        """Raise LoadError for a clash. Ask it for a statement that is not noted yet: where it is, the names are as after it."""
        if edits.clash:
            raise name_taken(self.change, edits.clash)

    def _by_hand(self, why: str) -> LoadError:
        return not_followed(self.change, why, self.BY_HAND)
