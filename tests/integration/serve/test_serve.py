"""``sluice serve`` on real servers: what readers get by Arrow Flight is what the source says, and never what is not to
be seen.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from sluice.serve import batch_rows
from sluice.serve.service import Slots
from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import Subscriber, replayed, serving, write
from tests.support.readers.flight_orders import refused, truth, write_orders
from tests.support.running.waiting import wait_until


@pytest.mark.parametrize("form", ["changes", "merged"])
def test_what_is_read_replays_to_the_source(shop: Case, form: str) -> None:
    numbers = write_orders(shop)
    with serving(shop) as (_, reader):
        read = reader.read(tables=[f"{shop.schema}.orders"], form=form)
    rows = read.rows()
    assert replayed(rows) == truth(shop)
    assert [mark["batch"] for mark in read.marks] == sorted(mark["batch"] for mark in read.marks)
    assert numbers[-1] == read.marks[-1]["batch"]
    assert {row["_table"] for row in rows} == {f"{shop.schema}.orders"}
    assert [(r["_batch"], r["_seq"]) for r in rows if form == "changes"] == sorted(
        (r["_batch"], r["_seq"]) for r in rows if form == "changes"
    )
    if form == "changes":
        assert [row["_op"] for row in rows] == list("iiiuuuudi")
        assert all(row["_gtid"] and row["_commit_ts"] and row["_offset"] for row in rows)
        assert [row["_before"]["v"] for row in rows if row["_op"] == "u"] == [10, 20, 21, 11]
    else:
        assert max(sum(r["_batch"] == n and r["id"] == 2 for r in rows) for n in numbers) == 1


@pytest.mark.parametrize("form", ["changes", "merged"])
def test_a_captured_table_of_which_no_change_is_stored_is_read_by_its_name(shop: Case, form: str) -> None:
    """Its columns are those of its definition: a reader who waits for the first change has the same ones as one who
    comes after it.
    """
    write(
        shop,
        "CREATE TABLE quiet (id BIGINT UNSIGNED PRIMARY KEY, v DECIMAL(40, 3), at DATETIME(3), kind ENUM('a', 'b'))",
    )
    name = f"{shop.schema}.quiet"
    with serving(shop) as (_, reader):
        before = reader.read(tables=[name], form=form)
        assert before.rows() == []
        waiting = reader.stream(tables=[name], form=form, from_="latest", follow=True)
        assert waiting.schema == before.schema
        write(shop, "INSERT INTO quiet VALUES (18446744073709551615, 1.5, NOW(), 'b')")
        chunk = waiting.read_chunk()
        while not chunk.data.num_rows:
            chunk = waiting.read_chunk()
        assert chunk.data.to_pylist()[0]["id"] == 2**64 - 1
        waiting.cancel()
        after = reader.read(tables=[name], form=form)
        assert after.schema == before.schema
        assert len(after.rows()) == 1


def test_columns_that_the_log_lacks_are_told(shop: Case) -> None:
    write(shop, "INSERT INTO orders VALUES (1, 10, 'a')")
    write(shop, "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE orders SET v = 11")
    with serving(shop) as (_, reader):
        row = reader.read().rows()[-1]
        assert (row["v"], row["note"]) == (11, None)
        assert [row["_present"][0] >> bit & 1 for bit in range(3)] == [1, 1, 0]
        assert [row["_present"][1] >> bit & 1 for bit in range(3)] == [1, 0, 0]
        some = reader.read(columns=["note", "v"]).rows()
        assert some[0]["_present"] is None
        assert [some[-1]["_present"][0] >> bit & 1 for bit in range(2)] == [1, 0]


def read_until_the_columns_change(reader: Subscriber, start: int) -> tuple[list[dict[str, Any]], int]:
    """Rows, and the batch to go on from; 0: the stream came to its end."""
    rows: list[dict[str, Any]] = []
    stream = reader.stream(from_={"batch": start})
    try:
        for chunk in stream:
            rows += chunk.data.to_pylist()
    except flight.FlightServerError as error:
        return rows, refused(error)["batch"]
    return rows, 0


def test_a_stream_ends_before_a_batch_with_other_columns(shop: Case) -> None:
    first = write_orders(shop)[0]
    moved = write(shop, "ALTER TABLE orders ADD COLUMN w INT", "INSERT INTO orders VALUES (5, 50, 'e', 500)")
    last = write(shop, "ALTER TABLE orders MODIFY v VARCHAR(20)", "INSERT INTO orders VALUES (6, 'sixty', 'f', 600)")
    rows: list[dict[str, Any]] = []
    begins = []
    with serving(shop) as (_, reader):
        start = first
        while start:
            begins.append(start)
            more, start = read_until_the_columns_change(reader, start)
            rows += more
    assert len(begins) == len(set(begins)) > 1
    assert {row["_batch"] for row in rows} >= {first, moved, last}
    assert len({(row["_batch"], row["_seq"]) for row in rows}) == len(rows)
    found = {key: {**row, "w": row.get("w")} for key, row in replayed(rows).items()}
    wanted = truth(shop, columns="id, v, note, w")
    assert {key: str(row["v"]) for key, row in found.items()} == {key: str(row["v"]) for key, row in wanted.items()}
    assert {key: row["w"] for key, row in found.items()} == {key: row["w"] for key, row in wanted.items()}


def test_a_slow_reader_costs_one_piece_and_others_go_on(shop: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds a stream open and takes nothing of it, while another one reads all."""
    rows = ", ".join(f"({n}, {n}, REPEAT('x', 100))" for n in range(10, 8000))
    write(shop, f"INSERT INTO orders VALUES {rows}")
    for number in range(12):
        write(shop, f"UPDATE orders SET v = v + {number + 1}")
    made: dict[int, int] = {}
    original = batch_rows.BatchRows.rows

    def counting(self: Any, manifest: Any, *more: Any) -> Any:
        made[id(self)] = made.get(id(self), 0) + 1
        return original(self, manifest, *more)

    monkeypatch.setattr(batch_rows.BatchRows, "rows", counting)
    with serving(shop, Slots(2, 2)) as (server, reader):
        slow = reader.stream()
        slow.read_chunk()
        [of_slow] = made
        quick = reader.read()
        assert len(quick.rows()) == 13 * 7990
        assert made[of_slow] < len(quick.marks)
        wait_until(lambda: server._service.slots.taken == 1, "the end of the quick read")
        third = reader.stream()
        third.read_chunk()
        with pytest.raises(flight.FlightUnavailableError, match="the limit"):
            reader.read()
        slow.cancel()
        third.cancel()
        del slow, third
        wait_until(lambda: server._service.slots.taken < 2, "the end of a read")
        assert len(reader.read().rows()) == len(
            quick.rows()
        )  # a client may send a cancellation with its next call only
        wait_until(lambda: server._service.slots.taken == 0, "the end of the reads")


