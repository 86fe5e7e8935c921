"""The HTTP server of ``sluice serve``: documents replay to the source, streams go on where they broke off, errors say
what to do.
"""

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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.config.readers import hashed
from sluice.formats import FORMATS
from sluice.operations.retention import prune
from sluice.operations.stored import tail
from sluice.serve.access import Readers
from sluice.serve.service import Slots
from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import by_http, documents, replayed_events, write
from tests.support.readers.http_orders import truth, write_orders
from tests.support.running.waiting import wait_until

CHANGES = "/pipelines/case/changes"


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_tail_prints_no_masked_column(shop: Case, name: str) -> None:
    """Nor its type; a masked key, too."""
    write_orders(shop)
    with shop.path.open("a", encoding="utf-8") as file:
        file.write('masked: [".*\\\\.orders\\\\.(id|note)"]\n')
    lines = list(tail(shop.runtime(), fmt=name, from_batch=1, follow=False))
    assert any('"v":20' in line.replace(" ", "") or '"v":"20"' in line.replace(" ", "") for line in lines)
    rows = [line for line in lines if "CREATE" not in line]
    assert not any('"note"' in line or '"id":9' in line.replace(" ", "") or '"é' in line for line in rows)


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
    """What differs from one writing of a document to the next, and a change's place in its transaction, which a read
    does not ask for.
    """
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


NAMES = (
    "tables", "from", "from_batch", "from_timestamp", "from_position", "to", "follow", "columns", "format", "marks",
    "wait", "on_lost_batches", "transactions", "piece_rows", "piece_bytes", "max_rows", "max_bytes",
)  # fmt: skip
BIG = (2**63, 2**64, 10**19, 10**30, 10**75, 10**76, 10**400, -(2**63) - 1, -(10**30))


@pytest.fixture
def filled(shop: Case) -> Iterator[httpx.Client]:
    write_orders(shop)
    with by_http(shop, Slots(most=4, most_each=4)) as client:
        yield client


def said_to(answer: httpx.Response) -> str:
    """The sentence of a refusal; what is refused is the client's fault."""
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text)
    problem = answer.json()
    assert problem["retryable"] is False
    return str(problem["detail"])


NOT_READ = [
    ("table=x.orders", "tables"), ("from_batchs=9", "from_batch"), ("colums=id", "columns"), ("From=latest", "from"),
    ("folow=true", "follow"),
    ("nonsense=1", ""), ("%20tables=x", "tables"), ("tables[]=x", "tables"), ("from_=latest", "from"),
    ("predicate=1", ""),
]  # fmt: skip
"""Parameters that nothing reads, and the one that is meant."""
WRONG = [
    "to=1&to=900", "from_batch=2&from_batch=1", "follow=false&follow=true", "from=latest&from_batch=1",
    "from=snapshot&from_position=b.1:4",
    "columns=", "tables=", "to=", "follow=", "from_batch=", "from_batch=1.5", "to=-1", "wait=nan", "wait=inf",
    "wait=2592001", "wait=long", "from_position=9", "piece_rows=0", "piece_bytes=-1", "max_rows=0", "max_bytes=1.5",
    "follow=true&max_rows=1",
    "transactions=2",
    "transactions=true&format=canal-json",
    "from_timestamp=yesterday", "from_timestamp=2026-01-01", "on_lost_batches=go", f"to={2**63}",
    f"from_batch={10**40}", "to=0x10", "marks=2",
]  # fmt: skip


def test_a_parameter_that_is_not_read_is_refused(filled: httpx.Client) -> None:
    for query, meant in NOT_READ:
        said = said_to(filled.get(f"{CHANGES}?{query}"))
        assert not meant or f"did you mean '{meant}'" in said, query
        assert said_to(filled.post(f"/changes?{query}", json={"pipeline": "case"})), query
        for place in ("/pipelines", "/pipelines/case/tables"):
            assert said_to(filled.get(f"{place}?{query}")), query


def test_a_parameter_that_is_wrong_is_refused(filled: httpx.Client) -> None:
    for query in WRONG:
        assert said_to(filled.get(f"{CHANGES}?{query}")), query


