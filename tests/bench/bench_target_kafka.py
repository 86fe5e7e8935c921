"""Rows a second that one worker writes to Kafka, from Arrow columns to the commit of the transaction, by format and
input.

Baseline in the same run: Kafka's own Java producer (what ``kafka-producer-perf-test`` does with a payload file: one
thread, the same messages ready made, one transaction, the same compression) on the same broker. Run by
``make bench-targets`` (``python tests/bench/bench_target_kafka.py [rows]``). Writes
tests/bench/results/target_kafka.json; asserts nothing.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.kafka import VERSION, KafkaServer, java_program  # noqa: E402
from devstack.registry import RegistryServer  # noqa: E402
from sluice.config.connections import Endpoint  # noqa: E402
from sluice.config.pipeline import TargetConfig  # noqa: E402
from sluice.model.column_types import ColumnKind as K  # noqa: E402
from sluice.model.offset import Offset  # noqa: E402
from sluice.model.tables import META_FIELDS, Column, TableId, TableSchema  # noqa: E402
from sluice.targets.kafka.target import KafkaTarget  # noqa: E402
from sluice.targets.port import BatchInput, ChangePiece, TableInput  # noqa: E402
from sluice.targets.rows_in_memory import MemoryReader, RowsInMemory, planned_table  # noqa: E402
from tests.bench.figures import Line, figure, save, size  # noqa: E402
from tests.support.readers import kafka_reading  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/target_kafka.json"
READY = 50_000
"""Different messages of the baseline's producer: one alone would be compressed to nothing."""
TABLE = TableSchema(
    TableId("shop", "orders"),
    (
        Column("id", K.BIGINT, "bigint", nullable=False), Column("customer", K.INT, "int"),
        Column("status", K.VARCHAR, "varchar(10)", charset="utf8mb4"),
        Column("amount", K.DECIMAL, "decimal(12,2)", precision=12, scale=2),
        Column("note", K.VARCHAR, "varchar(80)", charset="utf8mb4"), Column("at", K.DATETIME, "datetime(6)", fsp=6),
    ),
    ("id",),
)  # fmt: skip


@dataclass(frozen=True)
class Changes(MemoryReader):
    """Changes as columns."""

    piece: Any = None

    def change_pieces(self, share: Any = None) -> Sequence[ChangePiece]:
        return [self.piece]


def rows(count: int, *, update: bool) -> pa.Table:
    """SEGMENT_ROWS: inserts, or updates with both images."""
    rng = np.random.default_rng(1)
    fields = [TABLE.field(column) for column in TABLE.columns]
    notes = [f"note {n} lorem ipsum dolor" for n in range(count)]
    columns = [
        pa.array(np.arange(count)), pa.array(rng.integers(0, 50_000, count), pa.int32()),
        pa.array(np.array(["new", "paid", "shipped"])[rng.integers(0, 3, count)]),
        pa.array(rng.integers(0, 10**8, count)).cast(pa.decimal128(38, 0)).cast(pa.decimal128(38,
            2)).cast(pa.decimal128(12, 2)),
        pa.array(notes), pa.array(np.arange(count) * 1_000_000 + 1_763_683_200_000_000).cast(pa.timestamp("us")),
    ]  # fmt: skip
    seq = np.arange(count, dtype=np.uint64)
    meta = {
        "_op": pa.repeat(pa.scalar("u" if update else "i"), count), "_seq": pa.array(seq),
        "_file": pa.repeat(pa.scalar("binlog.000042"), count),
        "_offset": pa.array(seq * np.uint64(200) + np.uint64(4)), "_row": pa.array(np.zeros(count, np.uint32)),
        "_commit_ts": pa.array(np.full(count, 1_763_683_200_000_000)).cast(pa.timestamp("us", tz="UTC")),
        "_gtid": pa.array([f"3e11fa47-71ca-11e1-9e33-c80aa9429562:{n // 10}" for n in range(count)]),
        "_txn": pa.array(seq // np.uint64(10)),
        "_origin": pa.array(np.full(count, 7, np.uint32)), "_bucket": pa.array(np.zeros(count, np.uint8)),
    }  # fmt: skip
    before = pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(np.full(count, not update)))
    names = [field for field in META_FIELDS if field.name in meta]
    schema = pa.schema([*fields, *names, pa.field("_before", before.type)])
    return pa.table([*columns, *(meta[field.name] for field in names), before], schema=schema)


