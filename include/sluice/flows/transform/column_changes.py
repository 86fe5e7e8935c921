"""``send: changed_columns`` in a channel whose sites write the same rows: if the sites change different columns of a
row, both changes are kept.

Each column of a row is decided like a row of its own: from a row that goes to the other site, exactly those columns are
sent that some change of the batch changed, whatever their value at its end. A column that was changed and changed back
is sent, too: the other site may have written it meanwhile, and that would stay there. Which rows go back is decided by
row, which never sends too few. A row that was inserted, or moved to another key, is sent whole; an update of a row that
the other site has deleted changes nothing, and the delete arrives. The tests have a model of it.
"""

from __future__ import annotations

from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError
from sluice.flows.transform.repair import ReadDefinitions, with_unique_keys
from sluice.flows.transform.segment_rows import ColumnGroups
from sluice.mapping import Mapping as Routes
from sluice.mapping import TableRoute
from sluice.model.load_marks import LoadMark
from sluice.model.tables import TableId
from sluice.segments.manifest import SegmentManifest

NOT_BY_COLUMN = (
    "it has a unique key besides the primary one: in a channel whose sites write the same rows, its rows are sent whole"
)


def whole_rows(route: TableRoute) -> str:
    """Return the mapping line, as a hint, that makes a table send whole rows."""
    return (
        f"mapping: [{{from: {route.source}, to: {route.target}, send: rows}}]: a line that names the table counts "
        "before one with a pattern"
    )


def plan_columns(
    pipeline: PipelineConfig, mark: LoadMark | None, manifest: SegmentManifest, definitions: ReadDefinitions
) -> dict[TableId, ColumnGroups]:
    """Return the tables of a batch that send only changed columns, with the columns that are sent together.

    Raises:
        ConfigError: one of them has a further unique key: a row that removes another one for its value would come back
            without its other columns.
    """
    if mark is None or not mark.numbered:
        return {}
    routes = Routes.of(pipeline)
    every = {file.table_id: routes.route(file.table_id) for file in manifest.files}
    columns: dict[TableId, ColumnGroups] = {
        table: route.column_groups for table, route in every.items() if route.changed_only
    }
    refused = sorted(with_unique_keys(definitions, manifest) & columns.keys()) if columns else []
    if refused:
        table = refused[0]
        raise ConfigError(
            f"{pipeline.pipeline} sends changed columns of {table}: {NOT_BY_COLUMN}",
            where=str(table),
            hint=whole_rows(every[table]),
        )
    return columns


__all__ = ["NOT_BY_COLUMN", "plan_columns", "whole_rows"]
