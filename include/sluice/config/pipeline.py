"""The pipeline file: what a user writes, validated. A contract: keys may be added, not bent (``version: 1``)."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from sluice.config import patterns
from sluice.config.connections import ENVIRONMENT, POSITIONS
from sluice.config.folders import local_folder
from sluice.config.lines import Origin
from sluice.config.rights import Refers, require_plain
from sluice.errors import ConfigError
from sluice.model.batches import StageKind
from sluice.model.grace import MAX_GRACE
from sluice.model.nearest import meant
from sluice.model.packing import SMALL_FILES
from sluice.model.verify_method import VerifyMethod

_NUMBER = r"([0-9]{1,15}(?:\.[0-9]{1,9})?)"
_SIZE = re.compile(rf"\s*{_NUMBER}\s*(B|KiB|MiB|GiB|TiB|kB|MB|GB|TB)?\s*")
_SIZE_UNITS = {
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_SPAN = re.compile(rf"\s*{_NUMBER}\s*(ms|s|m|min|h|d)\s*")
_SPAN_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SHARE = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%\s*")

MAX_SPAN = timedelta(days=36500)
MAX_SIZE = 2**50
MAX_COUNT = 10**9


def parse_size(value: Any) -> int:
    """Parse ``512MiB`` as a number of bytes; a bare number is bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(str(value)) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{_short(value)} is not a size; write 512MiB, 2GB or a number of bytes")
    return int(float(match[1]) * _SIZE_UNITS[match[2] or "B"])


def parse_span(value: Any) -> timedelta:
    """Parse ``500ms``, ``10s`` or ``7d`` as a timedelta of at most a hundred years."""
    if isinstance(value, timedelta):
        return value
    match = _SPAN.fullmatch(str(value)) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{_short(value)} is not a duration; write 500ms, 10s, 5m, 2h or 7d")
    seconds = float(match[1]) * _SPAN_SECONDS[match[2]]
    if seconds > MAX_SPAN.total_seconds():
        raise ValueError(f"{_short(value)} is too long: at most {MAX_SPAN.days}d")
    return timedelta(seconds=seconds)


def parse_share(value: Any) -> float:
    """Parse ``10%`` as 0.1; the share is more than 0 and at most 1."""
    match = _SHARE.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 0 < (share := float(match[1]) / 100) <= 1:
        raise ValueError(f"{_short(value)} is not a share; write 10%, or 100% for all")
    return share


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a number of more than 40 digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _regex(value: Any) -> Any:
    if isinstance(value, str):
        patterns.compiled(value)
    return value


def whole(value: Any) -> Any:
    """Refuse true and false where a number is expected: to Python, YAML's 1 and true are equal."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a number")
    return value


def no_password(value: str) -> str:
    """Return the address of a store or a file unchanged.

    Raises ValueError, which does not repeat it, if it holds a password.
    """
    try:
        secret = urlsplit(value).password is not None
    except ValueError:
        raise ValueError("this is not an address; write file:///var/lib/sluice or s3://bucket/path") from None
    if secret:
        raise ValueError(
            "the address contains a password; remove it: the store takes its credentials from the environment of the "
            "process (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a role, GOOGLE_APPLICATION_CREDENTIALS)"
        )
    return value


Integer = Annotated[int, BeforeValidator(whole)]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(gt=0, le=MAX_SIZE, json_schema_extra={"type": ["integer", "string"], "examples": ["512MiB"]}),
]
Span = Annotated[
    timedelta,
    BeforeValidator(parse_span),
    Field(json_schema_extra={"type": "string", "format": None, "examples": ["500ms", "7d"]}),
]
Regex = Annotated[str, BeforeValidator(_regex)]
IDENTIFIER = r"^[A-Za-z][A-Za-z0-9_]{0,99}$"
"""A name that a pipeline, a target or a rule may have."""
Identifier = Annotated[str, Field(pattern=IDENTIFIER)]
ConnectionId = Annotated[str, Refers.CONNECTION, Field(min_length=1, max_length=250, pattern=r"^[^\s\x00-\x1f=]+$")]
StoreUri = Annotated[str, Refers.LOCATION, Field(max_length=2000), AfterValidator(no_password)]


class StrictModel(BaseModel):
    """A part of a file that a user writes: unknown keys are refused, and errors repeat no values."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class StartPosition(StrictModel):
    """The place at which the first capture begins, if it is not a named one. Exactly one of the three."""

    file: Annotated[str, Refers.NOTHING] | None = Field(
        None,
        pattern=r"^[^/\\\s]{1,240}\.[0-9]{1,10}$",
        description="Binary log file to start in; goes with offset.",
    )
    offset: Integer = Field(4, ge=4, le=2**63 - 1, description="Byte offset of the first event.")
    gtid: str | None = Field(None, description="GTID set already processed; the capture starts after it.")
    timestamp: str | None = Field(
        None, description="ISO 8601 timestamp; the capture starts at the first transaction after it."
    )

    @model_validator(mode="after")
    def _one(self) -> StartPosition:
        if sum(v is not None for v in (self.file, self.gtid, self.timestamp)) != 1:
            raise ValueError("start takes exactly one of {file, offset}, {gtid} or {timestamp}")
        if self.file is None and "offset" in self.model_fields_set:
            raise ValueError("offset needs file")
        if self.gtid is not None and not self.gtid.strip():
            raise ValueError("gtid is empty; `earliest` begins with the oldest log that the server has")
        return self

    @field_validator("timestamp")
    @classmethod
    def _is_a_time(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                datetime.fromisoformat(value)
            except ValueError:
                raise ValueError(f"{_short(value)} is not a time; write 2026-01-31T12:00:00Z") from None
        return value


GROUP = r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,99})?$"
"""A name that pipelines of the same servers share, or ""."""


def _first_of_group(model: type[StrictModel], data: Any, missing: str) -> Any:
    """Fill in ``connection`` with the first of ``connections``. Raises ValueError that says what is ``missing``.

    A key that is spelled nearly so is left to the error about unknown keys, which has its line.
    """
    if not isinstance(data, dict):
        return data
    several = data.get("connections")
    if "connection" in data and several:
        raise ValueError("write connection for one server, or connections for a group, not both")
    if "connection" not in data:
        if not isinstance(several, list | tuple) or not several:
            unknown = [str(key) for key in data if key not in model.model_fields]
            if any(meant(key, ("connection", "connections")) for key in unknown):
                return data
            raise ValueError(f"connection is missing: {missing} (or connections, for a group)")
        if len(set(map(str, several))) != len(several):
            raise ValueError("connections names a server twice")
        return {**data, "connection": several[0]}
    return data


