"""Lists of jars, and where they are fetched from: read from the machine's settings, never from the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from devstack import kafka, maven
from devstack.debian import FetchFailed


def test_the_list_of_the_broker_names_each_jar_once() -> None:
    jars = maven.read_list(Path(kafka.__file__).with_name("jars") / "kafka.lock")
    assert len({jar.name for jar in jars}) == len(jars) == 44
    assert all(len(jar.sha256) == 64 for jar in jars)
    assert [jar.version for jar in jars if jar.artifact == "kafka_2.13"] == [kafka.VERSION]


@pytest.mark.parametrize(
    ("of", "expected"),
    [("central", "MIRROR"), ("*", "MIRROR"), ("*,!central", ""), ("external:http:*", ""), ("other,central", "MIRROR")],
)
def test_a_mirror_of_central_is_taken_from_the_settings(tmp_path: Path, of: str, expected: str) -> None:
    settings = tmp_path / "settings.xml"
    settings.write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors><mirror>'
        f"<id>m</id><mirrorOf>{of}</mirrorOf><url>MIRROR</url></mirror></mirrors></settings>",
        encoding="utf-8",
    )
    assert maven.mirror([tmp_path / "none.xml", settings]) == expected


def test_a_proxy_of_the_environment() -> None:
    assert maven.proxy({}) == []
    given = {"HTTPS_PROXY": "http://proxy:8080", "NO_PROXY": "localhost, 127.0.0.1"}
    assert maven.proxy(given) == [
        "-Dhttps.proxyHost=proxy", "-Dhttps.proxyPort=8080", "-Dhttp.nonProxyHosts=localhost|127.0.0.1",
    ]  # fmt: skip


def test_another_jar_than_the_list_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = maven.Jar("g", "a", "1", "0" * 64)

    def retrieve(scratch: Path, into: Path, jars: list[maven.Jar], what: str) -> None:
        for one in jars:
            (into / one.name).write_bytes(b"something else")

    monkeypatch.setattr(maven, "_retrieve", retrieve)
    with pytest.raises(FetchFailed, match="g:a:1 is not the jar of the list"):
        maven.fetch(tmp_path, [jar], what="a test")
    assert not list(tmp_path.glob("*/ready.json"))
