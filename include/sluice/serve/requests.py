"""The request of a reader: the JSON of a Flight ticket."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from sluice.config.pipeline import Identifier
from sluice.config.problems import problems_of
from sluice.errors import ConfigError, SluiceError, first_line
from sluice.model.tables import TableId

MAX_BYTES = 64 * 2**10
"""Most bytes of a ticket."""

MAX_NUMBER = 2**63 - 1
"""The largest number of a batch."""

MAX_WAIT_S = 30 * 86_400
"""Longer waits are unlimited ones."""

_MOST_DIGITS = 76
"""Most digits of a decimal in Arrow."""

_NAME = re.compile(r"[\w$-]+\.[\w$-]+")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True)


class FromBatch(_Model):
    """A start at this batch."""

    batch: int = Field(ge=1, le=MAX_NUMBER, strict=True)


class FromTimestamp(_Model):
    """A start at the first batch that holds a transaction of this time or a later one.

    Its earlier transactions come, too.
    """

    timestamp: AwareDatetime


class FromPosition(_Model):
    """A start at the first batch that ends after this position of the source's log (``file:offset``)."""

    position: str = Field(max_length=1000, pattern=r"^.+\.\d+:\d+$")


class Condition(_Model):
    """A comparison of one column with a value. As in SQL, nothing is equal to NULL, or differs from it."""

    column: str = Field(max_length=1000)
    is_: Literal["=", "!=", "<", "<=", ">", ">=", "in", "null", "not null"] = Field(alias="is")
    value: str | int | float | bool | None = None
    values: tuple[str | int | float | bool, ...] = Field((), max_length=10_000)

    @model_validator(mode="after")
    def _has_what_it_compares_with(self) -> Condition:
        present_fields = self.model_fields_set & {"value", "values"}
        required_fields = {"in": {"values"}, "null": set(), "not null": set()}.get(self.is_, {"value"})
        if present_fields != required_fields:
            takes = f"takes {' '.join(required_fields)}" if required_fields else "takes no value"
            raise ValueError(
                f"a condition with is: {self.is_} {takes}, and has {' and '.join(sorted(present_fields)) or 'none'}"
            )
        return self


class AllOf(_Model):
    """A condition that holds if all of its parts hold."""

    all: Annotated[tuple[Predicate, ...], Field(min_length=1, max_length=100)]


class AnyOf(_Model):
    """A condition that holds if one of its parts holds."""

    any: Annotated[tuple[Predicate, ...], Field(min_length=1, max_length=100)]


Predicate = Condition | AllOf | AnyOf


