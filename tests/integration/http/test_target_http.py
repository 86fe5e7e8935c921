"""The HTTP target against a receiver on the loopback: answers that refuse, ask for patience or redirect; logins;
signatures; the order; repeats.
"""

from __future__ import annotations

import base64
import hmac
import itertools
import json
import os
import re
import signal
import ssl
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pyarrow as pa
import pytest

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, LoadError, MappingError, SluiceError, TargetUnavailable
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.http.target import HttpTarget
from sluice.targets.port import Rejection
from sluice.testing.targets import Op, Pipe, changed, gone, new, people
from tests.support.benches.http_bench import HttpBench
from tests.support.crashes import http_child
from tests.support.crashes.strikes import children as children_of
from tests.support.servers.certificates import self_signed
from tests.support.servers.http_receiver import OK, Got, Receiver, Reply
from tests.support.twins.pipes import Pipe as FlowPipe
from tests.support.twins.serverless import serverless

SECRET = "client-secret-of-the-test"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


def made_of(
    receiver: Receiver, ops: list[Op], changes: str = "latest", *, extra: dict[str, Any] | None = None, **options: Any
) -> tuple[HttpBench, Pipe, Any, TableSchema]:
    """A bench, its pipe, a batch of these rows of people, and the table."""
    bench = HttpBench(receiver, changes, options)
    if extra is not None:
        bench.connection = Endpoint("target", "http", receiver.url, extra=extra)
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    return bench, pipe, pipe.given([(table, ops)]), table


@dataclass
class Letters:
    kept: list[Rejection] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)

    def __call__(self, part: str, table: TableId, rejected: Any) -> None:
        self.parts.append(part)
        self.kept += rejected


def emails(got: Got) -> list[Any]:
    return [document["after"] and document["after"]["email"] for document in got.documents]


def ids(requests: list[Got]) -> list[int]:
    return [document["after"]["id"] for got in requests for document in got.documents]


def refuses_bad(got: Got) -> Reply:
    return Reply(422, body=b"bad email") if "bad" in emails(got) else OK


# -- refused rows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 3, 100])
def test_a_refused_row_is_a_dead_letter_and_the_others_arrive(receiver: Receiver, most: int) -> None:
    receiver.answer = refuses_bad
    rows = [new(n, "bad" if n in {3, 17} else f"m{n}", n) for n in range(20)]
    _, pipe, batch, _ = made_of(receiver, rows, batch={"max_rows": most})
    letters = Letters()
    pipe.write(batch, rejected=letters)
    assert sorted(one.row["id"][0].as_py() for one in letters.kept) == [3, 17]
    assert {one.where for one in letters.kept} == {"422"}
    assert all("bad email" in one.reason for one in letters.kept)
    assert letters.parts == ["http-shop.people"]
    assert Counter(ids(receiver.taken)) == Counter(n for n in range(20) if n not in {3, 17})
    assert pipe.held == 1


STREAM_LOAD: dict[str, Any] = {
    "idempotency_header": "label", "idempotency_form": "label", "success": {"field": "Status", "equals": ["Success"]}
}  # fmt: skip


def test_a_refusal_with_200_is_told_by_the_body(receiver: Receiver) -> None:
    """As a stream load answers: 200, and its Status."""

    def answer(got: Got) -> Reply:
        status = "Fail" if "bad" in emails(got) else "Success"
        return Reply(200, body=json.dumps({"Status": status, "Message": "bad email"}).encode())

    receiver.answer = answer
    rows = [new(n, "bad" if n == 7 else "m", n) for n in range(20)]
    _, pipe, batch, _ = made_of(receiver, rows, **STREAM_LOAD)
    letters = Letters()
    pipe.write(batch, rejected=letters)
    assert [(one.row["id"][0].as_py(), one.where) for one in letters.kept] == [(7, "200")]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,128}", got.headers["label"]) for got in receiver.asked)
    assert len({got.headers["label"] for got in receiver.asked}) == len({got.body for got in receiver.asked})
    _, pipe, batch, _ = made_of(receiver, rows, **STREAM_LOAD)
    with pytest.raises(LoadError, match=r'a row of shop\.people is refused, key \{"id":7\}: the receiver answers 200'):
        pipe.write(batch)


@pytest.mark.parametrize("body", [b"", b"Success", b"[]", b'{"Status": null}', b'{"status": "Success"}'])
def test_an_answer_that_does_not_say_it_is_a_refusal(receiver: Receiver, body: bytes) -> None:
    receiver.answer = lambda got: Reply(200, body=body)
    _, pipe, batch, _ = made_of(receiver, [new(1, "a", 1)], **STREAM_LOAD)
    with pytest.raises(LoadError, match="is refused"):
        pipe.write(batch)
    assert pipe.held == 0


