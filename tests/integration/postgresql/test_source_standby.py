"""Rows that are copied from a standby, with the log of its primary."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack.postgresql import PostgreSQLServer
from sluice.config.connections import parse_connection
from sluice.errors import ConfigError, SourceUnavailable
from sluice.model.dumps import Chunk, ChunkId, Marking, Tuning
from sluice.sources.postgresql.snapshot import watermarks
from sluice.sources.postgresql.snapshot.chunk_reader import open_chunk_reader
from tests.support.pipelines.dumping import dumped
from tests.support.pipelines.pg_source import pg_case
from tests.support.pipelines.pg_writing import TABLE, Watcher, Writers, rows
from tests.support.servers.pg_standby import LOGICAL, standby_of

pytestmark = pytest.mark.full

_numbers = itertools.count(1)
DELAY = "1500ms"
"""The standby is always so far behind."""


@pytest.fixture
def servers(server_folder: Path) -> Iterator[tuple[PostgreSQLServer, PostgreSQLServer]]:
    """A primary, and a standby that is behind it."""
    name = f"pg-copied-{next(_numbers)}"
    with PostgreSQLServer(server_folder / name, options=LOGICAL) as primary:
        standby = standby_of(
            primary, server_folder / f"{name}-standby", options={**LOGICAL, "recovery_min_apply_delay": DELAY}
        )
        try:
            yield primary, standby
        finally:
            standby.stop()


def test_a_copy_from_a_standby_under_load_sets_no_row_back(
    tmp_path: Path, servers: tuple[PostgreSQLServer, PostgreSQLServer], zookeeper: Any
) -> None:
    """Nor misses one. The rows are read at the standby."""
    primary, standby = servers
    extra = "dump: {connection: case_standby}"
    with pg_case(tmp_path, primary, zookeeper, schema="standby", tables=(TABLE, rows()), extra=extra) as made:
        made.connections["case_standby"] = standby.connection_json()
        made.prepare()
        made.run_until_head()
        with Writers(made) as writers, Watcher(made) as watcher:
            found = dumped(made, tables=["standby.t"], tuning=Tuning(chunk_rows=100, parallelism=2))
            assert found.state == "done"
        made.run_until_head()
        assert watcher.back == []
        assert writers.changes > 0
        made.assert_same("t")
        read = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables WHERE schemaname = 'standby'"
        assert standby.execute(read)[0][0] >= 100


def test_only_a_standby_that_follows_is_read(
    servers: tuple[PostgreSQLServer, PostgreSQLServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, standby = (parse_connection("test", one.connection_json()) for one in servers)
    with (
        pytest.raises(ConfigError, match="is no standby"),
        open_chunk_reader(primary, Marking.SNAPSHOT, "p", standby=primary),
    ):
        pass
    monkeypatch.setattr(watermarks, "_STANDBY_S", 1.0)
    chunk = Chunk(ChunkId("d", 0, 0))
    with open_chunk_reader(primary, Marking.SNAPSHOT, "p", standby=standby) as reader:
        with reader.watermarks.reading(chunk) as low:
            assert low is not None
        servers[1].execute("SELECT pg_wal_replay_pause()")
        servers[0].execute("CREATE TABLE something (n int)")
        with pytest.raises(SourceUnavailable, match="has replayed the log up to"), reader.watermarks.reading(chunk):
            pass
        servers[1].execute("SELECT pg_wal_replay_resume()", "SELECT pg_promote()")
        with pytest.raises(SourceUnavailable, match="was promoted"), reader.watermarks.reading(chunk):
            pass
