"""Changed rows a second into RabbitMQ, to a stream and to a quorum queue, beside the clients alone with the same messages ready made in the same run.

Run by ``make bench-targets`` (``python tests/bench/bench_target_rabbitmq.py [rows]``). Prints a line a measurement, writes
tests/bench/results/target_rabbitmq.json; asserts nothing.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.rabbitmq import RabbitMQServer  # noqa: E402
from sluice.config.connections import parse_connection  # noqa: E402
from sluice.config.pipeline import TargetConfig  # noqa: E402
from sluice.model.offset import Offset  # noqa: E402
from sluice.targets.port import BatchInput, TableInput  # noqa: E402
from sluice.targets.rabbitmq.client import Outgoing, connected  # noqa: E402
from sluice.targets.rabbitmq.sender import QueueChannel, StreamChannel  # noqa: E402
from sluice.targets.rabbitmq.stream_client import stream_connected  # noqa: E402
from sluice.targets.rabbitmq.stream_message import encoded  # noqa: E402
from sluice.targets.rabbitmq.target import RabbitMQTarget  # noqa: E402
from sluice.targets.rows_in_memory import MemoryReader, RowsInMemory, planned_table  # noqa: E402
from tests.bench.bench_target_postgresql import FILES, SCHEMA, rows_of  # noqa: E402
from tests.bench.figures import figure, processor_s, save, size  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/target_rabbitmq.json"


def loaded(target: RabbitMQTarget, number: int, data: pa.Table) -> None:
    """One batch by the port."""
    each = -(-data.num_rows // FILES)
    files = tuple(RowsInMemory(SCHEMA.table, data.slice(n * each, each)) for n in range(FILES))
    tables = (TableInput(planned_table(SCHEMA), files),)
    batch = BatchInput(number, Offset.at("uuid", "log.000001", 100 * number), number - 1, MemoryReader(), tables)
    if target.checkpoints is not None:
        target.checkpoints.take_over(1)
    with target.open(1) as session:
        writer = session.begin(batch)
    writer.prepare()
    writer.commit([unit.write() for phase in writer.plan(1) for unit in phase])


def measured(server: RabbitMQServer, rows: int, work: Callable[[], None]) -> tuple[float, float]:
    """Rows a second, and seconds of processor time for a million rows: of this process and of the broker."""
    assert server.handle is not None
    theirs, mine, began = processor_s(server.handle.pid), time.process_time(), time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    return rows / seconds, (time.process_time() - mine + processor_s(server.handle.pid) - theirs) / rows * 1e6


def kept_messages(target: RabbitMQTarget, data: pa.Table) -> list[Outgoing]:
    """The messages that a load sends."""
    found: list[Outgoing] = []
    channel: Any = StreamChannel if target.options.streams else QueueChannel
    send = channel.send

    def kept(one: Any, messages: list[Outgoing]) -> Any:
        found.extend(messages)
        return send(one, messages)

    channel.send = kept
    try:
        loaded(target, 1, data)
    finally:
        channel.send = send
    return found


def main(rows: int) -> None:
    processes.tether()
    data = rows_of(np.arange(rows, dtype=np.int64) * 3, ["i"] * rows, 1)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, RabbitMQServer(Path(folder) / "mq") as server:
        assert server.program is not None
        endpoint = parse_connection("target", server.connection_json())
        for send_to in ("streams", "queues"):
            place = {"stream": "all"} if send_to == "streams" else {"routing_key": "all.queue"}
            options = {"send_to": send_to, "create": "needed", **place}
            given = {"name": send_to, "type": "rabbitmq", "connection": "target", "options": options}
            target = RabbitMQTarget(TargetConfig.model_validate(given), endpoint, "bench")
            ready = kept_messages(target, data)
            numbered = [
                (number, encoded(one.id, one.content_type, one.headers, one.value))
                for number, one in enumerate(ready, 1)
            ]

            def to_stream(target: RabbitMQTarget = target, numbered: list[Any] = numbered) -> None:
                with stream_connected(target.place, "bench") as client:
                    client.publish("all", "baseline", numbered)
                    client.flush()

            def to_queue(target: RabbitMQTarget = target, ready: list[Outgoing] = ready) -> None:
                with connected(target.place, "bench") as client:
                    for one in ready:
                        client.publish(one)
                    client.flush()

            def load(target: RabbitMQTarget = target) -> None:
                loaded(target, 2, data)

            plain, plain_cpu = measured(server, rows, to_stream if send_to == "streams" else to_queue)
            ours, cpu = measured(server, rows, load)
            line = figure(
                "target_rabbitmq_rows",
                f"{rows} new rows, six columns, debezium-json, {send_to}, RabbitMQ {server.program.version}",
                ours,
                "rows/s",
                "the client alone with the same messages ready made",
                plain,
                variant=send_to,
                cpu_s_per_million=round(cpu, 2),
                baseline_cpu_s_per_million=round(plain_cpu, 2),
            )
            save(RESULTS, [line])


if __name__ == "__main__":
    main(size(100_000))