class SourceConfig(StrictModel):
    """The server whose log is captured."""

    type: Annotated[str, Refers.KIND] = Field(
        "mysql", description="Kind of source: mysql (MySQL and MariaDB), postgresql, or one of your own."
    )
    connection: ConnectionId = Field(
        "",
        validate_default=False,
        description="Id of the Airflow connection (type mysql or postgres); AIRFLOW_CONN_<ID> works without Airflow.",
    )
    connections: tuple[ConnectionId, ...] = Field(
        (),
        description="Instead of connection: a source group, servers that replicate each other with GTIDs. The first "
        "is read until a failover.",
    )
    group: str = Field(
        "",
        pattern=GROUP,
        description="A name that pipelines of the same servers share: `sluice failover --group NAME` moves all of them "
        "to another server.",
    )
    failover: Literal["manual", "when_unreachable"] = Field(
        "manual",
        description="When another server of the group is read: by `sluice failover`, or when the present one has been "
        "silent for failover_delay.",
    )
    failover_delay: Span = Field(
        timedelta(seconds=60),
        le=timedelta(days=1),
        description="How long a server may be silent before another one is read.",
    )
    server_id: Annotated[Integer, Field(ge=1, le=2**32 - 1)] | Literal["auto"] = Field(
        "auto",
        description="Replica server id; auto derives a stable one from the pipeline's name and checks for a clash.",
    )
    slot: str = Field(
        "",
        pattern=r"^[a-z0-9_]{0,63}$",
        description="PostgreSQL: name of the replication slot. Default: sluice_ and the pipeline's name.",
    )
    publication: str = Field(
        "", max_length=63, description="PostgreSQL: name of the publication. Default: the name of the slot."
    )
    origin: Literal["any", "none"] = Field(
        "any",
        description="PostgreSQL 16 and later: none leaves out changes that have a replication origin, such as those "
        "that a subscription of the server wrote.",
    )
    primary: ConnectionId | None = Field(
        None,
        description="PostgreSQL: the connection of the primary, if the source is a standby. Publication and triggers "
        "are made there.",
    )
    slot_budget: Size | None = Field(
        None,
        ge=16 * 2**20,
        description="PostgreSQL: bytes of log that the slot may retain while a target stands still. Beyond it, the log "
        "is captured ahead of the targets, and what is captured is released.",
    )
    streaming: bool = Field(
        False,
        description="PostgreSQL: the server sends large transactions while they are in progress. They wait in the "
        "temporary folder of the capture for their commit, so that it takes less time to capture them after it.",
    )
    ddl: bool = Field(
        False,
        description="PostgreSQL: DDL comes from the log, written there by event triggers that `sluice check --apply` "
        "makes, or a superuser. Without it a changed definition is noticed at the next row of its table.",
    )
    archive: StoreUri | None = Field(
        None,
        description="MySQL, MariaDB: a folder or bucket with files of the binary log (file:///srv/binlogs, "
        "s3://bucket/db1). What the server has purged is read from there.",
    )
    start: Literal["latest", "earliest", "dump"] | StartPosition = Field(
        "latest",
        description="Where the first capture begins: latest, earliest, dump (the head, and a copy of what the tables "
        "hold), {file, offset}, {gtid} or {timestamp}.",
    )

    @model_validator(mode="before")
    @classmethod
    def _one_or_several(cls, data: Any) -> Any:
        """Take the first connection of a group where the code needs one."""
        return _first_of_group(cls, data, "the id of the source's connection")

    @model_validator(mode="after")
    def _has_servers(self) -> SourceConfig:
        if self.group and not self.connections:
            raise ValueError("a source with a group has several servers: connections: [db1, db2]")
        return self

    @model_validator(mode="after")
    def _has_a_slot(self) -> SourceConfig:
        if self.type == "mysql" and self.slot_budget is not None:
            raise ValueError("slot_budget is for a PostgreSQL source: a MySQL server keeps no log for its readers")
        if self.type == "mysql" and self.primary is not None:
            raise ValueError("primary is for a PostgreSQL source that is a standby; a MySQL replica needs none")
        if self.type == "postgresql" and self.archive is not None:
            raise ValueError("archive is for a MySQL source: a slot of PostgreSQL keeps what was not read")
        if self.type == "mysql" and self.streaming:
            raise ValueError("streaming is for a PostgreSQL source: the log of MySQL has a transaction when it commits")
        if self.type == "mysql" and self.ddl:
            raise ValueError("ddl is for a PostgreSQL source: the log of MySQL has DDL by itself")
        if self.type == "mysql" and self.origin != "any":
            raise ValueError("origin is for a PostgreSQL source; from MySQL, marks say what a pipeline wrote")
        return self

    @property
    def servers(self) -> tuple[str, ...]:
        """Every connection of the source."""
        return self.connections or (self.connection,)

    @field_validator("start", mode="before")
    @classmethod
    def _no_snapshot(cls, value: Any) -> Any:
        if value == "snapshot":
            raise ValueError(
                "a source does not start from a snapshot; write dump, which copies the tables while the log is read. "
                "A target that joins later may: start: snapshot on the target"
            )
        return value


class BatchLimits(StrictModel):
    """A batch closes at the end of the transaction in which one of these is reached."""

    max_changes: Integer = Field(2_000_000, gt=0, le=MAX_COUNT, description="Row changes a batch.")
    max_bytes: Size = Field(512 * 2**20, description="Bytes of binary log a batch.")
    max_wait: Span = Field(
        timedelta(milliseconds=500), le=timedelta(days=1), description="Time from a batch's first change to its end."
    )


class SegmentConfig(StrictModel):
    """Where captured changes are stored, and for how long."""

    uri: StoreUri = Field(
        "",
        description="Any pyarrow.fs URI (file://, s3://, gs://, hdfs://). Default: SLUICE_STORE, else "
        "file://~/.local/share/sluice.",
    )
    retain: Span = Field(
        timedelta(days=7),
        description="Kept at least this long, and always until every target has acknowledged; for subscriptions, see "
        "there.",
    )
    compact_after: Span | None = Field(
        None,
        description="Batches that are older, and that every target has, are put together into large files, which are "
        "read as before. Default: never.",
    )
    small_files: Integer = Field(
        SMALL_FILES,
        ge=0,
        le=100_000,
        description="A batch of at most this number of small tables has a Parquet file for each, which other tools "
        "open by its path. Those of one that has more are packed into the file of its manifest, which is fewer files. "
        "0: they are always packed.",
    )


