"""Servers are fetched at the same time, and only those that no test can do without end a run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from devstack import debian, fetching
from devstack.fetching import Fetch, fetch_all
from sluice.errors import ConfigError


def refuse() -> str:
    raise ConfigError("there is no such package")


def test_what_cannot_be_had_is_said_and_the_others_come(capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch_all((Fetch("Redis", refuse), Fetch("MySQL", lambda: "9.7: /here", optional=False)))
    said = capsys.readouterr().out
    assert "Redis cannot be had: there is no such package [SLUICE-CONFIG-ERROR]; its tests will be skipped" in said
    assert "MySQL 9.7: /here" in said


def test_the_tests_need_a_mysql(capsys: pytest.CaptureFixture[str]) -> None:
    assert not fetch_all((Fetch("MySQL", refuse, optional=False), Fetch("Redis", lambda: "8: /here")))
    assert "Redis 8: /here" in capsys.readouterr().out


def test_one_that_waits_holds_up_no_other() -> None:
    other = threading.Event()

    def wait() -> str:
        assert other.wait(60)
        return "at last"

    def come() -> str:
        other.set()
        return "at once"

    assert fetch_all((Fetch("slow", wait), Fetch("quick", come)))


def test_package_lists_are_asked_for_once_by_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fetch has archives of its own, and a copy of what apt made of the lists."""
    asked: list[str] = []

    def run(argv: list[str], env: dict[str, str]) -> None:
        asked.append(argv[2])
        cache = Path(env["APT_CONFIG"]).with_name("pkgcache.bin")
        assert f"Dir::Cache::pkgcache={cache}" in argv, "a machine's own configuration must not take it away"
        if argv[2] == "update":
            cache.touch()

    monkeypatch.setattr(debian, "_run", run)
    with debian.shared_lists(tmp_path):
        for name in ("one", "other"):
            made = debian._package_lists(tmp_path / name, None)
            assert Path(made["APT_CONFIG"]).parent == tmp_path / name
            assert (tmp_path / name / "pkgcache.bin").exists()
    assert asked.count("update") == 1
    debian._package_lists(tmp_path / "alone", None)
    assert asked.count("update") == 2
    assert not list(tmp_path.glob(".lists-*"))


def test_each_is_named_once() -> None:
    names = [one.name for one in fetching.FETCHES]
    assert len(set(names)) == len(names)
    assert {one.name for one in fetching.FETCHES if not one.optional} == {"MySQL", "MariaDB"}
