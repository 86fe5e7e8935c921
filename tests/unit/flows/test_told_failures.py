"""A pipeline that stands still says so as soon as an attempt failed, with the message, until it goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sluice.coordination.failures import StageFailure
from sluice.errors import ConfigError, MappingError, MissingConnection, RuleError
from sluice.operations.status import Status, status
from tests.support.twins.pipes import Pipe, pipe


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Pipe]:
    for found in pipe(tmp_path, "copy"):
        found.commit(("insert", "a", (1, "x")))
        found.deliver()
        yield found


def now(one: Pipe) -> Status:
    return status(one.made.runtime())


def without_its_column(one: Pipe) -> None:
    one.stores["copy"].tables[one.made.table].columns.remove("v")
    one.commit(("insert", "a", (2, "y")))


def test_a_load_that_failed_once(one: Pipe) -> None:
    assert (now(one).state, now(one).failures) == ("idle", [])
    without_its_column(one)
    with pytest.raises(MappingError):
        one.deliver()
    [failure] = now(one).failures
    assert now(one).state == "failing"
    assert (failure.part, failure.target, failure.attempts) == ("load-copy", "copy", 1)
    assert "has no column 'v'" in failure.error
    assert "sluice dump start" in failure.error, "what to do next"
    with pytest.raises(MappingError):
        one.deliver()
    [again] = now(one).failures
    assert (again.attempts, again.since) == (2, failure.since)
    assert "loading into copy failed 2 times since" in one.sluice("status", "p")
    said = json.loads(one.sluice("status", "p", "--json"))
    assert (said["state"], said["failures"][0]["part"]) == ("failing", "load-copy")
    one.stores["copy"].tables[one.made.table].columns.append("v")
    one.deliver()
    assert (now(one).state, now(one).failures) == ("idle", [])


def test_a_rule_that_raises(tmp_path: Path) -> None:
    for one in pipe(tmp_path, "copy", rules="engine.yaml"):
        folder = tmp_path / "rules"
        (folder / "engine.yaml").write_text("rules: [{name: up, path: up.py}]\n")
        (folder / "up.py").write_text("def transform(row, context):\n    raise KeyError('gone')\n")
        one.commit(("insert", "a", (1, "x")))
        with pytest.raises(RuleError):
            one.deliver()
        assert [failure.part for failure in now(one).failures] == ["merge"]
        assert now(one).state == "failing"
        (folder / "up.py").write_text("def transform(row, context):\n    return row\n")
        one.deliver()
        assert now(one).state == "idle"


def test_a_rule_with_a_task_of_its_own_is_named_as_its_task_is(tmp_path: Path) -> None:
    for one in pipe(tmp_path, "copy", rules="engine.yaml"):
        folder = tmp_path / "rules"
        (folder / "engine.yaml").write_text("rules: [{name: up, path: up.py, task: own}]\n")
        (folder / "up.py").write_text("def transform(row, context):\n    raise KeyError('gone')\n")
        one.commit(("insert", "a", (1, "x")))
        with pytest.raises(RuleError):
            one.deliver()
        assert [(failure.part, failure.kind, failure.name) for failure in now(one).failures] == [
            ("rule.up", "RuleError", "SLUICE-RULE-ERROR")
        ]


def test_an_error_that_is_none_of_sluice(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("g")

    one.commit(("insert", "a", (2, "y")))
    with monkeypatch.context() as patch:
        patch.setattr("sluice.flows.load.load._Delivery.write", broken)
        with pytest.raises(KeyError):
            one.deliver()
    assert [failure.error for failure in now(one).failures] == ["KeyError: 'g' [SLUICE-UNFORESEEN]"]


def test_a_drain_that_failed_and_then_found_nothing(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its position does not move, and yet it works again."""

    def broken(*_: object, **__: object) -> None:
        raise ConfigError("broken")

    with monkeypatch.context() as patch:
        patch.setattr("sluice.sources.memory.source.MemorySession.stream", broken)
        with pytest.raises(ConfigError):
            one.made.drain()
    assert [failure.part for failure in now(one).failures] == ["drain"]
    one.made.drain()
    assert now(one).failures == []


def test_a_batch_that_a_person_skips_ends_the_failure(one: Pipe) -> None:
    without_its_column(one)
    with pytest.raises(MappingError):
        one.deliver()
    batch = one.acknowledged() + 1
    one.sluice("skip", "p", "copy", str(batch), "--yes")
    assert now(one).failures == []


def test_a_quarantined_target_says_it_in_its_own_words(tmp_path: Path) -> None:
    for one in pipe(tmp_path, "copy", "other"):
        one.commit(("insert", "a", (1, "x")))
        one.deliver()
        without_its_column(one)
        with suppress(MappingError):  # of the catch-up
            one.deliver()
        found = now(one)
        assert [target.quarantined is not None for target in found.targets] == [True, False]
        assert found.failures == []
        assert found.state != "failing"


def test_a_failure_in_words() -> None:
    assert str(StageFailure("rule.up-1", "no", "2026-01-01T00:00:00Z")).startswith("rule up-1 failed once since 2026")


def test_a_missing_connection_is_not_configured(one: Pipe) -> None:
    runtime = one.made.runtime()
    known = runtime.resolver

    def resolver(name: str) -> object:
        if name in missing:
            raise MissingConnection(f"there is no connection {name!r}", hint="set AIRFLOW_CONN_X")
        return known(name)

    runtime.resolver = resolver  # type: ignore[assignment]
    missing = {"t"}
    found = status(runtime)
    assert (found.state, len(found.errors)) == ("not_configured", 1)
    assert "'t'" in found.errors[0]
    missing = {"t", runtime.pipeline.source.connection, runtime.pipeline.coordination.connection}
    found = status(runtime)
    assert (found.state, len(found.errors)) == ("not_configured", 1)
    assert all(name in found.errors[0] for name in missing)


def test_what_is_not_a_missing_connection_is_left_to_who_opens_it(one: Pipe) -> None:
    runtime = one.made.runtime()

    def resolver(_: str) -> object:
        raise ConfigError("not valid JSON")

    runtime.resolver = resolver  # type: ignore[assignment]
    assert status(runtime).state != "not_configured"
