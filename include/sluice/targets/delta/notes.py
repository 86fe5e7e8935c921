"""What a table itself says about the batches that it holds: ``txn`` actions of its commits.

Each commit has two of them, for the application ``sluice/PIPELINE/TARGET/SCOPE``: the batch, and under ``…#delivery`` the number of the
delivery, drawn anew by each rewind (:mod:`sluice.targets.delta.checkpoints`). A batch that another delivery noted does not count: batches are
delivered again. Of two commits that carry the same application the later one is refused, unless it has seen the earlier one. So a writer that reads
the table, compares and commits either was the only one since, or is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.targets.base import Fence
from sluice.targets.delta.client import library


@dataclass(frozen=True, slots=True)
class Application:
    """Who notes: ``owner`` is pipeline/target, ``scope`` the source table, or what else is noted of the table; ``about``: more, for people."""

    owner: str
    scope: str
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The ``appId``."""
        return f"sluice/{self.owner}/{self.scope}"

    def held(self, table: Any, delivery: int) -> int | None:
        """The number that a table (``DeltaTable``) has noted in this delivery."""
        if table.transaction_version(f"{self.name}#delivery") != delivery:
            return None
        found = table.transaction_version(self.name)
        return int(found) if found is not None else None

    def noting(
        self, number: int, delivery: int, fence: Fence, more: Mapping[str, str] | None = None, *, alone: bool = False
    ) -> Any:
        """Properties of a commit that notes ``number``. The epoch is for people: the checkpoint is what fences.

        ``alone``: it is refused if there was any other commit since the table was read.
        """
        delta = library()
        said = {
            "sluice.owner": self.owner,
            "sluice.batch": str(fence.batch),
            "sluice.epoch": str(fence.epoch),
            **self.about,
            **(more or {}),
        }
        return delta.CommitProperties(
            custom_metadata=said,
            max_commit_retries=0 if alone else None,
            app_transactions=[
                delta.Transaction(self.name, number),
                delta.Transaction(f"{self.name}#delivery", delivery),
            ],
        )
