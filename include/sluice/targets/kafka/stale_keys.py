"""Decide what happens to a topic that would keep keys that no row has any more, or lack rows
(:mod:`sluice.targets.messages.stale_keys`).

The topic itself says which keys it holds, see :mod:`sluice.targets.kafka.held_keys`: they get messages without a value.
If rows stay at the source, they are copied again under their new name or key (``on_conversion: copy``).
"""

from __future__ import annotations

from sluice.errors import LoadError
from sluice.targets.feature_check import to_ignore
from sluice.targets.kafka.options import KafkaOptions
from sluice.targets.messages.stale_keys import Stale
from sluice.targets.port import SchemaChange


def why_not_emptied(options: KafkaOptions) -> str:
    """Return why no topic of a target gets messages without a value for its keys; "" if topics do."""
    if options.form.arrow:
        return "messages of format arrow have no key, so that none can be removed by it"
    if not options.tombstones:
        return "options.tombstones is false, and a delete needs the whole row then"
    return ""


def left(change: SchemaChange, stale: Stale, pipeline: str, why_not: str) -> LoadError:
    """Return the error for a topic that cannot be emptied.

    ``why_not``: what :func:`why_not_emptied` says, or why this topic cannot.
    """
    kinds = ", ".join(change.ddl_kinds)
    return LoadError(
        f"no change names the rows that a statement took away: {stale.why}; {why_not}: {change.statement.text[:300]}",
        where=change.where,
        hint=f"tell the readers, then {to_ignore(change.consumer, kinds)}; for a table that there is again, "
        f"`sluice verify run {pipeline} --target {change.consumer} --repair` removes the keys that it lacks. Where "
        "its keys are others now, or its "
        f"name is, delete its old topic, make it anew (`sluice check {pipeline} --apply`) and copy the table (`sluice "
        f"dump start {pipeline} --table SCHEMA.TABLE`)",
    )


def not_copied(change: SchemaChange, stale: Stale) -> LoadError:
    """Return the error for rows that are to be copied again where the policy is to stop."""
    return LoadError(
        f"a topic would keep keys that no row has, or lack rows: {stale.why}: {change.statement.text[:300]}",
        where=change.where,
        hint=f"set on_conversion: copy at target {change.consumer}: its old keys get messages without a value, and the "
        "table is copied again by itself",
    )
