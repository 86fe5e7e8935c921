"""The development stack as a person uses it: one clear line when it cannot start, no process left when it is
interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest

from devstack import development, mysql, paths, ports
from devstack.development import Stack
from sluice.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A SLUICE_HOME of the test's own that shares the fetched servers and templates; whatever runs from it is ended."""
    mysql.find_mysql()
    folder = tmp_path / "home"
    folder.mkdir()
    for shared in ("mysql", "mariadb", "templates"):
        (paths.home() / shared).mkdir(exist_ok=True)
        (folder / shared).symlink_to(paths.home() / shared)
    yield folder
    for process in running_from(folder):
        process.kill()


def environment(home: Path, **variables: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "SLUICE"))}
    return {**kept, "SLUICE_HOME": str(home), "PYTHONPATH": str(paths.repo_root() / "include"), **variables}


def run(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "devstack", *arguments],
        env=environment(home, **variables), capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip


def running_from(home: Path) -> list[psutil.Process]:
    """Processes whose command line, folder or environment is of this home."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            ours = any(str(home) in part for part in process.cmdline()) or process.cwd().startswith(str(home))
            if ours or process.environ().get("SLUICE_HOME") == str(home):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def test_a_taken_port_is_one_clear_line(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run(home, "up", SLUICE_UI_PORT=port)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: SLUICE_UI_PORT: port {port} is already taken")
    assert len(done.stderr.strip().splitlines()) == 1
    assert running_from(home) == []


def test_a_missing_java_is_one_clear_line(home: Path, tmp_path: Path) -> None:
    done = run(home, "up", PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == 1
    assert done.stderr.startswith("error: there is no Java on this machine")
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(development.shutil, "disk_usage", lambda _: SimpleNamespace(free=int(1.2e9)))
    with pytest.raises(ConfigError, match=r"only 1\.2 GB are free .* needs 3 GB"):
        development.require_machine(tmp_path)


def test_down_without_a_stack_says_so(home: Path) -> None:
    done = run(home, "down")
    assert (done.returncode, done.stdout) == (0, "the stack is not running\n")


@pytest.mark.parametrize(
    ("number", "after"), [(signal.SIGINT, "mysql-source is ready"), (signal.SIGTERM, "data, logs and state")]
)
def test_an_interrupt_leaves_no_process(home: Path, number: int, after: str) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-m", "devstack", "demo"], env=environment(home), stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    for line in starter.stdout:
        if after in line:
            break
    starter.send_signal(number)
    assert starter.wait(120) == 130
    assert "nothing was left running" in starter.stdout.read()
    assert running_from(home) == []
    assert not paths.stack_file(home / "demo").exists()


@pytest.mark.slow
def test_up_twice_heal_and_down(home: Path) -> None:
    first = run(home, "up")
    assert first.returncode == 0, first.stderr
    folder = home / "demo"
    assert paths.stack_file(folder).stat().st_mode & 0o077 == 0
    stack = Stack.load(folder)
    assert stack is not None
    before = {name: handle.pid for name, handle in stack.handles().items()}
    second = run(home, "up")
    assert second.returncode == 0
    assert "already running" in second.stdout
    stack.source.execute("CREATE TABLE shop.kept (id INT PRIMARY KEY)", "INSERT INTO shop.kept VALUES (1)")
    os.kill(before["zookeeper"], signal.SIGKILL)
    os.kill(before["mysql-source"], signal.SIGKILL)
    healed = wait_healed(folder, before)
    assert healed.source.execute("SELECT id FROM shop.kept") == [(1,)]
    assert healed.source.port == stack.source.port
    state = json.loads(run(home, "status", "--json").stdout)
    assert state["state"] == "up"
    assert httpx.get(f"{healed.subscriptions.address}/v1/pipelines").json() == {"pipelines": ["shop_to_reporting"]}
    assert run(home, "down").returncode == 0
    assert running_from(home) == []


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_demo_from_postgresql_ends_equal(home: Path) -> None:
    """`make demo SOURCE=postgresql` goes from nothing to a pipeline whose sides are equal, and back to nothing."""
    (paths.home() / "postgresql").mkdir(exist_ok=True)
    (home / "postgresql").symlink_to(paths.home() / "postgresql")
    done = run(home, "demo", "--source", "postgresql", "--seconds", "10")
    assert done.returncode == 0, done.stdout + done.stderr
    state = json.loads(run(home, "status", "--json").stdout)
    assert state["state"] == "up"
    assert run(home, "down").returncode == 0
    assert running_from(home) == []


def wait_healed(folder: Path, before: dict[str, int]) -> Stack:
    """Wait until the supervisor has replaced the two servers that were killed."""
    for _ in range(600):
        stack = Stack.load(folder)
        if stack is not None and not stack.dead():
            now = {name: handle.pid for name, handle in stack.handles().items()}
            started = all(now[name] != before[name] for name in ("zookeeper", "mysql-source"))
            if started and ports.accepts(stack.source.port):
                return stack
        time.sleep(0.1)
    pytest.fail("the supervisor did not start the killed servers again")


def test_nothing_listens_beyond_loopback(home: Path) -> None:
    stack = Stack(development.Settings.choose(home / "demo", mysql.find_mysql()))
    assert all(json.loads(value)["host"] in {"127.0.0.1", "local[2]"} for value in stack.connections().values())
    assert "127.0.0.1" in stack.airflow_environment()["AIRFLOW__API__HOST"]
    for secret in (*stack.settings.passwords.values(), *stack.settings.keys.values()):
        assert secret not in repr(stack.settings)
