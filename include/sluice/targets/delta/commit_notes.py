"""The notes in a table about the batches that it holds: ``txn`` actions of its commits.

A commit notes the batch for the application ``sluice/PIPELINE/TARGET/SCOPE@DELIVERY``. Each rewind draws a new delivery
number (:mod:`sluice.targets.lake.checkpoint`): batches that another delivery noted do not count and are delivered
again. Of two commits that carry the same application the later one is refused, unless it has seen the earlier one;
delta-rs and Spark both do this, and Spark also skips a commit whose number is already noted. So a writer that reads the
table, compares and commits either was the only one since, or is refused.

The first commit of a delivery ends the previous one: it notes ``…#delivery``, and for the application of the previous
delivery a number that no batch has. So a writer of that one, by delta-rs or by Spark, is refused or skipped from then
on.

Tables that older versions wrote have the batch noted without ``@DELIVERY``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sluice.targets.delta.client import library
from sluice.targets.lake.format import CommitNote

_ENDED = 2**62
"""A number greater than any batch. Numbers have 64 bits."""


def application(note: CommitNote) -> str:
    """Return the ``appId`` under which a batch is noted."""
    return f"{_name(note.owner, note.scope)}@{note.delivery}"


def _name(owner: str, scope: str) -> str:
    return f"sluice/{owner}/{scope}"


def noted(table: Any, owner: str, scope: str, delivery: int) -> int | None:
    """Return the number that a table (``DeltaTable``) has noted in this delivery.

    ``scope``: the source table, or what else is noted about the table.
    """
    name = _name(owner, scope)
    version = table.transaction_version(f"{name}@{delivery}")
    if version is None and table.transaction_version(f"{name}#delivery") == delivery:
        version = table.transaction_version(name)
    return int(version) if version is not None else None


def begun(table: Any, note: CommitNote) -> bool:
    """Return True if a table has noted that this delivery began."""
    return bool(table.transaction_version(f"{_name(note.owner, note.scope)}#delivery") == note.delivery)


def noting(table: Any, note: CommitNote, *, alone: bool = False) -> Any:
    """Return the properties of a commit (``CommitProperties``).

    ``alone``: it is refused if any other commit was made since the table was read.
    """
    delta, name = library(), _name(note.owner, note.scope)
    numbers = {application(note): note.number}
    if not begun(table, note):
        before = table.transaction_version(f"{name}#delivery")
        numbers[f"{name}#delivery"] = note.delivery
        if before is not None:
            numbers[f"{name}@{before}"] = _ENDED
    return delta.CommitProperties(
        custom_metadata=dict(note.said),
        max_commit_retries=0 if alone else None,
        app_transactions=[delta.Transaction(app, number) for app, number in numbers.items()],
    )


def said_by(commit: Mapping[str, Any]) -> dict[str, str]:
    """Return the notes in a commit of a table's history: delta-rs stores the words separately, Spark stores one
    text.
    """
    try:
        text = json.loads(commit.get("userMetadata") or "{}")
    except ValueError:  # another program wrote it
        text = {}
    notes = {**commit, **(text if isinstance(text, dict) else {})}
    return {str(name): str(value) for name, value in notes.items() if str(name).startswith("sluice.")}
