"""The HTTP server of ``sluice serve`` on real servers: documents replay to the source, streams go on where they broke
off, errors say what to do.
"""

from __future__ import annotations

import json
import subprocess

import httpx
import pytest

from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import by_http, documents, replayed_events, write
from tests.support.readers.http_orders import truth, write_orders

CHANGES = "/pipelines/case/changes"


def test_documents_replay_to_the_source_although_columns_change(shop: Case) -> None:
    numbers = write_orders(shop)
    shop.source.execute(f"CREATE TABLE {shop.schema}.people (id INT PRIMARY KEY, name VARCHAR(20))")
    write(
        shop, "ALTER TABLE orders ADD more INT", "UPDATE orders SET more = id * 2", "INSERT INTO people VALUES (1, 'x')"
    )
    with by_http(shop) as client:
        assert client.get("/pipelines").json() == {"pipelines": ["case"]}
        listed = {one["table"]: one["columns"] for one in client.get("/pipelines/case/tables").json()["tables"]}
        assert [one["name"] for one in listed[f"{shop.schema}.orders"]] == ["id", "v", "note", "more"]
        answer = client.get(CHANGES)
        events = documents(answer)
        assert {one["source"]["table"] for one in events} == {"orders", "people"}
        orders = [one for one in events if one["source"]["table"] == "orders"]
        assert replayed_events(orders) == truth(shop, "id, v, note, more")
        assert int(answer.headers["sluice-next-batch"]) == shop.runtime().store.batches()[-1] + 1
        some = documents(client.get(CHANGES, params={"from_batch": numbers[1], "to": numbers[1], "columns": ["v"]}))
        assert [one["after"] and set(one["after"]) for one in some] == [{"v"}, {"v"}, None]
        ticket = {"pipeline": "case", "tables": [".*orders"], "predicate": {"column": "id", "is": "=", "value": 4}}
        marked = documents(client.post("/changes", json=ticket, params={"marks": True}))
        assert {one["after"]["id"] for one in marked if "op" in one} == {4}
        assert [one["batch"] for one in marked if "batch" in one] == sorted(
            one for one in shop.runtime().store.batches() if one >= min(numbers) - 1
        )


@pytest.mark.promise("G6")
def test_transactions_have_the_ids_of_the_source(shop: Case) -> None:
    """Begin and end of each, with its GTID, and gets of a size; at a server whose log has several tables in a
    transaction.
    """
    shop.source.execute(f"CREATE TABLE {shop.schema}.people (id INT PRIMARY KEY, name VARCHAR(20))")
    first = max(shop.runtime().store.batches(), default=0) + 1
    with shop.source.connect(shop.schema) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO orders VALUES (1, 10, 'a'), (2, 20, 'b')")
        cursor.execute("INSERT INTO people VALUES (1, 'x')")
        cursor.execute("UPDATE orders SET v = 11 WHERE id = 1")
        cursor.execute("COMMIT")
    write(shop, "DELETE FROM people")
    with by_http(shop) as client:
        asked = {"transactions": True, "from_batch": first}
        events = documents(client.get(CHANGES, params=asked))
        told = [one["status"] if "status" in one else one["source"]["table"] for one in events]
        assert told == ["BEGIN", "orders", "orders", "people", "orders", "END", "BEGIN", "people", "END"]
        gtids = [one["source"]["gtid"] for one in events if "source" in one]
        assert [one["id"] for one in events if "status" in one] == [gtids[0], gtids[0], gtids[-1], gtids[-1]]
        counts = {one["data_collection"]: one["event_count"] for one in events[5]["data_collections"]}
        assert counts == {f"{shop.schema}.orders": 3, f"{shop.schema}.people": 1}
        some = client.get(CHANGES, params={**asked, "max_rows": 1, "wait": "unlimited"})
        assert (
            documents(some)
            == events[: 6 if int(some.headers["sluice-next-batch"]) < shop.runtime().store.batches()[-1] + 1 else 9]
        )


def test_the_command_serves_by_http(shop: Case) -> None:
    write(shop, "INSERT INTO orders VALUES (1, 10, 'a')")
    command = shop.command("serve", "--port", "0", "--http-port", "0")
    with subprocess.Popen(command, env=shop.environment, cwd=shop.folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            address = next(line.split()[-1] for line in process.stderr if "http://" in line)
            said = subprocess.run(
                ["curl", "-sS", "--compressed", f"{address}/v1{CHANGES}?tables={shop.schema}.orders"],
                check=True, capture_output=True, text=True,
            ).stdout  # fmt: skip
            assert [json.loads(line)["after"]["id"] for line in said.splitlines()] == [1]
            described = httpx.get(f"{address}/openapi.json").json()
            assert {
                "/v1/pipelines",
                "/v1/pipelines/{pipeline}/tables",
                "/v1/pipelines/{pipeline}/changes",
                "/v1/changes",
            } == set(described["paths"])
            names = {one["name"] for one in described["paths"]["/v1/pipelines/{pipeline}/changes"]["get"]["parameters"]}
            assert {"from", "from_batch", "tables", "format", "wait", "follow"} <= names
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()
