"""The block ``source`` of Debezium's documents, by which each connector tells where a change comes from.

Some fields are common to all connectors, and each has its own besides. Documents that are made one by one, documents
that are made of columns, and schemas read the fields here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from sluice import __version__
from sluice.model.changes import SourceName

DEFAULT = "mysql"
"""The connector of sources that name none: the file, position and GTID of a binlog fit any log."""


class Field(NamedTuple):
    """A field of a block. ``type``: of Kafka Connect; ``shows``: the value that stands in it, by its name."""

    name: str
    type: str
    shows: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Connector:
    """A connector of Debezium.

    Attributes:
        database, sequence: the values that its fields ``db`` and ``sequence`` show. own: the fields that it alone has.
    """

    name: str
    database: str
    sequence: str
    own: tuple[Field, ...]

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of its block, in order."""
        return (
            *(Field(name, "string", name, required=True) for name in ("version", "connector", "name")),
            Field("ts_ms", "int64", "ts_ms", required=True),
            Field("snapshot", "string", "snapshot"),
            Field("db", "string", self.database, required=True),
            Field("sequence", "string", self.sequence),
            *(Field(name, "int64", name) for name in ("ts_us", "ts_ns")),
            *self.own,
        )

    def block(self, source: str, us: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the block of a change or statement, committed ``us`` microseconds after 1970. ``values``: what it
        shows besides; what is not among them is null.
        """
        contents = {"ts_ms": us // 1000, "ts_us": us, "ts_ns": us * 1000, **self.names(source), **values}
        return {field.name: contents.get(field.shows) for field in self.fields}

    def names(self, source: str) -> dict[str, str]:
        """Return the values that all documents of a source share."""
        database = source.database if isinstance(source, SourceName) else ""
        return {"version": __version__, "connector": self.name, "name": str(source), "database": database}


_CONNECTORS: Mapping[str, Connector] = MappingProxyType({
    connector.name: connector
    for connector in (
        Connector(DEFAULT, "schema", "", (
            Field("table", "string", "table"), Field("server_id", "int64", "origin", required=True),
            Field("gtid", "string", "gtid"), Field("file", "string", "file", required=True),
            Field("pos", "int64", "offset", required=True), Field("row", "int32", "row", required=True),
            Field("thread", "int64", ""), Field("query", "string", ""),
        )),
        Connector("postgresql", "database", "lsn_sequence", (
            Field("schema", "string", "schema", required=True), Field("table", "string", "table", required=True),
            Field("txId", "int64", "gtid_number"), Field("lsn", "int64", "offset"), Field("xmin", "int64", ""),
        )),
    )
})  # fmt: skip


def connector_of(source: str) -> Connector:
    """Return the connector whose block documents of a source have."""
    return _CONNECTORS[source.connector if isinstance(source, SourceName) else DEFAULT]


def lsn_sequence(offset: int) -> str:
    """Return PostgreSQL's ``sequence``: the commit before, which is not known, and the place of the change."""
    return f'[null,"{offset}"]'


__all__ = ["Connector", "Field", "connector_of", "lsn_sequence"]
