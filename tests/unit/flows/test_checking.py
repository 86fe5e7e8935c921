"""What `sluice check` and its neighbours say before something goes wrong, without a server."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import ConfigError, SegmentError
from sluice.flows.dump.automatic import due_dumps
from sluice.flows.dump.progress import views
from sluice.flows.dump.start import start
from sluice.model.dumps import Tuning
from sluice.model.findings import Finding
from sluice.operations import check as checking
from sluice.operations.check import check
from sluice.operations.stored import segments
from tests.support.running.waiting import wait_until
from tests.support.twins.pipes import Pipe, pipe


def errors(one: Pipe) -> list[Finding]:
    return [finding for finding in check(one.made.runtime()).findings if finding.severity == "error"]


def with_(one: Pipe, **settings: Any) -> None:
    """The pipeline file as somebody edited it."""
    data = one.made.case.config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for name, value in settings.items():
        data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
    one.made.case.config = type(one.made.case.config).model_validate(data)


def test_a_mute_server_is_named_and_the_others_are_looked_at(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def mute(_: Any) -> list[Finding]:
        release.wait(600)
        return []

    monkeypatch.setattr(checking, "_source", mute)
    monkeypatch.setattr(checking, "ANSWER_S", 0.2)
    monkeypatch.setattr(checking, "_target", lambda *_, **__: [Finding("ok", "", "", "", part="target copy")])
    monkeypatch.setattr(checking, "_zookeeper", lambda _: [Finding("ok", "", "", "", part="zookeeper")])
    monkeypatch.setattr(checking, "_store", lambda _: [Finding("ok", "", "", "", part="store")])
    try:
        report = check(one.made.runtime())
    finally:
        release.set()
    [found] = [finding for finding in report.findings if finding.severity == "error"]
    assert (found.part, found.setting) == ("source", "no answer")
    assert "source" in found.why
    assert "did not answer within" in found.why
    assert any(finding.part == "target copy" for finding in report.findings)


def test_an_answer_that_no_server_gives_is_no_traceback(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    def rogue(_: Any) -> list[Finding]:
        raise TypeError("'NoneType' object is not subscriptable")

    monkeypatch.setattr(checking, "_source", rogue)
    found = errors(one)
    assert [(finding.part, finding.setting) for finding in found] == [("source", "TypeError")]


@pytest.mark.parametrize("below", ["", "/below"])
def test_a_store_that_is_a_file(one: Pipe, tmp_path: Path, below: str) -> None:
    file = tmp_path / "passwd"
    file.write_text("root")
    with_(one, capture={"segments": {"uri": f"{file.as_uri()}{below}"}})
    assert [finding.part for finding in errors(one)] == ["store"]
    assert file.read_text() == "root"


def test_a_store_that_can_be_written_keeps_nothing_of_the_try(one: Pipe) -> None:
    assert errors(one) == []
    assert [path for path in one.made.runtime().store.list_files("") if "check" in path] == []


def test_a_copy_that_was_asked_for_too_late(one: Pipe) -> None:
    one.commit(("insert", "a", (1, "x")))
    one.deliver()
    runtime = one.made.runtime()
    with runtime.state() as state, runtime.source.open() as source:
        begun = due_dumps(runtime, state, source, None).selection
        assert begun is not None
        state.dumps.set_selection(dict(begun))
    assert not any(finding.setting == "start" for finding in check(one.made.runtime()).findings)
    with_(one, source={"start": "dump"})
    [found] = [finding for finding in check(one.made.runtime()).findings if finding.setting == "start"]
    assert found.severity == "warning"
    assert "sluice dump start" in found.fix
    one.commit(("insert", "a", (2, "y")))
    one.deliver()
    assert any(finding.setting == "start" for finding in check(one.made.runtime()).findings), (
        "a drain does not forget it"
    )


@pytest.mark.parametrize(
    "rule", ["{name: more, path: more.sql, type: sql}", "{name: more, builtin: add, params: {constants: {extra: x}}}"]
)
def test_columns_that_rules_add_and_the_target_lacks(tmp_path: Path, rule: str) -> None:
    for one in pipe(tmp_path, "copy", rules="engine.yaml"):
        (tmp_path / "rules/engine.yaml").write_text(f"rules: [{rule}]\n")
        (tmp_path / "rules/more.sql").write_text("SELECT *, 'x' AS extra FROM rows\n")
        [found] = errors(one)
        assert "no column 'extra'" in found.why
        one.stores["copy"].tables[one.made.table].columns.append("extra")
        assert errors(one) == []


def test_damaged_merged_rows_are_found(one: Pipe) -> None:
    one.commit(("insert", "a", (1, "x")))
    one.deliver()
    runtime = one.made.runtime()
    assert segments(runtime, verify=True)
    with runtime.state() as state:
        record = state.batches.require(1)
    path = runtime.store.full_path(str(record.changeset))
    data = bytearray(Path(path).read_bytes())
    data[data.index(b"PAR1") + 20] ^= 0x40  # of the rows, which have a checksum
    Path(path).write_bytes(data)
    for batch in (None, 1):
        with pytest.raises(SegmentError, match="merged rows of batch 1"):
            segments(runtime, batch=batch, verify=True)


def test_a_replay_asks_before_it_plans(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.operations.deadletters.store.letters", lambda *_, **__: [_Letter()])

    def planned(*_: Any, **__: Any) -> None:
        raise AssertionError("planned")

    monkeypatch.setattr("sluice.operations.deadletters.replay.replay", planned)
    with pytest.raises(ConfigError, match="Replay 1 dead letters"):
        one.sluice("dead-letters", "replay", "p")


class _Letter:
    waiting = ("copy",)


def test_a_dump_without_a_drain_says_what_it_waits_for(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.flows.dump.progress.DRAIN_WAIT_S", 0.0)
    one.commit(*(("insert", "a", (i, "x")) for i in range(5)))
    one.deliver()
    dump = start(one.made.runtime(), tuning=Tuning(chunk_rows=10, parallelism=1))
    from sluice.flows.dump.worker import work

    stop = threading.Event()
    thread = threading.Thread(target=lambda: work(one.made.runtime(), dump.id, stop=stop))
    thread.start()
    try:
        wait_until(lambda: "a capture" in views(one.made.runtime())[0].waiting_for, "it says so")
    finally:
        one.deliver()
        stop.set()
        thread.join()
    assert views(one.made.runtime())[0].waiting_for == ""


def test_the_client_of_zookeeper_is_quiet() -> None:
    from sluice.cli.console import log_to_stderr

    log_to_stderr(False)
    assert not logging.getLogger("kazoo.client").isEnabledFor(logging.WARNING)


def test_places_of_stages_are_listed_with_what_they_lack(one: Pipe) -> None:
    with_(
        one,
        run={"tasks": "own"},
        workers={
            "stages": {
                "drain": {"queue": "madrid"},
                "load": {"queue": "oslo", "pool": "loads"},
                "rule.own": {"pool": "p"},
            }
        },
    )
    found = {f.setting: f for f in check(one.made.runtime()).findings if f.setting.startswith("place of")}
    assert {name: (f.severity, f.value) for name, f in found.items() if name != "place of segments"} == {
        "place of drain": ("ok", "queue madrid"),
        "place of load.copy": ("ok", "queue oslo, pool loads"),
        "place of rule.own": ("warning", "no such stage"),
    }
    assert found["place of segments"].severity == "warning"
    assert "s3://" in found["place of segments"].fix


def test_one_place_for_all_needs_no_common_store(one: Pipe) -> None:
    with_(one, workers={"stages": {"drain": {"pool": "slow"}}})
    found = [f.setting for f in check(one.made.runtime()).findings if f.setting.startswith("place of")]
    assert found == ["place of drain"]


def test_a_notifier_that_does_not_exist_is_found_before_the_first_alert(one: Pipe) -> None:
    smtp = "airflow.providers.smtp.notifications.smtp"
    with_(one, alert_notifiers=[{"class": f"{smtp}.SmtpNotifier"}])
    assert errors(one) == []
    with_(one, alert_notifiers=[{"class": f"{smtp}.SmptNotifier"}])
    [found] = errors(one)
    assert (found.part, found.value) == ("alerts", "alert_notifiers")
    assert f"there is no notifier {smtp}.SmptNotifier" in found.why
    assert "correct class in the pipeline file" in found.fix
