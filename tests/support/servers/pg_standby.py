"""A PostgreSQL that follows another one, with its slots."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devstack.postgresql import PostgreSQLServer, as_nobody
from tests.support.running.waiting import wait_until

LOGICAL = {"wal_level": "logical", "hot_standby_feedback": "on"}
FOLLOWER = "follower"
"""The physical slot of the standby at its primary."""


def standby_of(
    primary: PostgreSQLServer, folder: Path, *, port: int = 0, options: Mapping[str, Any] = LOGICAL
) -> PostgreSQLServer:
    """A server that follows another one, with its slots. ``port``: 0 takes a free one; ``options``: its settings."""
    distribution = primary.distribution
    assert distribution is not None
    program = distribution.programs / "pg_basebackup"
    root = Path(distribution.origin)
    loader = next(iter([*root.glob("lib*/ld-linux*"), *root.glob("usr/lib*/ld-linux*"), *root.glob("lib/*/ld-linux*")]))
    libraries = ":".join(str(path) for path in (root / "usr/lib/x86_64-linux-gnu", root / "lib/x86_64-linux-gnu"))
    primary.execute(f"SELECT pg_create_physical_replication_slot('{FOLLOWER}', true)")
    folder.mkdir()
    subprocess.run(
        [
            *as_nobody(), str(loader), "--library-path", libraries, str(program), "-h", primary.host, "-p",
            str(primary.port), "-U", "postgres", "-D", str(folder / "data"), "-R", "-S", FOLLOWER, "-X", "stream",
            "-d", "dbname=postgres", "-c", "fast", "--no-sync",
        ],
        check=True, timeout=120, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    return PostgreSQLServer(folder, name="standby", distribution=distribution, options=dict(options), port=port).start()


def synced(standby: PostgreSQLServer, slot: str) -> bool:
    """Let the standby take the primary's slots over; True if it has this one to stay."""
    standby.execute("SELECT pg_sync_replication_slots()")
    return bool(standby.execute(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}' AND NOT temporary"))


def replayed(primary: Any, standby: PostgreSQLServer) -> None:
    """Wait until the standby has all that the primary has now."""
    [(head,)] = primary.execute("SELECT pg_current_wal_flush_lsn()::text")
    reached = f"SELECT pg_last_wal_replay_lsn() >= '{head}'::pg_lsn"
    wait_until(lambda: standby.execute(reached)[0][0], "the standby to follow", 120)


__all__ = ["FOLLOWER", "LOGICAL", "replayed", "standby_of", "synced"]
