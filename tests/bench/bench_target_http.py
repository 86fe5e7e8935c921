"""Changed rows a second into an HTTP receiver, beside a plain HTTP client that posts the same bodies ready made in the
same run.

The receiver reads each request and answers 204, so that what is measured is the sender. Run by ``make bench-targets``
(``python tests/bench/bench_target_http.py [rows]``). Prints a line a measurement, writes
tests/bench/results/target_http.json; asserts nothing.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import httpx  # noqa: E402
import numpy as np  # noqa: E402

from devstack import ports, processes  # noqa: E402
from sluice.config.connections import Endpoint  # noqa: E402
from sluice.config.pipeline import TargetConfig  # noqa: E402
from sluice.targets.http.target import HttpTarget  # noqa: E402
from tests.bench.figures import figure, measured, save, size  # noqa: E402
from tests.bench.target_rates import loaded, rows_of  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/target_http.json"
ROWS_A_REQUEST = 500


async def _receive(port: int, keep: Path | None) -> None:
    """Answer 204 to each request until the process is ended; append the bodies to ``keep``, each after its length in 8
    bytes.
    """
    kept = keep.open("ab") if keep else None

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            body = await reader.readexactly(length)
            if kept:
                kept.write(length.to_bytes(8, "big") + body)
                kept.flush()
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except asyncio.IncompleteReadError:  # the client closed the connection
            writer.close()

    async with await asyncio.start_server(served, "127.0.0.1", port) as server:
        await server.serve_forever()


@contextmanager
def receiver(keep: Path | None = None) -> Iterator[tuple[int, int]]:
    """Port and process id of a receiver in a process of its own."""
    port = ports.free_port()
    started = subprocess.Popen([sys.executable, __file__, "--receive", str(port), *([str(keep)] if keep else [])])
    try:
        while not ports.accepts(port):
            time.sleep(0.05)
        yield port, started.pid
    finally:
        started.terminate()
        started.wait(10)


def bodies_in(file: Path) -> list[bytes]:
    """The bodies that a receiver kept."""
    data, found, at = file.read_bytes(), [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "big")
        found.append(data[at + 8 : at + 8 + length])
        at += 8 + length
    return found


def main(rows: int) -> None:
    processes.tether()
    data = rows_of(np.arange(rows, dtype=np.int64) * 3, ["i"] * rows, 1)

    def target(port: int, concurrency: int) -> HttpTarget:
        config = {
            "name": "hooks", "type": "http", "connection": "target",
            "options": {"path": "/{schema}/{table}", "concurrency": concurrency, "batch": {"max_rows": ROWS_A_REQUEST}},
        }  # fmt: skip
        endpoint = Endpoint("target", "http", f"http://127.0.0.1:{port}")
        return HttpTarget(TargetConfig.model_validate(config), endpoint, "bench")

    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        kept = Path(folder) / "bodies"
        with receiver(kept) as (port, _):
            loaded(target(port, 1), 1, data)
        bodies = bodies_in(kept)
    headers = {"Content-Type": "application/json"}
    for connections in (1, 4):
        with receiver() as (port, pid), httpx.Client(trust_env=False, timeout=60, headers=headers) as client:

            def post(body: bytes, client: httpx.Client = client, port: int = port) -> None:
                client.post(f"http://127.0.0.1:{port}/public/orders", content=body).raise_for_status()

            def posted(post: Callable[[bytes], None] = post, connections: int = connections) -> None:
                with ThreadPoolExecutor(connections) as pool:
                    list(pool.map(post, bodies))

            def sent(port: int = port, connections: int = connections) -> None:
                loaded(target(port, connections), 2, data)

            plain, plain_cpu = measured(pid, rows, posted)
            ours, cpu = measured(pid, rows, sent)
        line = figure(
            "target_http_rows",
            f"{rows} new rows, six columns, debezium-json, {ROWS_A_REQUEST} rows a request, {connections} at a time",
            ours,
            "rows/s",
            "httpx posting the same bodies ready made",
            plain,
            variant=str(connections),
            cpu_s_per_million=round(cpu, 2),
            baseline_cpu_s_per_million=round(plain_cpu, 2),
        )
        save(RESULTS, [line])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--receive"]:
        asyncio.run(_receive(int(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3:] else None))
    else:
        main(size(200_000))
