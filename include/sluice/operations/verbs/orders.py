"""The orders: the fields of each verb, described and with an example for OpenAPI.

Commands and forms are made from the same fields; :class:`Spelling` says how, where the field's name does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sluice.model.alert_rule import AlertRule
from sluice.model.grace import MAX_GRACE
from sluice.model.verify_method import VerifyMethod

_TEXT = 2000
_MANY = 10_000


@dataclass(frozen=True, slots=True)
class Spelling:
    """The form of an order's field on the command line and in Airflow's form, where its name and description do not say
    it.

    Attributes:
        option: name of the option; "": ``--`` and the field's name. argument: it is an argument.
        help: text of the command's help, where it is not the field's description.
        flags: one option for each value of the field, with its help. refusal: message and hint if not exactly one is
            given.
        parts: what separates several values in the field; each becomes an option of its own.
        unit: follows the value.
        label: title in Airflow's form; "": the field's name.
    """

    option: str = ""
    argument: bool = False
    help: str = ""
    flags: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    refusal: tuple[str, str] = ("", "")
    parts: str = ""
    unit: str = ""
    label: str = ""


ARGUMENT = Spelling(argument=True)


class Order(BaseModel):
    """The fields that every action takes."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, Spelling(label="Why")] = Field("", max_length=_TEXT, description="Goes into the audit.")
    confirm: str = Field(
        "",
        max_length=_TEXT,
        description="The pipeline's name. Required where the plan says `confirm: true`, because data is at stake.",
    )


Target = Annotated[str, ARGUMENT, Field(max_length=512, description="Name of the target.")]
Tables = Annotated[
    list[str],
    Spelling("--table"),
    Field(default_factory=list, max_length=_MANY, description="schema.table; none: all captured."),
]


class Restart(Order):
    """Restart all work under way."""

    model_config = ConfigDict(json_schema_extra={"example": {"grace_s": 90}})

    grace_s: Annotated[float | None, Spelling("--grace", label="Grace in seconds")] = Field(
        None,
        ge=0,
        le=MAX_GRACE.total_seconds(),
        allow_inf_nan=False,
        strict=True,
        description="Seconds for which no other installation takes over; default: as the pipeline file says.",
    )


