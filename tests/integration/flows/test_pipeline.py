"""The whole way without Airflow: source log to target rows through the same flows, on real servers."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from sluice.errors import (
    ConfigError,
    UnknownEvent,
)
from tests.support.flows.customers_and_orders import begin, customers_and_orders
from tests.support.pipelines.case import Case


@pytest.fixture
def shop(tmp_path: Path, mysql_source, mysql_target, zookeeper, fresh_schema):
    with customers_and_orders(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) as made:
        yield made


def write(server, db: str, seed: int, changes: int, *, stop: threading.Event | None = None) -> None:
    """Random inserts, updates (also of keys) and deletes, in transactions."""
    choose = random.Random(seed)
    done = 0
    with server.connect(db) as connection, connection.cursor() as cursor:
        connection.autocommit(False)
        while done < changes and not (stop and stop.is_set()):
            try:
                for _ in range(choose.randint(1, 8)):
                    done += 1
                    what = choose.random()
                    who = choose.randint(1, 400)
                    if what < 0.45:
                        cursor.execute(
                            "INSERT INTO customers (email, name, born, balance, settings, flags, seen, photo) VALUES "
                            "(%s,%s,%s,%s,%s,%s,%s,%s)",
                            (
                                f"{choose.getrandbits(48):x}@example.org",
                                choose.choice(["Zoë", "😀 Ω", "O'Hara", "a\\b\0c", ""]),
                                choose.choice([None, "1970-01-01", "0999-12-31", "2024-02-29"]),
                                f"{choose.uniform(-1e9, 1e9):.4f}",
                                json.dumps({"n": choose.random(), "t": "ü"}),
                                choose.choice(["", "a", "a,c", None]),
                                choose.choice(["-838:59:59", "00:00:00.001", None]),
                                choose.randbytes(choose.randint(0, 40)) + b"\0",
                            ),
                        )
                    elif what < 0.6:
                        cursor.execute(
                            "INSERT IGNORE INTO orders SELECT id, %s, %s, 'x', b'1', 2024 FROM customers WHERE id >= "
                            "%s LIMIT 3",
                            (choose.randint(1, 99), choose.randint(0, 10**6) / 100, who),
                        )
                    elif what < 0.75:
                        cursor.execute(
                            "UPDATE customers SET balance = balance + 1, level = 'gold' WHERE id BETWEEN %s AND %s",
                            (who, who + 4),
                        )
                    elif what < 0.83:
                        cursor.execute("UPDATE IGNORE customers SET id = id + 1000 WHERE id = %s", (who,))
                    elif what < 0.88:
                        cursor.execute(
                            "UPDATE IGNORE orders SET number = number + 1 WHERE customer = %s ORDER BY number DESC",
                            (who,),
                        )
                    else:
                        cursor.execute("DELETE FROM customers WHERE id = %s", (who,))
                if choose.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()
            except Exception as error:  # deadlocks and lock waits between the writers are part of the game
                if error.args[0] not in {1205, 1213, 1062, 1451, 1452, 1761, 1762}:
                    raise
                connection.rollback()


@pytest.mark.promise("A2")
def test_random_changes_arrive(shop: Case) -> None:
    begin(shop)
    writers = [threading.Thread(target=write, args=(shop.source, shop.schema, seed, 600)) for seed in range(4)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        shop.run_until_head()
    for writer in writers:
        writer.join()
    shop.run_until_head()
    assert shop.source.execute(f"SELECT COUNT(*) FROM `{shop.schema}`.customers")[0][0] > 100
    shop.assert_equal()


@pytest.mark.promise("E5")
@pytest.mark.faults
@pytest.mark.slow
def test_kill_anywhere_ends_equal(shop: Case) -> None:
    """The whole process is killed at random moments, again and again, while changes go on."""
    shop.path.write_text(shop.yaml.replace("session_timeout: 10s", "session_timeout: 2s"))  # the next one waits for it
    begin(shop)
    stop = threading.Event()
    writers = [
        threading.Thread(target=write, args=(shop.source, shop.schema, seed, 10**9), kwargs={"stop": stop})
        for seed in range(2)
    ]
    for writer in writers:
        writer.start()
    choose = random.Random(7)
    try:
        with shop.runtime().state() as state:
            for _ in range(int(os.environ.get("SLUICE_FAULTS", "5"))):
                process = subprocess.Popen(
                    shop.command("run", str(shop.path)),
                    env=shop.environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )
                while process.poll() is None and not (state.owner() or state.owner("copy")):
                    time.sleep(0.01)
                time.sleep(choose.uniform(0, 4))
                # 75: a machine that stalled for longer than the session; a scheduler would run it again
                assert process.poll() in {None, 75}, process.stderr.read().decode()
                process.send_signal(signal.SIGKILL)
                process.wait()
                process.stderr.close()
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    shop.run_until_head()
    shop.assert_equal()
    with shop.runtime().state() as state:
        assert state.undelivered() == []
        assert state.acks.get("copy").batch == state.cursor().next_batch - 1 >= 1


def insert(made: Case, number: int) -> None:
    made.source.execute(f"INSERT INTO `{made.schema}`.customers (id, email, name) VALUES ({number}, 'e{number}', 'n')")


def test_a_wrong_password_is_one_clear_error_and_mended_goes_on(shop: Case) -> None:
    begin(shop)
    insert(shop, 1)
    right = shop.connections["case_source"]
    wrong = json.loads(right)
    wrong["login"], wrong["password"] = "nobody_here", "wr0ng-secret"
    shop.connections["case_source"] = json.dumps(wrong)
    with shop.runtime().state() as state:
        before = state.cursor()
    with pytest.raises(ConfigError, match=r"case_source.*password"):
        shop.run_until_head()
    shown = shop.cli_process("run", str(shop.path), "--until-head")
    assert shown.returncode in {1, 75}
    assert "case_source" in shown.stderr
    assert "password" in shown.stderr
    assert "Traceback" not in shown.stderr
    assert "wr0ng-secret" not in shown.stderr
    with shop.runtime().state() as state:
        assert state.cursor() == before
    shop.connections["case_source"] = right
    shop.run_until_head()
    shop.assert_equal()


@pytest.mark.promise("E7")
def test_an_idle_run_moves_the_position_over_foreign_log(shop: Case, fresh_schema) -> None:
    begin(shop)
    other = fresh_schema(shop.source)
    shop.source.execute(
        f"CREATE TABLE `{other}`.t (id INT PRIMARY KEY)", f"INSERT INTO `{other}`.t VALUES (1)", "FLUSH BINARY LOGS"
    )
    shop.run_until_head()
    with shop.runtime().state() as state:
        assert state.batches.numbers() == []
    from sluice.operations.status import status

    seen = status(shop.runtime())
    assert (seen.state, seen.lag_ms, seen.lag_bytes) == ("idle", 0, 0)


def test_pause_holds_and_resume_goes_on(shop: Case) -> None:
    begin(shop)
    insert(shop, 1)
    assert shop.cli("pause", str(shop.path), "--reason", "tea").returncode == 0
    shown = shop.cli_process("run", str(shop.path), "--until-head")
    assert shown.returncode == 75
    assert "tea" in shown.stderr
    assert shop.cli("resume", str(shop.path)).returncode == 0
    shop.run_until_head()
    shop.assert_equal()
    entries = json.loads(shop.cli("audit", str(shop.path), "--json").stdout)
    assert [e["what"] for e in entries] == ["pause", "resume"]


def test_a_status_that_is_watched_follows_the_pipeline(shop: Case) -> None:
    begin(shop)
    argv = shop.command("status", str(shop.path), "--watch")
    us, terminal = pty.openpty()
    table = subprocess.Popen(
        argv, env={**shop.environment, "TERM": "xterm", "COLUMNS": "200"}, stdout=terminal, stdin=terminal
    )
    lines = subprocess.Popen([*argv, "--json"], env=shop.environment, stdout=subprocess.PIPE, text=True)
    os.close(terminal)
    shown: list[str] = []

    def read() -> None:  # all the time: a terminal that nobody reads stops whoever draws on it
        with contextlib.suppress(OSError):  # the other end is closed
            while True:
                shown.append(os.read(us, 65536).decode("utf-8", "replace"))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert lines.stdout is not None
        assert json.loads(lines.stdout.readline())["targets"][0]["batch"] == 0
        insert(shop, 1)
        shop.run_until_head()
        while json.loads(lines.stdout.readline())["targets"][0]["batch"] != 1:
            pass
        while "idle" not in "".join(shown) or "".join(shown).count("delivered") < 2:  # drawn again and again
            time.sleep(0.1)
        for process in (table, lines):
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=150) == 130
    finally:
        for process in (table, lines):
            process.kill()
            process.wait()
        reader.join()
        os.close(us)


def test_status_segments_and_tail(shop: Case) -> None:
    begin(shop)
    insert(shop, 1)
    shop.source.execute(f"UPDATE `{shop.schema}`.customers SET name = 'm' WHERE id = 1")
    shop.run_until_head()
    data = json.loads(shop.cli("status", str(shop.path), "--json").stdout)
    assert data["state"] == "idle"
    assert data["targets"][0]["lag_bytes"] == 0
    assert "case" in shop.cli("status", str(shop.path)).stdout
    assert shop.cli("segments", str(shop.path), "--verify").returncode == 0
    lines = shop.cli_process(
        "tail", str(shop.path), "--from-batch", "1", "--no-follow", "--format", "maxwell-json"
    ).stdout.splitlines()
    changes = [json.loads(line) for line in lines]
    assert [c["type"] for c in changes] == ["insert", "update"]
    assert changes[1]["old"] == {"name": "n"}
    assert changes[1]["data"]["name"] == "m"
    damaged = min((shop.folder / "store").rglob("*-e*.parquet"))
    data_ = bytearray(damaged.read_bytes())
    data_[len(data_) // 2] ^= 1
    damaged.write_bytes(data_)
    shown = shop.cli("segments", str(shop.path), "--verify")
    assert shown.returncode == 1
    assert "damaged" in shown.stderr


def test_check_reports_everything(shop: Case) -> None:
    shown = shop.cli_process("check", str(shop.path))
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for part in ("pipeline", "zookeeper", "source", "store", "rules", "target copy"):
        assert part in shown.stdout


def test_what_cannot_be_read_ends_the_batch_in_front_of_it(shop: Case) -> None:
    """So that going round it leaves out nothing else."""
    begin(shop)
    insert = "INSERT INTO customers (id, email, name) VALUES ({0}, '{0}@example.org', 'x')"
    for number in (1, 2):
        shop.source.execute(insert.format(number), database=shop.schema)
    shop.source.execute("SET SESSION binlog_format = 'STATEMENT'", insert.format(3), database=shop.schema)
    behind = shop.source.execute("SHOW BINARY LOG STATUS")[0]
    shop.source.execute(insert.format(4), database=shop.schema)
    for _ in range(2):
        with pytest.raises(UnknownEvent, match="without its rows"):
            shop.run_until_head()
        assert [row[0] for row in shop.target.execute("SELECT id FROM customers", database=shop.schema)] == [1, 2]
    done = shop.cli("seek", "case", f"{behind[0]}:{behind[1]}", "--yes")
    assert done.returncode == 0, done.stderr
    shop.run_until_head()
    found = shop.target.execute("SELECT id FROM customers ORDER BY id", database=shop.schema)
    assert [row[0] for row in found] == [1, 2, 4]
