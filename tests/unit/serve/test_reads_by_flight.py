"""``sluice serve``: what readers get by Arrow Flight is what the source says, and never what is not to be seen."""

from __future__ import annotations

import datetime as dt
import json
import threading
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from sluice.formats import FORMATS
from sluice.operations.deadletters.store import letters
from sluice.operations.retention import prune
from sluice.serve import feed
from sluice.serve.read import Reading
from sluice.serve.service import Slots
from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import Subscriber, by_http, replayed, serving, write
from tests.support.readers.flight_orders import refused, truth, write_orders
from tests.support.running.waiting import counted, ended, wait_until


def test_tables_are_listed_with_the_columns_that_a_read_has(shop: Case) -> None:
    write_orders(shop)
    write(shop, "CREATE TABLE `odd name` (id INT PRIMARY KEY)", "INSERT INTO `odd name` VALUES (7)")
    with serving(shop) as (_, reader):
        flights = {f.descriptor.path[1].decode(): f for f in reader.client.list_flights()}
        assert set(flights) == {f"{shop.schema}.orders", f"{shop.schema}.odd name"}
        for name, found in flights.items():
            assert found.descriptor.path[0] == b"case"
            asked = flight.FlightDescriptor.for_path("case", name)
            assert reader.client.get_schema(asked).schema == found.schema
            stream = reader.client.do_get(reader.client.get_flight_info(asked).endpoints[0].ticket)
            assert stream.schema == found.schema
            assert set(stream.read_all()["_table"].to_pylist()) == {name}
        command = flight.FlightDescriptor.for_command(
            json.dumps({"pipeline": "case", "tables": [".*orders"], "columns": ["v"]})
        )
        assert reader.client.get_flight_info(command).schema.names[0] == "v"
        with pytest.raises(flight.FlightServerError, match="no pipeline 'other'"):
            list(reader.client.list_flights(b"other"))


@pytest.mark.promise("D1")
def test_a_range_begins_and_ends_where_it_says(shop: Case) -> None:
    numbers = write_orders(shop)
    runtime = shop.runtime()
    with runtime.state() as state:
        first, second = (runtime.store.read_manifest(state.batches.require(n).manifest) for n in numbers[:2])
    at = dt.datetime.fromtimestamp(second.last.commit_time_us / 1e6, dt.UTC)
    ranges: dict[str, tuple[Any, set[int]]] = {
        "earliest": ("earliest", set(numbers)),
        "latest": ("latest", set()),
        "batch": ({"batch": numbers[1]}, set(numbers[1:])),
        "next": ({"batch": numbers[-1] + 1}, set()),
        "position": ({"position": first.last.place}, set(numbers[1:])),
        "inside": ({"position": f"{first.last.row_place[0]}:{first.last.row_place[1] - 1}"}, set(numbers)),
        "timestamp": ({"timestamp": at.isoformat()}, set(numbers[1:])),
        "future": ({"timestamp": "2999-01-01T00:00:00Z"}, set()),
    }
    with serving(shop) as (_, reader):
        for name, (start, wanted) in ranges.items():
            read = reader.read(from_=start)
            assert wanted == set(read.table["_batch"].to_pylist()), name
        read = reader.read(from_={"batch": numbers[0]}, to=numbers[1])
        assert set(read.table["_batch"].to_pylist()) == set(numbers[:2])
        for wrong, why in (
            ({"from_": {"batch": 10_000}}, "no batch 10000 yet"),
            ({"from_": "yesterday"}, "from"),
            ({"tables": ["shop.nothing"]}, "no stored batch of case has changes of shop.nothing"),
            ({"tables": ["("]}, "is not a regular expression"),
            ({"columns": ["vv"]}, "no table has a column 'vv'"),
            ({"colour": "red"}, "colour"),
            ({"follow": True, "to": 3}, "a read that follows has no end"),
        ):
            with pytest.raises(flight.FlightServerError, match=why):
                reader.read(**wrong)


