"""The ``options:`` of a target of type elasticsearch."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sluice.config.pipeline import Span
from sluice.config.rights import Refers
from sluice.targets.options import ColumnName, TableName
from sluice.targets.templates import fields_of, require_known

_TABLE = frozenset({"schema", "table", "pipeline", "target"})
DAYS = {"day": "%Y.%m.%d", "month": "%Y.%m", "year": "%Y"}
"""Words for a part of a date in names of indexes, and its form."""
_MEBIBYTE = 1 << 20


class ElasticsearchOptions(BaseModel):
    """The ``options:`` of a target of type elasticsearch."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    index: str = Field(
        "{schema}.{table}",
        description="Name of a table's index, in lower case. {schema}, {table}: of the target table; {pipeline}, "
        "{target}: names. With changes: all also {day}, {month}, {year}: of the commit in UTC, or of the column in "
        "date_columns.",
    )
    date_columns: Annotated[Mapping[TableName, str], Refers.NOTHING] = Field(
        {},
        description="With changes: all: schema.table of the target: the DATE, DATETIME or TIMESTAMP column whose value "
        "is {day}, {month} or {year} of index. Where it is NULL, or a date that no calendar has, the commit's is.",
    )
    mappings: Annotated[Mapping[ColumnName, Mapping[str, Any]], Refers.CODE] = Field(
        {},
        description="schema.table.column of the target: the field's mapping, instead of the proposed one. Example: "
        "{type: text, analyzer: german}.",
    )
    settings: Annotated[Mapping[str, Any], Refers.CODE] = Field(
        {}, description="Settings of indexes that Sluice makes, beside those of the server's index templates."
    )
    routing: Annotated[Mapping[TableName, str], Refers.NOTHING] = Field(
        {},
        description="schema.table of the target: the column of its key by whose value rows are spread over shards.",
    )
    checkpoint_index: str = Field(
        "sluice-checkpoints", min_length=1, description="Name of the index in which Sluice keeps checkpoints."
    )
    refresh: bool = Field(
        False,
        description="A batch is visible to searches once it is acknowledged. Default: after the index's "
        "refresh_interval.",
    )
    bulk_rows: int = Field(5_000, ge=1, le=50_000, description="Rows in one request at most.")
    bulk_bytes: int = Field(
        5 * _MEBIBYTE, ge=1_000, le=64 * _MEBIBYTE, description="Bytes of one request at most, unless a row is larger."
    )
    max_document_bytes: int = Field(64 * _MEBIBYTE, ge=1, description="A row that is a larger document is refused.")
    timeout: Annotated[Span, Field(ge=timedelta(seconds=1), le=timedelta(minutes=10))] = Field(
        timedelta(seconds=60), description="For each answer of the server."
    )
    retry_for: Annotated[Span, Field(ge=timedelta(0), le=timedelta(hours=24))] = Field(
        timedelta(minutes=5),
        description="Time for which requests and rows are sent again while the server does not answer or has too much "
        "to do.",
    )

    @model_validator(mode="after")
    def _fits(self) -> ElasticsearchOptions:
        if "table" not in require_known("index", self.index, _TABLE | DAYS.keys()):
            raise ValueError("index must have {table} in it: each table needs an index of its own")
        for option, names, dots in (
            ("mappings", self.mappings, 2),
            ("routing", self.routing, 1),
            (
                "date_columns",
                self.date_columns,
                1,
            ),
        ):
            for name in names:
                if name.count(".") < dots:
                    raise ValueError(f"{option}: {name!r} must be schema.table{'.column' if dots > 1 else ''}")
        if self.date_columns and not self.dated:
            raise ValueError("date_columns: index has neither {day} nor {month} nor {year}")
        if "mappings" in self.settings:
            raise ValueError("settings: mappings of fields are an option of their own")
        return self

    @property
    def dated(self) -> bool:
        """True if a table has an index for each day, month or year."""
        return bool(DAYS.keys() & fields_of("index", self.index))


__all__ = ["DAYS", "ElasticsearchOptions"]
