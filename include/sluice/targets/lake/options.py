"""The ``options:`` that all targets of lake tables have."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class LakeOptions(BaseModel):
    """The options that concern values and tables, whatever the format."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition_by: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="schema.table of the target, and the columns by which a table that Sluice makes is partitioned.",
    )
    cluster_by: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="schema.table of the target, and the columns by which maintenance puts rows next to each other, so that each file has a narrow "
        "range of their values.",
    )
    zero_dates: Literal["refuse", "null"] = Field(
        "refuse",
        description="What becomes of dates that no calendar has (0000-00-00, 2024-02-31): the row is refused, or the value is NULL.",
    )
    wide_decimals: Literal["refuse", "string"] = Field(
        "refuse",
        description="DECIMAL of more than 38 digits, which no lake format has: the table is refused, or the column is a string.",
    )

    @model_validator(mode="after")
    def _clusters_fit(self) -> Self:
        for table, names in self.cluster_by.items():
            said = f"cluster_by: {table}"
            seen = [name.casefold() for name in names]
            parts = {name.casefold() for name in self.partition_by.get(table, ())}
            if not all(names):
                raise ValueError(f"{said}: an empty name of a column")
            if not names:
                raise ValueError(f"{said}: name a column, or leave the table out")
            if len(set(seen)) < len(seen):
                raise ValueError(f"{said}: a column is named twice")
            if parts & set(seen):
                raise ValueError(
                    f"{said}: {min(parts & set(seen))} is in partition_by, too: a file has one value of it anyway"
                )
        return self
