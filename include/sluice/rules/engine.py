"""``engine.yaml``: which rules there are, in which order, and what each applies to."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sluice.config.pipeline import Regex


class RuleKind(StrEnum):
    """How a rule is written."""

    ROW = "row"
    ARROW = "arrow"
    PANDAS = "pandas"
    SQL = "sql"
    SPARK = "spark"


AVAILABLE_KINDS = (RuleKind.ROW, RuleKind.ARROW, RuleKind.PANDAS)
"""The kinds that this version runs."""

RuleEvent = Literal["insert", "update", "delete"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class RuleMatch(_Model):
    """What a rule applies to. All parts have to fit; regular expressions are anchored at both ends."""

    schema_: Regex = Field(".*", alias="schema", description="Regular expression on the source schema.")
    table: Regex = Field(".*", description="Regular expression on the source table.")
    events: tuple[RuleEvent, ...] = Field(
        ("insert", "update", "delete"),
        min_length=1,
        description="Operations the rule sees. Others pass it by, unchanged.",
    )
    columns: tuple[Regex, ...] = Field(
        (), description="An update is seen only if a column of such a name changed; inserts and deletes always are."
    )


class RuleConfig(_Model):
    """One rule."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,99}$")] = Field(
        description="Name in logs, errors and the graph."
    )
    path: str = Field(description="The rule's file, relative to engine.yaml.")
    type: RuleKind = Field(
        RuleKind.ROW, description="row: dict in, dict, list of dicts or None out; arrow, pandas: a whole table."
    )
    order: int = Field(0, description="Lower runs first; rules of one order run as listed.")
    match: RuleMatch = Field(default_factory=RuleMatch, description="What it applies to.")
    params: dict[str, Any] = Field(default_factory=dict, description="Given to the rule as context.params.")
    on_error: Literal["stop"] = Field("stop", description="stop: the batch stays where it is until the rule is mended.")
    task: Literal["fused", "own"] = Field(
        "fused", description="fused: in one pass with the other rules; own: an Airflow task of its own."
    )

    @field_validator("type")
    @classmethod
    def _available(cls, value: RuleKind) -> RuleKind:
        if value not in AVAILABLE_KINDS:
            raise ValueError(f"rules of type {value} are not in this version; available: {', '.join(AVAILABLE_KINDS)}")
        return value


class EngineConfig(_Model):
    """The file."""

    version: Literal[1] = Field(1, description="Version of this file format.")
    rules: tuple[RuleConfig, ...] = Field((), description="The rules.")

    @model_validator(mode="after")
    def _names(self) -> EngineConfig:
        names = [rule.name for rule in self.rules]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two rules have the name {twice[0]!r}")
        return self
