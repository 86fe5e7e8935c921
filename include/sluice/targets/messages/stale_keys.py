"""Statements after which a reader with the newest row of each key would keep keys that no row has any more, or lack
rows.

No change of the log names these rows: a table was truncated, dropped or replaced, a partition was dropped or emptied,
the table has another name, or its rows have other message keys now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.tables import TableId
from sluice.targets.messages.key_forms import KeyForms
from sluice.targets.port import SchemaChange

_K = ChangeKind
_LEAVES_KEYS = frozenset({
    _K.ADD_COLUMN, _K.DROP_COLUMN, _K.RENAME_COLUMN, _K.WIDEN_COLUMN, _K.CHANGE_COLUMN, _K.ALLOW_NULL, _K.REQUIRE_VALUE,
    _K.PRIMARY_KEY,
    _K.INDEXES,
})  # fmt: skip
"""Kinds of changes that may change the contents of a message key."""


@dataclass(frozen=True, slots=True)
class Stale:
    """A fault, after a statement, of what readers have of a table.

    Attributes:
        table: the source table, under its name before the statement.
        why: a sentence.
        emptied: readers have keys under that name that are to be removed.
        copied: rows of the table are to be copied again, under their current name.
    """

    table: TableId
    why: str
    emptied: bool = True
    copied: bool = False


@dataclass(frozen=True, slots=True)
class StaleWords:
    """The words of errors for what readers have: of a table, of a table's old name, and of a name that has no rows yet;
    and for what they get.
    """

    own: str = "in its topic"
    old: str = "in the topic of the old name"
    new: str = "whose topic has no row of it"
    document: str = "message"


_TOPIC = StaleWords()


def stale_keys(change: SchemaChange, forms: KeyForms, words: StaleWords = _TOPIC) -> tuple[Stale, ...]:
    """Return the faults after a statement, whatever can be done about them."""
    return tuple(_found(change, forms, words))


def _found(change: SchemaChange, forms: KeyForms, words: StaleWords) -> Iterator[Stale]:
    wanted_change_kinds, arrived = change.wanted, set[TableId]()
    for effect in change.tables:
        table = effect.table
        if table in change.not_captured:
            if _K.RENAME_TABLE in wanted_change_kinds and _arrives(change, effect):
                yield Stale(
                    table,
                    f"{table}, which is not captured, became {effect.renamed_to}, {words.new}",
                    emptied=False,
                    copied=True,
                )
        elif _K.DROP_TABLE in effect.kinds and _K.DROP_TABLE in wanted_change_kinds:
            if not effect.never_was:
                yield Stale(table, f"the rows of {table} are gone, and their keys stay {words.own}")
        elif effect.renamed_to is not None and _K.RENAME_TABLE in wanted_change_kinds:
            if table not in arrived and not _stays(change, effect):
                yield Stale(
                    table,
                    f"{table} is {effect.renamed_to} now, and its rows stay {words.old}",
                    copied=change.name_after(table) not in change.not_captured,
                )
            arrived.add(effect.renamed_to)
        elif _K.TRUNCATE_TABLE in effect.kinds and _K.TRUNCATE_TABLE in wanted_change_kinds:
            yield Stale(table, f"the rows of {table} are gone, and their keys stay {words.own}")
        elif _K.ROWS_REMOVED in effect.kinds and _K.ROWS_REMOVED in wanted_change_kinds:
            yield Stale(table, f"rows of {table} went with a partition, and their keys stay {words.own}", copied=True)
        elif _K.CREATE_TABLE in effect.kinds and effect.before is not None and _K.CREATE_TABLE in wanted_change_kinds:
            yield Stale(table, f"{table} was replaced, and the keys of its old rows stay {words.own}")
        elif _LEAVES_KEYS & set(effect.kinds) & wanted_change_kinds:
            yield from _rekeyed(change, effect, forms, words)
    for swapped in change.cut_overs if _K.RENAME_TABLE in wanted_change_kinds else ():
        yield from _rekeyed(change, swapped, forms, words)


def _rekeyed(change: SchemaChange, effect: TableChange, forms: KeyForms, words: StaleWords) -> Iterator[Stale]:
    why = forms.differ(change, effect)
    if why:
        yield Stale(
            effect.table,
            f"messages of {effect.table} have other keys from here on ({why}), and the old keys stay {words.own}",
            copied=True,
        )


def _arrives(change: SchemaChange, table: TableChange) -> bool:
    """Return True if an uncaptured table takes the name of a captured one that no captured table had before this
    statement.

    At the cut-over of an online schema change the rows are the same.
    """
    new = table.renamed_to
    if new is None or new in change.not_captured:
        return False
    return not any(c.table == new and c.table not in change.not_captured for c in change.tables)


def _stays(change: SchemaChange, table: TableChange) -> bool:
    """Return True if the rows that readers have are right after a rename: an online schema change put the same rows in
    their place.
    """
    arrived = {c.renamed_to for c in change.tables}  # a captured table may be under way under a name that is not
    return any(c.renamed_to == table.table and c.table in change.not_captured - arrived for c in change.tables)
