"""A pipeline from a real source to a real target of a kind, and how the target's rows are read in the source's
terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.support.pipelines.case import Case, case
from tests.support.readers.lakes import IcebergLake, Lake

KINDS = ("postgresql", "delta", "iceberg")


class Site:
    """One target and how its rows are read, in the source's terms."""

    def __init__(self, kind: str, server: Any) -> None:
        self.kind, self.server = kind, server

    def rows(self, schema: str, table: str) -> dict[Any, Any]:
        if self.kind == "postgresql":
            return {row[0]: neutral(row[1]) for row in self.server.execute(f'SELECT id, v FROM "{schema}"."{table}"')}
        found = self.server.rows(schema, table).to_pylist()
        return {row["id"]: neutral(row["v"]) for row in found}


def neutral(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, float | Decimal | int):
        return Decimal(str(value)).normalize() + 0
    return value


@contextmanager
def pipeline(
    folder: Path, kind: str, request: Any, *lines: str, source: Any = None, name: str = "case"
) -> Iterator[tuple[Case, Site]]:
    source = source or request.getfixturevalue("mysql_source")
    zookeeper = request.getfixturevalue("zookeeper")
    make_schema = request.getfixturevalue("fresh_schema")
    own = [request.getfixturevalue("mysql_target")] if kind == "mysql" else []
    schema = make_schema(source, *own, options="CHARACTER SET utf8mb4")
    if own:
        [server] = own
    elif kind == "postgresql":
        server = request.getfixturevalue("postgresql")
        request.getfixturevalue("fresh_pg_schema")(schema)
    else:
        server = {"delta": Lake, "iceberg": IcebergLake}[kind](folder / "lake")
    extra = "\n".join(f"    {line}" for line in lines)
    with case(folder, source, server, zookeeper, schema, kind=kind, target_extra=extra, name=name) as made:
        made.run_until_head()
        yield made, Site(kind, server)
