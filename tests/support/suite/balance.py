"""Seconds of each test file (``tests/durations.json``), and the units of work that two workers share by them."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

DURATIONS = Path(__file__).resolve().parents[2] / "durations.json"

LANES = {
    "tests/integration/kafka/": "kafka",
    "tests/integration/postgresql/": "postgresql",
    "tests/integration/clickhouse/": "clickhouse",
    "tests/dags/": "dags",
    "tests/security/test_pipeline_files": "dags",
    "tests/integration/airflow/": "airflow",
    "tests/ui/": "airflow",
    "tests/integration/spark/": "spark",
    "tests/integration/lake/test_target_delta_spark": "spark",
    "tests/faults/": "faults",
    "tests/contract/test_targets.py::test_clickhouse": "clickhouse",
    "tests/contract/test_targets.py::test_kafka": "kafka",
    "tests/integration/verify/test_verify.py::test_kafka": "kafka",
    "tests/integration/verify/test_verify.py::test_arrow_messages": "kafka",
    "tests/integration/flows/test_rules_route.py": "kafka",
}
"""Tests that need one server that the others do without go to one worker, which starts it once; and those that need
Airflow's modules and database, which it loads and makes once.
"""

_NEW = {"unit": 2.0, "dags": 3.0, "contract": 20.0, "integration": 20.0, "faults": 60.0, "ui": 60.0}
"""Seconds of a file that was not measured yet, by its folder."""


def file_of(nodeid: str) -> str:
    """The file of a test."""
    return nodeid.partition("::")[0]


def unit_of(nodeid: str) -> str:
    """The unit of work to which the test belongs: a lane or its file."""
    return next((lane for prefix, lane in LANES.items() if nodeid.startswith(prefix)), file_of(nodeid))


@cache
def measured(path: Path = DURATIONS) -> dict[str, float]:
    """Seconds by file, as the last ``make durations`` or ``make test-all`` wrote them."""
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def seconds_of(file: str) -> float:
    """Measured seconds of a file, or those that its folder is taken to need."""
    parts = file.split("/")
    return measured().get(file, _NEW.get(parts[1] if len(parts) > 1 else "", 5.0))


def in_order(nodeids: list[str]) -> list[int]:
    """Places of the tests, the longest unit first, each unit's tests as they were: two workers end at about the same
    time.
    """
    tests = Counter(file_of(nodeid) for nodeid in nodeids)
    shares: defaultdict[str, list[float]] = defaultdict(list)
    for nodeid in nodeids:
        file = file_of(nodeid)
        shares[unit_of(nodeid)].append(seconds_of(file) / tests[file])
    units = {unit: math.fsum(some) for unit, some in shares.items()}  # the same in whatever order they come

    def place(n: int) -> tuple[float, str, float, str, int]:
        file, unit = file_of(nodeids[n]), unit_of(nodeids[n])
        return -units[unit], unit, -seconds_of(file), file, n

    return sorted(range(len(nodeids)), key=place)


def arguments_of(worker: str, arguments: list[str]) -> list[str]:
    """The paths that a worker collects, in its order: every other one takes what is in a single folder from its end.

    Where nothing is compiled yet, each of two workers then compiles half of the modules, and not both of them all.
    """
    if worker[-1:] not in {*"13579"} or len(arguments) != 1 or not Path(arguments[0]).is_dir():
        return arguments
    parts = sorted(Path(arguments[0]).iterdir(), reverse=True)
    return [str(path) for path in parts if any(path.rglob("test_*.py")) or path.match("test_*.py")]


def save(seconds: dict[str, float], path: Path = DURATIONS) -> None:
    """Write new seconds over the old ones; files that are gone leave."""
    root = path.parents[1]
    known = {**measured(path), **seconds}
    kept = {file: round(value, 1) for file, value in sorted(known.items()) if (root / file).exists()}
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