def test_without_dead_letters_a_refused_row_stops_the_batch_and_is_named(receiver: Receiver) -> None:
    receiver.answer = refuses_bad
    _, pipe, batch, _ = made_of(receiver, [new(n, "bad" if n == 7 else "m", n) for n in range(20)])
    with pytest.raises(
        LoadError, match=r'a row of shop\.people is refused, key \{"id":7\}: the receiver answers 422: bad email'
    ):
        pipe.write(batch)
    assert pipe.held == 0


def test_with_every_change_nothing_of_a_row_goes_past_a_refused_change(receiver: Receiver) -> None:
    receiver.answer = refuses_bad
    ops = [new(1, "a", 0), changed((1, "a", 0), (1, "bad", 1)), changed((1, "bad", 1), (1, "c", 2))]
    _, pipe, batch, _ = made_of(receiver, ops, "all")
    with pytest.raises(LoadError, match=r"is refused"):
        pipe.write(batch, rejected=Letters())
    assert [one for got in receiver.taken for one in emails(got)] == ["a"]


def test_a_request_too_large_for_the_receiver_is_halved(receiver: Receiver) -> None:
    receiver.answer = lambda got: Reply(413) if len(got.documents) > 3 else OK
    for changes in ("latest", "all"):
        receiver.taken.clear()
        _, pipe, batch, _ = made_of(receiver, [new(n, "m", n) for n in range(20)], changes, concurrency=1)
        pipe.write(batch)
        assert ids(receiver.taken) == list(range(20))
        assert max(len(got.documents) for got in receiver.taken) <= 3


# -- patience ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        Reply(503), Reply(500), Reply(408), Reply(429, {"Retry-After": "0"}), Reply(425),
        Reply(503, {"Retry-After": format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)}),
        Reply(429, {"Retry-After": "soon"}),
        Reply(500, silent=True), Reply(200, silent=True),
    ],
    ids=lambda reply: f"{reply.status}{reply.silent}{dict(reply.headers)}"[:40],
)  # fmt: skip
def test_a_request_is_sent_again_with_the_same_key(receiver: Receiver, reply: Reply) -> None:
    calls = itertools.count()
    receiver.answer = lambda got: reply if next(calls) < 2 else OK
    bench, pipe, batch, table = made_of(receiver, [new(1, "a", 1)])
    pipe.take_over()
    [[unit]] = pipe.writer(batch).plan(1)
    assert unit.write().retries == 2
    assert len(receiver.asked) == 3
    assert len({(got.key, got.body) for got in receiver.asked}) == 1
    assert pipe.state(table) == Counter([(1, "a", 1)])
    assert len({one.id for one in bench.received()}) == 1


def test_a_conflict_after_a_request_without_an_answer_is_waited_for(receiver: Receiver) -> None:
    replies = iter([Reply(200, silent=True), Reply(409), OK])
    receiver.answer = lambda got: next(replies)
    _, pipe, batch, _ = made_of(receiver, [new(1, "a", 1)])
    pipe.write(batch, rejected=Letters())
    assert len(receiver.asked) == 3
    receiver.answer = lambda got: Reply(409)
    letters = Letters()
    pipe.write(pipe.given([(people("shop"), [new(2, "b", 1)])]), rejected=letters)
    assert [one.where for one in letters.kept] == ["409"], "a conflict at first sight is about the row"


@pytest.mark.parametrize(
    ("reply", "said"),
    [(Reply(503), "answers 503"), (Reply(429, {"Retry-After": "3600"}), "asks to wait for 3600 s"),
        (Reply(500, silent=True), "does not answer")],
    ids=["503", "429", "silent"],
)  # fmt: skip
def test_after_retry_for_the_task_fails_and_may_be_retried(receiver: Receiver, reply: Reply, said: str) -> None:
    receiver.answer = lambda got: reply
    _, pipe, batch, _ = made_of(receiver, [new(1, "a", 1)], retry_for="1s")
    with pytest.raises(TargetUnavailable, match=said):
        pipe.write(batch, rejected=Letters())


def test_an_answer_that_never_ends_is_given_up(receiver: Receiver) -> None:
    over = threading.Event()

    def never(got: Got) -> Reply:
        over.wait(60)
        return OK

    receiver.answer = never
    _, pipe, batch, _ = made_of(receiver, [new(1, "a", 1)], timeout="200ms", retry_for="0s")
    try:
        with pytest.raises(TargetUnavailable, match=r"does not answer within 0.2 s"):
            pipe.write(batch)
    finally:
        over.set()


