"""Sites that are all written to, and pipelines between them, each in the middle of channels or not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sluice.config.connections import Endpoint, parse_connection
from sluice.config.loading import load_pipeline
from sluice.errors import SluiceError
from sluice.flows.run import run
from sluice.flows.runtime import Runtime
from sluice.targets.mysql.session import kept
from tests.support.crashes.cuts import Budget
from tests.support.running.command_line import command_line
from tests.support.running.waiting import ended


@dataclass
class Network:
    """Servers by name, and pipelines from one to another; ``schema`` exists on all of them.

    Attributes:
        links: pipeline -> port of a proxy before its target, which it alone goes through. session: ZooKeeper's session
            timeout.
    """

    folder: Path
    servers: dict[str, Any]
    zookeeper: Any
    schema: str
    names: list[str] = field(default_factory=list)
    links: dict[str, int] = field(default_factory=dict)
    session: str = "10s"
    max_wait: str = "50ms"

    @property
    def pipelines(self) -> Path:
        return self.folder / "pipelines"

    @property
    def channels(self) -> Path:
        return self.folder / "channels"

    @property
    def connections(self) -> dict[str, str]:
        sites = {f"site_{name}": server.connection_json(schema=self.schema) for name, server in self.servers.items()}
        links = {
            f"link_{name}": json.dumps({**json.loads(sites[f"site_{name.rpartition('_')[2]}"]), "port": port})
            for name, port in self.links.items()
        }
        return {**sites, **links, "zookeeper_default": self.zookeeper.connection_json()}

    @property
    def environment(self) -> dict[str, str]:
        """By which another process finds the connections and the files."""
        return {
            **{f"AIRFLOW_CONN_{name.upper()}": value for name, value in self.connections.items()},
            "SLUICE_PIPELINES": str(self.pipelines),
            "SLUICE_CHANNELS": str(self.channels),
        }

    def resolver(self, connection_id: str) -> Endpoint:
        return parse_connection(connection_id, self.connections[connection_id])

    def pipe(self, source: str, target: str, extra: str = "", target_extra: str = "") -> str:
        """A pipeline between two sites; its name."""
        name = f"{source}_to_{target}"
        text = f"""\
version: 1
pipeline: {name}
source: {{connection: site_{source}}}
capture:
  include: ["{self.schema}\\\\..*"]
  batch: {{max_wait: {self.max_wait}}}
  segments: {{uri: "{(self.folder / "store").as_uri()}"}}
