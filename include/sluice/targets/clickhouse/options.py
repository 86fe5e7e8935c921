"""The ``options:`` of a target of type clickhouse."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sluice.config.pipeline import Span
from sluice.config.rights import Refers
from sluice.targets.clickhouse.column_types import declared_problem
from sluice.targets.options import ColumnName, TableName
from sluice.targets.templates import require_known


class ClickHouseOptions(BaseModel):
    """The ``options:`` of a target of type clickhouse."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    types: Annotated[Mapping[ColumnName, str], Refers.NOTHING] = Field(
        {},
        description="schema.table.column of the target: the column's type, instead of the proposed one. Example: "
        "LowCardinality(String), JSON.",
    )
    enums: Literal["text", "enum"] = Field(
        "text", description="ENUM columns are LowCardinality(String), or Enum with the source's labels."
    )
    unfit_dates: Literal["refuse", "null"] = Field(
        "refuse",
        description="What becomes of dates that the column cannot hold, such as 0000-00-00: the row is refused, or the "
        "value is NULL.",
    )
    partition_by: Annotated[Mapping[TableName, str], Refers.CODE] = Field(
        {},
        description="schema.table of the target: the expression by which a table that Sluice makes is partitioned. It "
        "names columns of the key alone.",
    )
    settings: Annotated[Mapping[str, str | int], Refers.CODE] = Field(
        {}, description="Settings of tables that Sluice makes, such as index_granularity, besides its own."
    )
    replicated: bool = Field(False, description="Tables that Sluice makes have the Replicated form of their engine.")
    view: str = Field(
        "",
        description="Name of a view with the newest rows of each table (FINAL), in the table's database. {table}: of "
        "the target. Empty: none.",
    )
    checkpoint_database: str = Field(
        "sluice", min_length=1, description="Database of the table in which Sluice keeps checkpoints."
    )
    insert_rows: int = Field(500_000, ge=1, le=10_000_000, description="Rows of one INSERT at most.")
    compression: Literal["lz4", "zstd", "none"] = Field("lz4", description="Compression of rows on their way.")
    timeout: Annotated[Span, Field(ge=timedelta(seconds=1), le=timedelta(hours=1))] = Field(
        timedelta(minutes=2), description="For each answer of the server."
    )
    ddl_timeout: Annotated[Span, Field(ge=timedelta(seconds=1), le=timedelta(hours=24))] = Field(
        timedelta(hours=1), description="For each answer to a statement that changes a table or removes rows."
    )
    retry_for: Annotated[Span, Field(ge=timedelta(0), le=timedelta(hours=24))] = Field(
        timedelta(minutes=5),
        description="Time for which a statement is sent again while the server does not answer or has too much to do.",
    )

    @model_validator(mode="after")
    def _fits(self) -> ClickHouseOptions:
        for name, declared in self.types.items():
            if name.count(".") < 2:
                raise ValueError(f"types: {name!r} must be schema.table.column")
            problem = declared_problem(declared)
            if problem:
                raise ValueError(f"types: {name}: {problem}")
        for name in self.partition_by:
            if name.count(".") != 1:
                raise ValueError(f"partition_by: {name!r} must be schema.table")
        if self.view and ("table" not in require_known("view", self.view, {"table"}) or self.view == "{table}"):
            raise ValueError("view must have {table} and something else in it: each table needs a view of its own")
        for name in self.settings:
            if not name.replace("_", "").isalnum():
                raise ValueError(f"settings: {name!r} is no name of a setting")
        return self


__all__ = ["ClickHouseOptions"]
