"""Compare planned tables with the existing Delta tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.errors import LoadError
from sluice.model.tables import TableId
from sluice.targets.delta.site import Site
from sluice.targets.lake.schema import LakeSchema, wanting
from sluice.targets.lake.statements import Statement, quoted


@dataclass(frozen=True)
class DeltaSchema(LakeSchema):
    """See :class:`sluice.targets.lake.schema.LakeSchema`."""

    site: Site

    def _apply(self, told: Statement, text: str) -> None:
        uri = told.names[-1] if told.names else ""
        path = self.site.place.path(uri)
        if path is None:
            raise LoadError(f"{uri} is not in the target's location {self.site.place.root}: {text[:200]}")
        if told.create:
            self.site.create(uri, told.columns, told.partitions)
            return
        table = self.site.place.open(path, f"reading the log of {uri}")
        if table is None:
            raise LoadError(f"there is no Delta table at {uri}: {text[:200]}")
        new = wanting(told.columns, self.site.info(table))
        if new:
            self.site.add(table, path, new)

    def _place(self, table: TableId) -> str:
        return f"delta.{quoted(self.site.uri(table))}"

    def _refused(self, table: Any) -> tuple[str, str]:
        why = _refusal(table.metadata().configuration, appends=self.site.every)
        return why, "switch it off and rewrite the table with Spark, or make it anew" if why else ""


def _refusal(configuration: Mapping[str, str], *, appends: bool) -> str:
    """Return why the client cannot write to a table with these properties, "" if it can."""
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        return "the table maps its columns to other names (delta.columnMapping.mode), which the client (delta-rs) does not write"
    if configuration.get("delta.enableDeletionVectors", "false") == "true":
        return (
            "the table has deletion vectors (delta.enableDeletionVectors), which the client (delta-rs) does not write"
        )
    if not appends and configuration.get("delta.appendOnly", "false") == "true":
        return "the table takes appends only (delta.appendOnly)"
    return ""
