"""Who may read what."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sluice.model.tables import TableId


@dataclass(frozen=True)
class Reader:
    """Somebody who reads.

    Attributes:
        name: for messages and the log. pipelines: regular expressions on schema.table, anchored, by pipeline; None: all of everything.
    """

    name: str
    pipelines: dict[str, tuple[str, ...]] | None = None

    def may_see(self, pipeline: str) -> bool:
        """True if something of the pipeline may be read."""
        return self.pipelines is None or pipeline in self.pipelines

    def may_read(self, pipeline: str, table: TableId) -> bool:
        """True if rows of the table may be read, under the name they are read by."""
        if self.pipelines is None:
            return True
        return any(re.fullmatch(pattern, str(table)) for pattern in self.pipelines.get(pipeline, ()))


ANYBODY = Reader("anybody")
"""Of a service without tokens: whoever can connect to this machine's own address."""
