"""What a table itself says about the batches that it holds: ``txn`` actions of its commits.

Each commit has two of them, for the application ``sluice/PIPELINE/TARGET/SCOPE``: the batch, and under ``…#delivery`` the number of the
delivery, drawn anew by each rewind (:mod:`sluice.targets.lake.checkpoints`). A batch that another delivery noted does not count: batches are
delivered again. Of two commits that carry the same application the later one is refused, unless it has seen the earlier one. So a writer that reads
the table, compares and commits either was the only one since, or is told.
"""

from __future__ import annotations

from typing import Any

from sluice.targets.delta.client import library
from sluice.targets.lake.site import Note


def application(owner: str, scope: str) -> str:
    """The ``appId``. ``owner``: pipeline/target; ``scope``: the source table, or what else is noted of the table."""
    return f"sluice/{owner}/{scope}"


def held(table: Any, name: str, delivery: int) -> int | None:
    """The number that a table (``DeltaTable``) has noted for an application in this delivery."""
    if table.transaction_version(f"{name}#delivery") != delivery:
        return None
    found = table.transaction_version(name)
    return int(found) if found is not None else None


def noting(name: str, note: Note, *, alone: bool = False) -> Any:
    """Properties of a commit (``CommitProperties``). ``alone``: it is refused if there was any other commit since the table was read."""
    delta = library()
    return delta.CommitProperties(
        custom_metadata=dict(note.said),
        max_commit_retries=0 if alone else None,
        app_transactions=[
            delta.Transaction(name, note.number),
            delta.Transaction(f"{name}#delivery", note.delivery),
        ],
    )