class Event(StrEnum):
    """Kinds of change that can be captured."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    DDL = "ddl"


class CapturedColumns(StrictModel):
    """The columns that are taken from the log."""

    exclude: tuple[Regex, ...] = Field(
        (),
        description="Regular expressions on schema.table.column, anchored at both ends. Such a column is neither "
        "selected nor stored: no segment, dump, target or subscription has it. No column of a key may be one.",
    )


class CaptureConfig(StrictModel):
    """What is taken from the log, and how it is cut."""

    include: tuple[Regex, ...] = Field(
        (r".*\..*",), min_length=1, description="Regular expressions on schema.table, anchored at both ends."
    )
    exclude: tuple[Regex, ...] = Field((), description="The same; wins over include.")
    columns: CapturedColumns = Field(
        default_factory=CapturedColumns, description="Columns that are kept out of storage from the first byte."
    )
    events: tuple[Event, ...] = Field(tuple(Event), min_length=1, description="Kinds of change to capture.")
    batch: BatchLimits = Field(default_factory=BatchLimits, description="When a batch closes.")
    segments: SegmentConfig = Field(default_factory=SegmentConfig, description="Segment store.")
    shadow_tables: Literal["leave_out", "capture"] = Field(
        "leave_out",
        description="Tables named as those that gh-ost and pt-online-schema-change make (_x_gho, _x_ghc, _x_del, "
        "_x_new, _x_old): leave_out, unless an include pattern names them with their underscore; capture: as any "
        "other table.",
    )
    max_event: Size = Field(
        128 * 2**20,
        le=4 * 2**30,
        description="Largest event (row, mostly; before and after image together) that is taken; a larger one stops "
        "the capture. A capture needs about six times as much memory for it.",
    )
    readers: Literal["auto"] | Annotated[Integer, Field(ge=1, le=64)] = Field(
        "auto",
        description="Connections that read closed log files side by side while the backlog of a batch spans several; "
        "auto: one a core, at most 4.",
    )
    unlogged_cascades: Literal["stop", "ignore"] = Field(
        "stop",
        description="Captured tables whose foreign keys have CASCADE or SET NULL, on a server that does not write "
        "their effects to its log (MySQL before 9.6, MariaDB): stop, or ignore and lose those effects.",
    )
    on_lost_position: Literal["stop", "dump"] = Field(
        "stop", description="What to do when the server has purged the position."
    )


class SparkConfig(StrictModel):
    """Where the work units run."""

    mode: Annotated[Literal["connect", "submit", "local"], Refers.KIND] = Field(
        "connect",
        description="connect: a warm Spark Connect server; submit: spark-submit a stage; local: in the task's own "
        "process, without Spark.",
    )
    connection: ConnectionId = Field(
        "spark_connect_default", description="Airflow connection of type spark_connect (connect) or spark (submit)."
    )
    from_changes: Integer = Field(
        0,
        ge=0,
        le=MAX_COUNT,
        description="With mode: connect, a batch of fewer changes is merged, ruled and loaded by the task's own "
        "process, and not by Spark's workers; 0: every batch is Spark work.",
    )
    memory: Size = Field(
        2**29,
        description="What one process (a task, a Python worker of Spark) may take while it merges, applies rules or "
        "loads. Work is cut so that it stays below; a single row that is larger than a sixth of it takes more.",
    )


class CoordinationConfig(StrictModel):
    """The ZooKeeper that holds the positions."""

    connection: ConnectionId = Field(
        POSITIONS,
        description="Airflow connection; host may be a list h1:2181,h2:2181; login/password: digest authentication.",
    )
    root: Annotated[str, Refers.ADDRESS] = Field(
        "/data/sync",
        max_length=500,
        pattern=r"^(/[^/\s\x00-\x1f\x7f-\x9f]+)+$",
        description="Znode under which everything is kept.",
    )
    session_timeout: Span = Field(
        timedelta(seconds=10),
        ge=timedelta(milliseconds=500),
        le=timedelta(minutes=10),
        description="How long a silent owner keeps its lease.",
    )
    grace: Span = Field(
        timedelta(seconds=90),
        le=MAX_GRACE,
        description="How long no other installation takes over after an announced restart.",
    )
    worker_grace: Span = Field(
        timedelta(seconds=90),
        ge=timedelta(seconds=1),
        le=MAX_GRACE,
        description="Age of a batch that no worker loads after which its worker counts as lost, and another run "
        "delivers it.",
    )

    @field_validator("root")
    @classmethod
    def _plain_path(cls, value: str) -> str:
        parts = value.split("/")
        if {".", ".."} & set(parts) or parts[1] == "zookeeper":
            raise ValueError(f"{value!r} is not a path for nodes: it has '.' or '..' as a part, or is ZooKeeper's own")
        return value


class ColumnConversion(StrictModel):
    """What a column is at the target, where that is not what it is at the source."""

    type: str = Field(
        "",
        max_length=1000,
        description="SQL type at the target; `sluice check` makes the column with it, and says what it may lose.",
    )
    time_zone: str = Field(
        "",
        description="Zone of the DATETIME's wall time (Europe/Berlin): it becomes a TIMESTAMP; or a TIMESTAMP becomes "
        "a DATETIME of that zone.",
    )

    @field_validator("type")
    @classmethod
    def _one_type(cls, value: str) -> str:
        plain = re.sub(r"'(?:[^'\\]|'')*'", "''", value)
        if value and (
            re.match(r"[A-Za-z]", value) is None or re.search(r";|--|#|/\*|[\"`\\]", plain) or plain.count("'") % 2
        ):
            raise ValueError(f"{_short(value)} is not an SQL type; write for one decimal(10,2) or varchar(40)")
        return value

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        if value:
            try:
                ZoneInfo(value)
            except (ZoneInfoNotFoundError, ValueError, OSError):
                raise ValueError(f"there is no time zone {value!r}; use a name like Europe/Berlin or UTC") from None
        return value


class ColumnMapping(StrictModel):
    """Which columns go over, and under which names."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True)

    include: tuple[str, ...] | None = Field(None, description="Only these columns (keys always go).")
    as_: tuple[str, ...] = Field(
        (), alias="as", description="Names at the target of the columns in include, by position."
    )
    exclude: tuple[str, ...] = Field((), description="All but these columns.")
    rename: Annotated[dict[str, str], Refers.NOTHING] = Field(
        default_factory=dict, description="Source column -> target column."
    )
    convert: dict[str, ColumnConversion] = Field(
        default_factory=dict, description="Source column -> its type or time zone at the target."
    )

    @model_validator(mode="after")
    def _by_position(self) -> ColumnMapping:
        if self.as_ and len(self.as_) != len(self.include or ()):
            raise ValueError(f"as has {len(self.as_)} names for the {len(self.include or ())} columns of include")
        for names, what in ((self.include or (), "include"), (self.as_, "as"), (self.exclude, "exclude")):
            if (twice := [n for n in names if names.count(n) > 1]) or "" in names:
                raise ValueError(f"{what} has {twice[0]!r} twice" if twice else f"{what} has an empty name")
        if "" in self.rename or "" in self.rename.values() or "" in self.convert:
            raise ValueError("a column's name is empty")
        if self.as_ and self.rename:
            raise ValueError("columns takes names by position (as) or by name (rename), not both")
        return self


def _file_location(value: str) -> str:
    """Return an address of files unchanged. Raises ValueError."""
    no_password(value)
    if local_folder(value):
        return value
    parts = urlsplit(value)
    if len(parts.scheme) < 2 or "://" not in value or not (parts.netloc or parts.path):
        raise ValueError(
            f"{_short(value)} is no address; write an absolute folder, s3://bucket/path or https://server/path"
        )
    if parts.scheme in {"http", "https"} and (parts.query or parts.fragment or parts.username):
        raise ValueError("the address of a web server has no query, fragment or login; name a connection that has them")
    return value


FileLocation = Annotated[str, Refers.LOCATION, Field(min_length=1, max_length=2000), AfterValidator(_file_location)]


