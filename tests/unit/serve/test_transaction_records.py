"""Records of transactions: a reader that asks for them gets each transaction whole, between its begin and its end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from sluice.client import subscribe
from sluice.serve import in_order
from sluice.serve.transaction_records import BEGIN, END, RECORD, with_records
from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import Exchanger, by_http, documents, serving, shop_case, write

CHANGES = "/pipelines/case/changes"
_SCHEMA = pa.schema([
    ("id", pa.int64()), ("_table", pa.string()), ("_op", pa.string()), ("_seq", pa.uint64()),
    ("_commit_ts", pa.timestamp("us", tz="UTC")),
    ("_file", pa.string()), ("_offset", pa.uint64()), ("_gtid", pa.string()), ("_txn", pa.uint64()),
    (RECORD, pa.string()),
])  # fmt: skip


@pytest.fixture
def shop(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) -> Iterator[Case]:
    with shop_case(
        tmp_path, (twin_source, twin_target, twin_zookeeper), fresh_schema(twin_source, twin_target)
    ) as made:
        made.source.execute(f"CREATE TABLE {made.schema}.items (id INT PRIMARY KEY, n INT NOT NULL)")
        made.make_missing()
        made.run_until_head()
        yield made


_TABLE = st.sampled_from(["a.b", "a.c", "x.y.z"])
_TRANSACTIONS = st.lists(st.lists(st.tuples(_TABLE, st.sampled_from("iudr")), min_size=1, max_size=6), max_size=12)


@given(_TRANSACTIONS, st.integers(1, 5), st.booleans(), st.randoms())
def test_each_transaction_is_whole_between_its_records(
    transactions: list[list[tuple[str, str]]], window: int, gtids: bool, random: Any
) -> None:
    """However windows cut them, and in whatever order the tables' rows are read."""
    rows, expected, seq = [], [], 0
    for number, changes in enumerate(transactions):
        logged = [table for table, op in changes if op != "r"]
        gtid = f"u:{number}" if gtids else None
        for place, (table, op) in enumerate(changes):
            row = {"id": seq, "_table": table, "_op": op, "_seq": seq, "_commit_ts": number, "_file": "f",
                "_offset": 100 * number,
                   "_gtid": gtid, "_txn": number}  # fmt: skip
            rows.append(row)
            if op != "r" and not any(one != "r" for _, one in changes[:place]):
                expected.append((BEGIN, number, None))
            expected.append((op, number, seq))
            if op != "r" and not any(one != "r" for _, one in changes[place + 1 :]):
                expected.append((END, number, dict(Counter(logged))))
            seq += 1
    by_table: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_table.setdefault(row["_table"], []).append(row)
    pieces = [pa.RecordBatch.from_pylist(found, schema=_SCHEMA) for found in by_table.values()]
    random.shuffle(pieces)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(in_order, "WINDOW_ROWS", window)
        given = [row for piece in with_records(pieces, RECORD) for row in piece.to_pylist()]
    found = []
    for row in given:
        if row["_op"] in {BEGIN, END}:
            said = json.loads(row[RECORD])
            assert row["id"] is None
            assert row["_table"] == ""
            assert said["id"] == (row["_gtid"] or f"file=f,pos={100 * row['_txn']}")
            assert said["status"] == ("BEGIN" if row["_op"] == BEGIN else "END")
            counts = {one["data_collection"]: one["event_count"] for one in said["data_collections"] or []}
            assert said["event_count"] == (sum(counts.values()) or None)
            found.append((row["_op"], row["_txn"], counts or None))
        else:
            assert row[RECORD] is None
            found.append((row["_op"], row["_txn"], row["id"]))
    reads = [one for one in found if one[0] == "r"]
    assert [one for one in found if one[0] != "r"] == [one for one in expected if one[0] != "r"]
    assert sorted(reads) == sorted(one for one in expected if one[0] == "r")


def write_transactions(made: Case) -> int:
    """Three transactions, two of them over both tables; the number of the first batch with them."""
    first = made.runtime().store.batches()[-1] + 1
    write(
        made,
        "BEGIN", "INSERT INTO items VALUES (1, 10)", "INSERT INTO orders VALUES (1, 1, 'a'), (2, 2, 'b')",
        "UPDATE items SET n = 11", "COMMIT",
        "UPDATE orders SET v = 3 WHERE id = 1",
        "BEGIN", "UPDATE orders SET id = 9 WHERE id = 1", "DELETE FROM items", "COMMIT",
    )  # fmt: skip
    return first


def shown(rows: list[dict[str, Any]]) -> list[Any]:
    """Rows and records in short."""
    found: list[Any] = []
    for row in rows:
        if row["_op"] in {BEGIN, END}:
            said = json.loads(row["_transaction"])
            counts = {
                one["data_collection"].split(".")[1]: one["event_count"] for one in said["data_collections"] or []
            }
            found.append((said["status"], counts) if counts else said["status"])
        else:
            found.append((row["_op"], row["_table"].split(".")[1], row["id"]))
    return found


