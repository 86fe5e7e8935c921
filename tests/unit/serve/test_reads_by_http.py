"""The HTTP door of ``sluice serve``: documents replay to the source, streams go on where they broke off, errors say what to do."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import httpx
import pytest
import zstandard

from sluice.config.readers import hashed
from sluice.flows.operate.retention import prune
from sluice.flows.operate.stored import tail
from sluice.formats import FORMATS
from sluice.serve.access import Readers
from sluice.serve.service import Slots
from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import by_http, documents, replayed_events, shop_case, write
from tests.support.running.waiting import wait_until

CHANGES = "/pipelines/case/changes"


@pytest.fixture
def shop(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) -> Iterator[Case]:
    with shop_case(
        tmp_path, (twin_source, twin_target, twin_zookeeper), fresh_schema(twin_source, twin_target)
    ) as made:
        yield made


def write_orders(made: Case) -> list[int]:
    return [
        write(made, "INSERT INTO orders VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, NULL)"),
        write(made, "UPDATE orders SET v = v + 1 WHERE id < 3", "DELETE FROM orders WHERE id = 3"),
        write(made, "UPDATE orders SET id = 9 WHERE id = 1", "INSERT INTO orders VALUES (4, 40, 'é \"\\n')"),
    ]


def truth(made: Case, columns: str = "id, v, note") -> dict[Any, dict[str, Any]]:
    rows = made.source.execute(f"SELECT {columns} FROM {made.schema}.orders")
    return {row[0]: dict(zip(columns.split(", "), row, strict=True)) for row in rows}


def test_every_format_says_what_tail_says(shop: Case) -> None:
    write_orders(shop)
    with by_http(shop) as client:
        for name in FORMATS:
            told = [json.loads(line) for line in tail(shop.runtime(), fmt=name, from_batch=1, follow=False)]
            read = documents(client.get(CHANGES, params={"format": name}))
            assert len(read) >= 7
            rows = [_without_time(one) for one in told]
            assert all(_without_time(one) in rows for one in read), name


def _without_time(document: dict[str, Any]) -> dict[str, Any]:
    """What differs from one writing of a document to the next, and a change's place in its transaction, which a read does not ask for."""
    return {
        name: value for name, value in document.items() if name not in {"xoffset", "commit", "ts", "id", "transaction"}
    }