def test_a_receiver_that_is_not_there(receiver: Receiver) -> None:
    _, pipe, batch, _ = made_of(receiver, [new(1, "a", 1)], retry_for="0s")
    receiver.close()
    with pytest.raises(TargetUnavailable, match=r"does not answer"):
        pipe.write(batch)


@pytest.mark.parametrize(
    ("reply", "error", "said"),
    [
        (Reply(401, body=b"who?"), ConfigError, "answers 401: who?"),
        (Reply(403), ConfigError, "answers 403"),
        (Reply(302, {"Location": "http://elsewhere.example/"}), ConfigError,
            "sends it elsewhere: http://elsewhere.example/"),
        (Reply(404), LoadError, "answers 404"),
        (Reply(405), LoadError, "answers 405"),
        (Reply(501), LoadError, "answers 501"),
    ],
)  # fmt: skip
def test_answers_about_the_address_stop_at_once(
    receiver: Receiver, reply: Reply, error: type[SluiceError], said: str
) -> None:
    receiver.answer = lambda got: reply
    _, pipe, batch, _ = made_of(receiver, [new(n, "a", 1) for n in range(5)], concurrency=1)
    letters = Letters()
    with pytest.raises(error, match=said):
        pipe.write(batch, rejected=letters)
    assert len(receiver.asked) == 1
    assert not letters.kept


# -- what a request says -----------------------------------------------------------------------------------------------


def test_rows_as_resources(receiver: Receiver) -> None:
    """Methods of their own, the key in the path, and a row that is gone already."""
    receiver.answer = lambda got: Reply(404) if got.method == "DELETE" else OK
    columns = (
        Column("code", ColumnKind.VARCHAR, "varchar(20)", nullable=False, charset="utf8mb4"),
        Column("n", ColumnKind.INT, "int"),
    )
    table = TableSchema(TableId("shop", "ar/ti cles"), columns, ("code",))
    bench = HttpBench(
        receiver,
        options={
            "path": "/v1/{table}/{key}?op={op}",
            "methods": {"update": "PUT", "delete": "DELETE"},
            "batch": {"max_rows": 1},
            "headers": {"X-Table": "{schema}.{table}"},
            "concurrency": 1,
        },
    )
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, [new("a/ü", 1), changed(("b", 1), ("b?", 2)), changed(("c", 1), ("c", 2)), gone("d", 1)]))
    asked = [(got.method, got.path) for got in receiver.asked]
    assert asked == [
        ("POST", "/v1/ar%2Fti%20cles/a%2F%C3%BC?op=insert"),
        ("DELETE", "/v1/ar%2Fti%20cles/b?op=delete"),
        ("POST", "/v1/ar%2Fti%20cles/b%3F?op=insert"),
        ("PUT", "/v1/ar%2Fti%20cles/c?op=update"),
        ("DELETE", "/v1/ar%2Fti%20cles/d?op=delete"),
    ]
    assert {got.headers["x-table"] for got in receiver.asked} == {"shop.ar%2Fti%20cles"}
    assert {got.body for got in receiver.asked if got.method == "DELETE"} == {b""}


def test_a_body_around_documents(receiver: Receiver) -> None:
    body = {
        "events": "{documents}",
        "from": "{pipeline}.{target}",
        "n": ["{count}", 1, None],
        "key": "{idempotency_key}",
    }
    _, pipe, batch, _ = made_of(receiver, [new(1, "ü", 1), new(2, "b", 2)], body=body, concurrency=1)
    pipe.write(batch)
    [got] = receiver.taken
    found = json.loads(got.body)
    assert [one["after"]["id"] for one in found.pop("events")] == [1, 2]
    assert found == {"from": "p.copy", "n": ["2", 1, None], "key": got.key}
    assert got.headers["content-type"] == "application/json"
    assert (got.headers["sluice-batch"], got.headers["sluice-epoch"]) == ("1", "1")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"batch": {"lines": True}}, "application/x-ndjson"),
        ({"format": "cloudevents-json"}, "application/cloudevents-batch+json; charset=UTF-8"),
        ({"format": "cloudevents-json", "batch": {"max_rows": 1}}, "application/cloudevents+json; charset=UTF-8"),
        ({"format": "maxwell-json"}, "application/json"),
        ({"format": "canal-json"}, "application/json"),
    ],
)  # fmt: skip
def test_forms_of_a_body(receiver: Receiver, options: dict[str, Any], kind: str) -> None:
    _, pipe, batch, _ = made_of(receiver, [new(1, "a", 1), gone(2, "b", 2)], concurrency=1, **options)
    pipe.write(batch)
    assert {got.headers["content-type"] for got in receiver.taken} == {kind}
    lines = options.get("batch", {}).get("lines")
    found = [
        one for got in receiver.taken for one in (map(json.loads, got.body.splitlines()) if lines else got.documents)
    ]
    assert len(found) == 2
    if "cloudevents" in kind:
        assert len({one["id"] for one in found}) == 2


