"""Merged rows a second into Redis hashes, beside ``redis-cli --pipe`` with the same rows ready made in the same run.

Run by ``make bench-targets`` (``python tests/bench/bench_target_redis.py [rows]``). Prints a line a measurement, writes
tests/bench/results/target_redis.json; asserts nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import pyarrow as pa  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.redis import RedisServer  # noqa: E402
from sluice.config.connections import parse_connection  # noqa: E402
from sluice.config.pipeline import TargetConfig  # noqa: E402
from sluice.targets.redis.rows import TableRows, bulk_of  # noqa: E402
from sluice.targets.redis.target import RedisTarget  # noqa: E402
from sluice.targets.rows_in_memory import planned_table  # noqa: E402
from tests.bench.figures import size  # noqa: E402
from tests.bench.target_rates import SCHEMA, keep_rates, made  # noqa: E402


def commands_of(target: RedisTarget, data: pa.Table, into: Path) -> None:
    """The same rows as commands: DEL and HSET of each, in the protocol's own form."""
    writer = TableRows(target.place, planned_table(SCHEMA))
    with into.open("wb") as file:
        for start in range(0, data.num_rows, 50_000):
            part = data.slice(start, 50_000).combine_chunks()
            packed = writer.packed(writer.row_keys(part), writer.texts_of(part), None)
            commands, _ = packed.commands("hash", "")
            for key, command in zip(packed.keys.to_pylist(), commands.to_pylist(), strict=True):
                file.write(b"*2\r\n%b%b%b" % (bulk_of(b"DEL"), key, command))


def main(rows: int) -> None:
    processes.tether()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, RedisServer(Path(folder) / "redis") as server:
        assert server.program is not None
        assert server.handle is not None
        endpoint = parse_connection("target", server.connection_json())
        ready = Path(folder) / "commands"
        pipe = [*server.program.command("cli"), "-p", str(server.port), "--pipe"]

        def fresh(name: str) -> RedisTarget:
            config = {"name": name, "type": "redis", "connection": "target", "parallelism": 4}
            with server.client() as client:
                client.flushall()
            target: RedisTarget = made(RedisTarget(TargetConfig.model_validate(config), endpoint, "bench"))
            return target

        def plainly(new: pa.Table, connections: int) -> Callable[[], None]:
            commands_of(fresh("none"), new, ready)

            def piped() -> None:
                with ready.open("rb") as file:
                    subprocess.run(pipe, stdin=file, check=True, capture_output=True, timeout=600)

            return piped

        keep_rates(
            "redis",
            rows,
            server.handle.pid,
            fresh,
            plainly,
            connections=(1, 2, 4),
            about=f"Redis {server.program.tree.version}, appendfsync everysec",
            baseline="redis-cli --pipe of as many ready rows",
            wanted="150,000 rows/s or 70 % of the baseline",
        )


if __name__ == "__main__":
    main(size(500_000))