@pytest.mark.parametrize(("name", "unpacked"), [
    ("gzip", gzip.decompress),
    ("zstd", lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
])  # fmt: skip
def test_an_answer_is_compressed_as_the_client_likes(shop: Case, name: str, unpacked: Any) -> None:
    write_orders(shop)
    with by_http(shop) as client:
        plain = client.get(CHANGES, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        with client.stream("GET", CHANGES, headers={"accept-encoding": f"br, {name};q=0.5"}) as answer:
            assert answer.headers["content-encoding"] == name
            assert unpacked(b"".join(answer.iter_raw())) == plain.content


def events_of(answer: httpx.Response) -> Iterator[dict[str, str]]:
    """Server-sent events, as a browser takes them apart."""
    event: dict[str, str] = {}
    for line in answer.iter_lines():
        if not line:
            if "data" in event:
                yield event
            event = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = value


def test_server_sent_events_go_on_after_the_last_batch_that_was_had(shop: Case) -> None:
    write_orders(shop)
    events: list[dict[str, Any]] = []
    last, accept = "", {"accept": "text/event-stream"}
    slots = Slots()
    with by_http(shop, slots) as client:
        for count in (3, 5):  # events, then the connection is cut
            headers = accept | ({"last-event-id": last} if last else {})
            with client.stream("GET", CHANGES, params={"follow": True}, headers=headers) as answer:
                part: list[dict[str, Any]] = []
                for event in islice(events_of(answer), count):
                    if event.get("event") == "batch":
                        last = event["id"]
                        events, part = [*events, *part], []
                    else:
                        part.append(json.loads(event["data"]))
        wait_until(lambda: slots.taken == 0, "the end of reads whose client is gone")
        with client.stream("GET", CHANGES, params={"follow": True}, headers=accept | {"last-event-id": last}) as answer:
            coming = events_of(answer)
            writing = threading.Timer(1, lambda: write(shop, "INSERT INTO orders VALUES (77, 7, 'new')"))
            writing.start()
            for event in coming:
                if event.get("event") != "batch":
                    events.append(json.loads(event["data"]))
                    if events[-1]["after"] and events[-1]["after"]["id"] == 77:
                        break
            writing.join()
    assert replayed_events(events) == truth(shop)
    assert len(events) == len({json.dumps(one, sort_keys=True) for one in events})


def test_a_long_poll_waits_for_the_next_batch(shop: Case) -> None:
    first = write(shop, "INSERT INTO orders VALUES (1, 10, 'a')")
    with by_http(shop) as client:
        began = time.monotonic()
        nothing = client.get(CHANGES, params={"from_batch": first + 1, "wait": 1})
        assert time.monotonic() - began >= 1
        assert nothing.text == ""
        following = int(nothing.headers["sluice-next-batch"])
        writing = threading.Timer(1, lambda: write(shop, "INSERT INTO orders VALUES (2, 20, 'b')"))
        writing.start()
        found = client.get(CHANGES, params={"from_batch": following, "wait": 60})
        writing.join()
        assert [one["after"]["id"] for one in documents(found)] == [2]
        assert int(found.headers["sluice-next-batch"]) > following


def test_errors_say_what_to_do(shop: Case) -> None:
    numbers = write_orders(shop)
    slots = Slots(most=1, most_each=1)
    with by_http(shop, slots) as client:
        wrong = client.get(CHANGES, params={"columns": "nte"})
        assert (wrong.status_code, wrong.json()["title"]) == (400, "ConfigError")
        assert wrong.headers["content-type"] == "application/problem+json"
        assert "note" in wrong.json()["detail"]
        for params in (
            {"format": "xml"},
            {"from_batch": 0},
            {"from_batch": 1, "from_position": "b.1:4"},
            {"to": 1, "follow": True},
        ):
            assert client.get(CHANGES, params=params).status_code == 400, params  # type: ignore[arg-type]
        assert client.post("/changes", content=b" " * 10**6).status_code == 400
        give_back = slots.take("anybody")
        assert client.get(CHANGES).status_code == 429
        give_back()
        assert documents(client.get(CHANGES))
        rebound = client.get(
            CHANGES, headers={"host": "pages.example"}
        )  # as of a page whose name was pointed to this machine
        assert rebound.status_code == 400
        assert b"op" not in rebound.content
    shop.path.write_text(shop.yaml.replace("segments: {uri:", "segments: {retain: 0s, uri:"))
    assert numbers[-1] in prune(shop.runtime()).removed
    kept = write(shop, "UPDATE orders SET v = 0")
    with by_http(shop) as client:
        gone = client.get(CHANGES, params={"from_batch": numbers[0]})
        assert (gone.status_code, gone.json()["title"], gone.json()["oldest"]) == (410, "BatchesGone", kept)


def test_a_reader_gets_its_own_tables_only(shop: Case) -> None:
    shop.source.execute(f"CREATE TABLE {shop.schema}.people (id INT PRIMARY KEY)")
    write(shop, "INSERT INTO orders VALUES (1, 10, 'a')", "INSERT INTO people VALUES (5)")
    path = shop.folder / "readers.yaml"
    path.write_text(
        f"readers: [{{name: one, token_sha256: {hashed('mine')}, may_read: {{case: ['{shop.schema}\\.orders']}}}}]\n"
    )
    with by_http(shop, readers=Readers(path)) as client:
        for headers in ({}, {"authorization": "Bearer other"}):
            for place in ("/pipelines", "/pipelines/case/tables", CHANGES):
                refused = client.get(place, headers=headers)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == "Bearer"
            assert client.post("/changes", json={"pipeline": "case"}, headers=headers).status_code == 401
        mine = {"authorization": "Bearer mine"}
        assert [t["table"] for t in client.get("/pipelines/case/tables", headers=mine).json()["tables"]] == [
            f"{shop.schema}.orders"
        ]
        assert {one["source"]["table"] for one in documents(client.get(CHANGES, headers=mine))} == {"orders"}
        assert client.get(CHANGES, params={"tables": f"{shop.schema}.people"}, headers=mine).status_code == 403
        assert client.get("/pipelines/other/changes", headers=mine).status_code == 403