def test_keys_tell_requests_apart_that_say_other_things(receiver: Receiver) -> None:
    """Also rows of one statement, rows of a dump, other sizes of requests, another state of the pipeline with the same
    numbers.
    """
    table = people("shop")
    bodies: dict[str, set[bytes]] = {}
    for concurrency, most in ((1, 2), (1, 3), (4, 2), (4, 500)):
        bench = HttpBench(receiver, options={"concurrency": concurrency, "batch": {"max_rows": most}})
        bench.create_table(table)
        pipe = Pipe(bench)
        batch = pipe.given([(table, [new(n, f"m{n}", n) for n in range(12)])])
        [one] = batch.tables
        [file] = one.files
        same = file.data.set_column(  # type: ignore[attr-defined]
            file.data.schema.get_field_index("_seq"),
            "_seq",
            pa.array([0] * 12, pa.uint64()),  # type: ignore[attr-defined]
        )
        whole = replace(batch, tables=(replace(one, files=(replace(file, data=same),)),))  # type: ignore[type-var]
        pipe.write(whole)
        pipe.write(replace(whole, number=2, held=1))
        pipe.write(replace(whole, position=pipe.position(77)))
        pipe.write(replace(whole, replay="letter-1"))
    for got in receiver.taken:
        bodies.setdefault(got.key, set()).add(got.body)
    assert all(len(found) == 1 for found in bodies.values())
    per_way = Counter(got.key for got in receiver.taken)
    assert len(bodies) > 4 * 12, "a key was used for other rows"
    assert max(per_way.values()) <= 2  # (4, 2) and (4, 500) may have a request in common
    assert all(len(key) <= 200 and key.isascii() for key in bodies)


# -- logins ------------------------------------------------------------------------------------------------------------


@dataclass
class Tokens:
    """A token endpoint beside the receiver's paths."""

    valid: str = "token-0001-of-the-test"
    given: list[dict[str, list[str]]] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    reply: Reply | None = None

    def __call__(self, got: Got) -> Reply:
        if got.path == "/token":
            self.given.append(parse_qs(got.body.decode()))
            self.logins.append(got.headers.get("authorization", ""))
            return self.reply or Reply(
                body=json.dumps({"access_token": self.valid, "token_type": "Bearer", "expires_in": 3600}).encode()
            )
        good = got.headers.get("authorization") == f"Bearer {self.valid}"
        return OK if good else Reply(401, body=f"{got.headers.get('authorization')} is over".encode())


def with_oauth(receiver: Receiver, **more: Any) -> dict[str, Any]:
    return {
        "oauth2_token_url": f"{receiver.url}/token",
        "oauth2_client_id": "sluice:1",
        "oauth2_client_secret": SECRET,
        **more,
    }


def test_an_access_token_is_kept_and_a_new_one_is_got_when_it_is_refused(receiver: Receiver) -> None:
    tokens = receiver.answer = Tokens()
    rows = [new(n, "a", n) for n in range(30)]
    _, pipe, batch, table = made_of(
        receiver, rows, extra=with_oauth(receiver, oauth2_scope="events write"), batch={"max_rows": 1}
    )
    pipe.write(batch)
    assert len(tokens.given) == 1
    assert tokens.given[0] == {"grant_type": ["client_credentials"], "scope": ["events write"]}
    assert base64.b64decode(tokens.logins[0].removeprefix("Basic ")).decode() == f"sluice%3A1:{SECRET}"
    tokens.valid = "token-0002-of-the-test"
    pipe.deliver((table, [new(40, "a", 1)]))
    assert len(tokens.given) == 2
    assert len(ids([got for got in receiver.taken if got.path != "/token"])) == 31


