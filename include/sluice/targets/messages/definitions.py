"""Schema changes at a target with messages: documents name their columns, so most changes need nothing."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.model.schema_changes import ChangeKind
from sluice.targets.messages.key_forms import KeyForms
from sluice.targets.messages.stale_keys import StaleWords, stale_keys
from sluice.targets.port import SchemaChange
from sluice.targets.schema.conversions import effects_on, not_converted
from sluice.targets.schema.policy import not_followed, stopped

_K = ChangeKind
_NOT_FOLLOWED = frozenset({_K.TRUNCATE_TABLE, _K.ROWS_REMOVED, _K.ROWS_REPLACED, _K.UNKNOWN})
"""Changes by which rows are removed that no change of the log names."""
FOLLOWED = frozenset(ChangeKind) - _NOT_FOLLOWED
"""The schema changes that need no message. :mod:`sluice.targets.messages.stale_keys` names those after which merged
rows are wrong at readers.
"""


def require_not_stopped(change: SchemaChange) -> None:
    """Raise LoadError if the policy is to stop at a schema change: messages do not show whether it was followed."""
    if change.check_only:
        raise stopped(change, (), (kind.value for kind in sorted(change.wanted)))


def require_not_converted(change: SchemaChange) -> None:
    """Raise LoadError if the source converted rows that were sent, and that are not copied again."""
    for table in change.tables:
        for effect in effects_on(change, table.table):
            raise not_converted(change, effect, change.target(table.table), "messages that were sent stay as they are")


def require_said(changes: Sequence[SchemaChange], forms: KeyForms | None, words: StaleWords, hint: str) -> None:
    """Raise LoadError for a schema change that documents cannot say to readers whose keys nobody can remove.

    ``forms``: of the keys of merged rows; None where every change is sent.
    """
    for change in changes:
        require_not_stopped(change)
        for key in stale_keys(change, forms, words) if forms is not None else ():
            raise not_followed(change, f"no {words.document} names the rows that it is about: {key.why}", hint)
        require_not_converted(change)