def test_a_range_that_retention_removed_names_the_oldest_batch(shop: Case) -> None:
    numbers = write_orders(shop)
    shop.path.write_text(shop.yaml.replace("segments: {uri:", "segments: {retain: 0s, uri:"))
    assert numbers[-1] in prune(shop.runtime()).removed
    kept = write(shop, "UPDATE orders SET v = 0")
    with serving(shop) as (_, reader):
        for start in ({"batch": numbers[0]}, {"timestamp": "2001-01-01T00:00:00Z"}, {"position": "binlog.000001:4"}):
            with pytest.raises(flight.FlightServerError, match=rf"oldest.* is {kept}") as raised:
                reader.read(from_=start)
            assert refused(raised.value) == {
                "error": "BatchesGone",
                "name": "SLUICE-BATCHES-GONE",
                "retryable": False,
                "oldest": kept,
            }
        assert {row["v"] for row in reader.read().rows()} == {0}


def test_columns_and_a_predicate_choose_what_is_sent(shop: Case) -> None:
    write_orders(shop)
    with serving(shop) as (_, reader):
        read = reader.read(columns=["v"], predicate={"column": "id", "is": "in", "values": [1, 3]})
        assert read.schema.names[0] == "v"
        assert "note" not in read.schema.names
        assert [f.name for f in read.schema.field("_before").type] == ["v"]
        # the row that moves from key 1 to 9 was there before, so the reader hears of it
        assert [(row["_op"], row["v"]) for row in read.rows()] == [
            ("i", 10),
            ("i", 30),
            ("u", 11),
            ("u", 11),
            ("d", 30),
        ]
        large = {"all": [{"column": "v", "is": ">=", "value": 40}, {"column": "note", "is": "not null"}]}
        both = {"any": [large, {"column": "note", "is": "null"}]}
        assert [row["id"] for row in reader.read(predicate=both).rows()] == [3, 3, 4]
        with pytest.raises(flight.FlightServerError, match="cannot be compared"):
            reader.read(predicate={"column": "v", "is": "=", "value": "many"})


MASKS = """
rules: engine.yaml
masked: ["{schema}\\\\.people\\\\.(phone|born)"]
mapping:
  - {{from: {schema}.people, to: {schema}.persons, columns: {{exclude: [salary], rename: {{phone: call, email: mail}}}}}}
"""
ENGINE = """
rules:
  - {name: hide, builtin: mask, match: {table: people}, params: {columns: [email], keep_last: 4}}
  - {name: copy, path: copy.py, type: row, order: 1, match: {table: people}}
"""
COPY = """
def transform(row, context):
    row["again"] = row["phone"]
    return row
"""
SECRETS = ("5550101", "5550102", "secret-one@x.org", "secret-two@x.org", "77777", "88888", "1987-06-05", "1988-06-05")


