"""The policy of schema changes, for every kind of target: which tables and kinds it follows, and what it does where it
may not or cannot.

:func:`followed` says what a target follows of a statement. Under the policy ``stop`` :func:`require_held` says of each
kind of change that is not ignored whether the target shows it, lacks it, or cannot show it (a name that the statement
used again, rows that were removed); a kind of target says what its catalog has, see :class:`Held`. A statement that a
target cannot follow stops with :func:`not_followed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from sluice.errors import DecodeError, LoadError
from sluice.model.definitions import IndexDefinition, TableDefinition
from sluice.model.row_effects import ColumnEffect
from sluice.model.schema_changes import ChangeKind, ColumnChange, TableChange
from sluice.model.tables import TableId
from sluice.targets.feature_check import to_ignore
from sluice.targets.port import SchemaChange

NAMES = frozenset({ChangeKind.ADD_COLUMN, ChangeKind.DROP_COLUMN, ChangeKind.RENAME_COLUMN})
"""Kinds after which a table has other names of columns, or the same ones for other columns."""


def changed_columns(change: SchemaChange, table_change: TableChange) -> tuple[ColumnChange, ...] | None:
    """Return the change of each column of a table.

    None: columns were renamed, and the statement does not tell which.
    """
    assert table_change.before is not None
    assert table_change.after is not None
    if not set(table_change.kinds) & NAMES:
        return table_change.compared_columns()
    try:
        column_changes = change.meaning.altered_columns(table_change)
    except DecodeError:
        return None
    return column_changes if column_changes is not None or not change.cut_overs else table_change.columns


K = ChangeKind
_ROWS = frozenset({K.TRUNCATE_TABLE, K.ROWS_REMOVED, K.ROWS_REPLACED, K.UNKNOWN})
"""Kinds that no definition shows."""
_TYPES = frozenset({K.WIDEN_COLUMN, K.CHANGE_COLUMN})


@dataclass(frozen=True, slots=True)
class Followed:
    """A table of a statement, as far as a target follows it.

    Attributes:
        one: the change. kinds: those that the policy does not ignore.
        captured: its rows are captured before the statement, so that the target has them.
        cut_over: an online schema change put it in the place of the table, see
            :attr:`sluice.targets.port.SchemaChange.cut_overs`.
    """

    one: TableChange
    kinds: frozenset[ChangeKind]
    captured: bool = True
    cut_over: bool = False


def followed(change: SchemaChange) -> tuple[Followed, ...]:
    """Return what a target follows of a statement, table by table.

    A table that is not captured is left out, unless it gets the name of one that is. The cut-over of an online schema
    change is one change of the captured table, with all that differs between its two definitions.
    """
    swapped = {table_change.table for table_change in change.cut_overs}
    parts: list[Followed] = []
    arrived: set[TableId] = set()
    """Names that are not captured, under which a captured table is on its way."""
    for table_change in change.changes:
        if table_change.table in swapped:
            parts.append(Followed(table_change, frozenset(table_change.kinds), cut_over=True))
            continue
        captured = table_change.table not in change.not_captured or table_change.table in arrived
        if captured and table_change.renamed_to is not None:
            arrived.add(table_change.renamed_to)
        if captured or not set(table_change.tables) <= change.not_captured:
            kinds = frozenset(table_change.kinds)
            parts.append(Followed(table_change, kinds if change.kinds is None else kinds & change.kinds, captured))
    return tuple(parts)


def not_followed(change: SchemaChange, why: str, by_hand: str = "make the change at the target by hand") -> LoadError:
    """Return the error for a statement that a target cannot follow. ``by_hand``: what people can do there."""
    kinds = ", ".join(change.ddl_kinds) or "its kind"
    return LoadError(
        f"the source's schema change cannot be followed at target {change.consumer}: {why}: "
        f"{change.statement.text[:500]}",
        where=change.where,
        hint=f"{by_hand}, then {to_ignore(change.consumer, kinds)}; `sluice dump start` copies the table anew",
    )


def require_told_columns(change: SchemaChange, part: Followed) -> None:
    """Raise LoadError for a cut-over that both adds and drops columns: one may have been renamed, with any type.

    Two definitions do not tell a renamed column, whose values stay, from one that is dropped and another that is added.
    """
    if part.cut_over and {ChangeKind.ADD_COLUMN, ChangeKind.DROP_COLUMN} <= part.kinds:
        why = f"a column of {part.one.table} may have been renamed, or dropped and added: the definitions do not tell"
        raise not_followed(change, why)


def require_told_renames(change: TableChange, columns: Sequence[ColumnChange], table: str, statement: str) -> None:
    """Raise LoadError where two definitions do not tell a renamed column from a dropped and an added one.

    Args:
        columns: the differences of the two definitions. table: the target's, for the error. statement: begins the
            statement with which a person makes the change there.
    """
    dropped = [c.old for c in columns if c.kind is ChangeKind.DROP_COLUMN and c.old]
    new = [c.new for c in columns if c.kind is ChangeKind.ADD_COLUMN and c.new]
    pairs = [(old, new_column) for old in dropped for new_column in new if old.type == new_column.type]
    if ChangeKind.RENAME_COLUMN in change.kinds or pairs or change.reuses_names:
        names = ", ".join(f"{a.name} -> {b.name}" for a, b in pairs[:3]) or "a column"
        raise LoadError(
            f"{names} of {change.table} may have been renamed, or dropped and added: the two definitions do not tell",
            where=table,
            hint=f"{statement} … by hand (RENAME COLUMN, or DROP and ADD); the load goes on once the target has the "
            "columns",
        )


def never_seen(change: SchemaChange, table_change: TableChange, target: TableId) -> LoadError:
    """Return the error for a table that comes into capture with its rows."""
    return LoadError(
        f"{table_change.table}, which is not captured, became {table_change.renamed_to}, which is: its rows were never "
        f"seen: {change.statement.text[:300]}",
        where=change.where,
        hint=f"copy the table to the target by hand as {target}; the load goes on once it is there",
    )


def not_filled(change: SchemaChange, table: TableId, column: str, why: str, hint: str) -> LoadError:
    """Return the error for rows of a target's table whose values in a new column are not known."""
    return LoadError(
        f"the rows that {table} has would get other values in the new column {column} than at the source: {why}: "
        f"{change.statement.text[:300]}",
        where=change.where,
        hint=hint,
    )


