"""``engine.yaml``: which rules there are, in which order, and what each applies to."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from sluice.config import patterns
from sluice.config.pipeline import MAX_COUNT, ConnectionId, Integer, Regex, Size, Span, StoreUri, whole
from sluice.config.rights import Refers


class RuleKind(StrEnum):
    """How a rule is written."""

    ROW = "row"
    ARROW = "arrow"
    PANDAS = "pandas"
    SQL = "sql"
    SPARK = "spark"


class OnError(StrEnum):
    """What becomes of a row on which a rule raises."""

    STOP = "stop"
    DEAD_LETTER = "dead_letter"
    SKIP_ROW = "skip_row"


HIDING = frozenset({"mask", "hash"})
"""Built-in rules that must not pass a row by."""

RuleEvent = Literal["insert", "update", "delete"]


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True)


class RuleMatch(_Model):
    """What a rule applies to. All parts have to fit; regular expressions are anchored at both ends."""

    schema_: Regex = Field(".*", alias="schema", description="Regular expression on the source schema.")
    table: Regex = Field(".*", description="Regular expression on the source table.")
    operation: Regex = Field(".*", description="Regular expression on insert, update or delete.")
    events: tuple[RuleEvent, ...] = Field(
        ("insert", "update", "delete"),
        min_length=1,
        description="Operations the rule sees, as a list. Others pass it by, unchanged.",
    )
    columns: tuple[Regex, ...] = Field(
        (), description="An update is seen only if a column of such a name changed; inserts and deletes always are."
    )


class LookupConfig(_Model):
    """A dimension table that a rule holds: from a file, or from a query over a connection."""

    file: StoreUri | None = Field(
        None,
        min_length=1,
        description="CSV, Parquet or JSON-lines file, relative to engine.yaml, or any pyarrow.fs URI.",
    )
    connection: ConnectionId | None = Field(None, description="Id of a connection of type mysql; goes with query.")
    query: Annotated[str, Refers.CODE] | None = Field(None, description="One SELECT; its columns are the lookup's.")
    key: Names = Field(min_length=1, description="Column or columns that a row is found by.")
    max_age: Span = Field(timedelta(minutes=5), description="A worker reads it again when its copy is older.")
    max_rows: Integer = Field(
        100_000,
        gt=0,
        le=MAX_COUNT,
        description="More rows are an error: a lookup is held in the memory of every worker.",
    )
    max_bytes: Size = Field(64 * 2**20, description="The same, in bytes of Arrow memory.")

    @model_validator(mode="after")
    def _one_source(self) -> LookupConfig:
        if (self.file is None) == (self.connection is None) or (self.connection is None) != (self.query is None):
            raise ValueError("a lookup takes either file, or connection and query")
        return self


class EmitConfig(_Model):
    """What a table that a rule sends rows to looks like. A bare list is the key."""

    key: Names | None = Field(None, description="Key columns; none: those of the source table.")
    columns: Names | None = Field(None, description="Only these columns go there; none: all the rule gives.")

    @model_validator(mode="before")
    @classmethod
    def _bare_key(cls, value: Any) -> Any:
        return {"key": value} if isinstance(value, str | list | tuple) else value


class RuleConfig(_Model):
    """One rule."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,99}$")] = Field(
        description="Name in logs, errors and the graph."
    )
    description: str = Field(
        "",
        max_length=500,
        description="What it is for, in one sentence, as the graph shows it. Without it: the first line of the rule's "
        "file.",
    )
    path: Annotated[str, Refers.CODE] | None = Field(
        None, min_length=1, description="The rule's file, relative to engine.yaml."
    )
    builtin: Annotated[str, Refers.KIND] | None = Field(
        None, description="Instead of path: a rule that comes with Sluice; docs/rules.md lists them."
    )
    package: Annotated[str, Refers.CODE] | None = Field(
        None,
        min_length=1,
        description="Instead of path: a rule of an installed package, by the name of its entry point (sluice.rules).",
    )
    enabled: bool = Field(
        True,
        description="false: a draft. No batch sees it; `sluice rules list` and `sluice rules test` do.",
    )
    type: RuleKind = Field(
        RuleKind.ROW,
        description="row: dict in, dict, list of dicts or None out; arrow, pandas: a whole table; sql: one SELECT "
        "over the table `rows`; spark: DataFrame in and out, always a task of its own. A built-in rule has its own.",
    )
    order: Integer = Field(
        0, ge=-MAX_COUNT, le=MAX_COUNT, description="Lower runs first; rules of one order run as listed."
    )
    match: RuleMatch = Field(default_factory=RuleMatch, description="What it applies to.")
    params: Annotated[dict[str, Any], Refers.CODE] = Field(
        default_factory=dict, description="Given to the rule as context.params; in SQL as $name."
    )
    lookups: dict[str, LookupConfig] = Field(
        default_factory=dict, description="Dimension tables: context.lookups[name]; in SQL a table of that name."
    )
    emits: dict[str, EmitConfig] = Field(
        default_factory=dict,
        description="Key (and columns) of other tables (schema.table) that the rule sends rows to; without a line "
        "here they have the source table's key and all columns.",
    )
    on_error: OnError = Field(
        OnError.STOP,
        description="stop: the batch waits until the rule is fixed; dead_letter: the row is kept in the dead-letter "
        "store; skip_row: its change is left out, and counted.",
    )
    max_errors: Integer = Field(
        1000,
        ge=1,
        le=MAX_COUNT,
        description="Rows of a table in one work unit that may fail; beyond, the batch stops whatever on_error says.",
    )
    timeout: Span | None = Field(
        None,
        ge=timedelta(milliseconds=10),
        description="Longest time that one call of the rule may take (row: one row; arrow, pandas, sql: one table of "
        "a work unit); then the batch stops with the rule's name and the line where it was. Default: 10 minutes. Not "
        "for type spark.",
    )
    task: Literal["fused", "own"] = Field(
        "fused",
        description="fused: in one pass with the other rules; own: an Airflow task of its own, rule.NAME in the graph.",
    )

    @property
    def owns_task(self) -> bool:
        """True if the rule is a task of its own in the graph."""
        return self.task == "own" or self.type is RuleKind.SPARK

    @field_validator("emits")
    @classmethod
    def _dotted(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if name.count(".") != 1:
                raise ValueError(f"{name!r} must be schema.table")
        return value

    @model_validator(mode="after")
    def _one_file(self) -> RuleConfig:
        if sum(origin is not None for origin in (self.path, self.builtin, self.package)) != 1:
            raise ValueError(
                "a rule takes one of path (your own file), builtin (a rule that comes with Sluice) and package (a rule "
                "of an installed package)"
            )
        if self.package is not None and self.type is RuleKind.SQL:
            raise ValueError("a rule of a package is Python: type row, arrow, pandas or spark")
        seen_events = {event for event in self.match.events if patterns.fullmatch(self.match.operation, event)}
        if self.builtin in HIDING and (self.match.columns or not {"insert", "update"} <= seen_events):
            raise ValueError(
                f"{self.builtin} must see every insert and update, because other rows pass unchanged: match no "
                "columns, and both events"
            )
        if self.type is RuleKind.SPARK and self.timeout is not None:
            raise ValueError("a rule of type spark has no timeout: Spark's own settings limit its job")
        if self.type is RuleKind.SPARK and self.on_error is not OnError.STOP:
            raise ValueError(
                f"a rule of type spark cannot {self.on_error}: Spark does not say on which row it failed; on_error: "
                "stop"
            )
        return self


class EngineConfig(_Model):
    """The file."""

    version: Annotated[Literal[1], BeforeValidator(whole)] = Field(1, description="Version of this file format.")
    rules: tuple[RuleConfig, ...] = Field((), description="The rules.")

    @model_validator(mode="after")
    def _names(self) -> EngineConfig:
        names = [rule.name for rule in self.rules]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two rules have the name {twice[0]!r}")
        return self

    @property
    def in_order(self) -> tuple[RuleConfig, ...]:
        """The rules in the order in which they run, without drafts."""
        return tuple(rule for rule in self.with_drafts if rule.enabled)

    @property
    def with_drafts(self) -> tuple[RuleConfig, ...]:
        """The rules in the order in which they run, and drafts where they would run."""
        return tuple(sorted(self.rules, key=lambda rule: rule.order))
