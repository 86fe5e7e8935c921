"""The ``options:`` of a target of type iceberg."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sluice.config.pipeline import Size, Span
from sluice.targets.lake.options import LakeOptions


class IcebergMaintenance(BaseModel):
    """The maintenance that the DAG ``retention`` does for the tables while batches are loaded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    compact: bool = Field(True, description="Small files become larger ones.")
    small_files: int = Field(
        10,
        ge=2,
        description="A table is compacted when it has this number of files of less than a sixteenth of file_size on "
        "disk.",
    )
    expire: bool = Field(True, description="Old snapshots are given up.")
    orphans: bool = Field(True, description="Files that nothing names are removed, which killed processes left behind.")
    keep: Span = Field(
        timedelta(days=7),
        description="Snapshots are given up, and files that nothing names are removed, after this time: as long can a "
        "table be read as of an older batch. At least 1h, and longer than the longest load.",
    )

    @model_validator(mode="after")
    def _long_enough(self) -> IcebergMaintenance:
        if self.keep < timedelta(hours=1):
            raise ValueError("keep: at least 1h")
        return self


class IcebergOptions(LakeOptions):
    """The ``options:`` of a target of type iceberg."""

    catalog: dict[str, str] = Field(
        default_factory=dict,
        description="The catalog as pyiceberg has it ({type: rest, uri: …, warehouse: …}), added to that of the "
        "connection; name: of a SQL catalog (sluice). No secrets: those are in the connection.",
    )
    file_size: Size = Field(
        64 * 2**20,
        ge=2**20,
        description="Rows of a data file of a table that Sluice makes, in bytes of memory. A changed row costs a file "
        "written anew.",
    )
    maintenance: IcebergMaintenance = Field(
        default_factory=IcebergMaintenance,
        description="Compaction and removal of old snapshots, by the DAG retention and `sluice targets maintain`.",
    )


__all__ = ["IcebergMaintenance", "IcebergOptions"]
