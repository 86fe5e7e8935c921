"""A pipeline from a PostgreSQL for a test, and what its server says of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sluice.operations.check import check, make_missing
from tests.support.pipelines.case import Case

COPY = "copy"
"""The database of the target, where that is the same server."""


class PgCase(Case):
    """A pipeline whose source is a PostgreSQL."""

    @property
    def slot(self) -> str:
        return f"sluice_{self.name}"

    def write(self, *statements: str) -> None:
        """Run statements in one session in the schema, a transaction each unless one begins another."""
        with self.source.connect(options=f"-c search_path={self.schema}") as connection:
            for statement in statements:
                connection.execute(statement)

    def prepare(self) -> None:
        """As ``sluice check --apply --yes`` does."""
        runtime = self.runtime()
        make_missing(runtime, check(runtime))

    def slot_row(self) -> dict[str, Any]:
        """What pg_replication_slots says of the pipeline's slot; empty without one."""
        rows = self.source.execute(
            "SELECT active_pid, restart_lsn - '0/0', confirmed_flush_lsn - '0/0', wal_status FROM pg_replication_slots "
            f"WHERE slot_name = '{self.slot}'"
        )
        names = ("active_pid", "restart", "confirmed", "status")
        return dict(zip(names, rows[0], strict=True)) if rows else {}

    def rows(self, table: str, columns: str = "*") -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """The rows of a table at both sides, in any one order, as text."""
        sides: list[list[tuple[Any, ...]]] = []
        for server, database in ((self.source, "postgres"), (self.target, COPY)):
            found = server.execute(f"SELECT {columns} FROM {self.schema}.{table}", database=database)
            sides.append(sorted(found, key=repr))
        return sides[0], sides[1]

    def assert_same(self, *tables: str) -> None:
        for table in tables:
            ours, theirs = self.rows(table)
            only = [row for row in theirs if row not in ours], [row for row in ours if row not in theirs]
            assert theirs == ours, f"{table}: rows only at the target, only at the source: {str(only)[:1000]}"


@contextmanager
def pg_case(
    folder: Path,
    source: Any,
    zookeeper: Any,
    *,
    schema: str,
    tables: Sequence[str] = (),
    target: Any = None,
    kind: str = "postgresql",
    start: str = "latest",
    extra: str = "",
    source_extra: str = "",
    target_extra: str = "",
) -> Iterator[PgCase]:
    """From ``schema`` of the source to the same schema of the database ``copy`` (``target`` None), or of a target.

    ``tables``: what is made in the schema first.
    """
    (folder / "rules").mkdir(parents=True, exist_ok=True)
    own = target is None
    made = PgCase(folder, source, source if own else target, zookeeper.hosts, schema, schema)
    made.connections = {
        "case_source": source.connection_json(),
        "case_target": source.connection_json(schema=COPY) if own else target.connection_json(),
        "zookeeper_default": zookeeper.connection_json(),
    }
    made.yaml = f"""\
version: 1
pipeline: {made.name}
source: {{connection: case_source, type: postgresql, start: {start}{source_extra}}}
capture:
  include: ["{schema}\\\\..*"]
  batch: {{max_wait: 200ms}}
  segments: {{uri: "{(folder / "store").as_uri()}"}}
coordination: {{root: "/test/{schema}", session_timeout: 10s}}
spark: {{mode: local}}
targets:
  - name: copy
    type: {kind}
    connection: case_target
{target_extra}
{extra}
"""
    made.path.write_text(made.yaml, encoding="utf-8")
    source.execute(f"CREATE SCHEMA {schema}")
    if own:
        if not source.execute(f"SELECT 1 FROM pg_database WHERE datname = '{COPY}'"):
            source.execute(f"CREATE DATABASE {COPY}")
        source.execute(f"CREATE SCHEMA {schema}", database=COPY)
    made.write(*tables)
    try:
        yield made
    finally:
        if source.running:
            if made.slot_row().get("active_pid"):
                source.execute(
                    "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots "
                    f"WHERE slot_name = '{made.slot}' AND active_pid IS NOT NULL"
                )
            if made.slot_row():
                source.execute(f"SELECT pg_drop_replication_slot('{made.slot}')")
            source.execute(f"DROP PUBLICATION IF EXISTS {made.slot}", f"DROP SCHEMA {schema} CASCADE")


__all__ = ["COPY", "PgCase", "pg_case"]