def added_by_hand(statement: str = "") -> str:
    """Return the hint of :func:`not_filled` for a target that leaves a column alone which it has."""
    return (
        f"add the column at the target by hand{f' ({statement})' if statement else ''}; the load goes on once it is "
        "there. Then copy the table anew (`sluice dump start`), which copies the source's values"
    )


class Answer(Enum):
    """Whether a target has a change."""

    HAS = auto()
    """It has it, or there is no such thing at this kind of target."""
    LACKS = auto()
    UNSEEN = auto()
    """Its definitions do not show it."""


def has(present: bool) -> Answer:
    """Return HAS or LACKS."""
    return Answer.HAS if present else Answer.LACKS


class Tables(Protocol):
    """The tables of a target, and what it calls the source's."""

    def table(self, source: TableId) -> TableId:
        """Return the target's name of a source table."""

    def column(self, table_change: TableChange, name: str) -> str | None:
        """Return the target's name of a source column, None for one that is not delivered."""

    def columns(self, table: TableId) -> Mapping[str, str] | None:
        """Return the names of columns as the target spells them, by their casefolded names; None if there is no such
        table.
        """


class Held(Tables, Protocol):
    """The catalog of one target.

    Tables and columns are the target's own; a column is asked for only if its table has it.
    """

    def type(self, table: TableId, name: str, part: ColumnChange, effect: ColumnEffect | None) -> Answer:
        """Return whether the column has the type after the change.

        ``effect``: on the rows; None: they stay as they are.
        """

    def nullable(self, table: TableId, name: str) -> bool | None:
        """Return whether the column takes NULL; None: the catalog does not say."""

    def attributes(self, table: TableId, name: str, part: ColumnChange) -> Answer:
        """Return whether the column has the default, comment and so on after the change."""

    def order(self, table: TableId, names: list[str]) -> Answer:
        """Return whether the columns are in this order."""

    def key(self, table: TableId, names: tuple[str, ...]) -> Answer:
        """Return whether rows are told apart by these columns."""

    def index(self, table: TableId, index: IndexDefinition, names: tuple[str, ...], *, wanted: bool) -> Answer:
        """Return whether the table has the index, or, unless ``wanted``, whether it lacks it."""

    def options(self, table: TableId, table_change: TableChange) -> Answer:
        """Return whether the table has the comment, charset and engine after the change."""

    def partitions(self, table: TableId) -> Answer:
        """Return whether the table is partitioned as after the change."""