class RowFiles(StrictModel):
    """Files that a column names: they are fetched and written before the row is loaded."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True)

    path: Annotated[str, Refers.NOTHING] = Field(
        min_length=1,
        max_length=256,
        description="Column with the file's path below from, as the rules leave it; NULL or an empty text names no "
        "file.",
    )
    version: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Column whose value changes when the file's contents change. Without it, the file is looked at "
        "whenever the path changes.",
    )
    from_: FileLocation = Field(
        alias="from",
        description="Where files are read: an absolute folder, http(s)://, or any URI of pyarrow.fs or fsspec (s3://, "
        "gs://, abfs://, sftp://).",
    )
    to: FileLocation = Field(description="Where they are written: the same, but for http(s)://.")
    from_connection: ConnectionId | None = Field(
        None, description="Connection with the login for from; none: the environment of the process has it."
    )
    to_connection: ConnectionId | None = Field(None, description="The same for to.")
    on_missing: Literal["stop", "dead_letter", "row_without"] = Field(
        "stop",
        description="What a row does whose file does not exist, or is not taken (its name leads out of from, it is "
        "larger than max_size). stop: the "
        "batch stops and is tried again; dead_letter: the row waits in the dead-letter store; row_without: it is "
        "loaded without its file.",
    )
    layout: Literal["path", "content"] = Field(
        "path",
        description="path: a file keeps its path below to, and new contents replace the old ones at once; content: it "
        "is kept as sha256/ab/abcd..., and nothing is ever replaced.",
    )
    max_size: Size = Field(2**30, description="Largest file that is taken.")
    timeout: Span = Field(
        timedelta(minutes=5),
        ge=timedelta(seconds=1),
        le=timedelta(days=1),
        description="Time that one file may take, with all attempts.",
    )
    parallel: Integer = Field(8, ge=1, le=256, description="Files that each work unit copies side by side.")

    @model_validator(mode="after")
    def _two_places(self) -> RowFiles:
        if urlsplit(self.to).scheme in {"http", "https"}:
            raise _at(("to",), "files are not written to a web server; name a folder or a bucket")
        same = (local_folder(self.from_) or self.from_.rstrip("/")) == (local_folder(self.to) or self.to.rstrip("/"))
        if same and self.from_connection == self.to_connection:
            raise _at(("to",), "files would be copied onto themselves: to is the same as from")
        if self.path == self.version:
            raise _at(("version",), "path and version are the same column; leave version out")
        for key, location, connection in (
            ("from_connection", self.from_, self.from_connection),
            ("to_connection", self.to, self.to_connection),
        ):
            if connection is not None and local_folder(location):
                raise _at((key,), "a folder of this machine takes no login; leave it out")
        return self

    @property
    def places(self) -> tuple[str, str]:
        """Where files come from and go to, for messages: without what follows a question mark, which may be secret."""
        return self.from_.partition("?")[0], self.to.partition("?")[0]

    @property
    def connections(self) -> tuple[ConnectionId, ...]:
        """The connections that it names."""
        return tuple(connection for connection in (self.from_connection, self.to_connection) if connection is not None)


class TableMapping(StrictModel):
    """One table (or a whole schema: schema.*) and where it goes."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True)

    from_: Annotated[str, Refers.NOTHING] = Field(
        alias="from",
        description="schema.table at the source, or schema.* for all of its tables; a regular expression with groups, "
        "too.",
    )
    to: str = Field(
        description="schema.table at the target, or schema.* to keep the table's name; \\1 stands for the first group "
        "of from."
    )
    weight: Integer = Field(0, ge=-MAX_COUNT, le=MAX_COUNT, description="Lighter tables are loaded first.")
    columns: ColumnMapping = Field(default_factory=ColumnMapping, description="Column selection and renaming.")
    send: Literal["rows", "changed_columns"] = Field(
        "rows",
        description="rows: an update writes the whole row. changed_columns: only its columns that changed, so that "
        "what others write into the rest of the row at the target stays; a statement a row.",
    )
    column_groups: tuple[tuple[str, ...], ...] = Field(
        (),
        description="With send: changed_columns: if one column of a group changed, all of it are sent (source "
        "columns).",
    )

    key: tuple[str, ...] = Field(
        (),
        description="For a table without a primary key: the columns of a unique key, all NOT NULL, that tell its rows "
        "apart. Without it rows are told apart by all of their values, and counted.",
    )
    unique: tuple[tuple[str, ...], ...] = Field(
        (),
        description="Columns (at the target) in which no two rows are equal, although the source has no such unique "
        "key, or compares them more exactly: rows that are equal in them overwrite each other.",
    )
    files: tuple[RowFiles, ...] = Field(
        (), description="Files that columns of the table name: they are copied before the row is loaded."
    )

    @field_validator("from_", "to")
    @classmethod
    def _dotted(cls, value: str) -> str:
        if value.count(".") < 1:
            raise ValueError(f"{_short(value)} must be schema.table or schema.*")
        if value.startswith(".") or value.endswith("."):
            raise ValueError(f"{_short(value)} must be schema.table or schema.*: one of its names is empty")
        return value

    @model_validator(mode="after")
    def _bothwhole(self) -> TableMapping:
        if self.from_.endswith(".*") != self.to.endswith(".*"):
            raise ValueError("from and to must both name a table, or both a whole schema (schema.*)")
        pattern, to = self.from_, self.to
        if to.endswith(".*"):
            pattern, to = pattern.removesuffix(".*").removesuffix("\\."), to.removesuffix(".*")
        expression = patterns.compiled(pattern)
        try:
            expression.sub(to, "")  # reads the whole of the template
        except (re.error, IndexError) as error:
            groups = f"{expression.groups} group{'' if expression.groups == 1 else 's'}"
            raise ValueError(f"to: {_short(self.to)} does not go with from, which has {groups}: {error}") from None
        return self


class DdlPolicy(StrEnum):
    """What a target does with a change of definitions."""

    APPLY = "apply"
    IGNORE = "ignore"
    STOP = "stop"
    WIDEN_ONLY = "widen_only"


class NotifierConfig(StrictModel):
    """A notifier of Airflow that is told of alerts."""

    class_: Annotated[str, Refers.CODE] = Field(
        alias="class",
        max_length=500,
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$",
        description="Its class, such as airflow.providers.smtp.notifications.smtp.SmtpNotifier.",
    )
    args: Annotated[dict[str, Any], Refers.CODE, AfterValidator(require_plain)] = Field(
        default_factory=dict,
        description="Its arguments, as its own documentation lists them: the id of a connection, receivers, texts. "
        "Texts may name keys of the alert, and are no other templates: {{ alert.text }}, {{ alert.pipeline }}, "
        "{{ alert.state }}.",
    )


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


ACCEPT_LOSS = (
    "Regular expressions on schema.table.column at the target, anchored: columns that may lose values, as `sluice "
    "check` says of them. A column that loses values and is not among them is an error."
)


