"""The servers of the stack themselves: they start, they survive a crash, and nothing of them stays behind."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from kazoo.client import KazooClient

from devstack import debian, paths, processes
from devstack.mariadb import MariaDBServer
from devstack.mysql import MySQLServer, find_mysql
from devstack.processes import Handle, ServerFailed
from devstack.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from sluice.errors import ConfigError


def test_mysql_logs_what_capture_needs(mysql_source: MySQLServer) -> None:
    rows = mysql_source.execute(
        "SELECT @@binlog_format, @@binlog_row_image, @@binlog_row_metadata, @@gtid_mode, @@bind_address, @@server_id"
    )
    assert rows == [("ROW", "FULL", "FULL", "ON", "127.0.0.1", 101)]


def test_servers_have_uuids_of_their_own(mysql_source: MySQLServer, mysql_target: MySQLServer) -> None:
    query = "SELECT @@server_uuid"
    assert mysql_source.execute(query) != mysql_target.execute(query)


def test_a_killed_mysql_comes_back_with_its_rows_on_its_port(tmp_path: Path) -> None:
    with MySQLServer(tmp_path / "s", root_password="s3cr't") as server:
        port = server.port
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1), (2)")
        server.kill()
        assert not server.running
        server.start()
        assert server.port == port
        assert server.execute("SELECT COUNT(*) FROM d.t") == [(2,)]
        assert "s3cr't" not in repr(server)


def test_options_win_over_the_defaults(tmp_path: Path) -> None:
    options = {"binlog_format": "STATEMENT", "gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
    with MySQLServer(tmp_path / "s", options=options) as server:
        assert server.execute("SELECT @@binlog_format, @@gtid_mode") == [("STATEMENT", "OFF")]


def test_a_wrong_option_is_said_with_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="no-such-variable"):
        MySQLServer(tmp_path / "s", options={"no_such_variable": 1}).start()


def test_mariadb_logs_what_capture_needs(mariadb: MariaDBServer, fresh_schema: Callable[..., str]) -> None:
    name = fresh_schema(mariadb)
    mariadb.execute(
        f"CREATE TABLE `{name}`.t (id INT PRIMARY KEY, v VARCHAR(20))", f"INSERT INTO `{name}`.t VALUES (1, '🐟')"
    )
    assert mariadb.execute(f"SELECT v FROM `{name}`.t") == [("🐟",)]
    assert mariadb.execute("SELECT @@binlog_format, @@binlog_row_metadata") == [("ROW", "FULL")]


def test_zookeeper_keeps_its_nodes_over_a_crash(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "z") as server:
        client = KazooClient(server.hosts)
        client.start()
        client.create("/kept", b"yes")
        server.kill()
        server.start()
        assert client.retry(client.get, "/kept")[0] == b"yes"
        client.stop()


def test_an_ensemble_survives_its_leader(zookeeper_ensemble: ZooKeeperEnsemble) -> None:
    client = KazooClient(zookeeper_ensemble.hosts)
    client.start()
    client.create("/kept", b"yes")
    leader = zookeeper_ensemble.leader()
    assert leader is not None
    leader.kill()
    assert client.retry(client.set, "/kept", b"still").version == 1
    client.stop()


def test_an_empty_token_is_refused() -> None:
    for token in ("", "short", None):
        with pytest.raises(ConfigError, match="token"):
            Handle("ours", os.getpid(), 0.0, token, "/dev/null")  # type: ignore[arg-type]


def test_nothing_is_stopped_by_id_and_start_time_alone(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != processes.TOKEN_VARIABLE}
    script = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    for env in (environment, {**environment, processes.TOKEN_VARIABLE: ""}):
        stranger = subprocess.Popen([sys.executable, "-c", script], env=env, start_new_session=True)
        try:
            started = psutil.Process(stranger.pid).create_time()
            handle = Handle("ours", stranger.pid, started, "0" * 16, "/dev/null")
            for _ in range(100):
                children = psutil.Process(stranger.pid).children()
                if children:
                    break
                time.sleep(0.05)
            assert processes.family(handle) == []
            processes.stop([handle], grace_s=0.1)
            processes.kill(handle)
            processes.end_alone(handle, grace_s=0.1)
            assert stranger.poll() is None
            assert all(processes.lives(child) for child in children)
        finally:
            for process in (*psutil.Process(stranger.pid).children(), stranger):
                process.kill()
            stranger.wait()


def test_a_recycled_pid_is_never_stopped() -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        started = psutil.Process(stranger.pid).create_time()
        processes.stop([Handle("ours", stranger.pid, started - 100, "0" * 16, "/dev/null")], grace_s=0.1)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_stop_finds_children_that_left_the_session(tmp_path: Path) -> None:
    script = (
        "import os, subprocess, sys, time; subprocess.Popen(['sleep', '300'], start_new_session=True); time.sleep(300)"
    )
    handle = processes.spawn("parent", [sys.executable, "-c", script], log=tmp_path / "log")
    for _ in range(100):
        members = processes.family(handle)
        if len(members) == 2:
            break
        time.sleep(0.05)
    assert len(members) == 2
    processes.stop([handle], grace_s=2.0)
    assert not any(processes.lives(member) for member in members)


def test_what_a_killed_test_run_started_ends_with_it(tmp_path: Path) -> None:
    script = (
        "import json, sys, time; from pathlib import Path; from devstack import processes\n"
        "processes.tether()\n"
        "import multiprocessing; multiprocessing.get_context('fork').Process(target=time.sleep, args=(20,)).start()\n"
        f"handle = processes.spawn('s', ['sleep', '300'], log=Path({str(tmp_path / 'log')!r}))\n"
        "print(json.dumps(handle.to_json()), flush=True); time.sleep(300)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(paths.repo_root() / "include")}
    runner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env)
    assert runner.stdout is not None
    line = next(line for line in runner.stdout if line.startswith(b"{"))
    handle = Handle.from_json(json.loads(line))
    assert handle.alive
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    for _ in range(200):
        if not handle.alive:
            break
        time.sleep(0.05)
    assert not handle.alive


def test_what_a_killed_benchmark_started_ends_with_it(tmp_path: Path) -> None:
    bench = paths.repo_root() / "tests/bench/bench_memory.py"
    argv = [sys.executable, str(bench), "one_key", "--mb", "1", "--dry", "--folder", str(tmp_path)]
    with (tmp_path / "log").open("wb") as log:
        runner = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        servers: list[psutil.Process] = []
        while not servers:
            assert runner.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.05)
            children = psutil.Process(runner.pid).children()
            servers = [child for child in children if processes._token_of(child)]
    finally:
        runner.kill()
        runner.wait()
    for _ in range(400):
        if not any(processes.lives(server) for server in servers):
            break
        time.sleep(0.05)
    assert not any(processes.lives(server) for server in servers)


def test_every_benchmark_takes_its_servers_along() -> None:
    benches = sorted((paths.repo_root() / "tests/bench").glob("bench_*.py"))
    assert len(benches) >= 7
    for bench in benches:
        tree = ast.parse(bench.read_text(encoding="utf-8"))
        (main,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
        assert ast.unparse(main.body[0]) == "processes.tether()", bench.name


def test_a_fetched_mysql_runs_by_its_own_loader() -> None:
    distribution = find_mysql()
    tree = debian.installed_tree(paths.home() / "mysql")
    if tree is None:
        pytest.skip("this machine has a MySQL installed; none was fetched")
    assert distribution.origin == str(tree.root)
    assert "ld-linux" in distribution.command[0]


def test_a_process_that_executes_another_program_is_alive_all_the_time(tmp_path: Path) -> None:
    """Its environment, which holds the token, reads as empty for an instant.

    Servers were taken for dead while they started.
    """
    for _ in range(60):
        shells = ["/bin/sh", "-c", "exec /bin/sh -c 'exec /bin/sh -c \"exec sleep 60\"'"]
        handle = processes.spawn("sleeper", shells, log=tmp_path / "sleeper.log")
        end = time.monotonic() + 0.03
        try:
            while time.monotonic() < end:
                assert handle.alive
        finally:
            processes.kill(handle)
        assert not handle.alive
