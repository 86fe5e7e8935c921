"""Tables whose rows another system stores: FEDERATED, SPIDER, CONNECT and the like.

Whoever writes to that system is in its log, not in ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sluice.model.findings import Finding
from sluice.model.tables import TableId

ENGINES = ("FEDERATED", "SPIDER", "CONNECT", "SPHINX", "S3", "OQGRAPH")
"""Their names in information_schema."""


def remote_findings(tables: Iterable[tuple[TableId, str]], wants: Callable[[TableId], bool]) -> list[Finding]:
    """Return a warning for each captured table of such an engine. ``tables``: with their engines."""
    return [
        Finding(
            "warning",
            "engine",
            f"{engine} ({table})",
            "another system stores the rows of this table: changes that are not made through this server are not in "
            "its log",
            "capture the table where its rows are stored, or let only this server write to it",
        )
        for table, engine in tables
        if engine.upper() in ENGINES and wants(table)
    ]