@pytest.mark.parametrize("form", ["changes", "merged"])
@pytest.mark.parametrize("ruled", [True, False], ids=["rules", "no rules"])
def test_a_value_that_is_masked_or_excluded_is_never_sent(shop: Case, form: str, ruled: bool) -> None:
    extra = MASKS.format(schema=shop.schema)
    shop.path.write_text(shop.yaml + (extra if ruled else extra.replace("rules: engine.yaml", "")))
    (shop.folder / "rules" / "engine.yaml").write_text(ENGINE)
    (shop.folder / "rules" / "copy.py").write_text(COPY)
    shop.source.execute(
        f"CREATE TABLE {shop.schema}.people (id INT PRIMARY KEY, email VARCHAR(40), phone VARCHAR(20), born "
        "VARCHAR(20), salary INT, town VARCHAR(20))"
    )
    shop.target.execute(
        f"CREATE TABLE {shop.schema}.persons (id INT PRIMARY KEY, mail VARCHAR(40), `call` VARCHAR(20), born "
        "VARCHAR(20), town VARCHAR(20), again VARCHAR(20))"
    )
    write(
        shop,
        f"INSERT INTO people VALUES (1, '{SECRETS[2]}', '{SECRETS[0]}', '{SECRETS[6]}', {SECRETS[4]}, 'here')",
        f"UPDATE people SET email = '{SECRETS[3]}', phone = '{SECRETS[1]}', salary = {SECRETS[5]}, born = "
        f"'{SECRETS[7]}', town = 'there'",
        "DELETE FROM people",
        f"INSERT INTO people VALUES (2, '{SECRETS[2]}', '{SECRETS[0]}', '{SECRETS[6]}', {SECRETS[4]}, 'here')",
    )
    table = f"{shop.schema}.persons"
    with serving(shop) as (_, reader):
        read = reader.read(tables=[table], form=form)
        rows = read.rows()
        users = [name for name in read.schema.names if not name.startswith("_")]
        assert users == ["id", "mail", "town"]
        assert [f.name for f in read.schema.field("_before").type] == users
        assert "here" in {row["town"] for row in rows}
        with by_http(shop) as client:
            said = b"".join(
                client.get("/pipelines/case/changes", params={"tables": table, "format": name}).content
                for name in FORMATS
            )
        hidden = SECRETS if ruled else [s for s in SECRETS if "secret" not in s]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, read.schema) as writer:
            writer.write_table(read.table)
        raw = sink.getvalue().to_pybytes()
        assert b"there" in raw or form == "merged"
        assert b"there" in said
        for secret in hidden:
            number = int(secret).to_bytes(4, "little") if secret.isdigit() else b"\0no number\0"
            assert secret.encode() not in raw
            assert secret.encode() not in said
            assert number not in raw
        if ruled:
            assert {row["mail"] for row in rows} == {"************.org"}
        for column in (
            "phone",
            "call",
            "salary",
            "born",
            "email",
            "again",
        ):  # nor told by what a predicate lets through
            with pytest.raises(flight.FlightServerError, match=f"no table has a column '{column}'"):
                reader.read(tables=[table], predicate={"column": column, "is": "not null"})
        assert b"people" not in b"".join(f.descriptor.path[1] for f in reader.client.list_flights())


@pytest.mark.parametrize("form", ["changes", "merged"])
def test_a_row_that_a_rule_rejects_is_left_out_and_nothing_is_written(shop: Case, form: str) -> None:
    shop.path.write_text(shop.yaml + "rules: engine.yaml\n")
    (shop.folder / "rules" / "engine.yaml").write_text(
        "rules: [{name: wary, path: wary.py, type: row, on_error: dead_letter}]\n"
    )
    (shop.folder / "rules" / "wary.py").write_text(
        "def transform(row, context):\n    return {**row, 'v': 100 // row['v']}\n"
    )
    write(shop, "INSERT INTO orders VALUES (1, 10, 'a'), (2, 0, 'b')")
    before = shop.runtime().store.list_files("")
    assert len(letters(shop.runtime())) == 1
    with serving(shop) as (_, reader):
        assert [(row["id"], row["v"]) for row in reader.read(form=form).rows()] == [(1, 10)]
    assert shop.runtime().store.list_files("") == before
    assert len(letters(shop.runtime())) == 1


def test_several_tables_are_one_stream_and_statements_are_told(shop: Case) -> None:
    write_orders(shop)
    write(shop, "CREATE TABLE items (id INT PRIMARY KEY, price DECIMAL(10,2))", "INSERT INTO items VALUES (1, 9.50)")
    write(shop, "TRUNCATE TABLE orders")
    with serving(shop) as (_, reader):
        read = reader.read(tables=[f"{shop.schema}\\..*"])
        names = {row["_table"].split(".")[1] for row in read.rows()}
        assert names == {"orders", "items"}
        only = [row for row in read.rows() if row["_table"].endswith(".items")]
        assert [(row["id"], str(row["price"]), row["v"]) for row in only] == [(1, "9.50", None)]
        told = [one for mark in read.marks for one in mark["statements"]]
        assert {"table": f"{shop.schema}.orders", "kinds": ["truncate table"]} in [
            {name: value for name, value in one.items() if name != "seq"} for one in told
        ]


class Follower(threading.Thread):
    """Reads a stream that does not end, until it hangs up."""

    def __init__(self, reader: Subscriber, **request: Any) -> None:
        super().__init__(daemon=True)
        self.stream = reader.stream(follow=True, **request)
        self.rows: list[dict[str, Any]] = []
        self.batches: list[int] = []
        self.why = ""
        self.start()

    def run(self) -> None:
        try:
            for chunk in self.stream:
                self.rows += chunk.data.to_pylist()
                if chunk.app_metadata:
                    self.batches.append(json.loads(chunk.app_metadata.to_pybytes())["batch"])
        except flight.FlightError as error:
            self.why = type(error).__name__


