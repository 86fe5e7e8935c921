"""Alerts through Airflow's notifiers: real subclasses of its base class, and its SMTP notifier with a real receiver."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import structlog
from airflow.sdk.bases.notifier import BaseNotifier

from sluice.config.pipeline import NotifierConfig
from sluice.operations import alerts
from sluice.operations.alerts import check_lag
from sluice.operations.status import status
from sluice.orchestration import metrics, notifiers
from tests.support.servers.smtp import MailBox, mail_box
from tests.support.twins.pipes import Pipe, pipe

SECRET = "xoxb-t0ken"
HERE = __name__


class Pager(BaseNotifier):
    """What it was told, by what it renders."""

    template_fields: Sequence[str] = ("text",)
    told: ClassVar[list[tuple[str, dict[str, Any]]]] = []

    def __init__(self, *, pager_conn_id: str, text: str) -> None:
        super().__init__()
        self.pager_conn_id, self.text = pager_conn_id, text

    def notify(self, context: Any) -> None:
        self.told.append((f"{self.pager_conn_id}: {self.text}", dict(context["alert"])))


class Broken(BaseNotifier):
    def notify(self, context: Any) -> None:
        raise OSError(f"POST https://hooks.example.com/{SECRET} was refused")


class Silent(BaseNotifier):
    over = threading.Event()

    def notify(self, context: Any) -> None:
        self.over.wait(120)


def notifier(name: str, **args: Any) -> dict[str, Any]:
    return {"class": name if "." in name else f"{HERE}.{name}", "args": args}


PAGER = notifier("Pager", pager_conn_id="night", text="{{ alert.state }}: {{ alert.text }}")


@pytest.fixture(autouse=True)
def untold() -> None:
    Pager.told.clear()


@contextmanager
def told_by(tmp_path: Path, *found: dict[str, Any]) -> Iterator[Pipe]:
    """A pipeline with these notifiers and a batch that is delivered."""
    for one in pipe(tmp_path, "copy", alert_notifiers=list(found)):
        one.commit(("insert", "a", (1, "x")))
        one.deliver()
        yield one


def dead_letter(one: Pipe, how_many: int = 2) -> None:
    """Alert as the task and the triggerer do, of a pipeline in which dead letters wait."""
    runtime = one.made.runtime()
    check_lag(runtime, replace(status(runtime), dead_letters=how_many), notifiers.notify)


def logged(one: Pipe) -> list[Any]:
    with structlog.testing.capture_logs() as logs:
        dead_letter(one)
    return [entry for entry in logs if entry["event"] == "alert_send_failed"]


def test_a_notifier_is_told_once_when_a_rule_holds_and_once_when_that_is_over(tmp_path: Path) -> None:
    with told_by(tmp_path, PAGER) as one:
        name = one.made.runtime().name
        dead_letter(one)
        dead_letter(one)
        [(text, alert)] = Pager.told
        assert text == f"night: raised: {name}: dead letters wait: 2; `sluice dead-letters list {name}` shows them"
        assert (alert["pipeline"], alert["rule"], alert["state"]) == (name, "dead_letters", "raised")
        dead_letter(one, 0)
        assert [told["state"] for _, told in Pager.told] == ["raised", "cleared"]


def test_the_report_of_a_task_tells_notifiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with told_by(tmp_path, PAGER) as one:
        runtime = one.made.runtime()
        late = replace(status(runtime), dead_letters=3)
        monkeypatch.setattr("sluice.operations.status.status", lambda *_: late)
        metrics.report(runtime, every_s=0.0)
    assert [alert["rule"] for _, alert in Pager.told] == ["dead_letters"]


def test_a_notifier_that_fails_is_logged_without_its_text_and_the_others_are_told(tmp_path: Path) -> None:
    with told_by(tmp_path, notifier("Broken"), PAGER) as one:
        [entry] = logged(one)
    assert (entry["notifier"], len(Pager.told)) == (f"{HERE}.Broken", 1)
    assert "OSError" in entry["error"]
    assert SECRET not in str(entry)


def test_a_notifier_that_does_not_answer_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifiers, "DEADLINE_S", 0.2)
    Silent.over.clear()
    with told_by(tmp_path, notifier("Silent")) as one:
        [entry] = logged(one)  # returns although nobody has answered
        assert not Silent.over.is_set()
    Silent.over.set()
    assert "has not answered" in entry["error"]


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (notifier("airflow.providers.nowhere.Notifier"), "install its provider"),
        (notifier("Nobody"), "there is no notifier"),
        (notifier("json.JSONDecoder"), "is no notifier of Airflow"),
        (notifier("Pager", text="x", colour="red"), "refuses its arguments"),
    ],
)
def test_what_is_wrong_with_a_notifier_is_in_the_log_with_what_to_do(
    tmp_path: Path, found: dict[str, Any], why: str
) -> None:
    with told_by(tmp_path, found) as one:
        [entry] = logged(one)
    assert why in entry["error"]
    assert " -> " in entry["error"]


def test_without_airflow_notifiers_are_named_as_what_needs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with told_by(tmp_path, PAGER) as one:
        one.sluice("run", "p", "--until-head")
        runtime = one.made.runtime()
        with structlog.testing.capture_logs() as logs:
            check_lag(runtime, replace(status(runtime), dead_letters=2))
        with structlog.testing.capture_logs() as at_start:
            alerts.warn_without_airflow(runtime.pipeline)
    assert "need" in capsys.readouterr().err or at_start
    [entry] = [entry for entry in logs if entry["event"] == "alert_send_failed"]
    assert entry["error"] == alerts.NEEDS_AIRFLOW == at_start[0]["reason"]
    assert Pager.told == []


def test_a_class_has_to_be_a_path() -> None:
    with pytest.raises(ValueError, match="class"):
        NotifierConfig.model_validate({"class": "Pager"})


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailBox]:
    with mail_box() as found:
        monkeypatch.setenv("AIRFLOW_CONN_MAIL", found.connection)
        yield found


def test_airflows_smtp_notifier_sends_the_alert_as_a_mail(tmp_path: Path, box: MailBox) -> None:
    smtp = notifier(
        "airflow.providers.smtp.notifications.smtp.SmtpNotifier",
        smtp_conn_id="mail",
        to="data@example.com",
        subject="{{ alert.state }}: {{ alert.pipeline }}",
        html_content="<p>{{ alert.text }}</p>",
    )
    with told_by(tmp_path, smtp) as one:
        name = one.made.runtime().name
        assert logged(one) == []
    [mail] = box.mails
    assert (mail["Subject"], mail["To"], mail["From"]) == (f"raised: {name}", "data@example.com", "sluice@example.com")
    [body] = [part for part in mail.walk() if part.get_content_type() == "text/html"]
    assert b"dead letters wait: 2" in body.get_payload(decode=True)
