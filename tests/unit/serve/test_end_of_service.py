"""The end of a service whose ZooKeeper does not answer: nothing waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.config.connections import Endpoint
from sluice.coordination import shared_session
from sluice.coordination.port import Znodes
from sluice.coordination.shared_session import SharedSessions
from sluice.errors import CoordinationUnavailable
from sluice.serve.registration import Registration
from sluice.serve.service import Place, Service
from tests.support.running.waiting import wait_until

ENDPOINT = Endpoint("zookeeper_default", "zookeeper", "127.0.0.1", 2181)


class Silent:
    """A ZooKeeper that answers a connection only when the test says so."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()
        self.opened = self.closed = 0

    @contextmanager
    def connect(self, endpoint: Endpoint, **_: Any) -> Iterator[Znodes]:
        self.asked.set()
        assert self.answers.wait(300)
        self.opened += 1
        try:
            yield cast(Znodes, type("Session", (), {"alive": True})())
        finally:
            self.closed += 1


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Silent]:
    zookeeper = Silent()
    monkeypatch.setattr(shared_session, "connect", zookeeper.connect)
    yield zookeeper
    zookeeper.answers.set()


def ends(stop: Any) -> bool:
    """True if ``stop`` returns although nothing answers."""
    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    thread.join(120)
    return not thread.is_alive()


def test_connections_that_differ_in_anything_have_sessions_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Endpoint] = []

    @contextmanager
    def connect(endpoint: Endpoint, **_: Any) -> Iterator[Any]:
        opened.append(endpoint)
        yield SimpleNamespace(alive=True, connected=True)

    monkeypatch.setattr("sluice.coordination.shared_session.connect", connect)
    monkeypatch.setattr("sluice.coordination.shared_session.SharedSession", lambda *_: SimpleNamespace(alive=True))
    sessions = SharedSessions()
    changes: list[dict[str, Any]] = [
        {},
        {"connection_id": "other"},
        {"extra": {"use_ssl": True}},
        {"schema": "b"},
        {"kind": "c"},
    ]
    for change in changes:
        sessions.get(replace(ENDPOINT, **change), 10)
    assert len(opened) == len(sessions) == 4


def test_sessions_close_while_one_is_opened_and_that_one_is_not_kept(silent: Silent) -> None:
    sessions = SharedSessions()
    errors: list[Exception] = []

    def get() -> None:
        try:
            sessions.get(ENDPOINT, 10)
        except CoordinationUnavailable as error:
            errors.append(error)

    getting = threading.Thread(target=get, daemon=True)
    getting.start()
    assert silent.asked.wait(120)
    assert ends(sessions.close)
    silent.answers.set()
    getting.join(120)
    assert "the process ends" in str(errors[0])
    assert (silent.opened, silent.closed, len(sessions)) == (1, 1, 0)
    with pytest.raises(CoordinationUnavailable, match="the process ends"):
        sessions.get(ENDPOINT, 10)


def test_a_registration_ends_although_zookeeper_does_not_answer(silent: Silent) -> None:
    service = Service(lambda name: cast(Any, None), list)
    place = Place(ENDPOINT, 10, "/data/sync")
    service.places = lambda: {place: ["shop"]}  # type: ignore[method-assign]
    registration = Registration(service, "grpc://127.0.0.1:8815")
    assert silent.asked.wait(120)
    assert ends(registration.stop)
    assert ends(service.close)
    silent.answers.set()
    wait_until(lambda: silent.closed == 1, "the end of the session that came too late")
