"""``options:`` that all targets of lake tables have."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class LakeOptions(BaseModel):
    """What concerns values and tables, whatever the format."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition_by: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="schema.table of the target, and the columns by which a table that Sluice makes is partitioned.",
    )
    zero_dates: Literal["refuse", "null"] = Field(
        "refuse",
        description="What becomes of dates that no calendar has (0000-00-00, 2024-02-31): the row is refused, or the value is NULL.",
    )
    wide_decimals: Literal["refuse", "string"] = Field(
        "refuse",
        description="DECIMAL of more than 38 digits, which no lake format has: the table is refused, or the column is a string.",
    )
