"""The pipeline file: what a user writes, validated. A contract: keys may be added, not bent (``version: 1``)."""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|kB|MB|GB|TB)?\s*$")
_SIZE_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}  # fmt: skip
_SPAN = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)\s*$")
_SPAN_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(value: Any) -> int:
    """``512MiB`` -> bytes; a bare number is bytes."""
    if isinstance(value, int):
        return value
    match = _SIZE.match(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a size; write 512MiB, 2GB or a number of bytes")
    return int(float(match[1]) * _SIZE_UNITS[match[2] or "B"])


def parse_span(value: Any) -> timedelta:
    """``500ms``, ``10s``, ``7d`` -> timedelta."""
    if isinstance(value, timedelta):
        return value
    match = _SPAN.match(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a span of time; write 500ms, 10s, 5m, 2h or 7d")
    return timedelta(seconds=float(match[1]) * _SPAN_SECONDS[match[2]])


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{value!r} is not a regular expression: {error}") from None
    return value


Size = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(gt=0, json_schema_extra={"type": ["integer", "string"], "examples": ["512MiB"]}),
]
Span = Annotated[
    timedelta,
    BeforeValidator(parse_span),
    Field(json_schema_extra={"type": "string", "format": None, "examples": ["500ms", "7d"]}),
]
Regex = Annotated[str, BeforeValidator(_regex)]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,99}$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StartPosition(_Model):
    """Where the first drain begins, if not at a named place. Exactly one of the three."""

    file: str | None = Field(None, description="Binary log file to start in; goes with offset.")
    offset: int = Field(4, ge=4, description="Byte offset of the first event.")
    gtid: str | None = Field(None, description="GTID set already processed; the drain starts behind it.")
    timestamp: str | None = Field(
        None, description="ISO 8601 moment; the drain starts at the first transaction after it."
    )

    @model_validator(mode="after")
    def _one(self) -> StartPosition:
        if sum(v is not None for v in (self.file, self.gtid, self.timestamp)) != 1:
            raise ValueError("start takes exactly one of {file, offset}, {gtid} or {timestamp}")
        return self


class SourceConfig(_Model):
    """The MySQL or MariaDB server whose log is drained."""

    connection: str = Field(
        description="Id of the Airflow connection (type mysql); AIRFLOW_CONN_<ID> works without Airflow."
    )
    server_id: int | Literal["auto"] = Field(
        "auto",
        description="Replica server id; auto derives a stable one from the pipeline's name and checks for a clash.",
    )
    start: Literal["latest", "earliest", "dump", "snapshot"] | StartPosition = Field(
        "latest",
        description="Where the very first drain begins: latest, earliest, dump, snapshot, {file, offset}, {gtid} or {timestamp}.",
    )


class BatchLimits(_Model):
    """A batch closes at the end of the transaction in which one of these is reached."""

    max_changes: int = Field(2_000_000, gt=0, description="Row changes a batch.")
    max_bytes: Size = Field(512 * 2**20, description="Bytes of binary log a batch.")
    max_wait: Span = Field(timedelta(milliseconds=500), description="Time from a batch's first change to its end.")


class SegmentConfig(_Model):
    """Where captured changes are stored, and for how long."""

    uri: str = Field(
        "",
        description="Any pyarrow.fs URI (file://, s3://, gs://, hdfs://). Default: SLUICE_STORE, else file://~/.local/share/sluice.",
    )
    retain: Span = Field(
        timedelta(days=7), description="Kept at least this long, and always until every target has acknowledged."
    )