def test_a_ticket_with_what_is_not_read_is_refused(filled: httpx.Client) -> None:
    for wrong in (
        {"table": ["x"]}, {"columns": []}, {"from": {"batchs": 1}}, {"from": {"batch": True}}, {"from": {"batch": "1"}},
        {"to": True},
        {"predicate": {"column": "id", "is": "="}}, {"predicate": {"column": "id", "is": "in", "value": 1}},
        {"predicate": {"column": "id", "is": "=", "value": 1, "values": [2]}},
        {"predicate": {"column": "id", "is": "null", "value": 1}},
        {"predicate": {"column": "id", "is": "=", "value": 1, "or": []}}, {"predicate": {"all": []}},
        {"predicate": {"column": "nix", "is": "null"}},
    ):  # fmt: skip
        assert said_to(filled.post("/changes", json={"pipeline": "case", **wrong})), wrong
    assert "did you mean 'tables'" in said_to(filled.post("/changes", json={"pipeline": "case", "table": ["x"]}))
    assert "more than once" in said_to(filled.post("/changes", content=b'{"pipeline": "case", "to": 1, "to": 900}'))
    for deep in (b'{"pipeline": "case", "predicate": ' + b'{"all": [' * 5000, b"[" * 60_000, b"\xff", b"", b"null"):
        assert said_to(filled.post("/changes", content=deep))


def test_a_number_beyond_64_bits_is_compared_or_refused(filled: httpx.Client) -> None:
    for number in BIG:
        for column in ("id", "v", "note"):
            for how in (
                {"is": "=", "value": number},
                {"is": "in", "values": [1, number]},
                {"is": "<", "value": number},
            ):
                answer = filled.post("/changes", json={"pipeline": "case", "predicate": {"column": column, **how}})
                if answer.status_code != 200:
                    assert "cannot be compared" in said_to(answer), number


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_query_or_ticket_gives_an_error_of_the_service_or_a_wider_read(
    filled: httpx.Client, data: st.DataObject
) -> None:
    """An answer of 200 has lines of JSON, and no change that the parts of the request that are right would leave
    out.
    """
    values = st.one_of(
        st.sampled_from([
            "",
            "1",
            "2",
            "0",
            "-1",
            "true",
            "latest",
            "snapshot",
            "id",
            "v",
            "stop",
            "[",
            "a.b",
            "NaN",
            "1e400",
            "9" * 30,
            "9" * 5000,
        ]),
        st.text(max_size=8),
    )
    names = st.one_of(st.sampled_from(NAMES), st.sampled_from([f"{name}x" for name in NAMES]), st.text(max_size=6))
    query = [
        one
        for one in data.draw(st.lists(st.tuples(names, values), max_size=4))
        if one != ("follow", "true") and one != ("follow", "1")
    ]
    query = [
        (name.encode("utf-8", "replace").decode(), value.encode("utf-8", "replace").decode())
        for name, value in query
        if name != "wait"
    ]
    checked(
        filled.get(CHANGES, params=[*query, ("to", "1")] if all(name != "to" for name, _ in query) else query), query
    )
    plain = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**40), 10**40),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["id", "v", "note"]),
    )
    nested = st.recursive(
        plain,
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(["column", "is", "value", "values", "all", "any", "batch", "position", "x"]),
                inner,
                max_size=3,
            )
        ),
        max_leaves=6,
    )
    keys = st.sampled_from(["tables", "from", "to", "columns", "predicate", "form", "on_lost_batches", "table", "x"])
    ticket = {"pipeline": "case", **data.draw(st.dictionaries(keys, nested, max_size=3))}
    checked(filled.post("/changes", content=json.dumps(ticket).encode("utf-8", "replace")), ticket)


def checked(answer: httpx.Response, asked: Any) -> None:
    if answer.status_code != 200:
        assert said_to(answer), asked
        return
    read = documents(answer)
    given = asked if isinstance(asked, dict) else dict(asked)
    known = {*NAMES, "pipeline", "predicate", "form"}
    assert set(given) <= known, asked
    columns = given.get("columns")
    for one in read:
        if columns is not None:
            assert (
                set(one["after"] or one["before"]) <= {*columns} | {columns}
                if isinstance(columns, str)
                else set(columns)
            ), asked
