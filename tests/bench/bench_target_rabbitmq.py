"""Changed rows a second into RabbitMQ, to a stream and to a quorum queue, beside the clients alone with the same
messages ready made in the same run.

Run by ``make bench-targets`` (``python tests/bench/bench_target_rabbitmq.py [rows]``). Prints a line a measurement,
writes tests/bench/results/target_rabbitmq.json; asserts nothing.
"""

from __future__ import annotations

import sys
import tempfile
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
from sluice.targets.rabbitmq.client import Outgoing, connected  # noqa: E402
from sluice.targets.rabbitmq.sender import QueueChannel, StreamChannel  # noqa: E402
from sluice.targets.rabbitmq.stream_client import stream_connected  # noqa: E402
from sluice.targets.rabbitmq.target import RabbitMQTarget  # noqa: E402
from tests.bench.figures import figure, measured, save, size  # noqa: E402
from tests.bench.target_rates import loaded, rows_of  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/target_rabbitmq.json"


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
        assert server.handle is not None
        pid = server.handle.pid
        endpoint = parse_connection("target", server.connection_json())
        for send_to in ("streams", "queues"):
            place = {"stream": "all"} if send_to == "streams" else {"routing_key": "all.queue"}
            options = {"send_to": send_to, "create": "needed", **place}
            given = {"name": send_to, "type": "rabbitmq", "connection": "target", "options": options}
            target = RabbitMQTarget(TargetConfig.model_validate(given), endpoint, "bench")
            ready = kept_messages(target, data)
            numbered = [(number, one.value) for number, one in enumerate(ready, 1)]

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

            plain, plain_cpu = measured(pid, rows, to_stream if send_to == "streams" else to_queue)
            ours, cpu = measured(pid, rows, load)
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
