"""The ``options:`` of a target of type redis."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sluice.config.pipeline import Span
from sluice.formats import MessageFormat
from sluice.targets.messages.form import MessageForm
from sluice.targets.templates import fields_of, listed, require_known

_TABLE = frozenset({"schema", "table", "pipeline", "target"})
_MEBIBYTE = 1 << 20


class Expiry(BaseModel):
    """The end of a row's life at the target."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: Annotated[Span, Field(ge=timedelta(seconds=1))] | None = Field(
        None, description="A row goes this long after it was last written."
    )
    column: str = Field(
        "",
        description="A row goes at the time in this column: a date or time, or a number of seconds since 1970. NULL: "
        "never. Tables without the column keep their rows.",
    )

    @model_validator(mode="after")
    def _one(self) -> Expiry:
        if (self.after is None) == (not self.column):
            raise ValueError("expire: write after or column")
        return self


class Index(BaseModel):
    """A set or sorted set with the keys of a table's rows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    table: str = Field(description="schema.table of the target.")
    key: str = Field(
        min_length=1, description="Key of the set. {column}: the row's value, so that there is a set for each value."
    )
    score: str = Field(
        "",
        description="The column whose value is the score in a sorted set: a number, or a date or time as seconds "
        "since 1970. Default: a plain set.",
    )

    @property
    def columns(self) -> frozenset[str]:
        """The columns that decide in which set a row is."""
        return frozenset({*fields_of("key", self.key), *([self.score] if self.score else ())})

    @model_validator(mode="after")
    def _template(self) -> Index:
        fields_of("indexes: key", self.key)
        return self


class RedisOptions(BaseModel):
    """The ``options:`` of a target of type redis."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    form: Literal["hash", "json", "string"] = Field(
        "hash",
        description="What a row is. hash: a field for each column, none for NULL; json: a string with a JSON object; "
        "string: the text of value_column alone.",
    )
    key: str = Field(
        "{schema}.{table}:{key}",
        description="Key of a row. {key}: the values of its primary key, with a colon between them; {schema}, "
        "{table}: of the target table; {pipeline}, {target}: names.",
    )
    value_column: str = Field(
        "", description="form: string: the column whose value is stored. Every other one is left out."
    )
    expire: Expiry | None = Field(None, description="When rows go by themselves. Default: never.")
    indexes: tuple[Index, ...] = Field(
        (), description="Sets and sorted sets of row keys, kept in step with form: hash."
    )
    stream: str = Field(
        "{schema}.{table}",
        min_length=1,
        description="changes: all: key of the stream that gets every change of a table. Without {table} one stream "
        "has all changes, in the order of the log.",
    )
    format: MessageFormat = Field("debezium-json", description="changes: all: what an entry's field `value` says.")
    stream_length: int | None = Field(
        None, ge=1, description="changes: all: about as many entries stay in a stream. Default: all."
    )
    prefix: str = Field("sluice:", min_length=1, description="Begin of the keys that Sluice keeps for itself.")
    max_row_bytes: int = Field(
        64 * _MEBIBYTE,
        ge=1,
        le=512 * _MEBIBYTE,
        description="A row of more bytes, key and values together, is refused.",
    )
    fsync: bool = Field(
        False,
        description="A batch counts as delivered once the server has written it to its disk (WAITAOF; Redis 7.2 or "
        "Valkey, with appendonly).",
    )
    timeout: Span = Field(
        timedelta(seconds=30),
        ge=timedelta(seconds=1),
        le=timedelta(minutes=10),
        description="For each answer of the server.",
    )

    @model_validator(mode="after")
    def _fits(self) -> RedisOptions:
        fields = require_known("key", self.key, {*_TABLE, "key"})
        if not {"schema", "table", "key"} <= fields:
            raise ValueError(
                f"key must have {listed({'schema', 'table', 'key'})} in it: each row needs a key of its own"
            )
        if self.key.count("{key}") != 1:
            raise ValueError("key: write {key} once")
        require_known("stream", self.stream, _TABLE)
        if (self.form == "string") != bool(self.value_column):
            raise ValueError("value_column goes with form: string")
        if self.indexes and self.form != "hash":
            raise ValueError("indexes go with form: hash: the server reads there what an old row was indexed by")
        if self.indexes and self.expire is not None:
            raise ValueError("indexes do not go with expire: an index would keep the keys of rows that are gone")
        for index in self.indexes:
            if index.table.count(".") != 1:
                raise ValueError(f"indexes: table {index.table!r} must be schema.table")
        return self

    @property
    def message_form(self) -> MessageForm:
        """The form of a stream's entries."""
        return MessageForm(format=self.format, tombstones=False)

    @property
    def one_stream(self) -> bool:
        """True if all tables share a stream."""
        return "table" not in fields_of("stream", self.stream)
