"""The note of a run: what is said of work under way, written through Airflow's own API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from sluice.operations.verify.result import Difference, TableResult, VerifyResult
from sluice.orchestration import run_note
from sluice.orchestration.dags.verify import result_note
from sluice.orchestration.run_note import API_CONNECTION, MOST_NOTE, RunNote, fitted_note


class Api(BaseHTTPRequestHandler):
    """A web server that logs in and takes notes; its next answers may be given."""

    codes: ClassVar[list[int]] = []
    logins: ClassVar[list[str]] = []
    notes: ClassVar[list[str]] = []

    def _answer(self, body: Any, code: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def do_POST(self) -> None:
        right = self._body()["password"] == "right"
        self.logins.append(f"t{len(self.logins)}")
        self._answer({"access_token": self.logins[-1]} if right else {}, 200 if right else 401)

    def do_GET(self) -> None:
        code = self.codes.pop(0) if self.codes else 200
        self._answer({"note": self.notes[-1] if self.notes else None}, code)

    def do_PATCH(self) -> None:
        body = self._body()
        code = self.codes.pop(0) if self.codes else 200
        if code == 200:
            assert self.headers["Authorization"] == f"Bearer {self.logins[-1]}"
            self.notes.append(body["note"])
        self._answer({}, code)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    Api.codes, Api.logins, Api.notes = [], [], []
    web = HTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    monkeypatch.setattr(run_note, "NOTE_EVERY_S", 0.01)
    connect(monkeypatch, web.server_port)
    yield web.server_port
    web.shutdown()
    web.server_close()


def connect(monkeypatch: pytest.MonkeyPatch, port: int, password: str = "right") -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{API_CONNECTION.upper()}", f"http://admin:{password}@127.0.0.1:{port}")


def note() -> RunNote:
    return RunNote({"dag_run": SimpleNamespace(dag_id="backfill", run_id="r 1")})


def test_a_note_that_fails_is_skipped_and_the_next_one_is_written(port: int) -> None:
    Api.codes = [500]
    written = note()
    written.write("half")
    assert Api.notes == []
    written.write("most")
    assert Api.notes == ["most"]


def test_what_is_added_stands_below_what_a_person_wrote_and_once(port: int) -> None:
    written = note()
    written.add("nothing again")
    assert Api.notes == ["nothing again"]
    Api.notes.append("I look after it")
    written.add("nothing again")
    note().add("nothing again")
    assert Api.notes[2:] == ["I look after it\n\nnothing again"]
    Api.codes = [500]
    note().add("something else")  # the note is not known, and so not replaced
    assert len(Api.notes) == 3


def test_the_last_note_is_tried_again(port: int) -> None:
    Api.codes = [500, 503, 500]
    note().write("all", last=True)
    assert Api.notes == ["all"]


def test_a_server_that_stays_away_does_not_stop_the_task(port: int) -> None:
    Api.codes = [500] * 10
    note().write("all", last=True)
    assert Api.notes == []
    assert 0 < len(Api.codes) < 10


def test_a_login_that_is_too_old_is_renewed(port: int) -> None:
    written = note()
    written.write("half")
    Api.codes = [401]
    written.write("most")
    assert (Api.notes, len(Api.logins)) == (["half", "most"], 2)


def test_a_login_that_is_refused_is_not_tried_again(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, port, "wrong")
    written = note()
    written.write("half", last=True)
    written.write("most", last=True)
    assert (Api.notes, len(Api.logins)) == ([], 1)


def tables(count: int) -> tuple[TableResult, ...]:
    return tuple(TableResult(table=f"shop.table_{i:03}", target="reporting", rows=i, equal=i) for i in range(count))


def test_a_note_that_is_too_long_keeps_the_outcome_and_the_link() -> None:
    """Airflow refuses a longer one as a whole."""
    lost = TableResult(
        table="shop.orders",
        target="reporting",
        rows=9,
        missing=3,
        differences=tuple(Difference(key=(str(i), "k" * 400), kind="missing") for i in range(3)),
    )
    result = VerifyResult(id="v", pipeline="p", ended_ms=2000, tables=(*tables(40), lost))
    page = "/sluice/?pipeline=p&verify=v"
    note = fitted_note(result_note(result, page))
    assert len(note) <= MOST_NOTE
    assert note.startswith("**different")
    assert page in note.splitlines()[0]
    assert "shop.orders" in note, "what differs is named before what is equal"
    shown = sum(line.startswith(("| ", "- ")) for line in note.splitlines())
    whole = sum(line.startswith(("| ", "- ")) for line in result_note(result, page).splitlines())
    assert note.splitlines()[-1] == f"and {whole - shown} more"


@pytest.mark.parametrize("length", [0, 1, 999, 1000, 1001, 5000])
def test_every_length_fits(length: int) -> None:
    for text in ("x" * length, "- x\n" * (length // 4), "\n" * length, "first\n" + "| é |\n" * length):
        note = fitted_note(text)
        assert len(note) <= MOST_NOTE
        assert (note == text) == (len(text) <= MOST_NOTE)


def test_what_is_written_fits(port: int) -> None:
    written = note()
    written.write("**head**\n" + "- entry\n" * 500)
    assert len(Api.notes[-1]) <= MOST_NOTE
    assert Api.notes[-1].startswith("**head**")
