"""A process that sends one batch to an HTTP receiver."""

from __future__ import annotations

from sluice.config.connections import Endpoint
from sluice.testing.targets import Pipe, new, people
from tests.support.benches.http_bench import HttpBench


class At:
    """The receiver of another process."""

    def __init__(self, url: str) -> None:
        self.url = url


def load(url: str, changes: str, rows: int, number: int, epoch: int) -> None:
    """Send batch 1 of the pipeline ``p{number}``, in requests of two rows."""
    bench = HttpBench(At(url), changes, {"batch": {"max_rows": 2}, "concurrency": 3})  # type: ignore[arg-type]
    bench.connection = Endpoint("target", "http", url, password=bench.secret)
    pipe = Pipe(bench, pipeline=f"p{number}", epoch=epoch)
    pipe.write(pipe.given([(people("shop"), [new(n, f"m{n}", n) for n in range(rows)])]))