def require_held(change: SchemaChange, target: Held) -> None:
    """Raise LoadError unless the target has all of a change (``SchemaChange.check_only``) that the policy does not
    ignore.
    """
    answers: list[tuple[str, Answer]] = []
    for part in followed(change):
        answers += _answers(change, part, target)
    missing = [what for what, answer in answers if answer is Answer.LACKS]
    unseen = [what for what, answer in answers if answer is Answer.UNSEEN]
    if missing or unseen:
        raise stopped(change, missing, unseen)


def require_whole(change: SchemaChange, target: Held) -> None:
    """Raise LoadError for a table whose columns have the names after a change, while the target lacks another part of
    it.

    Ask it where such names mean that somebody made the change by hand, so that nothing of it is done.
    """
    for part in followed(change) if change.kinds is None and not change.cut_overs else ():
        if not NAMES & part.kinds or target.columns(target.table(part.one.renamed_to or part.one.table)) is None:
            continue
        missing = [what for what, answer in _answers(change, part, target) if answer is Answer.LACKS]
        if missing:
            why = f"its columns have the new names already, and it lacks {', '.join(dict.fromkeys(missing))}"
            raise not_followed(change, why)


def stopped(change: SchemaChange, missing: Iterable[str], unseen: Iterable[str]) -> LoadError:
    """Return the error of the policy ``stop``.

    ``missing``: what the target lacks; ``unseen``: what its definitions do not show.
    """
    missing, unseen = list(dict.fromkeys(missing)), list(dict.fromkeys(unseen))
    reasons = [f"it lacks {', '.join(missing)}"] if missing else []
    reasons += [f"its definitions do not show {', '.join(unseen)}"] if unseen else []
    kinds = ", ".join(change.ddl_kinds) or ", ".join(sorted(kind.value for kind in change.wanted))
    ignored = to_ignore(change.consumer, kinds)
    stopping = change.stop_kinds if change.ddl_kinds else (kinds,)
    applied = f" (or set {', '.join(stopping)} to apply)" if stopping else ""
    return LoadError(
        f"the source changed a definition, and the policy of target {change.consumer} is to stop: "
        f"{'; '.join(reasons)}: {change.statement.text[:500]}",
        where=change.where,
        hint=f"make the change at the target by hand{applied}, then {ignored}"
        if unseen
        else f"make the change at the target by hand: the load goes on once it is there{applied}; or {ignored}",
    )


def _answers(change: SchemaChange, part: Followed, definitions: Held) -> Iterator[tuple[str, Answer]]:
    table_change, kinds = part.one, set(part.kinds)
    for kind in kinds & _ROWS:
        yield kind.value, Answer.UNSEEN
    table = definitions.table(table_change.renamed_to or table_change.table)
    columns = definitions.columns(table)
    if K.DROP_TABLE in kinds:
        yield f"the end of table {table}", has(columns is None)
        return
    if table_change.after is None or not kinds - _ROWS - {K.NOTHING}:
        return
    if columns is None:
        yield f"table {table}", Answer.LACKS
        return
    old = definitions.table(table_change.table)
    if K.RENAME_TABLE in kinds and old != table:
        yield f"the end of table {old}", has(definitions.columns(old) is None)
    if K.CREATE_TABLE in kinds:
        yield from _columns(table_change, table_change.after, set(NAMES), definitions, columns)
        if table_change.before is not None:
            yield f"whether the rows of the table that {table} replaced are gone", Answer.UNSEEN
        return
    if table_change.before is None:
        yield "what it changed", Answer.UNSEEN
        return
    parts = changed_columns(change, table_change)
    if parts is None:
        yield "which columns it changed", Answer.UNSEEN
        return
    if kinds & NAMES:
        yield from _columns(table_change, table_change.after, kinds, definitions, columns)
        yield from (
            (f"column {name} under a name used again", Answer.UNSEEN) for name in _reused(table_change.after, parts)
        )
    for column in parts:
        if column.kind in kinds:
            yield from _part(change, table_change, column, definitions, table, columns)
    yield from _of_table(table_change, parts, kinds, definitions, table)


