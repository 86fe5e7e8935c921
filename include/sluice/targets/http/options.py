"""The ``options:`` of a target of type http."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sluice.config.pipeline import Span
from sluice.config.rights import Refers
from sluice.formats import MessageFormat
from sluice.targets.messages.form import MessageForm
from sluice.targets.templates import fields_of, require_known

NAMES = frozenset({"schema", "table", "pipeline", "target"})
"""Words in braces that each request can name."""
OF_ROWS = frozenset({"key", "op"})
"""Words in braces of requests with one row."""
IN_BODY = frozenset({"pipeline", "target", "batch", "count", "idempotency_key"})
DOCUMENTS = ("{documents}", "{document}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset({
    "host", "content-length", "content-type", "transfer-encoding", "connection", "user-agent", "authorization",
    "proxy-authorization",
})  # fmt: skip
"""Headers that Sluice sets, or that belong to the connection."""


class Ordering(StrEnum):
    """The changes that arrive in the order of the log."""

    KEY = "key"
    TABLE = "table"
    GLOBAL = "global"


class Methods(BaseModel):
    """The method of each kind of change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    insert: Literal["POST", "PUT", "PATCH"] = "POST"
    update: Literal["POST", "PUT", "PATCH"] = "POST"
    delete: Literal["POST", "PUT", "PATCH", "DELETE"] = "POST"


class Batches(BaseModel):
    """How many rows go into a request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_rows: int = Field(500, ge=1, le=100_000, description="Rows of a request. 1: a document alone, not an array.")
    max_bytes: int = Field(
        1_000_000, ge=1_000, le=1_000_000_000, description="Bytes of documents; a larger one goes alone."
    )
    lines: bool = Field(False, description="Documents are lines (application/x-ndjson), not an array.")


class Signature(BaseModel):
    """The HMAC of each request, with hmac_secret of the connection's extra."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    header: str = Field("X-Signature-256", description="Name of the header.")
    algorithm: Literal["sha256", "sha512"] = Field("sha256", description="The hash function.")
    encoding: Literal["hex", "base64"] = Field("hex", description="How the bytes are written.")
    prefix: str = Field("sha256=", description="Text before them.")
    timestamp_header: str = Field(
        "", description="Header with the seconds since 1970; then the signature is over TIMESTAMP.BODY, else over BODY."
    )

    @field_validator("header", "timestamp_header")
    @classmethod
    def _named(cls, name: str) -> str:
        return _header_name(name) if name else name


