"""The tables of a source, for somebody who writes a pipeline file: keys, about how many rows, columns."""

from __future__ import annotations

from typing import Any

from sluice.config.connections import ConnectionResolver
from sluice.config.pipeline import PipelineConfig
from sluice.sources import open_source
from sluice.sources.table_filter import Selection

MOST = 5000
"""Tables in one answer, at most."""


def source_tables(kind: str, connection: str, resolver: ConnectionResolver) -> list[dict[str, Any]]:
    """Return the tables that a pipeline could capture, by name. Raises what the source's session raises."""
    config = PipelineConfig.model_validate({
        "pipeline": "editor",
        "source": {"type": kind, "connection": connection},
        "targets": [{"name": "none", "type": "memory", "connection": connection}],
    })
    wanted_selection = Selection.compile(config.capture)
    with open_source(config, resolver).open() as session:
        tables = session.tables(wanted_selection.wants)
    return [
        {
            "schema": table.id.schema,
            "table": table.id.table,
            "rows": table.rows,
            "key": list(table.schema.primary_key or table.unique_not_null),
            "columns": [{"name": c.name, "type": c.native or c.sql_type} for c in table.schema.columns],
            "unknown": [{"name": name, "type": kind} for name, kind in table.unknown],
        }
        for table in tables[:MOST]
    ]
