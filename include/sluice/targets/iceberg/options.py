"""The ``options:`` of a target of type iceberg."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from sluice.config.pipeline import Size, Span
from sluice.config.rights import Refers
from sluice.targets.lake.options import LakeOptions

READS_DELETE_FILES = {
    "athena": True,
    "bigquery": True,
    "clickhouse": True,
    "databricks": False,
    "duckdb": True,
    "pyiceberg": True,
    "snowflake": True,
    "spark": True,
    "trino": True,
}
"""Engine -> does it apply position delete files of format version 2? docs/iceberg-target.md says where each is from."""


def _known(engine: str) -> str:
    if engine not in READS_DELETE_FILES:
        raise ValueError(f"{engine!r} is none of the engines {', '.join(READS_DELETE_FILES)}")
    return engine


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
    deleted_share: float = Field(
        0.2,
        gt=0,
        le=1,
        description="A data file is written anew when more than this share of its rows is deleted by delete files.",
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


def _no_code(catalog: dict[str, str]) -> dict[str, str]:
    """Return the settings of a catalog unchanged. Raises ValueError if one names a class, which would be imported."""
    for name in catalog:
        if name.endswith("impl"):
            raise ValueError(f"{name} names a class; write it into catalog of the connection's extra")
    return catalog


class IcebergOptions(LakeOptions):
    """The ``options:`` of a target of type iceberg."""

    catalog: Annotated[dict[str, str], Refers.ADDRESS, AfterValidator(_no_code)] = Field(
        default_factory=dict,
        description="The catalog as pyiceberg has it ({type: rest, uri: …, warehouse: …}), added to that of the "
        "connection; name: of a SQL catalog (sluice). No secrets and no classes: those are in the connection. With a "
        "connection that has a login, addresses are those that it has itself.",
    )
    file_size: Size = Field(
        64 * 2**20,
        ge=2**20,
        description="Rows of a data file of a table that Sluice makes, in bytes of memory.",
    )
    write_mode: Literal["copy-on-write", "merge-on-read"] = Field(
        "copy-on-write",
        description="How a changed or deleted row leaves its data file: the file is written anew, or a position delete "
        "file names the row until maintenance writes the data file anew. The words are Iceberg's (write.merge.mode).",
    )
    readers: tuple[Annotated[str, AfterValidator(_known)], ...] = Field(
        (),
        description="merge-on-read: the engines that read the tables, so that `sluice check` knows if each applies "
        f"delete files ({', '.join(READS_DELETE_FILES)}). None is said: it warns.",
    )
    small_file: Size = Field(
        256 * 2**10,
        description="merge-on-read: a data file of less than this size on disk is written anew, together with the new "
        "rows, instead of getting a delete file.",
    )
    maintenance: IcebergMaintenance = Field(
        default_factory=IcebergMaintenance,
        description="Compaction and removal of old snapshots, by the DAG retention and `sluice targets maintain`.",
    )


__all__ = ["IcebergMaintenance", "IcebergOptions"]