class ReadRequest(_Model):
    """The rows and batches that are asked for, and which of their columns."""

    pipeline: Identifier
    tables: tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...] = Field(
        (),
        max_length=1000,
        description="Names (schema.table) or anchored regular expressions (RE2); none: all that the reader may read.",
    )
    from_: Literal["earliest", "latest", "snapshot"] | FromBatch | FromTimestamp | FromPosition = Field(
        "earliest", alias="from"
    )
    to: int | None = Field(
        None,
        ge=0,
        le=MAX_NUMBER,
        strict=True,
        description="The last batch; none: the last that is stored when the read begins.",
    )
    follow: bool = Field(False, description="After the last stored batch, go on with new ones as they are stored.")
    form: Literal["changes", "merged"] = Field(
        "changes", description="changes: every change, in order; merged: one row per key and batch."
    )
    columns: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        max_length=10_000,
        description="Columns of the tables; none: all. `_before` has the same.",
    )
    predicate: Predicate | None = Field(
        None, description="A change is read if it holds for the row as it is or as it was before."
    )

    transactions: bool = Field(
        False,
        description="All rows of a batch come in the order of their commits, with a record where a transaction begins "
        "and one where it ends.",
    )
    piece_rows: int | None = Field(
        None,
        ge=1,
        le=MAX_NUMBER,
        strict=True,
        description="Rows that come at once, at most: one record batch of Arrow.",
    )
    piece_bytes: int | None = Field(
        None,
        ge=1,
        le=MAX_NUMBER,
        strict=True,
        description="Bytes that come at once, at most, as Arrow has them in memory; a row that is larger comes alone.",
    )
    max_rows: int | None = Field(
        None,
        ge=1,
        le=MAX_NUMBER,
        strict=True,
        description="The read ends with the batch with which it has so many changes, as stored: at least one batch.",
    )
    max_bytes: int | None = Field(
        None,
        ge=1,
        le=MAX_NUMBER,
        strict=True,
        description="The read ends with the batch with which it has so many bytes, as stored changes take in memory: "
        "at least one batch.",
    )
    wait: Annotated[float, Field(ge=0, le=MAX_WAIT_S, allow_inf_nan=False)] | Literal["unlimited"] | None = Field(
        None,
        description="Seconds to wait for a batch that is not stored yet. A read that follows ends after so long "
        "without one (none: unlimited), another waits so long for the batch that it begins with (none: 0).",
    )

    on_lost_batches: Literal["snapshot", "stop"] | None = Field(
        None,
        description="Where batches at the beginning are no longer stored. snapshot: a message says `reset`, all rows "
        "of the snapshot come, and then "
        "what came after it; stop: the error BatchesGone. None: snapshot where the pipeline keeps one that can be "
        "read, and the read has no `to`.",
    )

    @model_validator(mode="after")
    def _ends_or_follows(self) -> ReadRequest:
        if self.on_lost_batches == "snapshot" and self.to is not None:
            raise ValueError("a snapshot has what came after any batch: leave out to, or write on_lost_batches: stop")
        if self.follow and self.to is not None:
            raise ValueError("a read that follows has no end: leave out to, or follow")
        if self.follow and (self.max_rows or self.max_bytes):
            raise ValueError("a read that follows has no end: leave out max_rows and max_bytes, or follow")
        if self.transactions and self.form == "merged":
            raise ValueError("merged rows belong to no transaction: leave out transactions, or form")
        return self

    @classmethod
    def of_table(cls, pipeline: str, table: TableId) -> ReadRequest:
        """Return a request for all stored changes of one table."""
        name = str(table)
        exact = name if _NAME.fullmatch(name) else "\\Q" + name.replace("\\E", "\\E\\\\E\\Q") + "\\E"
        return cls(pipeline=pipeline, tables=(exact,))

    @property
    def wait_s(self) -> float:
        """Seconds to wait for a batch that is not stored yet; ``math.inf`` for ever."""
        if self.wait is None:
            return math.inf if self.follow else 0.0
        return math.inf if self.wait == "unlimited" else self.wait

    @property
    def reads(self) -> frozenset[str] | None:
        """Columns, under the names of requests, that are sent or that the predicate looks at; None: all."""
        if self.columns is None:
            return None
        return frozenset(self.columns) | _named_in(self.predicate)

    @property
    def named(self) -> tuple[TableId, ...]:
        """Tables that are asked for by their names."""
        return tuple(TableId(*name.split(".")) for name in self.tables if _NAME.fullmatch(name))

    def asks_for(self, table: TableId) -> bool:
        """Return True if the request asks for the table. Raises ConfigError for an invalid regular expression."""
        if not self.tables or table in self.named:
            return True
        patterns = [name for name in self.tables if not _NAME.fullmatch(name)]
        return any(_fits(pattern, str(table)) for pattern in patterns)


class SubscribeRequest(ReadRequest):
    """A read whose place is kept by the service, under a name."""

    subscription: Identifier = Field(description="Its name; `from` counts where it begins for the first time.")
    follow: bool = Field(True, description="False: end when everything that was stored at the beginning is delivered.")
    to: None = None
    window: int = Field(
        8, ge=1, le=1000, strict=True, description="Batches that are sent ahead of the last acknowledged one."
    )
    reset: bool = Field(False, description="Forget what was acknowledged, and begin at `from` again.")
    session: int | None = Field(
        None,
        ge=1,
        le=MAX_NUMBER,
        strict=True,
        description="Of the session that this one goes on with: refused if a newer client connected since; `from` may "
        "name the batch to go on at.",
    )

    client: str = Field(
        "",
        max_length=100,
        description="A name that no other client has, for example a random one. A client whose link broke before it "
        "heard its session goes on with `session` as it knows it, if only it connected since.",
    )

    @model_validator(mode="after")
    def _goes_on_or_begins(self) -> SubscribeRequest:
        if self.reset and self.session is not None:
            raise ValueError("reset begins anew, session goes on: leave out one of them")
        if self.wait is not None and not self.follow:
            raise ValueError("a subscription that does not follow waits for nothing: leave out wait, or follow")
        return self


_Request = TypeVar("_Request", bound=ReadRequest)


