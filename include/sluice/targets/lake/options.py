"""The ``options:`` that all targets of lake tables have."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sluice.model.tables import TableId
from sluice.targets.lake.types import TableInfo, clusterable
from sluice.targets.options import TableName


class LakeOptions(BaseModel):
    """The options that concern values and tables, whatever the format."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition_by: dict[TableName, tuple[str, ...]] = Field(
        default_factory=dict,
        description="schema.table of the target, and the columns by which a table that Sluice makes is partitioned.",
    )
    cluster_by: dict[TableName, tuple[str, ...]] = Field(
        default_factory=dict,
        description="schema.table of the target, and the columns by which maintenance puts rows next to each other, "
        "so that each file has a narrow range of their values.",
    )
    zero_dates: Literal["refuse", "null"] = Field(
        "refuse",
        description="What becomes of dates that no calendar has (0000-00-00, 2024-02-31), and of NaN in a decimal: the "
        "row is refused, or the value is NULL.",
    )
    wide_decimals: Literal["refuse", "string"] = Field(
        "refuse",
        description="DECIMAL of more than 38 digits, which no lake format has: the table is refused, or the column is "
        "a string.",
    )

    @model_validator(mode="after")
    def _clusters_fit(self) -> Self:
        for table, names in self.partition_by.items():
            if len({name.casefold() for name in names}) < len(names):
                raise ValueError(f"partition_by: {table}: a column is named twice")
        for table, names in self.cluster_by.items():
            option = f"cluster_by: {table}"
            folded = [name.casefold() for name in names]
            parts = {name.casefold() for name in self.partition_by.get(table, ())}
            if not all(names):
                raise ValueError(f"{option}: an empty name of a column")
            if not names:
                raise ValueError(f"{option}: name a column, or leave the table out")
            if len(set(folded)) < len(folded):
                raise ValueError(f"{option}: a column is named twice")
            if parts & set(folded):
                raise ValueError(
                    f"{option}: {min(parts & set(folded))} is in partition_by, too: a file has one value of it anyway"
                )
        return self

    def partitions(self, table: TableId) -> tuple[str, ...]:
        """Return the partition columns of a table that is created here."""
        return self.partition_by.get(str(table), ())

    def clusters(self, table: TableId, info: TableInfo) -> tuple[str, ...]:
        """Return the columns by which rows of a table are clustered.

        Names in the option that do not fit are ignored: `sluice check` reports them.
        """
        columns = map(info.find, self.cluster_by.get(str(table), ()))
        return tuple(
            column.name
            for column in columns
            if column is not None and not column.partition and clusterable(column.kind)
        )
