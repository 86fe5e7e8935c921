"""DuckDB as a reader of lake tables by their own metadata, in an environment of its own: the extensions exist for one
version of it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from devstack.debian import FetchFailed
from devstack.environments import environment

_SCRIPT = """
import glob, json, sys, sysconfig, duckdb
connection = duckdb.connect()
connection.execute("SET TimeZone = 'UTC'")
connection.execute("SET enable_progress_bar = false")  # a slow query would print it
for name in sys.argv[1].split(","):
    [path] = glob.glob(f"{sysconfig.get_paths()['purelib']}/duckdb_extension_{name}/extensions/v{duckdb.__version__}/*.duckdb_extension")
    connection.execute(f"LOAD '{path}'")
print(json.dumps(connection.sql(sys.argv[2]).fetchall(), default=str))
"""


def query(extensions: str, sql: str) -> list[tuple[Any, ...]]:
    """Rows of a query, with ``extensions`` (delta; avro,iceberg) loaded. Values that JSON does not have are text.

    Skips where it cannot be had.
    """
    try:
        folder = environment("duckdb", Path(__file__).with_name("requirements.txt"))
    except FetchFailed as error:
        pytest.skip(f"DuckDB's extensions cannot be installed here: {error}")
    argv = [str(folder / "bin/python"), "-c", _SCRIPT, extensions, sql]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [tuple(row) for row in json.loads(done.stdout)]


def delta(folder: Path, columns: str) -> list[tuple[Any, ...]]:
    """Of the newest version of a Delta table."""
    return query("delta", f"SELECT {columns} FROM delta_scan('{folder}')")


def iceberg(metadata: str, columns: str) -> list[tuple[Any, ...]]:
    """Of an Iceberg table as its metadata file has it."""
    return query("avro,iceberg", f"SELECT {columns} FROM iceberg_scan('{metadata.removeprefix('file://')}')")