def target_of(
    server: KafkaServer, registry: RegistryServer, name: str, changes: str, options: dict[str, Any]
) -> KafkaTarget:
    made = {"topic": f"{name}.{{table}}", "create_topics": {"when": "needed"}, **options}
    config = TargetConfig.model_validate({
        "name": "copy",
        "type": "kafka",
        "connection": "k",
        "changes": changes,
        "options": made,
    })
    extra = {"bootstrap.servers": server.bootstrap, "schema.registry.url": registry.url}
    return KafkaTarget(config, Endpoint("k", "kafka", "", extra=extra), name)


def write(target: KafkaTarget, given: pa.Table, number: int) -> tuple[float, float]:
    """(seconds, CPU seconds of this process) of one batch, from columns to the commit."""
    position, count = Offset.at("u", "binlog.000042", number), given.num_rows
    if target.config.changes == "all":
        nothing = pa.array(np.zeros(count, np.uint64))
        piece = ChangePiece(TABLE.table, ("id",), given, nothing, nothing.cast(pa.uint32()))
        batch = BatchInput(number, position, number - 1, Changes(piece=piece), changes=count)
    else:
        kept = given.select([*(c.name for c in TABLE.columns), "_op", "_seq", "_commit_ts", "_before"])
        tables = (TableInput(planned_table(TABLE), (RowsInMemory(TABLE.table, kept),)),)
        batch = BatchInput(number, position, number - 1, MemoryReader(), tables)
    target.checkpoints.take_over(1)
    with target.open(1) as session:
        writer = session.begin(batch)
        begin, cpu = time.perf_counter(), time.process_time()
        writer.prepare()
        writer.commit([unit.write() for phase in writer.plan(1) for unit in phase])
        return time.perf_counter() - begin, time.process_time() - cpu


def java(server: KafkaServer, folder: Path, topic: str, count: int, payloads: Sequence[bytes]) -> float:
    """Messages a second of Kafka's own producer that sends these in turn; the better of two rounds."""
    file = folder / "payload"
    file.write_bytes(b"".join(struct.pack(">i", len(one)) + one for one in payloads))
    settings = [
        f"bootstrap.servers={server.bootstrap}",
        "transactional.id=java",
        "compression.type=lz4",
        "linger.ms=20",
        "batch.size=1000000",
        f"max.request.size={max(map(len, payloads)) + 2**20}",
    ]
    log = f"-Dlog4j2.configurationFile=file:{server.folder / 'log4j2.properties'}"
    source = _ROOT / "tests/bench/PerfProducer.java"
    run = java_program(source, [topic, str(count), str(file), *settings], (), "-Xmx512m", log)
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=folder)
    return max(map(float, done.stdout.split()))


def measured(server: KafkaServer, registry: RegistryServer, folder: Path, count: int) -> Iterator[Line]:
    cases: list[tuple[str, str, bool, dict[str, Any]]] = [
        ("latest_debezium", "latest", False, {"headers": False}),
        ("all_debezium", "all", True, {"headers": False}),
        ("all_debezium_headers", "all", True, {}),
        (
            "all_debezium_6_partitions",
            "all",
            True,
            {"headers": False, "create_topics": {"when": "needed", "partitions": 6}},
        ),
        ("all_avro", "all", True, {"headers": False, "format": "debezium-avro"}),
        ("all_protobuf", "all", True, {"headers": False, "format": "debezium-protobuf"}),
        ("all_arrow", "all", True, {"headers": False, "format": "arrow", "partitioning": "table"}),
    ]
    for name, changes, update, options in cases:
        given = rows(count, update=update)
        target = target_of(server, registry, name, changes, options)
        took = [write(target, given, number) for number in (1, 2, 3)]
        seconds, cpu = min(took)
        read = kafka_reading.read(server, f"{name}.orders")
        messages = len(read) // len(took)  # of a batch; of Arrow, each has many rows
        payload = read[0].value or b""
        ready = [one.value for one in read[-min(messages, READY) :] if one.value]
        rate, theirs = count / seconds, java(server, folder, f"{name}.orders", messages, ready) * count / messages
        yield figure(
            f"target_kafka_{name}",
            f"{count} rows in {messages} messages of {len(payload)} bytes, "
            f"{'before and after, ' if update else ''}lz4, one transaction; Kafka {VERSION} on the same machine",
            rate,
            "rows/s",
            "Kafka's Java producer, the same messages ready made (as kafka-producer-perf-test)",
            theirs,
            wanted="400,000 rows/s or 80 % of the baseline",
            cpu_s_per_million=round(cpu / count * 1e6, 2),
        )


def main() -> None:
    processes.tether()
    count = size(300_000)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as name,
        KafkaServer(Path(name) / "kafka", heap_mb=1024) as server,
        RegistryServer(Path(name) / "registry") as registry,
    ):
        for one in measured(server, registry, Path(name), count):
            save(RESULTS, [one])


if __name__ == "__main__":
    main()
