"""Servers that accept connections and stay silent: who asks them has an answer within seconds, and the others are not
delayed.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, TargetUnavailable
from sluice.flows.runtime import Runtime
from sluice.mysql.client import MySQLConnection
from sluice.operations import server_questions as module
from sluice.operations import status as status_module
from sluice.operations.server_questions import Answer, NoAnswer, ServerQuestions
from sluice.operations.status import Status, status
from tests.support.running.waiting import wait_until
from tests.support.twins.pipes import Pipe, pipe


class Mute:
    """Accepts every connection, keeps it open, and sends nothing."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.connections: list[socket.socket] = []
        threading.Thread(target=self._accept, name="mute", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self.connections.append(self._listener.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        """Hang up, so that whoever waits goes on."""
        self._listener.close()
        for one in self.connections:
            one.close()


@pytest.fixture
def mute() -> Iterator[Mute]:
    made = Mute()
    yield made
    made.close()


# -- the mechanism -----------------------------------------------------------------------------------------------------
@pytest.fixture
def held() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_who_asks_a_silent_server_next_is_told_since_when(held: threading.Event) -> None:
    questions, asked = ServerQuestions(), []

    def call() -> int:
        asked.append(1)
        assert held.wait(300)
        return 7

    first = questions.ask("s", call, 0.01)
    assert isinstance(first, NoAnswer)
    assert str(first).startswith("s: no answer since ")
    for _ in range(200):
        assert questions.ask("s", call, 300) == first
    assert (len(asked), questions.threads) == (1, 1)
    assert questions.ask("other", lambda: 1, 300) == Answer(1)
    held.set()
    wait_until(lambda: not questions.threads, "the late answer")
    assert questions.ask("s", lambda: 8, 300) == Answer(8)


def test_a_silent_server_is_tried_again_and_again_by_few_threads(
    held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROBE_S", 0.001)
    questions = ServerQuestions()

    def call() -> None:
        assert held.wait(300)

    first = questions.ask("s", call, 0.0)
    for _ in range(2000):
        again = questions.ask("s", call, 0.0)
        assert str(again) == str(first)
    assert 2 <= questions.threads <= 20


def test_a_server_that_refuses_is_asked_each_time_and_keeps_its_since() -> None:
    questions, asked = ServerQuestions(), []

    def refuse() -> None:
        asked.append(1)
        raise TargetUnavailable("refused")

    found = [questions.ask("s", refuse) for _ in range(3)]
    assert len(asked) == 3
    assert {str(one) for one in found} == {str(found[0])}
    assert str(found[0]).endswith(": refused [SLUICE-TARGET-UNAVAILABLE]")

    def wrong() -> None:
        raise ConfigError("no such login")

    with pytest.raises(ConfigError):
        questions.ask("s", wrong)
    assert questions.ask("s", lambda: 1) == Answer(1)


# -- the status --------------------------------------------------------------------------------------------------------
@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines for tests: a mute server is given up soon, one that lives long before."""
    monkeypatch.setattr(module, "ANSWER_S", 2.0)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Pipe]:
    for one in pipe(tmp_path, "copy"):
        one.commit(("insert", "a", (1, "x")))
        one.deliver()
        yield one


def test_a_page_asks_a_source_once_for_all_its_pipelines(made: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_module, "SHARED_S", 300.0)
    monkeypatch.setattr(status_module, "_shared", {})
    runtime: Runtime = made.made.runtime()
    kind, opened = type(runtime.source_at(runtime.pipeline.source.connection)), []
    real = kind.open

    def counted(self: Any) -> Any:
        opened.append(self)
        return real(self)

    monkeypatch.setattr(kind, "open", counted)
    heads = [status(runtime, keep_s=300.0).head for _ in range(3)]
    assert (len(opened), len({*heads}), heads[0] is None) == (1, 1, False)
    made.commit(("insert", "a", (2, "y")))
    assert status(runtime).head != heads[0]  # a command asks anew
    assert len(opened) == 2


def seen(made: Pipe, mute: Mute, part: str, kind: str = "mysql", **config: Any) -> Status:
    """The status of the pipeline with ``part`` at the mute server."""
    runtime: Runtime = made.made.runtime()
    data = runtime.pipeline.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if "targets" in config:
        config["targets"] = [*data["targets"], *config["targets"]]
    runtime.pipeline = type(runtime.pipeline).model_validate({**data, **config})
    plain = runtime.resolver

    def resolver(connection: str) -> Endpoint:
        if connection != "mute":
            return plain(connection)
        return Endpoint(connection, kind, "127.0.0.1", mute.port, "u", "p", "d")

    runtime.resolver = resolver
    found = status(runtime)
    assert [one.part for one in found.no_answer] == [part]
    assert "no answer since" in found.no_answer[0].text
    return found


@pytest.mark.parametrize("kind", ["mysql", "postgresql", "kafka"])
@pytest.mark.usefixtures("quick")
def test_a_mute_target_is_named_and_the_rest_is_known(made: Pipe, mute: Mute, kind: str) -> None:
    with made.made.runtime().state() as state:
        before = state.acks.get("copy")
    found = seen(made, mute, "target late", kind, targets=[{"name": "late", "type": kind, "connection": "mute"}])
    wait_until(lambda: mute.connections, "the connection")
    assert found.state == "no_answer"
    assert not found.errors
    copy, late = found.targets
    assert before is not None
    assert (copy.batch, copy.no_answer_since) == (before.batch, None)
    assert late.no_answer_since == found.no_answer[0].since
    again = seen(made, mute, "target late", kind, targets=[{"name": "late", "type": kind, "connection": "mute"}])
    assert again.no_answer[0].since == found.no_answer[0].since


@pytest.mark.usefixtures("quick")
def test_a_mute_source_is_named_and_the_rest_is_known(made: Pipe, mute: Mute) -> None:
    found = seen(made, mute, "source", source={"type": "mysql", "connection": "mute"})
    wait_until(lambda: mute.connections, "the connection")
    assert found.state == "unreachable"
    assert found.errors == [found.no_answer[0].text]
    assert found.targets[0].batch == 1
    assert found.targets[0].lag_ms is None


@pytest.mark.usefixtures("quick")
def test_a_mute_store_is_named_and_the_rest_is_known(made: Pipe, mute: Mute, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    uri = f"s3://bucket/folder?endpoint_override=127.0.0.1:{mute.port}&scheme=http&region=us-east-1"
    found = seen(made, mute, "store", capture={"segments": {"uri": uri}})
    wait_until(lambda: mute.connections, "the connection")
    assert found.state == "no_answer"
    assert found.targets[0].batch == 1


def test_a_mute_zookeeper_is_named(tmp_path: Path, mute: Mute, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.operations.status.STATUS_TIMEOUT_S", 0.5)
    for made in pipe(tmp_path, "copy"):
        twin = made.made.runtime()
        data = twin.pipeline.model_dump(mode="json", by_alias=True, exclude_unset=True)
        pipeline = type(twin.pipeline).model_validate({**data, "coordination": {"connection": "mute"}})

        def resolver(connection: str, plain: Any = twin.resolver) -> Endpoint:
            return Endpoint(connection, "x", "127.0.0.1", mute.port) if connection == "mute" else plain(connection)

        found = status(Runtime(pipeline, resolver, "local", twin.rules_folder))
        wait_until(lambda: mute.connections, "the connection")
        assert [one.part for one in found.no_answer] == ["zookeeper"]
        assert found.state == "unreachable"
        assert found.head is not None


def test_a_login_that_is_never_answered_has_the_time_of_a_connection(mute: Mute) -> None:
    """Not that of a statement, which may be ten minutes."""
    import pymysql

    ended = threading.Event()

    def connect() -> None:
        with pytest.raises(pymysql.err.OperationalError):
            MySQLConnection(host="127.0.0.1", port=mute.port, user="u", connect_timeout=1, read_timeout=3000)
        ended.set()

    threading.Thread(target=connect, daemon=True).start()
    assert ended.wait(300)


def test_a_server_of_a_group_that_leaves_changes_out_is_a_warning_of_the_status(tmp_path: Path) -> None:
    """GTIDs do not show what a replica filters: the status says so as long as that server is read, also where it gives
    no answer just then.
    """
    for made in pipe(tmp_path, "copy"):
        config = made.made.case.config
        data = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
        data["source"] = {"type": "memory", "connections": ["one", "two"]}
        made.made.case.config = type(config).model_validate(data)
        assert status(made.made.runtime()).warnings == []
        made.made.case.store.leaves_out = "shop.%"
        [said] = status(made.made.runtime()).warnings
        assert said == "source one: leaves_out is shop.%: changes of its own source are missing here"
        assert status(made.made.runtime(), keep_s=300).warnings == [said]
        made.made.case.store.leaves_out = ""
        assert status(made.made.runtime(), keep_s=300).warnings == [said], "it was asked lately"
        assert status(made.made.runtime()).warnings == []
