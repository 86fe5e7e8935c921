"""Merged rows a second into Redis hashes, beside ``redis-cli --pipe`` with the same rows ready made in the same run.

Run by ``make bench-targets`` (``python tests/bench/bench_target_redis.py [rows]``). Prints a line a measurement, writes
tests/bench/results/target_redis.json; asserts nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.redis import RedisServer  # noqa: E402
from sluice.config.connections import parse_connection  # noqa: E402
from sluice.config.pipeline import TargetConfig  # noqa: E402
from sluice.targets.redis.rows import TableRows, bulk_of  # noqa: E402
from sluice.targets.redis.target import RedisTarget  # noqa: E402
from sluice.targets.rows_in_memory import planned_table  # noqa: E402
from tests.bench.bench_target_postgresql import SCHEMA, loaded, rows_of  # noqa: E402
from tests.bench.figures import figure, measured, save, size  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/target_redis.json"


def commands_of(target: RedisTarget, data: pa.Table, into: Path) -> None:
    """The same rows as commands: DEL and HSET of each, in the protocol's own form."""
    made = TableRows(target.place, planned_table(SCHEMA))
    with into.open("wb") as file:
        for start in range(0, data.num_rows, 50_000):
            part = data.slice(start, 50_000).combine_chunks()
            packed = made.packed(made.row_keys(part), made.texts_of(part), None)
            commands, _ = packed.commands("hash", "")
            for key, command in zip(packed.keys.to_pylist(), commands.to_pylist(), strict=True):
                file.write(b"*2\r\n%b%b%b" % (bulk_of(b"DEL"), key, command))


def main(rows: int) -> None:
    processes.tether()
    ids = np.arange(rows, dtype=np.int64) * 3
    new, choose = rows_of(ids, ["i"] * rows, 1), np.random.default_rng(5)
    ops = np.array(["u", "d"])[(choose.random(rows) < 0.1).astype(int)]
    mixed = rows_of(np.where(choose.random(rows) < 0.3, ids + 1, ids), ops.tolist(), 2)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, RedisServer(Path(folder) / "redis") as server:
        assert server.program is not None
        assert server.handle is not None
        pid = server.handle.pid
        endpoint = parse_connection("target", server.connection_json())

        def target(name: str) -> RedisTarget:
            config = {"name": name, "type": "redis", "connection": "target", "parallelism": 4}
            return RedisTarget(TargetConfig.model_validate(config), endpoint, "bench")

        ready = Path(folder) / "commands"
        commands_of(target("warm"), new, ready)
        pipe = [*server.program.command("cli"), "-p", str(server.port), "--pipe"]

        def piped() -> None:
            with ready.open("rb") as file:
                subprocess.run(pipe, stdin=file, check=True, capture_output=True, timeout=600)

        def fresh(name: str) -> RedisTarget:
            made = target(name)
            with server.client() as client:
                client.flushall()
            schema = made.schema()
            for finding in schema.compare([planned_table(SCHEMA)]):
                if finding.absent:
                    schema.apply(finding.statement)
            return made

        loaded(fresh("warm"), 1, new.slice(0, 20_000), 2)
        version = server.program.tree.version
        for connections in (1, 2, 4):
            fresh("none")
            plain, plain_cpu = measured(pid, rows, piped)
            one = fresh(f"new{connections}")
            ours, cpu = measured(pid, rows, lambda: loaded(one, 1, new, connections))  # noqa: B023 - called at once
            merged, merged_cpu = measured(pid, rows, lambda: loaded(one, 2, mixed, connections))  # noqa: B023
            for name, rate, used, about in (
                ("new", ours, cpu, "new rows"),
                ("merged", merged, merged_cpu, "merged rows, of which three of ten are new and one of ten goes"),
            ):
                line = figure(
                    f"target_redis_{name}_rows",
                    f"{rows} {about}, six columns, {connections} connections, Redis {version}, appendfsync everysec",
                    rate,
                    "rows/s",
                    "redis-cli --pipe of as many ready rows",
                    plain,
                    variant=str(connections),
                    wanted="150,000 rows/s or 70 % of the baseline",
                    cpu_s_per_million=round(used, 2),
                    baseline_cpu_s_per_million=round(plain_cpu, 2),
                )
                save(RESULTS, [line])


if __name__ == "__main__":
    main(size(500_000))
