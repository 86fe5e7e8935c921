"""The ``options:`` of a target of type delta."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sluice.config.pipeline import Size, Span
from sluice.config.rights import Refers
from sluice.model.tables import TableId
from sluice.targets.lake.names import RESERVED, legal
from sluice.targets.lake.options import LakeOptions
from sluice.targets.templates import require_known


class DeltaMaintenance(BaseModel):
    """The maintenance that the DAG ``retention`` does for the tables while batches are loaded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    compact: bool = Field(True, description="Small files become larger ones.")
    file_size: Size = Field(128 * 2**20, ge=2**20, description="How large; files of less than half of it are small.")
    small_files: int = Field(10, ge=2, description="A table is compacted when it has this number of small files.")
    keep: Span = Field(
        timedelta(days=7),
        description="Files that the newest version does not need, and those of commits that were not taken, are "
        "removed after this time: as long can a table be read as of an older batch. At least 1h, and longer than the "
        "longest load.",
    )
    vacuum: bool = Field(True, description="Remove them.")

    @model_validator(mode="after")
    def _long_enough(self) -> DeltaMaintenance:
        if self.keep < timedelta(hours=1):
            raise ValueError("keep: at least 1h: files of a load that is running would be removed")
        return self


class DeltaOptions(LakeOptions):
    """The ``options:`` of a target of type delta."""

    location: Annotated[str, Refers.LOCATION] = Field(
        "",
        description="Where the tables lie: an absolute folder or a URL (s3://bucket/lake). Default: location, or "
        "path, in the connection's extra.",
    )
    table: str = Field(
        "{schema}/{table}",
        min_length=1,
        description="Path of a table in it. {schema}, {table}: of the target table; {pipeline}, {target}: names.",
    )
    execution: Literal["units", "frame"] = Field(
        "units",
        description="frame: Spark itself writes tables of which a batch has many rows, with the jars of Delta. units: "
        "delta-rs does.",
    )
    frame_from: int = Field(
        1_000_000,
        ge=1,
        description="With execution: frame: Spark writes a table of which a batch has this number of rows (changes: "
        "all: a batch of as many).",
    )
    rewrite_up_to: Size | Literal["never"] = Field(
        10 * 2**30,
        description="A change of columns that needs the table written anew (DROP, RENAME, a wider type) is followed "
        "up to this size of its files; never: the load stops.",
    )
    maintenance: DeltaMaintenance = Field(
        default_factory=DeltaMaintenance,
        description="Compaction and removal of old files, by the DAG retention and `sluice targets maintain`.",
    )

    @model_validator(mode="after")
    def _fits(self) -> DeltaOptions:
        if "table" not in require_known("table", self.table, ("schema", "table", "pipeline", "target")):
            raise ValueError("table must have {table} in it: each table has a folder of its own")
        if self.table.startswith("/") or ".." in self.table.split("/"):
            raise ValueError("table is a path within location")
        return self

    def path_of(self, table: TableId, pipeline: str, target: str) -> str:
        """Return the path of a table.

        Characters that are odd in a path are written as ~XX, so that two tables never share one.
        """
        schema, name = map(legal, (table.schema, table.table))
        return self.table.format(schema=schema, table=name, pipeline=legal(pipeline), target=legal(target)).strip("/")


__all__ = ["RESERVED", "DeltaOptions"]