class TargetConfig(StrictModel):
    """A store that is kept in step."""

    _origin: Origin = PrivateAttr(Origin())

    name: Identifier = Field(description="Name of the target within the pipeline.")
    type: Annotated[str, Refers.KIND] = Field(description="Kind of target: `sluice targets list` names them all.")
    connection: ConnectionId = Field("", validate_default=False, description="Id of the Airflow connection.")
    connections: tuple[ConnectionId, ...] = Field(
        (),
        description="Instead of connection: a target group, servers that replicate each other. The first is written "
        "until `sluice targets switch`.",
    )
    group: str = Field(
        "",
        pattern=GROUP,
        description="A name that targets of the same servers share: `sluice targets switch --group NAME` moves all of "
        "them to another server.",
    )
    changes: Literal["latest", "all"] = Field(
        "latest", description="latest: one merged row a key; all: every change, in order."
    )
    consistency: Literal["row", "table", "schema", "batch"] = Field(
        "row",
        description="row: fastest, tables and key buckets in parallel; table: one transaction a table; "
        "schema: one transaction a schema, schemas in parallel; batch: one transaction a batch.",
    )
    parallelism: Integer = Field(4, ge=1, le=256, description="Connections that load at the same time.")
    on_error: Literal["stop", "dead_letter"] = Field("stop", description="What a row that the target refuses does.")
    commit_every: Span | None = Field(
        None,
        ge=timedelta(seconds=1),
        le=timedelta(hours=1),
        description="Batches wait for so long, and are then written together, in one commit a table (feature bundles "
        "of the kind). Default: at once.",
    )
    ddl: DdlPolicy | dict[DdlKind | Literal["default"], DdlPolicy] = Field(
        DdlPolicy.APPLY,
        description="Changes of definitions, all alike or by kind (default: for the others): apply; ignore; stop "
        "until the target has the change; widen_only: apply what loses no value (new tables, columns and keys, wider "
        "types), else stop.",
    )
    on_conversion: Literal["stop", "copy"] = Field(
        "stop",
        description="What a target does whose rows cannot be converted as the source converted its own, or (kafka) "
        "would have keys or a topic of before the change. stop: the load stops; copy: the table is emptied there and "
        "copied again by itself.",
    )
    start: Literal["snapshot"] | None = Field(
        None,
        description="Where a target begins that joins a pipeline later. snapshot: with the rows of the pipeline's "
        "snapshot, and none is read at the source; none: where the log is captured to, with a copy from the source if "
        "source.start is dump.",
    )
    on_lost_batches: Literal["stop", "snapshot"] = Field(
        "stop",
        description="What a target does that lacks batches which are no longer stored. snapshot: it starts again from "
        "the pipeline's snapshot, and segments.retain counts for it although it lacks batches; stop: it stops, and "
        "what it lacks is kept.",
    )
    accept_loss: tuple[Regex, ...] = Field((), description=ACCEPT_LOSS)
    options: Annotated[dict[str, Any], Refers.OPTIONS] = Field(
        default_factory=dict, description="Settings of this kind of target."
    )

    @property
    def snapshot_keys(self) -> tuple[str, ...]:
        """The settings of this target that need the snapshot of the pipeline."""
        given_literals = {"start": self.start, "on_lost_batches": self.on_lost_batches}
        return tuple(f"{name}: snapshot" for name, value in given_literals.items() if value == "snapshot")

    @model_validator(mode="before")
    @classmethod
    def _one_or_several(cls, data: Any) -> Any:
        """Take the first connection of a group where the code needs one."""
        return _first_of_group(cls, data, "the id of the target's connection")

    @model_validator(mode="after")
    def _has_servers(self) -> TargetConfig:
        if self.group and not self.connections:
            raise ValueError("a target with a group has several servers: connections: [warehouse1, warehouse2]")
        return self

    @property
    def servers(self) -> tuple[str, ...]:
        """Every connection of the target."""
        return self.connections or (self.connection,)

    @model_validator(mode="after")
    def _rows_as_they_are(self) -> TargetConfig:
        for key in self.snapshot_keys:
            if self.changes != "latest":
                raise ValueError(f"{key} goes with changes: latest; a snapshot has the newest rows, and no changes")
        return self

    def ddl_policy(self, kind: DdlKind) -> DdlPolicy:
        """Return the policy for a kind of change."""
        if isinstance(self.ddl, DdlPolicy):
            return self.ddl
        return self.ddl.get(kind, self.ddl.get("default", DdlPolicy.APPLY))

    def remember_line(self, origin: Origin) -> None:
        """Note where the target stands in its file."""
        self._origin = origin

    def where(self, *keys: int | str) -> str:
        """Return ``file:line`` of a key of the target; "" if it was not read from a file."""
        return self._origin.where(*keys)


SNAPSHOT = "snapshot"
"""Name of the target that ``snapshot:`` stands for."""


class SnapshotConfig(StrictModel):
    """A lake table for each table, with the newest row of every key as of an exact batch.

    It is kept as a target with the name ``snapshot``.
    """

    _origin: Origin = PrivateAttr(Origin())

    uri: StoreUri = Field(
        "",
        description="Where the tables lie: an absolute folder, file:///lake or s3://bucket/path. iceberg: the "
        "warehouse; a folder has a catalog of its own (SQLite), any other place needs one, which may name the "
        "warehouse instead of this.",
    )
    format: Annotated[Literal["delta", "iceberg"], Refers.KIND] = Field(
        "delta", description="delta: Delta Lake tables. iceberg: Iceberg tables."
    )
    connection: ConnectionId = Field(
        ENVIRONMENT,
        validate_default=False,
        description="Id of an Airflow connection with credentials (iceberg: or with the catalog), as for a target of "
        "that type. Default: the environment has them.",
    )
    retain_log: Span = Field(
        timedelta(days=30),
        ge=timedelta(hours=1),
        le=timedelta(days=30),
        description="As long can the tables be read as of an older batch.",
    )
    every: Span | None = Field(
        None,
        ge=timedelta(seconds=1),
        le=timedelta(hours=1),
        description="Batches wait for so long, and are then written together, in one commit a table. Default: each "
        "batch at once.",
    )
    on_conversion: Literal["stop", "copy"] = Field(
        "stop",
        description="What the snapshot does whose rows cannot be converted as the source converted its own. stop: the "
        "load stops; copy: the table is emptied and copied again by itself.",
    )
    accept_loss: tuple[Regex, ...] = Field((), description=ACCEPT_LOSS)
    options: Annotated[dict[str, Any], Refers.OPTIONS] = Field(
        default_factory=dict,
        description="Further options of a target of that type (catalog, zero_dates, wide_decimals, partition_by, "
        "cluster_by, execution, ...).",
    )

    @model_validator(mode="after")
    def _placed(self) -> SnapshotConfig:
        if "location" in self.options:
            raise ValueError("location is the snapshot's uri")
        if self.format == "delta":
            if not self.uri:
                raise ValueError("uri is missing: where the tables lie, an absolute folder or s3://bucket/path")
            return self
        if self.uri and "warehouse" in self._catalog:
            raise ValueError("catalog.warehouse is the snapshot's uri; write one of the two")
        named = self.connection != ENVIRONMENT or {"uri", "type"} & self._catalog.keys()
        if not named and not local_folder(self.uri or str(self._catalog.get("warehouse", ""))):
            raise ValueError(
                "nothing says which catalog has the Iceberg tables; write options: {catalog: {type: rest, uri: "
                "https://...}}, a connection that has it, or a folder of this machine as uri, which then has a "
                "catalog of its own"
            )
        return self

    @property
    def _catalog(self) -> dict[str, Any]:
        given_option = self.options.get("catalog")
        return given_option if isinstance(given_option, dict) else {}

    @property
    def target(self) -> TargetConfig:
        """The target that keeps it."""
        maintenance = {"keep": f"{int(self.retain_log.total_seconds())}s"}
        given_option = self.options.get("maintenance")
        if isinstance(given_option, dict):
            maintenance |= given_option
        place: dict[str, Any] = {"location": self.uri}
        if self.format == "iceberg":
            place = {"catalog": {**self._catalog, "warehouse": self.uri}} if self.uri else {}
        target = TargetConfig(
            name=SNAPSHOT,
            type=self.format,
            connection=self.connection,
            commit_every=self.every,
            on_conversion=self.on_conversion,
            accept_loss=self.accept_loss,
            options={**self.options, **place, "maintenance": maintenance},
        )
        target.remember_line(self._origin)
        return target

    def remember_line(self, origin: Origin) -> None:
        """Note where the snapshot stands in its file."""
        self._origin = origin


