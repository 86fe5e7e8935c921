"""An Airflow whose scheduler is dead is silent, whatever of it lives on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from sluice.orchestration import liveness
from sluice.orchestration.liveness import LOOK_EVERY_S, SILENCE_S, STUCK_S, Answer, Said, SchedulerWatch, addresses, ask


class Health(BaseHTTPRequestHandler):
    """Airflow's answer about itself."""

    said: ClassVar[str] = ""
    code: ClassVar[int] = 200

    def do_GET(self) -> None:
        assert self.path == "/api/v2/monitor/health"
        data = self.said.encode()
        self.send_response(self.code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[str]:
    Health.said, Health.code = "", 200
    web = HTTPServer(("127.0.0.1", 0), Health)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{web.server_port}"
    web.shutdown()
    web.server_close()


def says(scheduler: str, database: str = "healthy") -> str:
    return json.dumps({
        "metadatabase": {"status": database},
        "scheduler": {"status": scheduler},
        "triggerer": {"status": "healthy"},
    })


@pytest.mark.parametrize(
    ("said", "code", "found"),
    [
        (says("healthy"), 200, Answer.ALIVE),
        (says("unhealthy"), 200, Answer.DEAD),
        (says("unhealthy", "unhealthy"), 200, Answer.UNKNOWN),  # the database was not asked with success
        ("a proxy's page", 200, Answer.UNKNOWN),
        ("[]", 200, Answer.UNKNOWN),
        ("{}", 200, Answer.UNKNOWN),
        (says("unhealthy"), 503, Answer.UNKNOWN),
    ],
)
def test_what_the_api_server_says(api: str, said: str, code: int, found: Answer) -> None:
    Health.said, Health.code = said, code
    assert ask([api]).answer is found
    assert ask(["http://127.0.0.1:1", api]).answer is found
    assert ask(["http://127.0.0.1:1"]).answer is Answer.UNKNOWN


def test_the_heartbeat_is_part_of_the_answer(api: str) -> None:
    beat = "2026-11-22T07:00:00.123456+00:00"
    Health.said = says("unhealthy").replace(
        '{"status": "unhealthy"}', f'{{"status": "unhealthy", "latest_scheduler_heartbeat": "{beat}"}}'
    )
    assert ask([api]) == Said(Answer.DEAD, beat)


class Asked:
    """Answers, and a clock."""

    def __init__(self) -> None:
        self.now, self.said, self.count = 0.0, Said(Answer.UNKNOWN), 0

    def ask(self) -> Said:
        self.count += 1
        return self.said

    def after(self, seconds: float, answer: Answer, heartbeat: str = "") -> bool:
        self.now += seconds
        self.said = Said(answer, heartbeat)
        return self.watch.alive()

    @property
    def watch(self) -> SchedulerWatch:
        if not hasattr(self, "_watch"):
            self._watch = SchedulerWatch(self.ask, lambda: self.now, background=lambda work: work())
        return self._watch


def test_dead_is_dead_until_it_is_alive_again() -> None:
    asked = Asked()
    assert asked.after(0, Answer.ALIVE)
    assert asked.after(LOOK_EVERY_S / 2, Answer.DEAD)  # not asked yet
    assert asked.count == 1
    assert asked.after(LOOK_EVERY_S, Answer.DEAD)
    assert asked.after(STUCK_S - LOOK_EVERY_S, Answer.DEAD)
    assert not asked.after(LOOK_EVERY_S, Answer.DEAD)
    assert not asked.after(LOOK_EVERY_S, Answer.UNKNOWN)
    assert not asked.after(SILENCE_S * 2, Answer.UNKNOWN)
    assert not asked.after(LOOK_EVERY_S, Answer.DEAD, "one more beat")
    assert asked.after(LOOK_EVERY_S, Answer.ALIVE)


def test_a_slow_scheduler_that_beats_is_alive() -> None:
    """Airflow calls it unhealthy again and again, for longer than a dead one would be borne."""
    asked = Asked()
    assert asked.after(0, Answer.ALIVE)
    for beat in range(100):
        for _ in range(int(STUCK_S / LOOK_EVERY_S) - 1):
            assert asked.after(LOOK_EVERY_S, Answer.DEAD, str(beat))


def test_one_who_looks_rarely_looks_more_than_once() -> None:
    """It was itself stopped for minutes: what it sees first says nothing of the time between."""
    asked = Asked()
    assert asked.after(0, Answer.ALIVE)
    assert asked.after(STUCK_S * 5, Answer.DEAD)
    assert asked.after(STUCK_S * 5, Answer.DEAD)
    assert not asked.after(LOOK_EVERY_S, Answer.DEAD)


def test_one_that_was_dead_from_the_start_is_found() -> None:
    asked = Asked()
    found = [asked.after(LOOK_EVERY_S, Answer.DEAD) for _ in range(20)]
    assert found[0]
    assert not found[-1]


def test_an_api_server_that_does_not_answer_any_more_is_borne_for_a_while() -> None:
    asked = Asked()
    assert asked.after(0, Answer.ALIVE)
    assert asked.after(SILENCE_S - 1, Answer.UNKNOWN)
    assert not asked.after(2, Answer.UNKNOWN)
    assert asked.after(LOOK_EVERY_S, Answer.ALIVE)


def test_one_that_never_answered_says_nothing() -> None:
    asked = Asked()
    for _ in range(100):
        assert asked.after(SILENCE_S, Answer.UNKNOWN)


def test_where_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", "AIRFLOW__API__BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    assert addresses() == ["http://localhost:8080"]
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team/")
    assert addresses() == ["https://airflow.example/team"]
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", "http://10.0.0.1:9091/execution/")
    assert addresses() == ["http://10.0.0.1:9091", "https://airflow.example/team"]


def test_one_question_for_all_threads_of_a_process_and_none_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    slow, answered = threading.Event(), threading.Event()

    def ask(known: object) -> Said:
        asked.append(known)
        assert slow.wait(60)
        return Said(Answer.DEAD)

    monkeypatch.setattr(liveness, "_watch", None)
    monkeypatch.setattr(liveness, "ask", ask)
    monkeypatch.setattr(liveness, "STUCK_S", 0.0)
    monkeypatch.setattr(liveness, "STUCK_LOOKS", 1)
    monkeypatch.setattr(liveness.log, "info", lambda *_, **__: answered.set())
    assert all(liveness.scheduler_lives() for _ in range(20))  # not known yet
    slow.set()
    assert answered.wait(60)
    while liveness.scheduler_lives():  # between the line of the log and the answer
        pass
    assert len(asked) == 1