def parsed(text: bytes, kind: type[_Request] = ReadRequest) -> _Request:  # type: ignore[assignment]
    """Parse the request of a ticket. Raises ConfigError."""
    if len(text) > MAX_BYTES:
        raise ConfigError(f"the ticket is larger than {MAX_BYTES // 1024} KiB")
    try:
        request = kind.model_validate_json(text)
        json.loads(text, object_pairs_hook=_each_once)
        return request
    except ValidationError as error:
        raise wrong_request(error, "the ticket") from None
    except RecursionError:
        raise ConfigError("the ticket cannot be read: it has too many parts inside each other") from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object.

    Raises ConfigError if it has a key twice: a parser takes one, a program may have meant the other.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"the ticket cannot be read: it has {twice[:100]!r} more than once")
    return members


def for_programs(error: SluiceError) -> dict[str, str | bool | int]:
    """Return what a client may act on."""
    more = {name: value for name in ("oldest", "batch") if isinstance(value := getattr(error, name, None), int)}
    return {"name": error.public_name, "retryable": error.retryable, **more}


def wrong_request(error: ValidationError, what: str) -> ConfigError:
    """Describe the first thing that is wrong with a request, without its values."""
    problems = problems_of(error.errors(include_url=False, include_input=False), unknown=_UNKNOWN_KEY, known=_KEYS)
    first = next((problem for problem in problems if problem.unknown), problems[0])
    return ConfigError(
        f"{what} cannot be read: {first.sentence()}",
        hint='a ticket is for one {"pipeline": "shop", "tables": ["shop.orders"], "from": "earliest"}; docs/subscribe.md has all of it',  # noqa: E501
    )


_UNKNOWN_KEY = "Extra inputs are not permitted"
"""The words that clients of every version look for: one that is newer than the service leaves out what the service does
not know.
"""

_KEYS = sorted({
    field.alias or name
    for kind in (SubscribeRequest, Condition, AllOf, AnyOf, FromBatch, FromTimestamp, FromPosition)
    for name, field in kind.model_fields.items()
})


def _named_in(predicate: Predicate | None) -> frozenset[str]:
    if predicate is None:
        return frozenset()
    if isinstance(predicate, Condition):
        return frozenset([predicate.column])
    parts = predicate.all if isinstance(predicate, AllOf) else predicate.any
    return frozenset[str]().union(*map(_named_in, parts))


def _fits(pattern: str, name: str) -> bool:
    """Match by RE2, which takes time in proportion to the name, whatever the expression."""
    try:
        return bool(pc.match_substring_regex(pa.array([name]), f"^(?:{pattern})$")[0].as_py())
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{pattern!r} is not a regular expression (RE2): {first_line(error)}") from None


def holds(predicate: Predicate, column: Any) -> pa.Array:
    """Return a mask of the rows for which the predicate holds; null where that is not known.

    Args:
        column: name -> values of a column of the rows that are looked at. Raises ConfigError for one that is not there.
    """
    if isinstance(predicate, AllOf):
        return _joined(pc.and_kleene, [holds(part, column) for part in predicate.all])
    if isinstance(predicate, AnyOf):
        return _joined(pc.or_kleene, [holds(part, column) for part in predicate.any])
    values = column(predicate.column)
    if predicate.is_ == "null":
        return pc.is_null(values)
    if predicate.is_ == "not null":
        return pc.is_valid(values)
    try:
        if predicate.is_ == "in":
            choices = pa.array(list(map(_value, predicate.values))).cast(values.type)
            return pc.if_else(pc.is_valid(values), pc.is_in(values, value_set=choices), None)
        return _COMPARE[predicate.is_](values, pa.scalar(_value(predicate.value)).cast(values.type))
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise ConfigError(
            f"column {predicate.column!r} ({values.type}) cannot be compared with that value: {first_line(error)}"
        ) from None


def _value(given_value: object) -> object:
    """Convert a value for Arrow: a number beyond 64 bits becomes a decimal.

    Raises OverflowError for one that no column holds.
    """
    if isinstance(given_value, bool) or not isinstance(given_value, int) or -MAX_NUMBER <= given_value <= MAX_NUMBER:
        return given_value
    if abs(given_value) >= 10**_MOST_DIGITS:
        raise OverflowError(f"it has more than {_MOST_DIGITS} digits")
    return Decimal(given_value)


_COMPARE: dict[str, Any] = {
    "=": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip


def _joined(join: Any, parts: list[pa.Array]) -> pa.Array:
    mask = parts[0]
    for part in parts[1:]:
        mask = join(mask, part)
    return mask
