"""How soon a person is obeyed: seconds from pause, resume, restart or rollback until every run in flight does so, on
the demo stack.

Run by ``make bench-control``. The window is full of batches under load, and the load at its head waits for a lock at
the target, which is where work is hardest to stop. Each action is taken in each of the three ways (a command line, the
API, the form of ``sluice_control``), and timed from the start of the command or request. Obeyed means: pause: no task
of the pipeline is at work or about to be; resume: the load is at work again; restart and rollback: the load has stopped
and begun again. At the end both sides are equal. Asserts no time.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

from devstack import processes  # noqa: E402
from devstack.demo.show import PIPELINE, read_status  # noqa: E402
from devstack.demo.workload import Workload  # noqa: E402
from devstack.development import SOURCE_SCHEMA, TARGET_SCHEMA, Stack  # noqa: E402
from devstack.progress import DAG  # noqa: E402
from tests.bench import bench_freshness as demo  # noqa: E402
from tests.bench.demo_stack import stack_of_its_own, wait  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "control.json"
LOAD = "load.reporting"
AT_WORK = ("running", "queued", "scheduled", "restarting")


def main() -> None:
    processes.tether()
    took: dict[str, dict[str, float]] = {}
    with stack_of_its_own() as stack:
        demo._prepare(stack)
        stack.api.wait_for_dag("sluice_control")
        ways: dict[str, Callable[[str], None]] = {
            "command line": _command,
            "API": lambda action: _post(stack, f"/sluice/api/pipelines/{PIPELINE}/{action}", {}),
            "form": lambda action: _form(stack, action),
        }
        for way, act in ways.items():
            with _busy(stack):
                took[way] = {
                    action: _obeyed(stack, act, action) for action in ("pause", "resume", "restart", "rollback")
                }
            print(
                f"{way}: " + ", ".join(f"{action} {seconds:.1f} s" for action, seconds in took[way].items()), flush=True
            )
            wait(lambda: demo._equal(stack), 120, "both sides to be equal")
        failed = stack.api.call("GET", f"/dags/{DAG}/dagRuns?state=failed")["total_entries"]
        if failed:
            raise SystemExit(f"{failed} runs failed")
    lines = [
        {
            "measure": f"control_{action}", "variant": way,
            "workload": "300 changes/s, the window full, the load at its head waiting for a lock at the target, demo "
            "stack",
            "value": round(seconds, 2), "unit": "s", "wanted": "at most 5 s",
        }
        for way, actions in took.items()
        for action, seconds in actions.items()
    ]  # fmt: skip
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
    print(f"written to {RESULTS.relative_to(_ROOT)}")


@contextlib.contextmanager
def _busy(stack: Stack) -> Iterator[None]:
    """Changes at the source, somebody's lock at the target, and the load at work that waits for it."""
    workload = Workload(
        stack.source.connect,
        SOURCE_SCHEMA,
        connections=2,
        changes_per_s=300,
        seconds=300,
        number=time.time_ns() // 10**9,
    ).start()
    try:
        with stack.target.connect(TARGET_SCHEMA) as connection, connection.cursor() as cursor:
            connection.begin()
            for table in ("orders", "customers", "products", "order_lines"):
                cursor.execute(f"SELECT COUNT(*) FROM {table} FOR UPDATE")
            wait(lambda: _window_is_full() and _states(stack, LOAD, "running"), 60, "a full window and a load at work")
            time.sleep(2)
            yield
            connection.rollback()
    finally:
        workload.stop()
        workload.wait()


def _window_is_full() -> bool:
    status = read_status()
    return status is not None and len(status.in_flight) >= 3


def _obeyed(stack: Stack, act: Callable[[str], None], action: str) -> float:
    """Seconds until all runs in flight did what they were told; see the module."""
    before = _beginnings(stack)
    done = {
        "pause": lambda: not _states(stack, "", *AT_WORK),
        "resume": lambda: bool(_states(stack, LOAD, "running")),
        "restart": lambda: _beginnings(stack) > before,
        "rollback": lambda: _beginnings(stack) > before,
    }[action]
    began = time.monotonic()
    act(action)
    wait(done, 60, f"{action} to be obeyed", every_s=0.05)
    seconds = time.monotonic() - began
    wait(lambda: action == "pause" or _states(stack, LOAD, "running"), 60, "the load at work again")
    time.sleep(2)
    return seconds


def _states(stack: Stack, task: str, *states: str) -> list[str]:
    """Ids of the task instances of the pipeline in one of ``states``; of one task, or of all."""
    asked = "&".join(f"state={state}" for state in states)
    found = stack.api.call("GET", f"/dags/{DAG}/dagRuns/~/taskInstances?{asked}&limit=100")["task_instances"]
    return [one["task_id"] for one in found if task in ("", one["task_id"])]


def _beginnings(stack: Stack) -> int:
    """How often loads said that they begin again."""
    logs = stack.airflow_home.rglob(f"dag_id={DAG}/run_id=*/task_id={LOAD}/attempt=*.log")
    return sum(log.read_text(errors="replace").count("beginning again") for log in logs)


def _command(action: str) -> None:
    argv = [sys.executable, "-m", "sluice.cli", action, PIPELINE, *(["--yes"] if action == "rollback" else [])]
    subprocess.run(argv, check=True, capture_output=True)


def _form(stack: Stack, action: str) -> None:
    """What the Trigger form sends."""
    stack.api.call(
        "POST", "/dags/sluice_control/dagRuns", {"conf": {"pipeline": PIPELINE, "action": action}, "logical_date": None}
    )


def _post(stack: Stack, path: str, body: dict[str, Any]) -> None:
    address, headers = stack.api.address, {"Content-Type": "application/json"}
    login = json.dumps({"username": "admin", "password": stack.settings.keys["admin_password"]}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{address}/auth/token", data=login, headers=headers)) as answer:
        headers["Authorization"] = f"Bearer {json.load(answer)['access_token']}"
    request = urllib.request.Request(f"{address}{path}", data=json.dumps(body).encode(), headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


if __name__ == "__main__":
    main()
