"""The bodies of requests to act: one model for each kind of action, described and with an example for OpenAPI."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sluice.config.pipeline import MAX_GRACE
from sluice.model.verify_method import VerifyMethod
from sluice.operations.alert_rules import AlertRule

_TEXT = 2000
_MANY = 10_000


class Order(BaseModel):
    """The fields that every action takes."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field("", max_length=_TEXT, description="Goes into the audit.")
    confirm: str = Field(
        "",
        max_length=_TEXT,
        description="The pipeline's name. Required where the plan says `confirm: true`, because data is at stake.",
    )


class Restart(Order):
    """Restart all work under way."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"grace_s": 90}})

    grace_s: float | None = Field(
        None,
        ge=0,
        le=MAX_GRACE.total_seconds(),
        allow_inf_nan=False,
        strict=True,
        description="Seconds for which no other installation takes over; null: as the pipeline file says.",
    )


class Skip(Order):
    """Let a target do without its next batch."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"target": "reporting", "batch": 42, "confirm": "shop", "reason": "bad row"}},
    )

    target: str = Field(max_length=512, description="Name of the target.")
    batch: int = Field(ge=1, strict=True, description="Number of the target's next batch.")
    lost: bool = Field(
        False, strict=True, description="Its files are damaged or gone: they are not read, and nothing is kept."
    )


class Seek(Order):
    """Move the captured position."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"to": "latest", "confirm": "shop"}})

    to: str = Field(
        "",
        max_length=100_000,
        description="`latest`, `earliest`, `binlog.000042:1234`, a GTID set or `2026-01-31T12:00:00Z`. May be empty "
        "with `drop`: where the first undelivered batch begins.",
    )
    drop: bool = Field(False, strict=True, description="Do without the batches that are not delivered yet.")


class Redeliver(Order):
    """Load acknowledged batches again."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"target": "reporting"}})

    target: str = Field(max_length=512)
    from_batch: int | None = Field(
        None, ge=1, strict=True, description="The first of them; null: after what the target says it holds."
    )


class Failover(Order):
    """Read another server of the source group."""

    to: str = Field("", max_length=512, description="A connection of `source.connections`; empty: the first that fits.")


class SwitchTarget(Order):
    """Write a target at another server of its group."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"target": "reporting", "confirm": "shop"}})

    target: str = Field(max_length=512)
    to: str = Field(
        "", max_length=512, description="A connection of the target's `connections`; empty: the first that has all."
    )
    rewind: bool = Field(
        False, strict=True, description="Deliver again what the other server lacks, if it is still stored."
    )


class GroupOrder(Order):
    """Move the pipelines of a group to another server."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"to": "db2", "confirm": "shop"}})

    confirm: str = Field(
        "", max_length=_TEXT, description="The group's name. Required to move it, not for the plan: data is at stake."
    )
    to: str = Field(
        "", max_length=512, description="A connection of the group; empty: the first other one that has everything."
    )
    pipelines: list[str] = Field(
        default_factory=list, max_length=_MANY, description="Only these pipelines of the group; none: all."
    )


class SwitchGroup(GroupOrder):
    """Move the pipelines of a target group to another server."""

    rewind: bool = Field(
        False, strict=True, description="Deliver again what the other server lacks, if it is still stored."
    )


class Adopt(Order):
    """Say which side counts where a target and ZooKeeper disagree."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"target": "reporting", "side": "target"}})

    target: str = Field(max_length=512)
    side: Literal["target", "zookeeper"] = Field(description="The side that is right.")


class AlertSwitch(Order):
    """Switch an alert rule."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"rule": "dead_letters"}})

    rule: AlertRule = Field(description="The rule, as `GET …/alerts` names it.")


class Retry(Order):
    """Begin failed tasks again now."""


