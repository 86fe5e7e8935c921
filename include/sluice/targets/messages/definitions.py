"""Schema changes at a target with messages: documents name their columns, so most changes need nothing."""

from __future__ import annotations

from sluice.model.schema_changes import ChangeKind
from sluice.targets.port import SchemaChange
from sluice.targets.schema.conversions import effects_on, not_converted
from sluice.targets.schema.policy import stopped

_K = ChangeKind
_NOT_FOLLOWED = frozenset({_K.TRUNCATE_TABLE, _K.ROWS_REMOVED, _K.ROWS_REPLACED, _K.UNKNOWN})
"""Changes by which rows are removed that no change of the log names."""
FOLLOWED = frozenset(ChangeKind) - _NOT_FOLLOWED
"""The schema changes that need no message. :mod:`sluice.targets.messages.stale_keys` names those after which merged rows are wrong at readers."""


def require_not_stopped(change: SchemaChange) -> None:
    """Raise LoadError if the policy is to stop at a schema change: messages do not show whether it was followed."""
    if change.check_only:
        raise stopped(change, (), (kind.value for kind in sorted(change.wanted)))


def require_not_converted(change: SchemaChange) -> None:
    """Raise LoadError if the source converted rows that were sent, and that are not copied again."""
    for table in change.tables:
        for effect in effects_on(change, table.table):
            raise not_converted(change, effect, change.target(table.table), "messages that were sent stay as they are")
