"""What each stage of a batch costs, and with it what many pipelines take.

Run by ``make bench-scale`` (``python tests/bench/bench_scale.py``): a MySQL source, a MySQL target, a ZooKeeper and an
S3 server, one pipeline with a rule, stages in this process without Spark, which keeps its connections as a run of the
DAG does. Small batches of 10 changes give the cost of a batch, one large batch that of a change: processor seconds of
this process and of both databases, transactions and requests of ZooKeeper, requests of the object store as its own log
counts them. Airflow's part is what ``make bench-pipelines`` stored. Then the tables of docs/scale.md are printed, by
:mod:`tests.bench.simulate_scale`.

SLUICE_BENCH_SCALE makes it smaller. Asserts nothing.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import structlog  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from devstack.zookeeper import ZooKeeperServer  # noqa: E402
from sluice.flows.capture.drain import drain  # noqa: E402
from tests.bench import simulate_scale  # noqa: E402
from tests.bench.figures import Line, figure, processor_s, save, scaled  # noqa: E402
from tests.bench.stage_by_stage import ENGINE, Stages, stage_by_stage  # noqa: E402
from tests.support.pipelines.case import case  # noqa: E402
from tests.support.servers.s3.server import S3Server  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/scale.json"
BATCHES, SMALL, LARGE = max(scaled(60), 5), 10, scaled(500_000)
STAGES = ("drain", "merge", "load", "ack")
_REQUEST = re.compile(r'"(GET|HEAD|PUT|POST|DELETE) /')


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of a processor, and requests, up to now."""

    own_s: float
    servers_s: float
    zk_writes: float
    zk_requests: float
    store_writes: float
    store_reads: float

    def __sub__(self, other: Spent) -> Spent:
        return Spent(*(getattr(self, name) - getattr(other, name) for name in self.__slots__))

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def over(self, count: float) -> Spent:
        """The share of one of ``count``."""
        return Spent(*(getattr(self, name) / count for name in self.__slots__))


NOTHING = Spent(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Place:
    """The servers of the bench, and what they count."""

    folder: Path
    source: MySQLServer
    target: MySQLServer
    zookeeper: ZooKeeperServer
    s3: S3Server

    def spent(self) -> Spent:
        """Return the counts up to now."""
        told = self.zookeeper.counters()
        asked = _REQUEST.findall((self.s3.folder / "s3.log").read_text(errors="replace"))
        writes = sum(one in {"PUT", "POST", "DELETE"} for one in asked)
        servers = sum(processor_s(one.handle.pid) for one in (self.source, self.target) if one.handle is not None)
        return Spent(
            time.process_time(), servers, told["transactions"], told["packets_received"], writes, len(asked) - writes
        )


def main() -> None:
    processes.tether()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with _place() as place:
        lines = measures(place)
    save(RESULTS, lines)
    found = simulate_scale.of_stages(lines, simulate_scale.kept())
    print(f"\n{simulate_scale.table(found, simulate_scale.Limits())}\n\n{simulate_scale.machines(found)}")


@contextmanager
def _place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-"))
    try:
        with (
            MySQLServer(folder / "source", name="source", server_id=1) as source,
            MySQLServer(folder / "target", name="target", server_id=2) as target,
            ZooKeeperServer(folder / "zookeeper") as zookeeper,
            S3Server(folder / "s3") as s3,
        ):
            os.environ |= {**s3.environment, "SLUICE_BENCH_SALT": secrets.token_hex(16)}
            yield Place(folder, source, target, zookeeper, s3)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measures(place: Place) -> list[Line]:
    """A line for each stage and figure: of a batch, and of a change beyond that."""
    for server in (place.source, place.target):
        server.execute(
            "CREATE DATABASE scale",
            "CREATE TABLE scale.orders (id BIGINT PRIMARY KEY, customer INT, total DECIMAL(10,2), v VARCHAR(40))",
        )
    folder, uri = place.folder / "pipelines", place.s3.bucket("segments")
    with case(folder, place.source, place.target, place.zookeeper, "scale", extra="rules: engine.yaml") as made:
        (folder / "rules" / "engine.yaml").write_text(ENGINE, encoding="utf-8")
        made.path.write_text(made.yaml.replace((folder / "store").as_uri(), uri), encoding="utf-8")
        drain(made.runtime(), claim="first", idle_wait_s=0.0)
        small = dict.fromkeys(STAGES, NOTHING)
        with stage_by_stage(made.runtime()) as stages:
            _batch(place, stages, 0, SMALL)  # what is compiled and imported once
            for number in range(1, BATCHES + 1):
                for stage, spent in _batch(place, stages, number * SMALL, SMALL).items():
                    small[stage] += spent
            large = _batch(place, stages, 10_000_000, LARGE)
    lines, what = [], f"one table, one rule, segments on S3, MySQL target; {BATCHES} batches of {SMALL} changes"
    for stage in STAGES:
        of_batch = small[stage].over(BATCHES)
        of_change = (large[stage] - of_batch).over(LARGE)
        for name, unit in UNITS.items():
            lines.append(figure(f"scale_{stage}_{name}_a_batch", what, getattr(of_batch, name), unit))
        for name in ("own_s", "servers_s"):
            value = max(getattr(of_change, name), 0.0) * 1e6
            lines.append(figure(f"scale_{stage}_{name}_a_million", f"a batch of {LARGE:,} inserts", value, "CPU s"))
    return lines


UNITS = {
    "own_s": "CPU s", "servers_s": "CPU s", "zk_writes": "writes", "zk_requests": "requests",
    "store_writes": "requests", "store_reads": "requests",
}  # fmt: skip


def _batch(place: Place, stages: Stages, first: int, changes: int) -> dict[str, Spent]:
    """Write changes, and deliver them; return what each stage used."""
    rows = [f"({first + n}, {n % 97}, {n % 1_000}.5, 'value of row {first + n}')" for n in range(changes)]
    for at in range(0, changes, 5_000):
        place.source.execute(f"INSERT INTO scale.orders VALUES {', '.join(rows[at : at + 5_000])}")
    found, delivered = dict.fromkeys(STAGES, NOTHING), 0

    def counted(stage: str, work: Callable[[], object]) -> None:
        began = place.spent()
        work()
        found[stage.partition(".")[0]] += place.spent() - began

    while delivered < changes:
        delivered += stages.deliver(f"bench-{first}-{delivered}", counted).changes
    return found


if __name__ == "__main__":
    main()