class RetryConfig(StrictModel):
    """How Airflow retries a task of this pipeline. A retry is the rollback: it starts at the same batch."""

    attempts: Integer = Field(
        60, ge=0, le=1_000_000, description="Retries before the pipeline stops and waits for a person."
    )
    delay: Span = Field(
        timedelta(seconds=5),
        le=timedelta(days=1),
        description="First delay after an error that may pass by itself; doubles up to max_delay.",
    )
    max_delay: Span = Field(
        timedelta(minutes=1),
        le=timedelta(days=1),
        description="Longest delay; also the delay after an error that needs a person.",
    )


class DumpConfig(StrictModel):
    """How tables are read from the source: initial copies, repairs, backfills.

    All of it can be changed while a dump runs, but marks.
    """

    marks: Literal["auto", "table", "none"] = Field(
        "auto",
        description="table: a small table at the source says in the log where a chunk was read; none: nothing is "
        "written there, GTID sets (MySQL) "
        "or a consistent snapshot's place in the log (MariaDB) say it; auto: table where the user may write, else "
        "none.",
    )
    marks_schema: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="Schema of that table. Default: the connection's schema, else sluice.",
    )
    connection: ConnectionId | None = Field(
        None,
        description="PostgreSQL: the connection of a standby that rows are copied from. The log stays that of the "
        "source.",
    )
    chunk_rows: Integer = Field(50_000, ge=1, le=5_000_000, description="Rows a chunk, at most.")
    parallelism: Integer = Field(2, ge=1, le=64, description="Chunks read at the same time.")
    delay: Span = Field(timedelta(0), le=timedelta(days=1), description="Pause between two chunks of a worker.")
    max_rows_per_second: Integer = Field(
        0, ge=0, le=MAX_COUNT, description="Rows a second, over all workers; 0: as fast as it goes."
    )
    max_threads_running: Integer = Field(
        0, ge=0, le=1_000_000, description="Wait while the source has more statements running than this; 0: don't look."
    )
    max_replica_lag: Span = Field(
        timedelta(0),
        description="Wait while the source, or one of replicas, is further behind its own source; 0s: don't look.",
    )
    replicas: tuple[ConnectionId, ...] = Field(
        (), description="Connections of replicas of the source whose lag counts."
    )


class VerifyConfig(StrictModel):
    """When the targets are compared with the source, and how much of them.

    Nothing is repaired unless somebody asks for it.
    """

    schedule: str | None = Field(
        None,
        description="When verify__{pipeline} runs by itself: a cron expression of five fields (UTC), or an interval "
        "such as 12h; none: never.",
    )
    sample: str = Field(
        "100%",
        description="Share of the key ranges that is compared, chosen at random each time.",
        examples=["100%", "1%"],
    )
    digest: Literal["none", "log"] = Field(
        "none",
        description="log: a checksum of each table is kept with every batch, of the source by its log, and of the "
        "target by what its server has after the load, so that `sluice verify digest` tells without reading a table "
        "whether they are equal. none: it is not.",
    )

    method: VerifyMethod = Field(
        VerifyMethod.COMPARE,
        description="What a run does for which nobody says otherwise. compare: both sides of each table are compared. "
        "sweep: tables of the targets are read and compared with their digests (digest: log); those that differ, or "
        "of which no digest can be kept, are compared with the source then.",
    )

    @field_validator("schedule")
    @classmethod
    def _timed(cls, value: str | None) -> str | None:
        return value if value is None else _clock(value, "a cron expression of five fields, or an interval such as 12h")

    @model_validator(mode="after")
    def _sweeps_digests(self) -> VerifyConfig:
        if self.method is VerifyMethod.SWEEP and self.digest == "none":
            raise ValueError("verify.method: sweep compares tables with their digests, and needs verify.digest: log")
        return self

    @field_validator("sample")
    @classmethod
    def _is_a_share(cls, value: str) -> str:
        parse_share(value)
        return value

    @property
    def share(self) -> float:
        """``sample`` as a number: 0.1 for 10%."""
        return parse_share(self.sample)


class RunConfig(StrictModel):
    """How long a run of the DAG makes one batch after the other.

    Every batch is still delivered, acknowledged and rolled back on its own.
    """

    max_time: Span = Field(
        timedelta(minutes=5),
        le=timedelta(days=1),
        description="A run of a continuous schedule makes no further batch after this time, or earlier if another "
        "pipeline waits for a worker; 0s: each run has one batch.",
    )
    max_batches: Integer = Field(1000, ge=1, le=100_000, description="A run makes no more batches than this.")
    tasks: Literal["own", "one"] = Field(
        "own",
        description="own: the tasks of a run work side by side, each its own stage of all batches; drain does the "
        "stages of tasks that have no worker, so one worker is enough. one: the task drain carries small batches "
        "through all stages and never holds more than one worker, for hundreds of pipelines on few workers. own is "
        "for continuous pipelines whose stages are not spark-submit jobs.",
    )
    grace: Span = Field(
        timedelta(minutes=30),
        ge=timedelta(seconds=1),
        le=timedelta(days=7),
        description="Airflow ends a task drain that takes longer than max_time and this, because a server hangs; "
        "its batches are left to the other tasks of the run.",
    )


def _is_stage(text: str) -> str:
    """Return the name of a stage, or of all of one kind. Raises ValueError that lists the stages there are."""
    kind, dot, name = text.partition(".")
    kinds = [str(stage_kind) for stage_kind in StageKind]
    if kind not in kinds:
        raise ValueError(
            f"there is no such stage{meant(kind, kinds)}; write {', '.join(kinds)}, rule.NAME, load.NAME or ack.NAME"
        )
    if dot and not StageKind(kind).has_subject:
        raise ValueError(f"there is one {kind} in a pipeline; write {kind}")
    if dot and not re.fullmatch(IDENTIFIER, name):
        raise ValueError(f"write {kind}.NAME, with the name of a {'rule' if kind == 'rule' else 'target'}")
    return text


class PlaceConfig(StrictModel):
    """Place where Airflow runs the tasks of a stage; a key that is left out is as for the other tasks of the
    pipeline.
    """

    queue: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Airflow queue: only workers that listen to it run these tasks (CeleryExecutor, EdgeExecutor).",
    )
    pool: str | None = Field(
        None,
        min_length=1,
        max_length=250,
        description="Airflow pool. It must exist: Airflow starts no task of a pool that does not.",
    )
    executor: str | None = Field(
        None,
        min_length=1,
        max_length=1000,
        description="Airflow executor, where [core] executor lists several: its alias, its class or its module path.",
    )

    @model_validator(mode="after")
    def _says_where(self) -> PlaceConfig:
        if not self.given:
            raise ValueError("it says no place; write queue, pool or executor")
        return self

    @property
    def given(self) -> dict[str, str]:
        """The settings that are given, by key."""
        named = {"queue": self.queue, "pool": self.pool, "executor": self.executor}
        return {key: value for key, value in named.items() if value is not None}


HIGHEST_PRIORITY = 1000
"""The highest ``workers.priority``."""