class Event(StrEnum):
    """Kinds of change that can be captured."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    DDL = "ddl"


class CaptureConfig(_Model):
    """What is taken from the log, and how it is cut."""

    include: tuple[Regex, ...] = Field(
        (r".*\..*",), description="Regular expressions on schema.table, anchored at both ends."
    )
    exclude: tuple[Regex, ...] = Field((), description="The same; wins over include.")
    events: tuple[Event, ...] = Field(tuple(Event), description="Kinds of change to capture.")
    batch: BatchLimits = Field(default_factory=BatchLimits, description="When a batch closes.")
    segments: SegmentConfig = Field(default_factory=SegmentConfig, description="Segment store.")
    max_event: Size = Field(
        128 * 2**20,
        description="Largest event (row, mostly; before and after image together) that is taken; a larger one stops the drain. "
        "A drain needs about six times as much memory for it.",
    )
    readers: Literal["auto"] | Annotated[int, Field(ge=1, le=64)] = Field(
        "auto",
        description="Connections that read closed log files side by side while the backlog of a batch spans several; auto: one a core, at most 4.",
    )
    unlogged_cascades: Literal["stop", "ignore"] = Field(
        "stop",
        description="Captured tables whose foreign keys have CASCADE or SET NULL, on a server that does not write their effects "
        "to its log (MySQL before 9.6, MariaDB): stop, or ignore and lose those effects.",
    )
    on_lost_position: Literal["stop", "dump"] = Field(
        "stop", description="What to do when the server has purged the position."
    )


class SparkConfig(_Model):
    """Where the work units run."""

    mode: Literal["connect", "submit", "local"] = Field(
        "connect",
        description="connect: a warm Spark Connect server; submit: spark-submit a stage; local: in the task's own process, without Spark.",
    )
    connection: str = Field(
        "spark_connect_default", description="Airflow connection of type spark_connect (connect) or spark (submit)."
    )
    from_changes: int = Field(
        5000,
        ge=0,
        description="A batch of fewer changes is merged by its drain (connect, local), and not sent to Spark (connect): that saves a task and round "
        "trips; 0: never.",
    )


class CoordinationConfig(_Model):
    """The ZooKeeper that holds the positions."""

    connection: str = Field(
        "zookeeper_default",
        description="Airflow connection; host may be a list h1:2181,h2:2181; login/password: digest authentication.",
    )
    root: str = Field("/data/sync", pattern=r"^/[^/].*[^/]$", description="Znode under which everything is kept.")
    session_timeout: Span = Field(timedelta(seconds=10), description="How long a silent owner keeps its lease.")
    grace: Span = Field(
        timedelta(seconds=90), description="How long no other installation takes over after an announced restart."
    )


class ColumnConversion(_Model):
    """What a column is at the target, where that is not what it is at the source."""

    type: str = Field(
        "", description="SQL type at the target; `sluice check` makes the column with it, and says what it may lose."
    )
    time_zone: str = Field(
        "",
        description="Zone of the DATETIME's wall time (Europe/Berlin): it becomes a TIMESTAMP; or a TIMESTAMP becomes a DATETIME of that zone.",
    )

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        if value:
            try:
                ZoneInfo(value)
            except (ZoneInfoNotFoundError, ValueError):
                raise ValueError(f"there is no time zone {value!r}; use a name like Europe/Berlin or UTC") from None
        return value


class ColumnMapping(_Model):
    """Which columns go over, and under which names."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    include: tuple[str, ...] | None = Field(None, description="Only these columns (keys always go).")
    as_: tuple[str, ...] = Field(
        (), alias="as", description="Names at the target of the columns in include, by position."
    )
    exclude: tuple[str, ...] = Field((), description="All but these columns.")
    rename: dict[str, str] = Field(default_factory=dict, description="Source column -> target column.")
    convert: dict[str, ColumnConversion] = Field(
        default_factory=dict, description="Source column -> its type or time zone at the target."
    )

    @model_validator(mode="after")
    def _by_position(self) -> ColumnMapping:
        if self.as_ and len(self.as_) != len(self.include or ()):
            raise ValueError(f"as has {len(self.as_)} names for the {len(self.include or ())} columns of include")
        if self.as_ and self.rename:
            raise ValueError("columns takes names by position (as) or by name (rename), not both")
        return self