class Success(BaseModel):
    """The field of an answer 2xx that says whether the request was taken, for receivers that refuse with 200."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    field: str = Field(min_length=1, description="Name in the answer's object.")
    equals: tuple[str, ...] = Field(min_length=1, description="Its values that say so, as texts.")

    def said_by(self, body: bytes) -> bool:
        """Return True if an answer with this body says that the request was taken."""
        try:
            answer = json.loads(body)
        except ValueError:
            return False
        value = answer.get(self.field) if isinstance(answer, dict) else None
        return (value if isinstance(value, str) else json.dumps(value)) in self.equals


class HttpOptions(BaseModel):
    """The ``options:`` of a target of type http."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Annotated[str, Refers.NOTHING] = Field(
        "/",
        description="Path, and query, below the connection's address. {schema}, {table}: of the target table; "
        "{pipeline}, {target}: names; with batch.max_rows: 1 also {key}, {op}.",
    )
    methods: Methods = Field(
        default_factory=Methods, description="insert, update, delete: POST, PUT, PATCH; DELETE has no body."
    )
    format: MessageFormat = Field("debezium-json", description="What a document says, see docs/formats.md.")
    batch: Batches = Field(default_factory=Batches, description="How many rows go into a request.")
    body: Annotated[Any, Refers.NOTHING] = Field(
        None,
        description='The JSON around the documents, such as {events: "{documents}"}; "{document}" with batch.max_rows: 1. Texts may name {pipeline}, '  # noqa: E501
        "{target}, {batch}, {count}, {idempotency_key}. Default: the documents alone.",
    )
    headers: Annotated[dict[str, str], Refers.NOTHING] = Field(
        default_factory=dict, description="Further headers; texts may name what path names."
    )
    idempotency_header: str = Field(
        "Idempotency-Key", description="Header with the request's key, the same in each repeat."
    )
    idempotency_form: Literal["path", "label"] = Field(
        "path",
        description="path: parts with slashes; label: letters, digits, - and _ alone, as labels of stream loads.",
    )
    success: Success | None = Field(
        None, description="What an answer 2xx must say, {field: Status, equals: [Success]}; else the rows are refused."
    )
    signature: Signature | None = Field(None, description="HMAC of each request.")
    ordering: Ordering = Field(
        Ordering.KEY,
        description="key: changes of one row arrive in order; table: of one table; global: all, one request at a time.",
    )
    concurrency: int = Field(4, ge=1, le=64, description="Requests at a time, as far as the ordering allows.")
    timeout: Annotated[Span, Field(ge=timedelta(milliseconds=100), le=timedelta(minutes=30))] = Field(
        timedelta(seconds=30), description="After this a request counts as not answered."
    )
    retry_for: Annotated[Span, Field(ge=timedelta(0), le=timedelta(hours=24))] = Field(
        timedelta(minutes=5), description="How long a load sends a request again; then the task fails, and is retried."
    )

    @field_validator("idempotency_header")
    @classmethod
    def _named(cls, name: str) -> str:
        return _header_name(name)

    @model_validator(mode="after")
    def _fits(self) -> HttpOptions:
        fields = NAMES | (OF_ROWS if self.batch.max_rows == 1 else frozenset())
        if not self.path.startswith("/") or self.path.startswith("//") or re.search(r"[\s\\#]", self.path):
            raise ValueError("path: write a path that begins with one /; the host is the connection's")
        self._known("path", self.path, fields)
        reserved = {self.idempotency_header.lower(), *(name.lower() for name in self._signing)}
        for name, template in self.headers.items():
            _header_name(name)
            if name.lower() in _OURS | reserved or name.lower().startswith("sluice-"):
                raise ValueError(f"headers: {name} is set by Sluice, or belongs to the connection")
            if not template.isascii() or not template.isprintable():
                raise ValueError(f"headers: {name}: only printable ASCII characters can be sent")
            self._known(f"headers: {name}", template, fields)
        if self.named & OF_ROWS and self.format not in {"debezium-json", "cloudevents-json"}:
            raise ValueError("{key} and {op} go with format: debezium-json, and cloudevents-json")
        if self.batch.max_rows > 1 and len({self.methods.insert, self.methods.update, self.methods.delete}) > 1:
            raise ValueError("methods that differ go with batch: {max_rows: 1}")
        if self.methods.delete == "DELETE" and "key" not in fields_of("path", self.path):
            raise ValueError("methods: delete: DELETE has no body, so path must have {key} in it")
        if self.body is not None:
            self._check_body()
        return self

    def _known(self, option: str, template: str, fields: frozenset[str]) -> None:
        if self.batch.max_rows > 1 and fields_of(option, template) & OF_ROWS:
            raise ValueError(f"{option}: {{key}} and {{op}} are of one row: write batch: {{max_rows: 1}}")
        require_known(option, template, fields)

    def _check_body(self) -> None:
        placeholder = DOCUMENTS[self.batch.max_rows == 1]
        texts = list(_texts(self.body))
        if texts.count(placeholder) != 1 or self.batch.lines:
            raise ValueError(f'body: write "{placeholder}" once, and no batch: {{lines: true}}')
        for text in texts:
            if text != placeholder:
                require_known("body", text, IN_BODY)

    @property
    def _signing(self) -> tuple[str, ...]:
        return (self.signature.header, self.signature.timestamp_header) if self.signature else ()

    @property
    def named(self) -> set[str]:
        """Words in braces of path and headers."""
        fields = fields_of("path", self.path)
        for name, template in self.headers.items():
            fields |= fields_of(f"headers: {name}", template)
        return fields

    @property
    def named_in_path(self) -> set[str]:
        """Words in braces of the path."""
        return fields_of("path", self.path)

    @property
    def single(self) -> bool:
        """True if each request has one row."""
        return self.batch.max_rows == 1

    @property
    def form(self) -> MessageForm:
        """The form of documents. A delete is a document, as a request without one says nothing."""
        return MessageForm(
            format=self.format, tombstones=False, order_columns=None if self.ordering is Ordering.KEY else {}
        )


def _header_name(name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a header")
    return name


def _texts(body: Any) -> list[str]:
    """Return the texts of a value."""
    if isinstance(body, str):
        return [body]
    inner = body.values() if isinstance(body, dict) else body if isinstance(body, list) else ()
    return [text for inner_value in inner for text in _texts(inner_value)]