def test_the_command_serves_and_ends_although_a_client_takes_nothing(shop: Case) -> None:
    rows = ", ".join(f"({n}, {n}, REPEAT('x', 100))" for n in range(10, 8000))
    write(shop, f"INSERT INTO orders VALUES {rows}")
    for number in range(6):
        write(shop, f"UPDATE orders SET v = v + {number + 1}")
    refusing = shop.cli("serve", "--host", "0.0.0.0")
    assert refusing.returncode == 1
    assert "can be reached from other machines" in refusing.stderr
    with subprocess.Popen(
        shop.command("serve", "--port", "0"), env=shop.environment, cwd=shop.folder, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            said = next(line for line in process.stderr if "serving" in line)
            assert "serving case on grpc://127.0.0.1:" in said
            reader = Subscriber(said.split()[-1])
            stalled = reader.stream()
            stalled.read_chunk()
            assert reader.read(from_="latest").rows() == []
            # To a thread of gRPC: the kernel gives the signal to any one.
            assert ctypes.CDLL(None).tgkill(process.pid, thread_named(process.pid, "grpcpp"), signal.SIGTERM) == 0
            assert process.wait(60) == 0
        finally:
            process.kill()


def thread_named(process: int, start: str) -> int:
    """The id of one of its threads whose name starts so."""
    return next(
        int(task.name)
        for task in Path(f"/proc/{process}/task").iterdir()
        if (task / "comm").read_text().startswith(start)
    )