coordination: {{root: "/test/{self.schema}", session_timeout: {self.session}}}
spark: {{mode: local}}
targets:
  - name: {target}
    type: mysql
    connection: {f"link_{name}" if name in self.links else f"site_{target}"}
{target_extra}
{extra}
"""
        self.pipelines.mkdir(exist_ok=True)
        (self.pipelines / f"{name}.yaml").write_text(text, encoding="utf-8")
        self.names.append(name)
        return name

    def channel(self, first: str, second: str, extra: str = "") -> str:
        """A channel of two pipelines; the source of the first is the main site."""
        name = f"{first}_{second}"
        self.channels.mkdir(exist_ok=True)
        text = f"version: 1\nchannel: {name}\npipelines: [{first}, {second}]\nmain: {first}\n{extra}\n"
        (self.channels / f"{name}.yaml").write_text(text, encoding="utf-8")
        return name

    def runtime(self, name: str, mode: str = "local") -> Runtime:
        return Runtime.build(load_pipeline(self.pipelines / f"{name}.yaml"), resolver=self.resolver, runner=mode)

    def once(self, *names: str, mode: str = "local") -> int:
        """Run pipelines up to the head of their logs, one after the other; the number of batches."""
        return sum(
            step.phase == "acknowledged"
            for name in names or self.names
            for step in run(self.runtime(name, mode), until_head=True)
        )

    def settle(self, rounds: int = 10) -> int:
        """Until no pipeline has anything to deliver; the number of batches."""
        total = 0
        for _ in range(rounds):
            made = self.once()
            total += made
            if not made:
                return total
        raise AssertionError(f"still delivering after {rounds} rounds: changes go round")

    def at_work(self, *writers: Callable[[], object]) -> None:
        """All of ``writers`` at the same time, while every pipeline delivers. Raises what one of them raises."""
        with self.running(), ThreadPoolExecutor(len(writers)) as pool:
            for written in [pool.submit(writer) for writer in writers]:
                written.result()

    def lost(self, budget: Budget, statements: int, name: str) -> bool:
        """Run a pipeline whose connections to its target are lost after so many statements; False if that was
        enough.
        """
        kept.end()
        budget.left = statements
        try:
            self.once(name)
        except SluiceError:
            return True
        finally:
            budget.left = 10**9
            kept.end()
        return False

    def heads(self) -> dict[str, tuple[Any, ...]]:
        """Where each server's log ends."""
        found = {}
        for name, server in self.servers.items():
            mariadb = "mariadb" in str(server.execute("SELECT VERSION()")[0][0]).lower()
            found[name] = tuple(server.execute("SHOW MASTER STATUS" if mariadb else "SHOW BINARY LOG STATUS")[0][:2])
        return found

    def assert_still(self) -> None:
        """No log moves, whatever runs."""
        before = self.heads()
        assert self.once() == 0
        assert self.once() == 0
        assert self.heads() == before

    def execute(self, site: str, *statements: str) -> None:
        """In one transaction."""
        with self.servers[site].connect(self.schema) as connection, connection.cursor() as cursor:
            connection.begin()
            for statement in statements:
                cursor.execute(statement)
            connection.commit()

    def everywhere(self, statement: str) -> None:
        for server in self.servers.values():
            server.execute(statement, database=self.schema)

    def rows(self, site: str, table: str, order: str = "1") -> list[tuple[Any, ...]]:
        return [
            tuple(row)
            for row in self.servers[site].execute(f"SELECT * FROM `{table}` ORDER BY {order}", database=self.schema)
        ]

    def assert_equal(self, table: str, sites: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        """All sites have the same rows of a table; those rows."""
        names = list(sites or self.servers)
        found = [self.rows(name, table) for name in names]
        for name, rows in zip(names, found, strict=True):
            assert rows == found[0], f"{table}: {names[0]} and {name} differ in {sorted(set(rows) ^ set(found[0]))[:6]}"
        return found[0]

    def cli(self, *arguments: str) -> Any:
        """``sluice ARGUMENTS``."""
        return command_line(arguments, environment=self.environment, folder=self.folder)

    @contextmanager
    def running(self, *names: str) -> Iterator[None]:
        """Pipelines deliver in threads while the block runs."""
        stop, failed = threading.Event(), list[BaseException]()

        def work(name: str) -> None:
            try:
                while not stop.is_set():
                    self.once(name)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(name,), name=name) for name in names or self.names]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                ended(thread)
        if failed:
            raise failed[0]


@contextmanager
def network(
    folder: Path, monkeypatch: pytest.MonkeyPatch, zookeeper: Any, schema: str, **servers: Any
) -> Iterator[Network]:
    """Without pipelines yet. Their files, and those of channels, are found in ``folder``."""
    made = Network(folder, servers, zookeeper, schema)
    monkeypatch.setenv("SLUICE_PIPELINES", str(made.pipelines))
    monkeypatch.setenv("SLUICE_CHANNELS", str(made.channels))
    yield made


def two_sites(table: str) -> Any:
    """A fixture: two MySQL servers with this table, not joined yet."""

    @pytest.fixture
    def pair(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mysql_source, mysql_target, zookeeper, fresh_schema
    ) -> Iterator[Network]:
        schema = fresh_schema(mysql_source, mysql_target)
        with network(tmp_path, monkeypatch, zookeeper, schema, a=mysql_source, b=mysql_target) as made:
            made.everywhere(table)
            yield made

    return pair


def joined(made: Network, first: str = "a", second: str = "b", *, channel: str = "", **extra: str) -> str:
    """A channel of two sites, whose pipelines have begun; its name.

    ``channel``: more lines of its file; ``extra``: see :meth:`Network.pipe`.
    """
    name = made.channel(made.pipe(first, second, **extra), made.pipe(second, first, **extra), extra=channel)
    made.once()
    return name
