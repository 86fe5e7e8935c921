"""A pipeline for a test: fresh schemas on real servers or their twins, a YAML file in a temporary folder, connections
in the environment.
"""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.config.connections import Endpoint, parse_connection
from sluice.config.loading import load_pipeline
from sluice.errors import ConfigError
from sluice.flows.run import Step, run
from sluice.flows.runtime import Runtime
from sluice.operations.check import check, make_missing
from tests.support.running.command_line import command_line
from tests.support.twins.servers import Twin

REPOSITORY = Path(__file__).resolve().parents[3]


HIDDEN = ".later"
"""The suffix of a pipeline's file that no Airflow reads."""


@dataclass
class Case:
    """One pipeline from ``source`` to ``target`` (stack servers, or twins of :mod:`tests.support.twins.servers`), with
    its own store and root.
    """

    folder: Path
    source: Any
    target: Any
    zookeeper_hosts: str
    schema: str
    name: str = "case"
    yaml: str = ""
    connections: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The pipeline's file, under the name that :data:`HIDDEN` gives it until an Airflow may see it."""
        hidden = self.folder / f"{self.name}{HIDDEN}"
        return hidden if hidden.exists() else self.folder / f"{self.name}.yaml"

    def resolver(self, connection_id: str) -> Endpoint:
        if connection_id not in self.connections:  # of another pipeline of the folder
            raise ConfigError(f"connection {connection_id!r} is not known here")
        return parse_connection(connection_id, self.connections[connection_id])

    def runtime(self, mode: str = "local") -> Runtime:
        made = Runtime.build(load_pipeline(self.path), resolver=self.resolver, runner=mode)
        made.rules_folder = self.folder / "rules"
        return made

    def run_until_head(self, mode: str = "local") -> list[Step]:
        return list(run(self.runtime(mode), until_head=True))

    def make_missing(self) -> None:
        """As ``sluice check --apply --yes`` does."""
        runtime = self.runtime()
        make_missing(runtime, check(runtime))

    @property
    def environment(self) -> dict[str, str]:
        """For a command line in another process."""
        return {
            **os.environ,
            **{f"AIRFLOW_CONN_{k.upper()}": v for k, v in self.connections.items()},
            "SLUICE_RULES": str(self.folder / "rules"),
            "SLUICE_PIPELINES": str(self.folder),
            "PYTHONPATH": str(REPOSITORY / "include"),
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "sluice.cli", *arguments]

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``sluice ARGUMENTS`` inside this process."""
        return command_line(arguments, environment=self.environment, folder=self.folder)

    def cli_process(self, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """``sluice ARGUMENTS`` as a process of its own: where the test is about the command as a shell starts it."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def assert_equal(self, *tables: str) -> None:
        """CHECKSUM TABLE of both sides, and the rows themselves where they differ."""
        if isinstance(self.source, Twin):
            assert_same_twins(self, *tables)
            return
        names = tables or tuple(
            row[0]
            for row in self.source.execute(f"SHOW FULL TABLES FROM `{self.schema}` WHERE Table_type = 'BASE TABLE'")
        )
        for table in names:
            sums = [s.execute(f"CHECKSUM TABLE `{self.schema}`.`{table}`")[0][1] for s in (self.source, self.target)]
            if sums[0] != sums[1]:
                rows = [
                    set(map(str, s.execute(f"SELECT * FROM `{self.schema}`.`{table}`")))
                    for s in (self.source, self.target)
                ]
                missing, extra = sorted(rows[0] - rows[1])[:5], sorted(rows[1] - rows[0])[:5]
                raise AssertionError(f"{table} differs: missing {missing}, extra {extra}")


def as_older_versions_write(monkeypatch: Any) -> None:
    """From here on every data file of a batch is a file of its own, however small, as before manifests had data."""
    for module in ("sluice.segments.writer", "sluice.flows.transform.changeset_writer"):
        monkeypatch.setattr(f"{module}.fitting", lambda sizes: frozenset())


@contextmanager
def case(
    folder: Path,
    source: Any,
    target: Any,
    zookeeper: Any,
    schema: str,
    *,
    extra: str = "",
    target_extra: str = "",
    start: str = "latest",
    source_connection: Mapping[str, Any] | None = None,
    session_s: int = 10,
    name: str = "case",
    kind: str = "",
    max_wait: str = "200ms",
    hidden: bool = False,
) -> Iterator[Case]:
    """``schema`` exists on both servers; ``extra`` is YAML at the top level, ``target_extra`` inside the target;
    ``kind``: its type, "": its own.

    ``hidden``: the Airflow of the folder does not see the file before it has its connections.
    ``session_s`` is how long a killed process keeps its lease. A machine that stalls for longer loses the leases of a
    living one.
    """
    (folder / "rules").mkdir(parents=True, exist_ok=True)
    kind = kind or (target.kind if isinstance(target, Twin) else "mysql")
    type_of_source = ", type: memory" if isinstance(source, Twin) else ""
    made = Case(folder, source, target, zookeeper.hosts, schema, name)
    made.connections = {
        "case_source": source.connection_json(),
        "case_target": target.connection_json(schema=schema) if kind == "mysql" else target.connection_json(),
        "zookeeper_default": zookeeper.connection_json(),
    }
    made.yaml = f"""\
version: 1
pipeline: {made.name}
source: {{connection: case_source, start: {start}{type_of_source}}}
capture:
  include: ["{schema}\\\\..*"]
  batch: {{max_wait: {max_wait}}}
  segments: {{uri: "{(folder / "store").as_uri()}"}}
coordination: {{root: "/test/{schema}", session_timeout: {session_s}s}}
spark: {{mode: local}}
targets:
  - name: copy
    type: {kind}
    connection: case_target
{target_extra}
{extra}
"""
    path = folder / f"{name}{HIDDEN}" if hidden else made.path
    path.write_text(made.yaml, encoding="utf-8")
    yield made


@contextmanager
def case_of(
    folder: Path,
    source: Any,
    target: Any,
    zookeeper: Any,
    fresh_schema: Callable[..., str],
    *tables: str,
    options: str = "",
    **settings: Any,
) -> Iterator[Case]:
    """Yield a :func:`case` whose tables are on both sides, empty. ``tables``: CREATE TABLE `{db}`.…"""
    schema = fresh_schema(source, target, options=options)
    for server in (source, target):
        server.execute(*(table.format(db=schema) for table in tables))
    with case(folder, source, target, zookeeper, schema, **settings) as made:
        yield made


def assert_same_rows(made: Case) -> None:
    """Row by row: checksums of MySQL and MariaDB differ for the same rows."""
    tables = [row[0] for row in made.source.execute("SHOW TABLES", database=made.schema)]
    for table in tables:
        sides = [
            sorted(map(repr, s.execute(f"SELECT * FROM `{table}`", database=made.schema)))
            for s in (made.source, made.target)
        ]
        assert sides[0] == sides[1], table


def assert_same_twins(made: Case, *tables: str) -> None:
    """Row by row, by the values themselves. ``tables``: all of the schema by default."""
    rows = [
        {
            one.table: sorted(repr({name: _in_utc(value) for name, value in sorted(row.items())}) for row in there)
            for one, there in side.read().items()
            if one.schema == made.schema
        }
        for side in (made.source, made.target)
    ]
    for table in tables or tuple(rows[0]):
        assert rows[0].get(table) == rows[1].get(table), table


def _in_utc(value: Any) -> Any:
    """A point in time with one name of its zone: Arrow calls it otherwise than Python."""
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo is not None else value
