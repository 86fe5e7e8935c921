"""Iceberg tables in a folder, or of a REST catalog, for the contract suite. Needs the client, an extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg")  # the client is an extra

from pyiceberg.exceptions import NoSuchNamespaceError

from sluice.config.connections import Endpoint
from sluice.model.tables import TableId, TableSchema
from sluice.targets.iceberg.format import IcebergFormat
from sluice.targets.iceberg.target import IcebergTarget
from sluice.targets.iceberg.types import info_of
from sluice.targets.lake.types import LakeColumn, TableInfo, own_type
from sluice.targets.port import Target
from tests.support.benches.lake_bench import LakeBench


class IcebergBench(LakeBench):
    """A SQL catalog in ``root``, a folder."""

    def __init__(self, root: Path, changes: str = "latest", consistency: str = "row", mode: str = "") -> None:
        """``mode`` "merge": rows are deleted by delete files, in files of any size."""
        super().__init__(changes, consistency)
        self.options = {"write_mode": "merge-on-read", "small_file": "1"} if mode == "merge" else {}
        self.root = root
        self.root.mkdir(parents=True, exist_ok=True)
        hidden = {"s3.secret-access-key": self.secret}
        self.connection = Endpoint("target", "fs", "", extra={"path": str(root), "catalog": hidden})

    @classmethod
    def of_rest(cls, server: Any, changes: str = "latest", consistency: str = "row") -> IcebergBench:
        """The same with an empty REST catalog: ``server``, of which every table goes."""
        made = cls(server.folder, changes, consistency)
        login = {"catalog": {"oauth2-server-uri": f"{server.url}/v1/oauth/tokens"}}
        made.connection = Endpoint("target", "http", server.host, server.port, "me", made.secret, "http", login)
        catalog: Any = made.target().tables.format.place.catalog()
        for namespace in ((made.schema,), ("_sluice", "p"), ("_sluice", "other")):
            with suppress(NoSuchNamespaceError):
                for table in catalog.list_tables(namespace):
                    catalog.drop_table(table)
        return made

    def target(self, *, pipeline: str = "p", name: str = "copy", **config: Any) -> Target:
        if self.options:
            config["options"] = {**self.options, **config.get("options", {})}
        return IcebergTarget(self.config("iceberg", name=name, **config), self.connection, pipeline)

    def create_table(self, table: TableSchema) -> None:
        columns = self.made(table, [LakeColumn(c.name, own_type(c.type)) for c in table.columns])
        target: Any = self.target()
        made = target.tables.format
        made.create(made.names(table.table), columns, made.options.partitions(table.table))

    def columns(self, table: TableId) -> list[str] | None:
        found = self.table(table)
        return [field.name for field in found.schema().fields] if found is not None else None

    def table(self, table: TableId) -> Any:
        """As it is now."""
        target: Any = self.target()
        return target.tables.open(table)

    def read(self, table: TableId) -> pa.Table:
        return self.table(table).scan().to_arrow()

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Iceberg has no texts of a length: the column is given one where rows are converted."""

        def short(self: IcebergFormat, table: Any) -> TableInfo:
            info = info_of(table)
            return replace(info, columns=tuple(replace(c, length=80 * (c.name == "email")) for c in info.columns))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(IcebergFormat, "info", short)
            yield
