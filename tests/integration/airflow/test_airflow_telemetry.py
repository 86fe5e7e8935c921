"""A real Airflow whose tasks, each a process, tell of a batch in one trace, and whose alerts go out as mail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.pipelines.case import Case
from tests.support.servers.airflows import BEATS, JUDGES, airflow, wait_until
from tests.support.servers.otlp import Receiver, Span, receiver
from tests.support.servers.smtp import MailBox, mail_box
from tests.support.tables.orders import change, orders_case, settled

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(1800)]
STAGES = {"drain", "merge", "rule.up", "load.copy", "ack.copy"}
RIGHT = "def transform(row, context):\n    return {**row, 'note': row['note']}\n"
ALERTS = """\
{tasks: own, max_time: 30s}
alert_notifiers:
  - class: airflow.providers.smtp.notifications.smtp.SmtpNotifier
    args:
      smtp_conn_id: mail
      to: data@example.com
      subject: "{{ alert.state }}: {{ alert.pipeline }} {{ alert.rule }}"
      html_content: "<p>{{ alert.text }}</p>"
rules: told.yaml"""


@pytest.fixture(scope="module")
def received() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@pytest.fixture(scope="module")
def box() -> Iterator[MailBox]:
    with mail_box() as found:
        yield found


@pytest.fixture(scope="module")
def orders(
    tmp_path_factory: pytest.TempPathFactory,
    server_folder: Any,
    mysql_source: Any,
    mysql_target: Any,
    zookeeper: Any,
    received: Receiver,
    box: MailBox,
) -> Iterator[Case]:
    """A pipeline that an Airflow delivers, whose processes know the two receivers."""
    folder = tmp_path_factory.mktemp("told")
    (folder / "rules").mkdir()
    (folder / "rules/told.yaml").write_text("rules: [{name: up, path: up.py, task: own, match: {table: orders}}]\n")
    (folder / "rules/up.py").write_text(RIGHT)
    settings = {
        "SLUICE_RULES": str(folder / "rules"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": received.url,
        "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "process",
        "OTEL_METRIC_EXPORT_INTERVAL": "2000",
        **BEATS,
    }
    with ExitStack() as opened:
        retry = "{attempts: 20, delay: 1s, max_delay: 2s}"
        made = opened.enter_context(
            orders_case(folder, mysql_source, mysql_target, zookeeper, name="told", run=ALERTS, retry=retry)
        )
        connections = {**made.connections, "mail": box.connection}
        started = opened.enter_context(airflow(server_folder / "told", folder, connections, settings, JUDGES))
        started.api.wait_for_dag("sync__told", 300)
        yield made


def whole(received: Receiver) -> list[Span]:
    """The spans of a batch of which all stages were told."""
    for number in {span.attributes["sluice.batch"] for span in received.spans if "sluice.batch" in span.attributes}:
        spans = received.of_batch(number)
        if {span.name for span in spans} >= STAGES:
            return spans
    return []


def test_the_processes_of_a_run_tell_of_a_batch_in_one_trace(orders: Case, received: Receiver) -> None:
    change(orders)
    wait_until(lambda: settled(orders), "a delivery")
    wait_until(lambda: whole(received), "the spans of a batch")
    spans = whole(received)
    assert len({span.trace for span in spans}) == 1
    [root] = [span for span in spans if span.name == "drain"]
    assert {span.parent for span in spans if span is not root} == {root.id}
    assert len({span.resource["process.pid"] for span in spans}) >= 4
    wait_until(lambda: {"sluice_up", "sluice_lag_bytes"} <= {point.name for point in received.points}, "metrics")


def test_a_stage_that_fails_is_mailed_and_traced_and_so_is_its_retry(
    orders: Case, received: Receiver, box: MailBox
) -> None:
    rule = orders.folder / "rules/up.py"
    rule.write_text(RIGHT.replace("'note': row['note']", "'note': row['nothing']"))
    change(orders)
    wait_until(lambda: "raised: told stopped" in box.subjects, "a mail")
    rule.write_text(RIGHT)
    wait_until(lambda: "cleared: told stopped" in box.subjects, "a mail that it goes on")
    wait_until(lambda: settled(orders), "a delivery")
    failed = next(span for span in received.spans if span.failed and span.name == "rule.up")
    assert failed.attributes["error.type"] == "RuleError"
    number = failed.attributes["sluice.batch"]
    wait_until(lambda: {span.name for span in received.of_batch(number)} >= STAGES, "the other spans of its batch")
    again = [span for span in received.of_batch(number) if span.name == "rule.up" and not span.failed]
    assert again
    assert {span.trace for span in received.of_batch(number)} == {failed.trace}
