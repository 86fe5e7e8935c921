"""Changes merged into a large Delta table by delta-rs and by Spark, which is warm, with as many rows as a batch may
have: where is the border?

Run by ``make bench-targets`` (``python tests/bench/bench_target_delta_spark.py [rows of the table]``). Prints a line a
measurement, writes tests/bench/results/target_delta_spark.json; asserts nothing.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT), str(_ROOT / "tests/bench")]

import deltalake  # noqa: E402
import numpy as np  # noqa: E402
from bench_target_delta import SCHEMA, loaded, pieces, rows_of  # noqa: E402

from devstack import delta_spark, processes  # noqa: E402
from devstack.spark import SparkConnectServer  # noqa: E402
from sluice.config.connections import Endpoint, parse_connection  # noqa: E402
from sluice.config.pipeline import TargetConfig  # noqa: E402
from sluice.flows.load.load import SparkStatements  # noqa: E402
from sluice.spark.connect import ConnectRunner  # noqa: E402
from sluice.targets.delta.target import DeltaTarget  # noqa: E402
from sluice.targets.rows_in_memory import planned_table  # noqa: E402
from tests.bench.figures import figure, save, size  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/target_delta_spark.json"
SHARES = (0.001, 0.01, 0.1, 0.3)
"""Of the table's rows, in a batch."""


def main(rows: int) -> None:
    processes.tether()
    choose = np.random.default_rng(7)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        SparkConnectServer(
            Path(folder) / "spark", "spark", driver_memory="3g", conf={
                **delta_spark.spark_settings(),
                "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
                # compiled in full, as a server that runs for days
            },
        ) as server,
    ):  # fmt: skip
        spark = SparkStatements(ConnectRunner(parse_connection("spark", server.connection_json())), "bench")

        def target(execution: str) -> DeltaTarget:
            options = {"table": f"{execution}/{{schema}}/{{table}}", "execution": execution, "frame_from": 1}
            config = {"name": execution, "type": "delta", "connection": "lake", "options": options}
            endpoint = Endpoint("lake", "fs", "", extra={"path": f"{folder}/lake"})
            made = DeltaTarget(TargetConfig.model_validate(config), endpoint, "bench")
            [finding] = made.schema().compare([planned_table(SCHEMA)])
            made.schema().apply(finding.statement)
            return made

        writers = {execution: target(execution) for execution in ("units", "frame")}
        for execution in writers:
            for piece in pieces(rows // 10):
                deltalake.write_deltalake(f"{folder}/lake/{execution}/shop/orders", piece, mode="append")
        batch = 1
        for number in range(3):  # warm
            data = rows_of(np.arange(number, 2_000, dtype=np.int64) * 3, ["u"] * (2_000 - number), 1)
            loaded(writers["frame"], number + 1, data, spark)
        for share in SHARES:
            count = int(rows * share)
            keys = {
                "newest": np.arange(rows - count, rows, dtype=np.int64),
                "all_over": np.sort(choose.choice(rows, count, replace=False)).astype(np.int64),
            }
            for name, chosen in keys.items():
                batch += 3
                ops = np.array(["u", "d"])[(choose.random(count) < 0.1).astype(int)]
                data = rows_of(chosen * 3 + (choose.random(count) < 0.1), ops.tolist(), batch)
                found = {}
                for execution, writer in writers.items():
                    began = time.perf_counter()
                    loaded(writer, batch, data, spark)
                    found[execution] = time.perf_counter() - began
                line = figure(
                    f"target_delta_spark_{name}",
                    f"{count} changes to a table of {rows} rows, six columns, Spark warm; Delta {delta_spark.VERSION} "
                    "for Spark",
                    found["frame"],
                    "s",
                    f"delta-rs {deltalake.__version__}",
                    found["units"],
                    variant=str(share),
                )
                save(RESULTS, [line])


if __name__ == "__main__":
    main(size(10_000_000))