class WorkersConfig(StrictModel):
    """How this pipeline shares Airflow's workers with others. A task that waits in the triggerer holds none."""

    at_most: Literal["auto"] | Annotated[Integer, Field(ge=1, le=1000)] = Field(
        "auto",
        description="Tasks of sync__{pipeline} at work at the same time; auto: one per stage and one more, or with "
        "`run.tasks: one` the window and one per target.",
    )
    bulk_at_most: Integer = Field(
        4, ge=1, le=1000, description="The same for backfill__{pipeline}: tables that are copied side by side."
    )
    priority: Integer = Field(
        10,
        ge=1,
        le=HIGHEST_PRIORITY,
        description="While workers are short, tasks of a higher priority begin first; among equal ones the run that "
        "has waited longest. sense and drain of all pipelines come before the other stages of any. Copies, "
        "verifications and deliveries to quarantined targets have half of it.",
    )
    pool: str = Field(
        "default_pool",
        min_length=1,
        max_length=250,
        description="Airflow pool of the sync DAG's tasks. It must exist: Airflow starts no task of a pool that does "
        "not.",
    )
    bulk_pool: str = Field(
        "default_pool",
        min_length=1,
        max_length=250,
        description="Airflow pool of copies, verifications and deliveries to quarantined targets.",
    )
    stages: dict[Annotated[str, AfterValidator(_is_stage)], PlaceConfig] = Field(
        default_factory=dict,
        description="Places of stages: drain, merge, rule, load, ack, or one of them: rule.NAME, load.NAME, ack.NAME, "
        "which goes before its kind. The segment store lies between them: workers of each place have to reach it, and "
        "ZooKeeper.",
        examples=[{"drain": {"queue": "near_source"}, "load": {"queue": "near_target", "pool": "loads"}}],
        json_schema_extra={"propertyNames": {"pattern": r"^(drain|merge|(rule|load|ack)(\..+)?)$"}},
    )

    def place(self, kind: str, name: str = "") -> dict[str, str]:
        """Queue, pool and executor of a stage's task, as far as the file says them; what it says of ``load.NAME`` goes
        before ``load``.
        """
        place: dict[str, str] = {}
        for key in (kind, f"{kind}.{name}"):
            if key in self.stages:
                place |= self.stages[key].given
        return place

    @property
    def pool_of_capture(self) -> str:
        """The pool of *sense* and *drain*."""
        return self.place(StageKind.CAPTURE).get("pool", self.pool)

    @property
    def bulk_priority(self) -> int:
        """The priority of work that may wait."""
        return max(self.priority // 2, 1)


class CompleteConfig(StrictModel):
    """The times at which Airflow is told that target tables hold all that was committed before."""

    every: Span = Field(
        timedelta(days=1), description="From one time to the next: 5m to 1d, a part of an hour or of a day."
    )
    timezone: str = Field("UTC", description="The time zone in which a day begins, such as Europe/Berlin.")
    partitions: bool = Field(
        False,
        description="The events have the day, or hour, that is complete as their partition key: for DAGs with a "
        "PartitionedAssetTimetable. Airflow then opens no run of a DAG that waits for the asset without partitions.",
    )

    @field_validator("every")
    @classmethod
    def _a_part_of_a_day(cls, value: timedelta) -> timedelta:
        minutes, rest = divmod(value.total_seconds(), 60)
        if rest or minutes not in {5, 10, 15, 20, 30, *(60 * hours for hours in (1, 2, 3, 4, 6, 8, 12, 24))}:
            raise ValueError("write 5m, 10m, 15m, 20m, 30m, 1h, 2h, 3h, 4h, 6h, 8h, 12h or 1d")
        return value

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"there is no time zone {value!r}; use a name like Europe/Berlin or UTC") from None
        return value

    @property
    def cron(self) -> str:
        """The times as a cron expression in the time zone."""
        minutes = int(self.every.total_seconds()) // 60
        if minutes < 60:
            return f"*/{minutes} * * * *"
        return f"0 */{minutes // 60} * * *" if minutes < 24 * 60 else "0 0 * * *"


def _within(value: str) -> str:
    """Return the name of a rules file unchanged. Raises ValueError unless it is one below the rules' folder."""
    if value.startswith("/") or "\\" in value or ".." in value.split("/"):
        raise ValueError(
            "write the name of a file below the rules' folder, such as engine.yaml, without / before it and .."
        )
    return value


class SubscriptionsConfig(StrictModel):
    """Named subscriptions of the subscription service (sluice serve)."""

    expire: Span = Field(
        timedelta(days=7),
        description="A batch that a subscription has not acknowledged is kept until it is this old, where "
        "capture.segments.retain is shorter. A subscription that lacks one which went then has expired.",
    )


