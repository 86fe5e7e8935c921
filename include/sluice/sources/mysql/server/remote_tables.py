"""Tables whose rows another system stores: FEDERATED, SPIDER, CONNECT and the like. Whoever writes to that system is in its log, not in ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluice.model.tables import TableId
from sluice.sources.base import Finding
from sluice.sources.mysql.server.connection import rows_of

ENGINES = ("FEDERATED", "SPIDER", "CONNECT", "SPHINX", "S3", "OQGRAPH")
"""As information_schema says them."""
_TABLES = "SELECT TABLE_SCHEMA, TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE UPPER(ENGINE) IN %s"


def remote_findings(connection: Any, wants: Callable[[TableId], bool]) -> list[Finding]:
    """A warning for each captured table of such an engine."""
    return [
        Finding(
            "warning",
            "engine",
            f"{engine} ({table})",
            "another system stores the rows of this table: changes that are not made through this server are not in its log",
            "capture the table where its rows are stored, or let only this server write to it",
        )
        for schema, name, engine in rows_of(connection, _TABLES, (ENGINES,))
        if wants(table := TableId(str(schema), str(name)))
    ]