def _columns(
    table_change: TableChange,
    after: TableDefinition,
    kinds: set[ChangeKind],
    definitions: Held,
    columns: Mapping[str, str],
) -> Iterator[tuple[str, Answer]]:
    plain = [column.name for column in after.columns if column.generated is None]
    for name in filter(None, (definitions.column(table_change, name) for name in plain)):
        if name.casefold() not in columns:
            yield f"column {name}", Answer.LACKS
    remaining = {column.name.lower() for column in after.columns}
    for column in (
        table_change.before.columns
        if table_change.before is not None and kinds & {K.DROP_COLUMN, K.RENAME_COLUMN}
        else ()
    ):
        old_name = definitions.column(table_change, column.name)
        if column.name.lower() not in remaining and old_name is not None and old_name.casefold() in columns:
            yield f"the end of column {old_name}", Answer.LACKS


def _reused(after: TableDefinition, parts: Iterable[ColumnChange]) -> Iterator[str]:
    """Yield names that another column has now: no one can see whether the target's column is the old or the new one."""
    names = {column.name.lower() for column in after.columns}
    for part in parts:
        if part.old is None or part.old.name.lower() not in names:
            continue
        renamed = part.new is not None and part.new.name.lower() != part.old.name.lower()
        if part.kind is K.DROP_COLUMN or (part.kind is K.RENAME_COLUMN and renamed):
            yield part.old.name


def _part(
    change: SchemaChange,
    table_change: TableChange,
    part: ColumnChange,
    definitions: Held,
    table: TableId,
    columns: Mapping[str, str],
) -> Iterator[tuple[str, Answer]]:
    column = part.new
    name = definitions.column(table_change, column.name) if column is not None and column.generated is None else None
    if column is None or name is None or name.casefold() not in columns:
        return
    if part.kind in _TYPES:
        effects = (
            e for e in change.effects if e.table == table_change.table and e.new.name.lower() == column.name.lower()
        )
        yield f"{column.type} of column {name}", definitions.type(table, name, part, next(effects, None))
    elif part.kind in {K.ALLOW_NULL, K.REQUIRE_VALUE}:
        nullable, allows_null = definitions.nullable(table, name), part.kind is K.ALLOW_NULL
        yield (
            f"{'NULL' if allows_null else 'NOT NULL'} of column {name}",
            has(nullable is None or nullable is allows_null),
        )
    elif part.kind is K.COLUMN_ATTRIBUTES:
        yield f"the attributes of column {name}", definitions.attributes(table, name, part)


def _of_table(
    table_change: TableChange, parts: Iterable[ColumnChange], kinds: set[ChangeKind], definitions: Held, table: TableId
) -> Iterator[tuple[str, Answer]]:
    assert table_change.before is not None
    assert table_change.after is not None
    if K.MOVE_COLUMN in kinds:
        order = [
            name
            for column in table_change.after.columns
            if (name := definitions.column(table_change, column.name)) is not None
        ]
        yield "the order of the columns", definitions.order(table, order)
    if K.PRIMARY_KEY in kinds:
        key = tuple(definitions.column(table_change, name) or name for name in table_change.after.row_key)
        yield "the primary key", definitions.key(table, key)
    if K.INDEXES in kinds:
        renamed = {p.old.name.lower(): p.new.name for p in parts if p.kind is K.RENAME_COLUMN and p.old and p.new}
        before = {_index_text(index, renamed): index for index in table_change.before.indexes if not index.primary}
        after = {_index_text(index, {}): index for index in table_change.after.indexes if not index.primary}
        for text, index in [
            *((t, i) for t, i in after.items() if t not in before),
            *((t, i) for t, i in before.items() if t not in after),
        ]:
            added = text in after
            names = [
                definitions.column(table_change, renamed.get(name.lower(), name) if not added else name)
                for name, _ in index.columns
            ]
            if None not in names:
                index_columns = tuple(name for name in names if name is not None)
                yield (
                    f"{'' if added else 'the end of '}index {index.name}",
                    definitions.index(table, index, index_columns, wanted=added),
                )
    if K.TABLE_OPTIONS in kinds:
        yield "the options of the table", definitions.options(table, table_change)
    if K.PARTITIONS in kinds:
        yield "the partitions of the table", definitions.partitions(table)