class PipelineConfig(StrictModel):
    """One source and its targets: one YAML file, one task_id in ZooKeeper, one DAG sync__{pipeline}."""

    version: Annotated[Literal[1], BeforeValidator(whole)] = Field(1, description="Version of this file format.")
    pipeline: Identifier = Field(description="Name; also the task_id in ZooKeeper and the DAG's name.")
    description: str = Field("", description="One line for people; shown in the Airflow UI.")
    source: SourceConfig = Field(description="The server whose log is captured.")
    capture: CaptureConfig = Field(default_factory=CaptureConfig, description="What is taken from the log.")
    schedule: str = Field("continuous", description="continuous, a cron expression, or an interval such as 30s.")
    window: Integer = Field(3, ge=1, le=64, description="Batches in flight at the same time.")
    run: RunConfig = Field(default_factory=RunConfig, description="How many batches a run of the DAG carries.")
    workers: WorkersConfig = Field(
        default_factory=WorkersConfig, description="How Airflow's workers are shared with other pipelines."
    )
    spark: SparkConfig = Field(default_factory=SparkConfig, description="Where the work runs.")
    coordination: CoordinationConfig = Field(default_factory=CoordinationConfig, description="The ZooKeeper of record.")
    rules: Annotated[str, Refers.RULES, AfterValidator(_within)] | None = Field(
        None,
        min_length=1,
        max_length=1000,
        description="File in include/rules (engine.yaml) that lists the rules; none: rows go as they are.",
    )
    masked: tuple[Regex, ...] = Field(
        (),
        description="Regular expressions on schema.table.column, anchored: their values never appear in errors, logs, "
        "XCom or on a screen.",
    )
    mapping: tuple[TableMapping, ...] = Field((), description="Where tables go; a table not named keeps its name.")
    targets: tuple[TargetConfig, ...] = Field(min_length=1, description="The stores to keep in step.")
    snapshot: SnapshotConfig | None = Field(
        None, description="Keep the newest row of every key in lake tables, from which others can start; none: don't."
    )
    retry: RetryConfig = Field(default_factory=RetryConfig, description="Retries of a task.")
    alert_lag: Span | None = Field(
        None, description="Alert when a target lags further behind the source than this; none: never."
    )
    assets: bool = Field(
        True, description="Airflow: tell of each table that a run brought changes to, as an event of its asset."
    )
    complete: CompleteConfig | None = Field(
        None,
        description="Airflow: tell when each target table holds all that was committed before a time, such as "
        "midnight; none: never.",
    )
    alert_connection: ConnectionId | None = Field(
        None,
        description="Airflow connection (type http) of a webhook that is told of an alert; none: log, metric and "
        "status only.",
    )
    alert_notifiers: tuple[NotifierConfig, ...] = Field(
        (), description="Airflow: notifiers that are told of an alert, too: Slack, mail, PagerDuty and others."
    )
    dump: DumpConfig = Field(default_factory=DumpConfig, description="How tables are read from the source.")
    verify: VerifyConfig = Field(
        default_factory=VerifyConfig, description="When the targets are compared with the source."
    )
    subscriptions: SubscriptionsConfig = Field(
        default_factory=SubscriptionsConfig, description="What is kept for readers that have named subscriptions."
    )
    mark: Identifier | None = Field(
        None,
        description="Named mark of what this pipeline loads into targets of type mysql, postgresql, for ignore_marks.",
    )
    ignore_marks: tuple[Identifier, ...] = Field(
        (), description="Changes that a pipeline with one of these marks loaded into the source are not captured."
    )

    @model_validator(mode="after")
    def _snapshot_as_target(self) -> PipelineConfig:
        """Add the snapshot to the targets, so that it is loaded, acknowledged, retried and maintained like them."""
        if self.snapshot is not None and self.snapshot.target not in self.targets:
            if any(target.name == SNAPSHOT for target in self.targets):
                raise ValueError(f"a target has the name {SNAPSHOT}, which the pipeline's snapshot has; rename it")
            object.__setattr__(self, "targets", (*self.targets, self.snapshot.target))  # frozen
        return self

    @model_validator(mode="after")
    def _snapshot_to_start_from(self) -> PipelineConfig:
        for target in self.targets:
            if target.snapshot_keys and self.snapshot is None:
                raise ValueError(
                    f"target {target.name} has {target.snapshot_keys[0]}, and the pipeline keeps none; add snapshot: "
                    "{uri: ...}"
                )
        return self

    @model_validator(mode="after")
    def _unique_targets(self) -> PipelineConfig:
        names = [t.name for t in self.targets]
        if len(set(names)) != len(names):
            raise ValueError(f"two targets have the same name: {names}")
        return self

    @model_validator(mode="after")
    def _places_of_stages(self) -> PipelineConfig:
        names = [target.name for target in self.targets]
        for key in self.workers.stages:
            kind, _, name = key.partition(".")
            if name and kind != "rule" and name not in names:
                raise _at(("workers", "stages", key), f"there is no target {name!r}{meant(name, names)}")
            if kind in self._stages_of_drain:
                raise _at(("workers", "stages", key), f"{key} has no place of its own: {self._why_in_drain}")
        return self

    @model_validator(mode="after")
    def _copies_from_a_standby(self) -> PipelineConfig:
        if self.dump.connection is not None and self.source.type == "mysql":
            raise _at(("dump", "connection"), "connection is for a PostgreSQL source; a MySQL replica is one itself")
        return self

    @model_validator(mode="after")
    def _files_of_every_change(self) -> PipelineConfig:
        every = [target.name for target in self.targets if target.changes == "all"]
        for number, line in enumerate(self.mapping):
            for index, files in enumerate(line.files):
                if files.on_missing == "dead_letter" and every:
                    raise _at(
                        ("mapping", number, "files", index, "on_missing"),
                        f"target {every[0]} has changes: all, and gets each change whatever became of its file; write "
                        "stop or row_without",
                    )
        return self

    @model_validator(mode="after")
    def _files_of_one_source(self) -> PipelineConfig:
        """Refuse two locations whose files would replace each other."""
        sources: dict[str, str] = {}
        for number, line in enumerate(self.mapping):
            for index, files in enumerate(line.files):
                source, target = (local_folder(place) or place.rstrip("/") for place in (files.from_, files.to))
                if files.layout == "path" and sources.setdefault(target, source) != source:
                    raise _at(
                        ("mapping", number, "files", index, "to"),
                        "files from another location go there, too, and equal names would replace each other; "
                        "give each a folder",
                    )
        return self

    @field_validator("schedule")
    @classmethod
    def _schedule(cls, value: str) -> str:
        if value == "continuous":
            return value
        return _clock(value, "continuous, a cron expression of five fields, or an interval such as 30s")

    @property
    def waited_for(self) -> list[str]:
        """Targets that keep a batch in the segments until they have it."""
        return [target.name for target in self.targets if target.on_lost_batches == "stop"]

    @property
    def has_own_tasks(self) -> bool:
        """True if the tasks of a run work side by side (``run: {tasks: own}``)."""
        return self.run.tasks == "own" and self.spark.mode != "submit" and not self._has_one_batch_a_run

    @property
    def _has_one_batch_a_run(self) -> bool:
        return self.schedule != "continuous" or self.run.max_batches == 1 or not self.run.max_time

    @property
    def _stages_of_drain(self) -> tuple[str, ...]:
        """Kinds of stages that the task drain does itself for small batches, so that they are where it is."""
        if self.has_own_tasks or self.spark.mode == "submit":
            return ()
        return (StageKind.MERGE, StageKind.RULE) if self._has_one_batch_a_run else tuple(StageKind)[1:]

    @property
    def _why_in_drain(self) -> str:
        if self._has_one_batch_a_run:
            return (
                "in runs of one batch the task drain merges small ones; write schedule: continuous and run: "
                "{tasks: own}, or give drain the place"
            )
        return "with run: {tasks: one} the task drain carries small batches through all stages; write run: {tasks: own}"

    def remember_lines(self, source: str, text: str) -> None:
        """Note the file that the pipeline was read from, so that options of a kind are refused with their line, too."""
        for number, target in enumerate(self.targets):
            target.remember_line(Origin(source, text, ("targets", number)))
        if self.snapshot is not None:
            self.snapshot.remember_line(Origin(source, text, ("snapshot",)))

    def target(self, name: str) -> TargetConfig:
        """Return the target of that name. Raises ConfigError that lists those there are."""
        for target in self.targets:
            if target.name == name:
                return target
        names = [target.name for target in self.targets]
        raise ConfigError(
            f"{self.pipeline} has no target {name!r}{meant(name, names)}",
            hint=f"its targets are: {', '.join(names)}",
        )


def _at(place: tuple[int | str, ...], message: str) -> PydanticCustomError:
    """Return the error for a place in the file that is wrong only together with another place."""
    return PydanticCustomError("place", "{message}", {"message": message, "at": place})


def _clock(value: str, words: str) -> str:
    """Return a schedule unchanged. Raises ValueError."""
    if is_cron(value):
        return value
    if _SPAN.fullmatch(value):
        if not timedelta(seconds=1) <= parse_span(value) <= timedelta(days=366):
            raise ValueError(f"{_short(value)} is not an interval between runs: from 1s to 366d")
        return value
    raise ValueError(f"{_short(value)} is not a schedule; write {words}")


_CRON_FIELDS = (
    (0, 59, ()),
    (0, 23, ()),
    (1, 31, ()),
    (1, 12, ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
    (0, 7, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)


def is_cron(text: str) -> bool:
    """Return True for five fields of ``*``, numbers (or names of months and days), ranges, steps and lists of these."""
    fields = text.split()
    return len(fields) == 5 and all(
        all(_is_cron_item(item.lower(), low, high, names) for item in field.split(","))
        for field, (low, high, names) in zip(fields, _CRON_FIELDS, strict=True)
    )


def _is_cron_item(item: str, low: int, high: int, names: tuple[str, ...]) -> bool:
    match = re.fullmatch(r"(?:\*|([0-9]{1,2}|[a-z]{3})(?:-([0-9]{1,2}|[a-z]{3}))?)(?:/([0-9]{1,2}))?", item)
    if match is None or (match[3] is not None and int(match[3]) == 0):
        return False
    ends = [names.index(e) + low if e in names else int(e) if e.isdigit() else -1 for e in match.groups()[:2] if e]
    return all(low <= end <= high for end in ends) and ends == sorted(ends)