WHOLE = [
    "BEGIN", ("i", "items", 1), ("i", "orders", 1), ("i", "orders", 2), ("u", "items", 1),
    ("END", {"items": 2, "orders": 2}),
    "BEGIN", ("u", "orders", 1), ("END", {"orders": 1}),
    "BEGIN", ("u", "orders", 9), ("d", "items", 1), ("END", {"items": 1, "orders": 1}),
]  # fmt: skip


@pytest.mark.promise("G6")
def test_begin_and_end_are_records_by_flight_and_in_python(shop: Case) -> None:
    number = write_transactions(shop)
    with serving(shop) as (server, reader):
        read = reader.read(from_={"batch": number}, transactions=True)
        assert shown(read.rows()) == WHOLE
        begin, first = read.rows()[:2]
        assert {name: begin[name] for name in ("_batch", "_seq", "_gtid", "_txn", "_commit_ts")} == {
            name: first[name] for name in ("_batch", "_seq", "_gtid", "_txn", "_commit_ts")
        }
        assert all(begin[name] is None for name in ("id", "v", "note", "n", "_before", "_present"))
        asked = flight.FlightDescriptor.for_command(json.dumps({"pipeline": "case", "transactions": True}))
        assert reader.client.get_schema(asked).schema == read.schema
        one = reader.read(from_={"batch": number}, transactions=True, tables=[".*items"], columns=["n"], piece_rows=2)
        assert [piece.num_rows for piece in one.pieces] == [2, 2, 2, 1]
        assert one.schema.field("n").nullable, "a record has no values"
        assert [row["_op"] for row in one.rows()] == ["b", "i", "u", "e", "b", "d", "e"], (
            "what is not sent does not count"
        )
        few = {"column": "v", "is": "=", "value": 3}
        chosen = reader.read(from_={"batch": number}, transactions=True, predicate=few, tables=[".*orders"])
        assert [row["_op"] for row in chosen.rows()] == ["b", "u", "e", "b", "u", "e"]
        named = Exchanger(reader, transactions=True, from_={"batch": number})
        named.until(shop.runtime().store.batches()[-1])
        named.leave()
        assert shown(named.rows) == WHOLE
        address = f"grpc://127.0.0.1:{server.port}"
        batches = subscribe(address, "case", start={"batch": number}, transactions=True, follow=False)
        assert shown([row for batch in batches for row in batch.rows.to_pylist()]) == WHOLE
        with pytest.raises(flight.FlightServerError, match="leave out transactions, or form"):
            reader.read(transactions=True, form="merged")
        plain = reader.read(from_={"batch": number})
        assert "_transaction" not in plain.schema.names
        assert {row["_op"] for row in plain.rows()} == {"i", "u", "d"}


def in_short(events: list[dict[str, Any]]) -> list[Any]:
    """Documents and events of transactions in short."""
    found: list[Any] = []
    for one in events:
        if "status" in one:
            counts = {
                each["data_collection"].split(".")[1]: each["event_count"] for each in one["data_collections"] or []
            }
            found.append((one["status"], counts) if counts else one["status"])
        else:
            found.append((one["op"], one["source"]["table"], (one["after"] or one["before"])["id"]))
    return found


@pytest.mark.promise("G6")
def test_begin_and_end_are_documents_by_http(shop: Case) -> None:
    number = write_transactions(shop)
    whole = [
        "BEGIN", ("c", "items", 1), ("c", "orders", 1), ("c", "orders", 2), ("u", "items", 1),
        ("END", {"items": 2, "orders": 2}),
        "BEGIN", ("u", "orders", 1), ("END", {"orders": 1}),
        "BEGIN", ("d", "orders", 1), ("c", "orders", 9), ("d", "items", 1), ("END", {"items": 1, "orders": 2}),
    ]  # fmt: skip
    with by_http(shop) as http:
        asked = {"transactions": True, "from_batch": number}
        assert in_short(documents(http.get(CHANGES, params=asked))) == whole
        ticket = {"pipeline": "case", "transactions": True, "from": {"batch": number}, "piece_rows": 2}
        assert in_short(documents(http.post("/changes", json=ticket))) == whole
        events = http.get(CHANGES, params=asked, headers={"Accept": "text/event-stream"}).text.split("\n\n")
        said = [json.loads(one.removeprefix("data: ")) for one in events if one.startswith("data: ")]
        assert in_short(said) == whole
        clouds = documents(http.get(CHANGES, params={**asked, "format": "cloudevents-json"}))
        assert [one["status"] for one in clouds if "status" in one] == ["BEGIN", "END"] * 3
        _refused(http, {**asked, "format": "maxwell-json"}, "maxwell-json has no records of transactions")
        _refused(http, {**asked, "format": "canal-json"}, "choose one of debezium-json, cloudevents-json")


def _refused(http: httpx.Client, query: dict[str, Any], why: str) -> None:
    answer = http.get(CHANGES, params=query)
    assert answer.status_code == 400
    assert why in answer.json()["detail"]