def test_streams_that_follow_get_new_batches_by_one_look_for_all(shop: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "LOOK_S", 600.0)  # only what is heard of leads to a look
    first = write_orders(shop)[-1]
    with serving(shop, Slots(9, 9)) as (server, reader), counted(Reading, "_next_batch") as looks:
        late = Follower(reader, from_="latest")
        others = [Follower(reader, tables=[f"{shop.schema}.orders"]) for _ in range(5)]
        wait_until(lambda: all(first in one.batches for one in others), "what was stored before")
        wait_until(lambda: looks.by_thread, "the first look")
        with shop.runtime().state() as state:
            before = state.cursor()
        for number in range(3):
            last = write(shop, f"UPDATE orders SET v = {number}")
            wait_until(lambda last=last: all(last in one.batches for one in [late, *others]), f"batch {last}")
        with shop.runtime().state() as state:
            after = state.cursor()
        assert before is not None
        assert after is not None
        assert sum(looks.by_thread.values()) <= after.version - before.version + 1
        for one in others:
            assert replayed(one.rows) == truth(shop)
            assert one.batches == sorted(set(one.batches))
        assert {row["_batch"] for row in late.rows} == set(range(first + 1, last + 1))
        late.stream.cancel()
        others[0].stream.cancel()
        wait_until(lambda: server._service.slots.taken == 4, "those that hung up are noticed")
        assert server.stop(60)
        for one in others[1:]:
            ended(one)
            assert one.why == ""


def test_a_stream_that_follows_goes_on_after_its_session_is_lost(shop: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "LOOK_S", 0.5)  # what happened while there was no session is not heard of
    write_orders(shop)
    with serving(shop) as (server, reader):
        one = Follower(reader)
        wait_until(lambda: one.batches, "the first batch")
        for session in server._service._sessions._open.values():
            session.close()
        last = write(shop, "UPDATE orders SET v = 77")
        wait_until(lambda: last in one.batches or one.why, "the next batch")
        if one.why:  # it asked when the session ended: the error says that the same call may succeed
            assert one.why == "FlightUnavailableError"
            one = Follower(reader)
            wait_until(lambda: last in one.batches, "the next batch")
        assert replayed(one.rows) == truth(shop)
        one.stream.cancel()


@pytest.mark.parametrize("wrong", [
    {"table": ["x"]}, {"columns": []}, {"from": {"batch": True}}, {"to": 2**63}, {"tables": ["["]}, {"x": 1},
    {"form": "all"}, {"to": "1"},
    {"predicate": {"column": "id", "is": "=", "value": 10**30}},
    {"predicate": {"column": "id", "is": "in", "values": [1, 10**400]}},
    {"predicate": {"column": "id", "is": "=", "values": [1]}}, {"predicate": {"column": "id", "is": "="}},
    {"predicate": {"column": "ID", "is": "null"}},
])  # fmt: skip
def test_a_ticket_with_what_is_wrong_is_refused_with_a_sentence(shop: Case, wrong: dict[str, Any]) -> None:
    write_orders(shop)
    ticket = json.dumps({"pipeline": "case", **wrong}).encode()
    with serving(shop) as (server, _), flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        for ask in (
            lambda: client.do_get(flight.Ticket(ticket)).read_all(),
            lambda: client.get_flight_info(flight.FlightDescriptor.for_command(ticket)),
            lambda: client.get_schema(flight.FlightDescriptor.for_command(ticket)),
        ):
            with pytest.raises(
                pa.ArrowException, match=r"cannot be read|cannot be compared|no table has|regular expression"
            ) as raised:
                ask()
            if isinstance(
                raised.value, flight.FlightError
            ):  # of GetSchema pyarrow makes an error of Arrow, with the sentence alone
                assert refused(raised.value) == {
                    "error": "ConfigError",
                    "name": "SLUICE-CONFIG-ERROR",
                    "retryable": False,
                }, raised.value