class Skip(Order):
    """Let a target do without its next batch."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"target": "reporting", "batch": 42, "confirm": "shop", "reason": "bad row"}},
    )

    target: Target
    batch: Annotated[int, ARGUMENT] = Field(ge=1, strict=True, description="Number of the target's next batch.")
    lost: bool = Field(
        False,
        strict=True,
        description="Its files are damaged or gone: don't read them; nothing is kept for a replay.",
    )


class Seek(Order):
    """Move the captured position."""

    model_config = ConfigDict(json_schema_extra={"example": {"to": "latest", "confirm": "shop"}})

    to: Annotated[str, ARGUMENT] = Field(
        "",
        max_length=100_000,
        description="latest, earliest, binlog.000042:1234, a GTID set, or 2026-01-31T12:00:00Z. May be left out if the "
        "undelivered batches are dropped: where the first of them begins.",
    )
    drop: Annotated[bool, Spelling("--drop-undelivered")] = Field(
        False,
        strict=True,
        description="Do without the batches that are not delivered yet, e.g. as their files are lost.",
    )


class Redeliver(Order):
    """Load acknowledged batches again."""

    model_config = ConfigDict(json_schema_extra={"example": {"target": "reporting"}})

    target: Target
    from_batch: int | None = Field(
        None, ge=1, strict=True, description="The first of them; default: after what the target says it holds."
    )


class Failover(Order):
    """Read another server of the source group."""

    to: str = Field("", max_length=512, description="A connection of `source.connections`; empty: the first that fits.")


class SwitchTarget(Order):
    """Write a target at another server of its group."""

    model_config = ConfigDict(json_schema_extra={"example": {"target": "reporting", "confirm": "shop"}})

    target: Target
    to: str = Field(
        "", max_length=512, description="A connection of the target's `connections`; empty: the first that has all."
    )
    rewind: bool = Field(
        False, strict=True, description="Deliver again what the other server lacks, if it is still stored."
    )


class GroupOrder(Order):
    """Move the pipelines of a group to another server."""

    model_config = ConfigDict(json_schema_extra={"example": {"to": "db2", "confirm": "shop"}})

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

    model_config = ConfigDict(json_schema_extra={"example": {"target": "reporting", "side": "target"}})

    target: Target
    side: Annotated[
        Literal["target", "zookeeper"],
        Spelling(
            flags={
                "target": ("--from-target", "The target is right: read the log again from where it is."),
                "zookeeper": (
                    "--reset",
                    "ZooKeeper is right, or the target gets a new copy: overwrite what the target says.",
                ),
            },
            refusal=("say which side counts", "--from-target or --reset; --dry-run shows what each would do"),
        ),
    ] = Field(description="The side that is right.")


class AlertSwitch(Order):
    """Switch an alert rule."""

    model_config = ConfigDict(json_schema_extra={"example": {"rule": "dead_letters"}})

    rule: Annotated[AlertRule, Spelling(argument=True, help="Name of the rule, as `sluice alerts list` shows it.")] = (
        Field(description="The rule, as `GET …/alerts` names it.")
    )


class Retry(Order):
    """Begin failed tasks again now."""


class Dump(Order):
    """Copy tables, or a part of one, to the targets again. The fields are those of the form of the backfill DAG."""

    model_config = ConfigDict(json_schema_extra={"example": {"tables": ["shop.orders"]}})

    tables: Tables
    targets: Annotated[list[str], Spelling("--target")] = Field(
        default_factory=list, max_length=_MANY, description="Who gets the rows; none: all."
    )
    where: str = Field("", max_length=_TEXT, description="SQL condition on the rows of one table; runs read-only.")
    first_key: Annotated[str, Spelling("--from", parts=",")] = Field(
        "", max_length=_TEXT, description="First key, columns joined by commas; of one table."
    )
    last_key: Annotated[str, Spelling("--to", parts=",")] = Field(
        "", max_length=_TEXT, description="Last key, included."
    )
    keys: Annotated[str, Spelling("--key", parts="\n")] = Field(
        "", max_length=100_000, description="Keys, one in a line, columns joined by commas."
    )
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

    model_config = ConfigDict(json_schema_extra={"example": {"dump": "20260131T120000-ab12cd"}})

    dump: Annotated[str, ARGUMENT] = Field(
        "", max_length=256, description="Its id; empty: the newest that has not ended."
    )


class Tune(OneDump):
    """Change the pace of a dump that runs."""

    model_config = ConfigDict(json_schema_extra={"example": {"chunk_rows": 10000, "delay_ms": 100}})

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

    model_config = ConfigDict(json_schema_extra={"example": {"ids": ["1f2e3d4c5b6a"]}})

    ids: Annotated[list[str], ARGUMENT] = Field(
        default_factory=list, max_length=_MANY, description="Ids, or their first digits; none: all that wait."
    )
    target: str = Field("", max_length=512, description="Only to this target; empty: to all that lack them.")


class Discard(Order):
    """Dead letters that are not delivered any more."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"ids": ["1f2e3d4c5b6a"], "confirm": "shop", "reason": "test row"}},
    )

    ids: Annotated[list[str], ARGUMENT] = Field(
        min_length=1, max_length=_MANY, description="Ids, or their first digits."
    )


class Verify(Order):
    """Compare targets with the source."""

    model_config = ConfigDict(json_schema_extra={"example": {"tables": ["shop.orders"], "sample": 10}})

    tables: Tables
    targets: Annotated[list[str], Spelling("--target")] = Field(
        default_factory=list, max_length=_MANY, description="Which are compared; none: all."
    )
    where: str = Field("", max_length=_TEXT, description="Only rows of one table that meet this condition.")
    sample: Annotated[float | None, Spelling(unit="%")] = Field(
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

    model_config = ConfigDict(json_schema_extra={"example": {"tables": ["shop.orders"], "confirm": "shop"}})

    overwrite: bool = Field(False, strict=True, description="To a site of a channel: also over what was written there.")