class Dump(Order):
    """Copy tables, or a part of one, to the targets again. The fields are those of the form of the backfill DAG."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"tables": ["shop.orders"]}})

    tables: list[str] = Field(default_factory=list, max_length=_MANY, description="schema.table; none: all captured.")
    targets: list[str] = Field(default_factory=list, max_length=_MANY, description="Who gets the rows; none: all.")
    where: str = Field("", max_length=_TEXT, description="SQL condition on the rows of one table; runs read-only.")
    first_key: str = Field("", max_length=_TEXT, description="First key, columns joined by commas; of one table.")
    last_key: str = Field("", max_length=_TEXT, description="Last key, included.")
    keys: str = Field("", max_length=100_000, description="Keys, one in a line, columns joined by commas.")
    since: str = Field("", max_length=64, description="Only keys that the log touched since this time (ISO 8601).")
    until: str = Field("", max_length=64, description="… and before this one.")
    index: str = Field("", max_length=512, description="Cut one table by this index, not by its primary key.")
    replace: bool = Field(
        False, strict=True, description="Also remove rows from the targets that the source does not have (any more)."
    )
    overwrite: bool = Field(False, strict=True, description="To a site of a channel: also over what was written there.")
    chunk_rows: int | None = Field(None, ge=1, strict=True, description="Rows a chunk, at most.")
    parallelism: int | None = Field(None, ge=1, le=64, strict=True, description="Chunks at the same time.")
    delay_ms: int | None = Field(None, ge=0, strict=True, description="Pause between two chunks.")
    max_rows_per_second: int | None = Field(None, ge=0, strict=True, description="0: as fast as it goes.")


class OneDump(Order):
    """A dump, by its id."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"dump": "20260131T120000-ab12cd"}})

    dump: str = Field("", max_length=256, description="Its id; empty: the newest that has not ended.")


class Tune(OneDump):
    """Change the pace of a dump that runs."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"chunk_rows": 10000, "delay_ms": 100}})

    chunk_rows: int | None = Field(None, ge=1, strict=True)
    parallelism: int | None = Field(None, ge=1, le=64, strict=True)
    delay_ms: int | None = Field(None, ge=0, strict=True)
    max_rows_per_second: int | None = Field(None, ge=0, strict=True)
    max_threads_running: int | None = Field(None, ge=0, strict=True)
    max_replica_lag_s: float | None = Field(None, ge=0, allow_inf_nan=False, strict=True)

    @property
    def changes(self) -> dict[str, Any]:
        """The settings that are given."""
        return self.model_dump(exclude={"reason", "confirm", "dump"}, exclude_none=True)


class Letters(Order):
    """Dead letters, by their ids."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"ids": ["1f2e3d4c5b6a"]}})

    ids: list[str] = Field(
        default_factory=list, max_length=_MANY, description="Ids, or their first digits; none: all that wait."
    )
    target: str = Field("", max_length=512, description="Only to this target; empty: to all that lack them.")


class Discard(Order):
    """Dead letters that are not delivered any more."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"ids": ["1f2e3d4c5b6a"], "confirm": "shop", "reason": "test row"}},
    )

    ids: list[str] = Field(min_length=1, max_length=_MANY, description="Ids, or their first digits.")


class Verify(Order):
    """Compare targets with the source."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"tables": ["shop.orders"], "sample": 10}})

    tables: list[str] = Field(default_factory=list, max_length=_MANY, description="schema.table; none: all captured.")
    targets: list[str] = Field(default_factory=list, max_length=_MANY, description="Which are compared; none: all.")
    where: str = Field("", max_length=_TEXT, description="Only rows of one table that meet this condition.")
    sample: float | None = Field(
        None, gt=0, le=100, allow_inf_nan=False, description="Percent of the key ranges; null: as the file says."
    )
    method: VerifyMethod | None = Field(
        None,
        description="compare: read both sides; sweep: compare the targets with their digests, and then what differs "
        "or has none with the source; null: as the file says.",
    )
    values: bool = Field(False, strict=True, description="Keep the values that differ; masked columns stay masked.")


class Repair(Verify):
    """Compare, copy the rows that differ, and remove those that only the target has."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"tables": ["shop.orders"], "confirm": "shop"}}
    )

    overwrite: bool = Field(False, strict=True, description="To a site of a channel: also over what was written there.")