def _index_text(index: IndexDefinition, renamed: dict[str, str]) -> tuple[object, ...]:
    names = tuple((renamed.get(name.lower(), name).lower(), prefix) for name, prefix in index.columns)
    return index.name.lower(), names, index.unique, index.kind


FOLLOWED_BY_NAME = frozenset({
    K.CREATE_TABLE, K.DROP_TABLE, K.RENAME_TABLE, K.TRUNCATE_TABLE, K.ADD_COLUMN, K.DROP_COLUMN, K.RENAME_COLUMN,
    K.WIDEN_COLUMN, K.CHANGE_COLUMN,
    K.MOVE_COLUMN, K.ALLOW_NULL, K.REQUIRE_VALUE, K.COLUMN_ATTRIBUTES, K.INDEXES, K.TABLE_OPTIONS, K.PARTITIONS,
    K.NOTHING,
})  # fmt: skip
"""Kinds that a target can follow whose tables have names of columns and a key, and no types."""


class OnlyColumns:
    """A :class:`Held` of a kind whose tables have columns and nothing else: no keys, indexes, NOT NULL, defaults,
    comments or options.

    What there is no such thing of needs no change, so that the policy has no object.
    """

    def __init__(self, change: SchemaChange) -> None:
        self.change = change

    def table(self, source: TableId) -> TableId:
        """Return the name by the pipeline's mapping."""
        return self.change.target(source)

    def column(self, table_change: TableChange, name: str) -> str | None:
        """Return the name by the pipeline's mapping; None for an excluded column."""
        tables, lowered = set(table_change.tables), name.lower()
        if any(table in tables and excluded.lower() == lowered for table, excluded in self.change.excluded):
            return None
        renamed = (new for table, old, new in self.change.columns if table in tables and old.lower() == lowered)
        return next(renamed, name)

    def columns(self, table: TableId) -> Mapping[str, str] | None:
        """Return the columns of a table, case-folded name -> name; None if it is missing. Each kind implements it."""
        raise NotImplementedError

    def type(self, table: TableId, name: str, part: ColumnChange, effect: ColumnEffect | None) -> Answer:
        """Return HAS if the rows stay as they are: a type has no trace of a conversion."""
        return Answer.HAS if effect is None else Answer.UNSEEN

    def nullable(self, table: TableId, name: str) -> bool | None:
        """Return None: the kind does not know NOT NULL."""
        return None

    def attributes(self, table: TableId, name: str, part: ColumnChange) -> Answer:
        """Return HAS: the kind has no defaults and comments."""
        return Answer.HAS

    def order(self, table: TableId, names: list[str]) -> Answer:
        """Return HAS: the kind has no order of columns."""
        return Answer.HAS

    def key(self, table: TableId, names: tuple[str, ...]) -> Answer:
        """Return HAS: the kind has no keys."""
        return Answer.HAS

    def index(self, table: TableId, index: IndexDefinition, names: tuple[str, ...], *, wanted: bool) -> Answer:
        """Return HAS: the kind has no indexes."""
        return Answer.HAS

    def options(self, table: TableId, table_change: TableChange) -> Answer:
        """Return HAS: the kind has no options of tables."""
        return Answer.HAS

    def partitions(self, table: TableId) -> Answer:
        """Return HAS: the kind is not partitioned as the source is."""
        return Answer.HAS