class TableMapping(_Model):
    """One table (or a whole schema: schema.*) and where it goes."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    from_: str = Field(
        alias="from",
        description="schema.table at the source, or schema.* for all of its tables; a regular expression with groups, too.",
    )
    to: str = Field(
        description="schema.table at the target, or schema.* to keep the table's name; \\1 stands for the first group of from."
    )
    weight: int = Field(0, description="Lighter tables are loaded first.")
    columns: ColumnMapping = Field(default_factory=ColumnMapping, description="Column selection and renaming.")
    send: Literal["rows", "changed_columns"] = Field(
        "rows",
        description="rows: an update writes the whole row. changed_columns: only its columns that changed, so that what others write into the rest "
        "of the row at the target stays; a statement a row.",
    )
    column_groups: tuple[tuple[str, ...], ...] = Field(
        (),
        description="With send: changed_columns: if one column of a group changed, all of it are sent (source columns).",
    )

    key: tuple[str, ...] = Field(
        (),
        description="For a table without a primary key: the columns of a unique key, all NOT NULL, that tell its rows apart. "
        "Without it rows are told apart by all of their values, and counted.",
    )

    @field_validator("from_", "to")
    @classmethod
    def _dotted(cls, value: str) -> str:
        if value.count(".") < 1:
            raise ValueError(f"{value!r} must be schema.table or schema.*")
        return value

    @model_validator(mode="after")
    def _both_whole(self) -> TableMapping:
        if self.from_.endswith(".*") != self.to.endswith(".*"):
            raise ValueError("from and to must both name a table, or both a whole schema (schema.*)")
        return self


class DdlPolicy(StrEnum):
    """What a target does with a change of definitions."""

    APPLY = "apply"
    IGNORE = "ignore"
    STOP = "stop"
    WIDEN_ONLY = "widen_only"


class DdlKind(StrEnum):
    """Kinds of definition change that may have a policy of their own."""

    CREATE_TABLE = "create_table"
    DROP_TABLE = "drop_table"
    RENAME_TABLE = "rename_table"
    TRUNCATE_TABLE = "truncate_table"
    ADD_COLUMN = "add_column"
    DROP_COLUMN = "drop_column"
    RENAME_COLUMN = "rename_column"
    CHANGE_COLUMN = "change_column"
    PRIMARY_KEY = "primary_key"
    INDEXES = "indexes"
    PARTITIONS = "partitions"
    TABLE_OPTIONS = "table_options"


class TargetConfig(_Model):
    """A store that is kept in step."""

    name: Identifier = Field(description="Name of the target within the pipeline.")
    type: str = Field(description="Kind of target: mysql.")
    connection: str = Field(description="Id of the Airflow connection.")
    changes: Literal["latest", "all"] = Field(
        "latest", description="latest: one merged row a key; all: every change, in order."
    )
    consistency: Literal["row", "table", "batch"] = Field(
        "row",
        description="row: fastest, tables and key buckets in parallel; table: one transaction a table; batch: one transaction a batch.",
    )
    parallelism: int = Field(4, ge=1, le=256, description="Connections that load at the same time.")
    on_error: Literal["stop", "dead_letter"] = Field("stop", description="What a row that the target refuses does.")
    ddl: DdlPolicy | dict[DdlKind | Literal["default"], DdlPolicy] = Field(
        DdlPolicy.APPLY,
        description="Changes of definitions, all alike or by kind (default: for the others): apply; ignore; stop until the target has the change; "
        "widen_only: apply what loses no value (new tables, columns and keys, wider types), else stop.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Settings of this kind of target.")

    def ddl_policy(self, kind: DdlKind) -> DdlPolicy:
        """The policy of a kind of change."""
        if isinstance(self.ddl, DdlPolicy):
            return self.ddl
        return self.ddl.get(kind, self.ddl.get("default", DdlPolicy.APPLY))


class RetryConfig(_Model):
    """How Airflow retries a task of this pipeline. A retry is the rollback: it starts at the same batch."""

    attempts: int = Field(60, ge=0, description="Retries before the pipeline holds and waits for a person.")
    delay: Span = Field(
        timedelta(seconds=5), description="First delay after an error that may pass by itself; doubles up to max_delay."
    )
    max_delay: Span = Field(
        timedelta(minutes=1), description="Longest delay; also the delay after an error that a person must mend."
    )


class DumpConfig(_Model):
    """How tables are read from the source: initial copies, repairs, backfills. All of it can be changed while a dump runs, but marks."""

    marks: Literal["auto", "table", "none"] = Field(
        "auto",
        description="table: a small table at the source says in the log where a chunk was read; none: nothing is written there, GTID sets (MySQL) "
        "or a consistent snapshot's place in the log (MariaDB) say it; auto: table where the user may write, else none.",
    )
    marks_schema: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="Schema of that table. Default: the connection's schema, else sluice.",
    )
    chunk_rows: int = Field(50_000, ge=1, le=5_000_000, description="Rows a chunk, at most.")
    parallelism: int = Field(2, ge=1, le=64, description="Chunks read at the same time.")
    delay: Span = Field(timedelta(0), description="Pause between two chunks of a worker.")
    max_rows_per_second: int = Field(0, ge=0, description="Rows a second, over all workers; 0: as fast as it goes.")
    max_threads_running: int = Field(
        0, ge=0, description="Wait while the source has more statements running than this; 0: don't look."
    )
    max_replica_lag: Span = Field(
        timedelta(0),
        description="Wait while the source, or one of replicas, is further behind its own source; 0s: don't look.",
    )
    replicas: tuple[str, ...] = Field((), description="Connections of replicas of the source whose lag counts.")


class PipelineConfig(_Model):
    """One source and its targets: one YAML file, one task_id in ZooKeeper, one DAG sync__{pipeline}."""

    version: Literal[1] = Field(1, description="Version of this file format.")
    pipeline: Identifier = Field(description="Name; also the task_id in ZooKeeper and the DAG's name.")
    description: str = Field("", description="One line for people; shown in the Airflow UI.")
    source: SourceConfig = Field(description="The server whose log is drained.")
    capture: CaptureConfig = Field(default_factory=CaptureConfig, description="What is taken from the log.")
    schedule: str = Field("continuous", description="continuous, a cron expression, or an interval such as 30s.")
    window: int = Field(3, ge=1, le=64, description="Batches in flight at the same time.")
    spark: SparkConfig = Field(default_factory=SparkConfig, description="Where the work runs.")
    coordination: CoordinationConfig = Field(default_factory=CoordinationConfig, description="The ZooKeeper of record.")
    rules: str | None = Field(
        None, description="File in include/rules (engine.yaml) that lists the rules; none: rows go as they are."
    )
    masked: tuple[Regex, ...] = Field(
        (),
        description="Regular expressions on schema.table.column, anchored: their values never appear in errors, logs, XCom or on a screen.",
    )
    mapping: tuple[TableMapping, ...] = Field((), description="Where tables go; a table not named keeps its name.")
    targets: tuple[TargetConfig, ...] = Field(min_length=1, description="The stores to keep in step.")
    retry: RetryConfig = Field(default_factory=RetryConfig, description="Retries of a task.")
    alert_lag: Span | None = Field(
        None, description="Alert when a target lags further behind the source than this; none: never."
    )
    alert_connection: str | None = Field(
        None,
        description="Airflow connection (type http) of a webhook that is told of an alert; none: log, metric and status only.",
    )
    dump: DumpConfig = Field(default_factory=DumpConfig, description="How tables are read from the source.")

    @model_validator(mode="after")
    def _unique_targets(self) -> PipelineConfig:
        names = [t.name for t in self.targets]
        if len(set(names)) != len(names):
            raise ValueError(f"two targets have the same name: {names}")
        return self

    @field_validator("schedule")
    @classmethod
    def _schedule(cls, value: str) -> str:
        if value == "continuous" or len(value.split()) == 5 or _SPAN.match(value):
            return value
        raise ValueError(
            f"{value!r} is not a schedule; write continuous, a cron expression of five fields, or an interval such as 30s"
        )

    def target(self, name: str) -> TargetConfig:
        """The target of that name. Raises KeyError."""
        for target in self.targets:
            if target.name == name:
                return target
        raise KeyError(name)
