"""Statements after which a topic with the newest row of each key would keep keys that no row has any more, or lack rows.

No change of the log names these rows: a table was truncated, dropped or replaced, a partition was dropped or emptied, the table has another name, or
its rows have other message keys now. The
topic itself says which keys it holds, see :mod:`sluice.targets.kafka.held_keys`: they get messages without a value. If rows stay at the source, they
are copied again under their new name or key (``on_conversion: copy``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sluice.errors import LoadError
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.tables import TableId
from sluice.targets.feature_check import to_ignore
from sluice.targets.kafka.options import KafkaOptions
from sluice.targets.messages.key_forms import KeyForms
from sluice.targets.port import SchemaChange

_K = ChangeKind
_LEAVES_KEYS = frozenset({
    _K.ADD_COLUMN, _K.DROP_COLUMN, _K.RENAME_COLUMN, _K.WIDEN_COLUMN, _K.CHANGE_COLUMN, _K.ALLOW_NULL, _K.REQUIRE_VALUE, _K.PRIMARY_KEY,
    _K.INDEXES,
})  # fmt: skip
"""Kinds of changes that may change the contents of a message key."""


@dataclass(frozen=True, slots=True)
class Stale:
    """A fault of a topic after a statement.

    Attributes:
        table: the source table, under its name before the statement.
        why: a sentence.
        emptied: the topic of that name holds keys that are to be removed.
        copied: rows of the table are to be copied again, under their current name.
    """

    table: TableId
    why: str
    emptied: bool = True
    copied: bool = False


def stale_keys(change: SchemaChange, forms: KeyForms) -> tuple[Stale, ...]:
    """Return the faults of topics after a statement, whatever can be done about them."""
    return tuple(_found(change, forms))


def _found(change: SchemaChange, forms: KeyForms) -> Iterator[Stale]:
    wanted, arrived = change.wanted, set[TableId]()
    for one in change.tables:
        table = one.table
        if table in change.not_captured:
            if _K.RENAME_TABLE in wanted and _arrives(change, one):
                yield Stale(
                    table,
                    f"{table}, which is not captured, became {one.renamed_to}, whose topic has no row of it",
                    emptied=False,
                    copied=True,
                )
        elif _K.DROP_TABLE in one.kinds and _K.DROP_TABLE in wanted:
            if not one.never_was:
                yield Stale(table, f"the rows of {table} are gone, and their keys stay in its topic")
        elif one.renamed_to is not None and _K.RENAME_TABLE in wanted:
            if table not in arrived and not _stays(change, one):
                yield Stale(
                    table,
                    f"{table} is {one.renamed_to} now, and its rows stay in the topic of the old name",
                    copied=change.name_after(table) not in change.not_captured,
                )
            arrived.add(one.renamed_to)
        elif _K.TRUNCATE_TABLE in one.kinds and _K.TRUNCATE_TABLE in wanted:
            yield Stale(table, f"the rows of {table} are gone, and their keys stay in its topic")
        elif _K.ROWS_REMOVED in one.kinds and _K.ROWS_REMOVED in wanted:
            yield Stale(table, f"rows of {table} went with a partition, and their keys stay in its topic", copied=True)
        elif _K.CREATE_TABLE in one.kinds and one.before is not None and _K.CREATE_TABLE in wanted:
            yield Stale(table, f"{table} was replaced, and the keys of its old rows stay in its topic")
        elif _LEAVES_KEYS & set(one.kinds) & wanted:
            yield from _rekeyed(change, one, forms)
    for swapped in change.cut_overs if _K.RENAME_TABLE in wanted else ():
        yield from _rekeyed(change, swapped, forms)


def _rekeyed(change: SchemaChange, one: TableChange, forms: KeyForms) -> Iterator[Stale]:
    why = forms.differ(change, one)
    if why:
        yield Stale(
            one.table,
            f"messages of {one.table} have other keys from here on ({why}), and the old keys stay in its topic",
            copied=True,
        )


def _arrives(change: SchemaChange, table: TableChange) -> bool:
    """Return True if an uncaptured table takes the name of a captured one that no captured table had before this statement.

    At the cut-over of an online schema change the rows are the same.
    """
    new = table.renamed_to
    if new is None or new in change.not_captured:
        return False
    return not any(c.table == new and c.table not in change.not_captured for c in change.tables)


def _stays(change: SchemaChange, table: TableChange) -> bool:
    """Return True if the topic's rows are right after a rename: an online schema change put the same rows in their place."""
    arrived = {c.renamed_to for c in change.tables}  # a captured table may be under way under a name that is not
    return any(c.renamed_to == table.table and c.table in change.not_captured - arrived for c in change.tables)


def why_not_emptied(options: KafkaOptions) -> str:
    """Return why no topic of a target gets messages without a value for its keys; "" if topics do."""
    if options.form.arrow:
        return "messages of format arrow have no key, so that none can be removed by it"
    if not options.tombstones:
        return "options.tombstones is false, and a delete needs the whole row then"
    return ""


def left(change: SchemaChange, one: Stale, pipeline: str, why_not: str) -> LoadError:
    """Return the error for a topic that cannot be emptied. ``why_not``: what :func:`why_not_emptied` says, or why this topic cannot."""
    kinds = ", ".join(change.ddl_kinds)
    return LoadError(
        f"no change names the rows that a statement took away: {one.why}; {why_not}: {change.statement.text[:300]}",
        where=change.where,
        hint=f"tell the readers, then {to_ignore(change.consumer, kinds)}; for a table that there is again, "
        f"`sluice verify run {pipeline} --target {change.consumer} --repair` removes the keys that it lacks. Where its keys are others now, or its "
        f"name is, delete its old topic, make it anew (`sluice check {pipeline} --apply`) and copy the table (`sluice dump start {pipeline} --table "
        "SCHEMA.TABLE`)",
    )


def not_copied(change: SchemaChange, one: Stale) -> LoadError:
    """Return the error for rows that are to be copied again where the policy is to stop."""
    return LoadError(
        f"a topic would keep keys that no row has, or lack rows: {one.why}: {change.statement.text[:300]}",
        where=change.where,
        hint=f"set on_conversion: copy at target {change.consumer}: its old keys get messages without a value, and the "
        "table is copied again by itself",
    )


__all__ = ["Stale", "left", "not_copied", "stale_keys", "why_not_emptied"]
