"""The ``options:`` of a target of type mongodb."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sluice.config.pipeline import Span
from sluice.targets.mongodb.column_types import Form, forms_of_kind
from sluice.targets.options import ColumnName
from sluice.targets.templates import require_known

_TABLE = frozenset({"schema", "table", "pipeline", "target"})
_MEBIBYTE = 1 << 20


class Ids(StrEnum):
    """How ids are made of keys."""

    VALUE = "value"
    TEXT = "text"


class MongoOptions(BaseModel):
    """The ``options:`` of a target of type mongodb."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    database: str = Field(
        "{schema}",
        min_length=1,
        description="Name of a table's database. {schema}, {table}: of the target table; {pipeline}, {target}: names.",
    )
    collection: str = Field("{table}", description="Name of a table's collection, with the same words in braces.")
    types: Mapping[ColumnName, Form] = Field(
        {},
        description="How values are stored, by column (schema.table.column of the target) or by type (decimal, bigint "
        "unsigned, …), "
        "instead of the proposed way: number, decimal, double, date, text, document or bytes.",
    )
    ids: Ids = Field(
        Ids.VALUE,
        description="What _id is: the value of a key of one whole number or text, and a text for other keys; or a text "
        "for every key.",
    )
    keep_deleted: Annotated[Span, Field(ge=timedelta(0), le=timedelta(days=365))] = Field(
        timedelta(days=1),
        description="Time for which the version of a removed row stays as a document without columns: until then "
        "nothing that an older loader "
        "still sends brings the row back. 0s: removed at once.",
    )
    own_database: str = Field(
        "sluice",
        min_length=1,
        description="Name of the database in which Sluice keeps checkpoints and definitions of tables.",
    )
    bulk_rows: int = Field(1_000, ge=1, le=100_000, description="Rows in one command at most.")
    bulk_bytes: int = Field(
        5 * _MEBIBYTE, ge=1_000, le=15 * _MEBIBYTE, description="Bytes of one command at most, unless a row is larger."
    )
    max_document_bytes: int = Field(
        16 * _MEBIBYTE, ge=1, le=16 * _MEBIBYTE, description="A row that is a larger document is refused."
    )
    timeout: Annotated[Span, Field(ge=timedelta(seconds=1), le=timedelta(minutes=10))] = Field(
        timedelta(seconds=60), description="For each answer of the server, and until there is a primary."
    )

    @model_validator(mode="after")
    def _fits(self) -> MongoOptions:
        database_fields = require_known("database", self.database, _TABLE)
        fields = require_known("collection", self.collection, _TABLE)
        if "table" not in fields:
            raise ValueError("collection must have {table} in it: each table needs a collection of its own")
        if "schema" not in database_fields | fields:
            raise ValueError("database or collection must have {schema} in it: tables of two schemas may have one name")
        for name, form in self.types.items():
            offered = forms_of_kind(name) if name.count(".") < 2 else frozenset(Form)
            if not offered:
                raise ValueError(f"types: {name!r} is neither schema.table.column nor a type")
            if form not in offered:
                raise ValueError(f"types: {name} is stored as {' or '.join(sorted(offered))}, not as {form}")
        return self


__all__ = ["Ids", "MongoOptions"]
