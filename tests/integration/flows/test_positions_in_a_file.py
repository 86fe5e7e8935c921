"""``sluice run`` with its positions in a file: neither ZooKeeper nor Airflow, and nothing lost or doubled."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import CheckpointError
from tests.support.pipelines.case import Case, case
from tests.support.servers.positions_file import PositionsFile
from tests.support.tables.numbered import deliver, insert, numbered_pipeline, rows, sluice


@pytest.fixture
def positions(tmp_path: Path) -> PositionsFile:
    return PositionsFile(tmp_path / "positions.db")


@pytest.fixture
def shop(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, positions: PositionsFile, fresh_schema: Callable[..., str]
) -> Iterator[Case]:
    schema = fresh_schema(mysql_source, mysql_target)
    for server in (mysql_source, mysql_target):
        server.execute(f"CREATE TABLE `{schema}`.orders (id INT PRIMARY KEY AUTO_INCREMENT, v INT NOT NULL)")
    with case(tmp_path, mysql_source, mysql_target, positions, schema, session_s=2) as made:
        del made.connections["zookeeper_default"]
        yield made


@pytest.mark.promise("G7")
def test_processes_that_are_killed_or_believe_to_be_alone_lose_and_double_nothing(
    shop: Case, positions: PositionsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = shop.cli("run", str(shop.path), "--until-head")
    assert "SLUICE_STATE=sqlite:///PATH" in refused.stderr.replace("\n", " "), "a store is never chosen by itself"
    monkeypatch.setenv("SLUICE_STATE", f"sqlite://{positions.file}")
    began = shop.cli("run", str(shop.path), "--until-head")
    assert began.returncode == 0, began.stderr
    choose = random.Random(11)
    running = [run(shop), run(shop)]
    with changes(shop), ending(running):
        for _ in range(4):
            time.sleep(choose.uniform(0.5, 2.5))
            process = running.pop(0)
            # 75: another process holds the lease for longer than a session lives
            assert process.poll() in {None, 75}, process.communicate()[1].decode()
            process.send_signal(choose.choice((signal.SIGKILL, signal.SIGSTOP)))
            stopped = process
            running.append(run(shop))
            time.sleep(choose.uniform(0, 2.5))
            stopped.send_signal(signal.SIGCONT)
            stopped.send_signal(signal.SIGKILL)
            stopped.communicate()
    ended = shop.cli_process("run", str(shop.path), "--until-head")
    assert ended.returncode == 0, ended.stderr
    shop.assert_equal("orders")
    status = shop.cli("status", str(shop.path))
    assert "ZooKeeper" not in status.stdout, status.stdout


@contextmanager
def changes(shop: Case) -> Iterator[None]:
    """An application that writes all the time."""
    stop = threading.Event()
    choose = random.Random(3)

    def write() -> None:
        with shop.source.connect(shop.schema) as connection:
            cursor = connection.cursor()
            while not stop.wait(0.005):
                cursor.execute("INSERT INTO orders (v) VALUES (1)")
                cursor.execute("UPDATE orders SET v = v + 1 WHERE id <= %s", (choose.randrange(1, 20),))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


@contextmanager
def ending(processes: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """End the processes, which the block may replace."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def run(shop: Case) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        shop.command("run", str(shop.path)), env=shop.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


@pytest.mark.promise("G7")
def test_a_file_that_is_copied_back_stops_the_pipeline_and_recover_goes_on(
    tmp_path: Path, twin_source: Any, twin_target: Any, positions: PositionsFile, fresh_schema: Callable[..., str]
) -> None:
    with numbered_pipeline(tmp_path, twin_source, twin_target, positions, fresh_schema) as made:
        deliver(made, 1)
        yesterday = positions.files()
        deliver(made, 2)
        insert(made, 3)
        for put in (lambda: positions.put_back(yesterday), positions.remove):
            put()
            with pytest.raises(CheckpointError, match="2") as raised:
                made.run_until_head()
            assert "file of positions" in str(raised.value)
            assert "ZooKeeper" not in str(raised.value)
            assert rows(made, twin_target) == [1, 2]
        assert "ZooKeeper" not in sluice(made, "recover", str(made.path), "--apply", "--yes")
        deliver(made, 4)
        made.assert_equal()


@pytest.mark.promise("G7")
@pytest.mark.parametrize("moves", [2, pytest.param(50, marks=[pytest.mark.full, pytest.mark.timeout(3000)])])
def test_positions_move_between_a_file_and_zookeeper_while_a_pipeline_works(
    shop: Case, positions: PositionsFile, zookeeper: Any, moves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moves that are killed, and a pipeline that runs meanwhile: what it goes on with is where it was."""
    stores = [f"sqlite://{positions.file}", f"zookeeper://{zookeeper.hosts}"]
    monkeypatch.setenv("SLUICE_STATE", stores[0])
    began = shop.cli("run", str(shop.path), "--until-head")
    assert began.returncode == 0, began.stderr
    choose = random.Random(moves)
    with changes(shop):
        for _ in range(moves):
            process = run(shop)
            time.sleep(choose.uniform(1.0, 4.0))
            command = shop.command("state", "copy", "--from", stores[0], "--to", stores[1], "--yes", "--wait", "60")
            command += ["--root", f"/test/{shop.schema}"]
            for patience_s in (choose.uniform(0.5, 2.0), 300):
                copy = subprocess.Popen(
                    command, env=shop.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
                )
                try:
                    _, said = copy.communicate(timeout=patience_s)
                except subprocess.TimeoutExpired:
                    copy.kill()
                    _, said = copy.communicate()
            assert copy.returncode == 0, said.decode()
            _, said = process.communicate(timeout=120)
            assert f"the positions were moved to {stores[1]}" in said.decode(), said.decode()
            stores.reverse()
            monkeypatch.setenv("SLUICE_STATE", stores[0])
    ended = shop.cli_process("run", str(shop.path), "--until-head")
    assert ended.returncode == 0, ended.stderr
    shop.assert_equal("orders")
    shop.connections["zookeeper_default"] = stores[0]
    with shop.runtime().state() as state:
        assert state.acks.get("copy").batch == state.cursor().next_batch - 1