def test_client_credentials_in_the_body(receiver: Receiver) -> None:
    tokens = receiver.answer = Tokens()
    extra = with_oauth(receiver, oauth2_auth="body", oauth2_audience="https://a.example")
    _, pipe, batch, _ = made_of(receiver, [new(1, "a", 1)], extra=extra)
    pipe.write(batch)
    [given] = tokens.given
    assert (given["client_id"], given["client_secret"], given["audience"]) == (
        ["sluice:1"],
        [SECRET],
        ["https://a.example"],
    )
    assert tokens.logins == [""]


@pytest.mark.parametrize("where", ["token endpoint", "receiver", "no token", "unavailable"])
def test_no_secret_of_a_login_is_told(receiver: Receiver, where: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Not even by a server that repeats what it was given."""
    tokens = receiver.answer = Tokens()
    if where == "token endpoint":
        login = base64.b64encode(f"sluice%3A1:{SECRET}".encode())
        tokens.reply = Reply(400, body=f"invalid_client {SECRET} ".encode() + login)
    elif where == "no token":
        tokens.reply = Reply(200, body=json.dumps({"secret": SECRET}).encode())
    elif where == "unavailable":
        tokens.reply = Reply(503, body=SECRET.encode())
    else:
        receiver.answer = lambda got: (
            tokens(got) if got.path == "/token" else Reply(401, body=got.headers["authorization"].encode())
        )
    _, pipe, batch, _ = made_of(receiver, [new(1, "a", 1)], extra=with_oauth(receiver), retry_for="1s")
    with pytest.raises(SluiceError) as raised:
        pipe.write(batch)
    assert isinstance(raised.value, TargetUnavailable if where == "unavailable" else ConfigError)
    said = f"{raised.value!s} {raised.value!r} {raised.value.hint}" + "".join(capfd.readouterr())
    for secret in (SECRET, tokens.valid, base64.b64encode(f"sluice%3A1:{SECRET}".encode()).decode()):
        assert secret not in said
    if where == "receiver":
        assert len(tokens.given) == 2, "a token that is refused is got anew once"


def test_basic_login_and_secret_headers(receiver: Receiver) -> None:
    bench, pipe, batch, _ = made_of(receiver, [new(1, "a", 1)])
    bench.connection = Endpoint(
        "target", "http", receiver.url, None, "ann", "pässword", extra={"headers": '{"X-Api-Key": "api-key-1"}'}
    )
    pipe.write(batch)
    [got] = receiver.taken
    assert base64.b64decode(got.headers["authorization"].removeprefix("Basic ")).decode() == "ann:pässword"
    assert got.headers["x-api-key"] == "api-key-1"
    receiver.answer = lambda got: Reply(403, body=b"api-key-1 is not known")
    with pytest.raises(ConfigError) as raised:
        pipe.write(pipe.given([(people("shop"), [new(2, "a", 1)])]))
    assert "api-key-1" not in str(raised.value)
    assert "*** is not known" in str(raised.value)


@pytest.mark.parametrize(
    "how",
    [{}, {"timestamp_header": "X-Time", "prefix": "v1=", "header": "X-Sig"},
        {"algorithm": "sha512", "encoding": "base64", "prefix": ""}],
    ids=["github", "with the time", "base64"],
)  # fmt: skip
def test_signatures(receiver: Receiver, how: dict[str, Any]) -> None:
    calls = itertools.count()
    receiver.answer = lambda got: Reply(503, {"Retry-After": "0"}) if next(calls) == 0 else OK
    _, pipe, batch, _ = made_of(
        receiver, [new(1, "ü", 1), new(2, "b", 1)], extra={"hmac_secret": SECRET}, signature=how
    )
    pipe.write(batch)
    for got in receiver.asked:
        signed = got.body
        if "timestamp_header" in how:
            at = got.headers["x-time"]
            assert abs(int(at) - time.time()) < 3600
            signed = f"{at}.".encode() + signed
        made = hmac.new(SECRET.encode(), signed, how.get("algorithm", "sha256")).digest()
        text = base64.b64encode(made).decode() if how.get("encoding") == "base64" else made.hex()
        assert got.headers[how.get("header", "X-Signature-256").lower()] == how.get("prefix", "sha256=") + text


def test_certificates_are_verified(receiver: Receiver, tmp_path: Path) -> None:
    folder = self_signed(tmp_path, "receiver", "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "receiver.pem", folder / "receiver.key")
    receiver.server.socket = context.wrap_socket(receiver.server.socket, server_side=True)
    address = receiver.url.replace("http://", "https://")
    for extra in ({}, {"ca": str(folder / "other.pem")}):
        bench, pipe, batch, table = made_of(receiver, [new(1, "a", 1)])
        bench.connection = Endpoint("target", "http", address, password=bench.secret, extra=extra)
        with pytest.raises(ConfigError, match="certificate is not accepted"):
            pipe.write(batch)
    bench, pipe, batch, table = made_of(receiver, [new(1, "a", 1)])
    bench.connection = Endpoint(
        "target", "http", address, password=bench.secret, extra={"ca": str(folder / "receiver.pem")}
    )
    pipe.write(batch)
    assert pipe.state(table) == Counter([(1, "a", 1)])


# -- order -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ordering", "alone"), [("key", False), ("table", True), ("global", True)])
def test_how_many_requests_are_under_way(receiver: Receiver, ordering: str, alone: bool) -> None:
    """One table's rows by key: two requests meet at the receiver. In the table's order they never do."""
    met = threading.Barrier(2)

    def answer(got: Got) -> Reply:
        if not alone:
            met.wait(60)
        return OK

    receiver.answer = answer
    ops = [new(n, "a", 0) for n in range(2)]
    ops += [changed((n, "a", p), (n, "a", p + 1)) for p in range(20) for n in range(2)]
    _, pipe, batch, _ = made_of(receiver, ops, "all", ordering=ordering, concurrency=2, batch={"max_rows": 1})
    lanes: dict[int, int] = {}
    if not alone:  # two keys that are in two lanes: else the receiver would wait for a request that never comes
        for n in itertools.count():
            lanes.setdefault(lane_of(n), n)
            if len(lanes) == 2:
                break
        ops = [new(n, "a", 0) for n in lanes.values()]
        ops += [changed((n, "a", p), (n, "a", p + 1)) for p in range(20) for n in lanes.values()]
        _, pipe, batch, _ = made_of(receiver, ops, "all", ordering=ordering, concurrency=2, batch={"max_rows": 1})
    pipe.write(batch)
    assert receiver.most_at_once == (1 if alone else 2)
    by_key: dict[int, list[int]] = {}
    for got in receiver.taken:
        for document in got.documents:
            by_key.setdefault(document["after"]["id"], []).append(document["after"]["points"])
    assert all(points == list(range(21)) for points in by_key.values())


def lane_of(number: int) -> int:
    return zlib.crc32(f'{{"id":{number}}}'.encode()) % 2


# -- options and connections -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "events"}, "path: write a path"),
        ({"path": "//elsewhere.example/x"}, "path: write a path"),
        ({"path": "/a b"}, "path: write a path"),
        ({"path": "/{column}"}, "{column} is not known"),
        ({"path": "/{table!r}"}, "names in braces alone"),
        ({"path": "/{table"}, "path:"),
        ({"path": "/{key}"}, "write batch: {max_rows: 1}"),
        ({"path": "/{key}", "format": "maxwell-json", "batch": {"max_rows": 1}}, "go with format: debezium-json"),
        ({"headers": {"X-Op": "{op}"}}, "write batch: {max_rows: 1}"),
        ({"headers": {"Authorization": "x"}}, "belongs to the connection"),
        ({"headers": {"idempotency-key": "x"}}, "belongs to the connection"),
        ({"headers": {"sluice-batch": "x"}}, "belongs to the connection"),
        ({"headers": {"X A": "x"}}, "is not the name of a header"),
        ({"headers": {"X-A": "x\r\nY: z"}}, "only printable ASCII"),
        ({"methods": {"delete": "DELETE"}}, "methods that differ go with"),
        ({"methods": {"delete": "DELETE"}, "batch": {"max_rows": 1}}, "must have {key} in it"),
        ({"methods": {"insert": "GET"}}, "methods.insert"),
        ({"body": {"a": 1}}, 'write "{documents}" once'),
        ({"body": ["{documents}", "{documents}"]}, 'write "{documents}" once'),
        ({"body": "{document}"}, 'write "{documents}" once'),
        ({"body": {"a": "{documents}", "b": "{secret}"}}, "{secret} is not known"),
        ({"body": ["{documents}"], "batch": {"lines": True}}, "lines"),
        ({"format": "arrow"}, "format"),
        ({"concurrency": 0}, "concurrency"),
        ({"timeout": "0s"}, "timeout"),
        ({"signature": {"header": "a b"}}, "is not the name of a header"),
        ({"url": "/"}, "url"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit(receiver: Receiver, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        HttpBench(receiver, options=options).target()
    assert said in str(raised.value)
    assert "target 'copy'" in str(raised.value)


def _oauth(url: str) -> dict[str, str]:
    return {"oauth2_token_url": url, "oauth2_client_id": "x", "oauth2_client_secret": "y"}


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        (Endpoint("c", "http", ""), "names no host"),
        (Endpoint("c", "mysql", "h"), "is of type mysql, not http"),
        (Endpoint("c", "http", "http://hooks.example"), "is asked without TLS"),
        (Endpoint("c", "http", "hooks.example", schema="http"), "is asked without TLS"),
        (Endpoint("c", "http", "ftp://hooks.example"), "neither https nor http"),
        (Endpoint("c", "http", "https://ann:pw@hooks.example"), "has a login"),
        (Endpoint("c", "http", "https://hooks.example?a=b"), "a query"),
        (Endpoint("c", "http", "https://hooks.example:x"), "is no address"),
        (Endpoint("c", "http", "hooks.example", extra={"verify": False}), "verify, which is not known"),
        (Endpoint("c", "http", "hooks.example", extra={"oauth2_client_id": "x"}), "OAuth2 needs"),
        (Endpoint("c", "http", "hooks.example", password="pw", extra=_oauth("https://t")), "leave one out"),
        (Endpoint("c", "http", "hooks.example", extra=_oauth("http://t.example")), "without TLS"),
        (Endpoint("c", "http", "hooks.example", extra={"headers": "x"}), "no JSON object"),
        (Endpoint("c", "http", "hooks.example", extra={"headers": {"a": "b\nc"}}), "cannot be sent"),
        (Endpoint("c", "http", "hooks.example", extra={"ca": "/no/such/file.pem"}), "cannot be read"),
    ],
    ids=range(15),
)  # fmt: skip
def test_connections_that_cannot_be_used(receiver: Receiver, endpoint: Endpoint, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        HttpTarget(HttpBench(receiver).config("http"), endpoint, "p")
    assert said in str(raised.value), str(raised.value)
    assert "pw" not in str(raised.value)


@pytest.mark.parametrize(
    ("endpoint", "base"),
    [
        (Endpoint("c", "http", "hooks.example"), "https://hooks.example"),
        (Endpoint("c", "http", "hooks.example", 8443, schema="https"), "https://hooks.example:8443"),
        (Endpoint("c", "http", "https://hooks.example/v1/"), "https://hooks.example/v1"),
        (Endpoint("c", "https", "127.0.0.1", 99), "https://127.0.0.1:99"),
        (Endpoint("c", "http", "::1", 99), "http://[::1]:99"),
        (Endpoint("c", "http", "hooks.example", schema="http", extra={"plain_http": "true"}), "http://hooks.example"),
    ],
    ids=range(6),
)  # fmt: skip
def test_addresses_of_connections(receiver: Receiver, endpoint: Endpoint, base: str) -> None:
    assert HttpTarget(HttpBench(receiver).config("http"), endpoint, "p").place.receiver.base == base


def test_a_key_that_cannot_stand_in_an_address_is_named(receiver: Receiver) -> None:
    columns = (
        Column("at", ColumnKind.DATETIME, "datetime(6)", nullable=False, fsp=6),
        Column("n", ColumnKind.INT, "int"),
    )
    table = TableSchema(TableId("shop", "t"), columns, ("at",))
    bench = HttpBench(receiver, options={"path": "/{key}", "batch": {"max_rows": 1}})
    bench.create_table(table)
    with pytest.raises(MappingError, match=r"the key column at of shop\.t is neither"):
        Pipe(bench).deliver((table, [new(datetime(2026, 1, 1), 1)]))
    assert not receiver.asked


@pytest.mark.parametrize("key", ["", ".", ".."])
def test_a_key_sends_its_row_to_no_other_resource(receiver: Receiver, key: str) -> None:
    """Who writes a row of the source would delete all of them: DELETE /v1/, or /v1/t/.. of a client that shortens it."""
    columns = (
        Column("code", ColumnKind.VARCHAR, "varchar(20)", nullable=False, charset="utf8mb4"),
        Column("n", ColumnKind.INT, "int"),
    )
    table = TableSchema(TableId("shop", "t"), columns, ("code",))
    how = {"path": "/v1/{table}/{key}", "methods": {"delete": "DELETE"}, "batch": {"max_rows": 1}, "concurrency": 1}
    bench = HttpBench(receiver, options=how)
    bench.create_table(table)
    pipe = Pipe(bench)
    with pytest.raises(LoadError, match="leads elsewhere"):
        pipe.write(pipe.given([(table, [gone(key, 1)])]))
    letters = Letters()
    pipe.epoch, pipe.config = 2, {"on_error": "dead_letter"}
    pipe.write(pipe.given([(table, [gone(key, 1), gone("d", 1)])]), rejected=letters)
    assert [(got.method, got.path) for got in receiver.asked] == [("DELETE", "/v1/t/d")]
    assert [one.row["code"].to_pylist() for one in letters.kept] == [[key]]


def test_check_says_the_guarantee(receiver: Receiver) -> None:
    from sluice.targets.rows_in_memory import planned_table

    [found] = (
        HttpBench(receiver, options={"path": "/{table}"}).target().schema().compare([planned_table(people("shop"))])
    )  # type: ignore[union-attr]
    assert found.severity == "ok"
    assert "at least once: a repeat has the same Idempotency-Key" in found.why


# -- through the flows -------------------------------------------------------------------------------------------------


def test_the_pipeline_keeps_the_checkpoint_and_a_batch_that_failed_is_sent_again(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receiver fails in the middle of a batch; after that nothing is missing, and every repeat has the key of the
    first.
    """
    (tmp_path / "rules").mkdir()
    target = {
        "name": "hooks", "type": "http", "connection": "hooks",
        "options": {"batch": {"max_rows": 2}, "concurrency": 1, "retry_for": "0s", "path": "/{schema}/{table}"},
    }  # fmt: skip
    with serverless(tmp_path, targets=[target]) as made:
        build = made.runtime

        def runtime() -> Any:
            found = build()
            known = found.resolver
            found.resolver = lambda name: Endpoint(name, "http", receiver.url) if name == "hooks" else known(name)
            return found

        monkeypatch.setattr(made, "runtime", runtime)
        made.begin()
        pipe = FlowPipe(made, {})
        made.case.commit(*(("insert", "a", (n, f"v{n}")) for n in range(9)))
        receiver.answer = lambda got: Reply(503) if len(receiver.asked) > 3 else OK
        with pytest.raises(TargetUnavailable, match="answers 503"):
            pipe.deliver()
        assert pipe.acknowledged("hooks") == 0
        first = {got.key: got.body for got in receiver.taken}
        assert len(first) == 3
        receiver.answer = lambda got: OK
        pipe.deliver()
        assert pipe.acknowledged("hooks") == 1
        made.case.commit(("update", "a", (3, "new")), ("delete", "a", (4,)))
        pipe.deliver()
        repeats = [got for got in receiver.taken[3:] if got.key in first]
        assert [got.body for got in repeats] == list(first.values())
        rows: dict[int, Any] = {}
        seen: set[str] = set()
        for got in receiver.taken:
            if got.key not in seen:
                seen.add(got.key)
                for document in got.documents:
                    image = document["after"] or document["before"]
                    rows.pop(image["id"], None)
                    if document["after"]:
                        rows[image["id"]] = image["v"]
        assert rows == made.rows()


# -- kill -9 -----------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("changes", ["latest", "all"])
def test_a_loader_that_is_killed_loses_nothing_and_repeats_are_recognised(receiver: Receiver, changes: str) -> None:
    """SIGKILL at each of several requests, before its answer: the next loader sends the batch again, and every repeat
    has the key of the first.
    """
    rows = 60
    for number, point in enumerate((1, 3, 7)):
        receiver.asked.clear()
        receiver.taken.clear()
        children: list[Any] = []

        def answer(got: Got, point: int = point, children: list[Any] = children) -> Reply:
            if len(children) == 1 and len(receiver.asked) == point:
                os.kill(children[0].pid, signal.SIGKILL)
            return OK

        receiver.answer = answer
        child = children_of.Process(target=http_child.load, args=(receiver.url, changes, rows, number, 1))
        children.append(child)
        child.start()
        child.join(240)
        assert child.exitcode == -signal.SIGKILL
        killed = {got.key: got.body for got in list(receiver.taken)}
        assert killed
        again = children_of.Process(target=http_child.load, args=(receiver.url, changes, rows, number, 2))
        children.append(again)
        again.start()
        again.join(240)
        assert again.exitcode == 0
        bodies: dict[str, set[bytes]] = {}
        for got in receiver.taken:
            bodies.setdefault(got.key, set()).add(got.body)
        assert all(len(found) == 1 for found in bodies.values()), "a key stands for other rows than before"
        assert killed.keys() <= bodies.keys()
        once = [json.loads(body) for [body] in bodies.values()]
        assert Counter(document["after"]["id"] for part in once for document in part) == Counter(range(rows))
        epochs = {got.headers["sluice-epoch"] for got in receiver.taken}
        assert epochs == {"1", "2"}
