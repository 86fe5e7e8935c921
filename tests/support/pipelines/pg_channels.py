"""Two pipelines in opposite directions between two sites, of which one or both are databases of a PostgreSQL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sluice.config.connections import Endpoint, parse_connection
from sluice.config.loading import load_pipeline
from sluice.flows.run import run
from sluice.flows.runtime import Runtime
from sluice.operations.check import check, make_missing

_numbers = itertools.count(1)
TABLE = "CREATE TABLE items (id bigint PRIMARY KEY, site varchar(10) NOT NULL, n int NOT NULL DEFAULT 0, note text)"


@dataclass
class Site:
    """A server, and the database (PostgreSQL) or schema (MySQL) of it that is a site."""

    server: Any
    database: str
    mysql: bool = False

    def write(self, *statements: str) -> None:
        """Run statements in one session, a transaction each unless one begins another."""
        if self.mysql:
            self.server.execute(*statements, database=self.database)
            return
        with self.server.connect(self.database) as connection:
            connection.execute("SET search_path = shop")
            for statement in statements:
                connection.execute(statement)

    def rows(self) -> list[tuple[Any, ...]]:
        return self.all("items")

    def all(self, table: str) -> list[tuple[Any, ...]]:
        """The rows of a table, in the order of its column id."""
        place = table if self.mysql else f"shop.{table}"
        found = self.server.execute(f"SELECT * FROM {place} ORDER BY id", database=self.database)
        return [tuple(row) for row in found]


@dataclass
class Channel:
    """Two sites and the pipelines between them."""

    folder: Path
    zookeeper: Any
    sites: dict[str, Site]
    channel: str = ""
    connections: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = f"two{next(_numbers)}"
        self.connections = {"zookeeper_default": self.zookeeper.connection_json()}
        for name, site in self.sites.items():
            self.connections[f"site_{name}"] = site.server.connection_json(schema=site.database)
        (self.folder / "pipelines").mkdir()
        (self.folder / "channels").mkdir()
        for source, target in (("a", "b"), ("b", "a")):
            self._pipe(source, target)
        (self.folder / "channels" / "both.yaml").write_text(
            f"version: 1\nchannel: {self.name}\npipelines: [{self.name}_a_to_b, {self.name}_b_to_a]\n"
            f"main: {self.name}_a_to_b\n{self.channel}\n",
            encoding="utf-8",
        )

    def _pipe(self, source: str, target: str) -> None:
        one, other = self.sites[source], self.sites[target]
        mapping = ""
        if one.mysql != other.mysql:
            schemas = [site.database if site.mysql else "shop" for site in (one, other)]
            mapping = f"mapping: [{{from: {schemas[0]}.*, to: {schemas[1]}.*}}]"
        text = f"""\
version: 1
pipeline: {self.name}_{source}_to_{target}
source: {{connection: site_{source}, type: {"mysql" if one.mysql else "postgresql"}}}
capture:
  include: ["{one.database if one.mysql else "shop"}\\\\..*"]
  batch: {{max_wait: 50ms}}
  segments: {{uri: "{(self.folder / "store").as_uri()}"}}
coordination: {{root: "/test/{self.name}", session_timeout: 10s}}
spark: {{mode: local}}
targets:
  - {{name: {target}, type: {"mysql" if other.mysql else "postgresql"}, connection: site_{target}}}
{mapping}
"""
        (self.folder / "pipelines" / f"{self.name}_{source}_to_{target}.yaml").write_text(text, encoding="utf-8")

    def resolver(self, connection_id: str) -> Endpoint:
        return parse_connection(connection_id, self.connections[connection_id])

    def runtime(self, way: str) -> Runtime:
        path = self.folder / "pipelines" / f"{self.name}_{way}.yaml"
        return Runtime.build(load_pipeline(path), resolver=self.resolver, runner="local")

    def prepare(self) -> None:
        for way in ("a_to_b", "b_to_a"):
            made = self.runtime(way)
            make_missing(made, check(made))
        self.once("a_to_b", "b_to_a")

    def once(self, *ways: str) -> int:
        """Run pipelines up to the head of their logs, one after the other; the number of batches."""
        return sum(
            step.phase == "acknowledged" for way in ways for step in run(self.runtime(way), until_head=True)
        )  # fmt: skip

    def publication(self, site: str) -> str:
        """The publication, and slot, of a site that is a PostgreSQL."""
        return f"sluice_{self.name}_{site}_to_{'b' if site == 'a' else 'a'}"

    def settle(self) -> None:
        """Until no pipeline has anything to deliver."""
        for _ in range(5):
            if not self.once("a_to_b", "b_to_a"):
                return
        raise AssertionError("still delivering: changes go round")

    def equal(self) -> list[tuple[Any, ...]]:
        rows = {name: site.rows() for name, site in self.sites.items()}
        assert rows["a"] == rows["b"]
        return rows["a"]


def closed(made: Channel) -> None:
    for name, site in made.sites.items():
        if site.mysql:
            site.server.execute(f"DROP DATABASE {site.database}")
            continue
        slot = made.publication(name)
        site.server.execute(
            f"SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = '{slot}' "
            "AND active_pid IS NOT NULL",
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}'",
            f"DROP DATABASE {site.database} WITH (FORCE)",
        )


def channel(folder: Path, servers: dict[str, Any], zookeeper: Any, more: str = "", *, mysql: str = "") -> Channel:
    """``mysql``: the site that is one."""
    number = next(_numbers)
    sites = {name: Site(server, f"site_{name}_{number}", name == mysql) for name, server in servers.items()}
    for site in sites.values():
        site.server.execute(f"CREATE DATABASE {site.database}")
        if not site.mysql:
            site.server.execute("CREATE SCHEMA shop", database=site.database)
        site.write(TABLE)
    return Channel(folder, zookeeper, sites, more)


@contextmanager
def two_sites(
    folder: Path,
    servers: dict[str, Any],
    zookeeper: Any,
    monkeypatch: pytest.MonkeyPatch,
    more: str = "",
    *,
    mysql: str = "",
) -> Iterator[Channel]:
    """A channel whose tables, slots and publications are made. ``more``: lines of its file; ``mysql``: see
    :func:`channel`.
    """
    made = channel(folder, servers, zookeeper, more, mysql=mysql)
    monkeypatch.setenv("SLUICE_CHANNELS", str(folder / "channels"))
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder / "pipelines"))
    try:
        made.prepare()
        yield made
    finally:
        closed(made)


__all__ = ["TABLE", "Channel", "Site", "two_sites"]
