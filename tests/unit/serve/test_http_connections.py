"""Connections of the HTTP server: what asks for nothing is closed, and a read ends soon after its client hung up."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest

from sluice.serve import http, http_connections
from sluice.serve.access import ANYBODY
from sluice.serve.requests import Condition, ReadRequest
from sluice.serve.service import Service, Slots
from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import by_http, shop_case, write
from tests.support.running.waiting import wait_until

CHANGES = "/v1/pipelines/case/changes"
ASKS = f"GET {CHANGES}?from=latest HTTP/1.1\r\nHost: localhost\r\n".encode()


@pytest.fixture
def shop(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) -> Iterator[Case]:
    with shop_case(
        tmp_path, (twin_source, twin_target, twin_zookeeper), fresh_schema(twin_source, twin_target)
    ) as made:
        write(made, "INSERT INTO orders (id, v) VALUES (1, 10)")
        yield made


def opened(client: httpx.Client, sent: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=60)
    made.sendall(sent)
    return made


def received(connection: socket.socket) -> bytes:
    """Everything up to the end of the connection."""
    found = b""
    while piece := connection.recv(65536):
        found += piece
    return found


def test_connections_without_a_request_are_closed_and_open_reads_are_not(
    shop: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connections, "REQUEST_S", 2.0)
    monkeypatch.setattr(http, "REQUEST_S", 2.0)
    with by_http(shop) as client:
        follows = opened(client, ASKS.replace(b"?", b"?follow=true&") + b"\r\n")
        wait_until(lambda: b"200 OK" in follows.recv(65536, socket.MSG_PEEK), "the head of the answer")
        body = b"POST /v1/changes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n{"
        sent = (b"", ASKS, ASKS + b"\r\n" + b"GET /v1/pipe", body)
        nothing, endless, second, unsent = map(received, [opened(client, one) for one in sent])  # they wait together
        assert nothing == b""
        assert endless == b"", "a head that does not end"
        assert second.count(b"HTTP/1.1") == 1
        assert b"200 OK" in second
        assert b"was not sent within" in unsent
        write(shop, "INSERT INTO orders (id, v) VALUES (2, 20)")
        wait_until(lambda: b'"v":20' in follows.recv(65536, socket.MSG_PEEK), "the change")
        follows.close()


def test_a_connection_beyond_the_limit_is_told_so(shop: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "MOST_CONNECTIONS", 2)
    with by_http(shop) as client:
        kept = [opened(client) for _ in range(2)]
        assert received(opened(client)).startswith(b"HTTP/1.1 503 ")
        kept.pop().close()
        wait_until(lambda: b"200 OK" in received(opened(client, ASKS + b"Connection: close\r\n\r\n")), "an answer")


def test_a_slot_comes_back_when_the_client_hangs_up_although_nothing_is_sent(shop: Case) -> None:
    slots = Slots()
    with by_http(shop, slots) as client:
        left = opened(client, ASKS.replace(b"?", b"?follow=true&") + b"\r\n")
        wait_until(lambda: slots.taken == 1, "the read")
        left.close()
        wait_until(lambda: slots.taken == 0, "the end of the read")


def test_a_read_that_sends_nothing_of_its_batches_ends_with_its_client(shop: Case) -> None:
    """Its predicate holds for no change: no piece is sent between which it would be noticed that nobody is there."""
    for value in range(3):
        write(shop, f"UPDATE orders SET v = {value}")
    service = Service(lambda name: shop.runtime(), lambda: [shop.name])
    try:
        predicate = Condition(column="id", is_="=", value=99)  # type: ignore[call-arg]
        request = ReadRequest(pipeline=shop.name, predicate=predicate)
        for asked_until, marks in ((0, 0), (1, 0), (3, 1), (100, 4)):
            asked = 0

            def is_gone(until: int = asked_until) -> bool:
                nonlocal asked
                asked += 1
                return asked > until

            sent = list(service.open(request, ANYBODY).sent(lambda: False, is_gone))
            assert len([said for _, said in sent if said]) == marks
    finally:
        service.close()
