"""The arithmetic of docs/scale.md."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.bench.simulate_scale import RESULTS, Costs, Limits, Load, loads, measured, needs, table

COSTS, LIMITS = Costs(), Limits()


def test_twice_the_load_takes_twice_as_much() -> None:
    one, two = (needs(Load(n, 1000, 0, n), COSTS, LIMITS) for n in (10, 20))
    fixed = COSTS.fixed_cpu_s
    assert two.cores - fixed == pytest.approx(2 * (one.cores - fixed))
    assert two.zk_writes_per_s - 1 == pytest.approx(2 * (one.zk_writes_per_s - 1))
    assert two.used["a source's log, sent"] == one.used["a source's log, sent"]


def test_pipelines_of_one_source_each_read_its_whole_log() -> None:
    apart, together = (needs(Load(10, 1000, 0, sources), COSTS, LIMITS) for sources in (10, 1))
    assert together.used["a source's log, sent"] == pytest.approx(100 * apart.used["a source's log, sent"])


def test_pipelines_that_wait_take_no_worker_and_no_run() -> None:
    found = needs(Load(0, 0, 1000), COSTS, LIMITS)
    assert (found.workers, found.runs_per_s, found.db_bytes_per_h, found.connections) == (0, 0, 0, 2)
    assert found.first == "triggerer"


def test_so_much_log_a_day() -> None:
    assert needs(Load.of_log(100e12, 100, 100, COSTS), COSTS, LIMITS).log_bytes_per_s == pytest.approx(100e12 / 86400)


def test_measured_costs_replace_the_assumed_ones() -> None:
    lines = [
        {"measure": "airflow_growth_zookeeper_writes_a_batch", "value": 5.0},
        {"measure": "airflow_growth_zookeeper_requests_a_batch", "value": 25.0},
        {"measure": "airflow_growth_rows_in_dag_run", "value": 60.0},
        {"measure": "airflow_growth_database_bytes", "value": 600_000.0},
        {"measure": "idle_still_waiting", "value": 200.0},
        {"measure": "idle_triggerer_cpu", "value": 0.04},
        {"measure": "idle_zookeeper_requests", "value": 40.0},
    ]
    expected = replace(
        COSTS, batch_zk_writes=5.0, batch_zk_reads=20.0, run_db_bytes=1e4, idle_cpu_s=0.0002, idle_zk_requests=0.2
    )
    assert measured(lines) == expected
    assert measured([]) == COSTS


def test_the_cpu_of_a_run_and_of_an_idle_airflow_follow_from_two_shapes() -> None:
    """A run a batch: 1,000 of both; many batches a run: 6,000 and 60.

    A batch 0.1 s, a run 4 s, 0.2 cores without any.
    """
    shapes = {
        "batches": (6000, 1000),
        "rows_in_dag_run": (60, 1000),
        "cpu_scheduler": (840, 4100),
        "cpu_api-server": (720, 720),
        "cpu_triggerer": (0, 0),
    }
    lines = [
        {"measure": f"airflow_growth_{name}", "value": new, "baseline_value": old}
        for name, (new, old) in shapes.items()
    ]
    found = measured(lines, Costs(batch_cpu_s=0.1))
    assert (found.run_cpu_s, found.fixed_cpu_s) == (pytest.approx(4.0), pytest.approx(0.2))


def test_the_table_has_every_load() -> None:
    costs = measured(json.loads(RESULTS.read_text(encoding="utf-8"))) if RESULTS.exists() else COSTS
    assert len(table(costs, LIMITS).splitlines()) == 2 + len(loads(costs))
