"""Files of a real web server: what is asked of it, and what its answers mean."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, StorageUnavailable
from sluice.row_files.copier import Copier, CopyState, NamedFile
from sluice.row_files.location import open_source, open_store
from sluice.row_files.port import Deadline
from tests.support.servers.http_receiver import Got, Receiver, Reply

MINUTE = timedelta(minutes=1)


class Web:
    """A server with files, which answers conditional requests by their checksums."""

    def __init__(self, server: Receiver, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.files: dict[str, bytes] = {}
        self.replies: list[Reply] = []
        self.tags = True
        server.answer = self.answer

    def answer(self, got: Got) -> Reply:
        if self.replies:
            return self.replies.pop(0)
        found = self.files.get(got.path)
        if found is None:
            return Reply(404)
        tag = f'"{hashlib.sha256(found).hexdigest()}"'
        if self.tags and got.headers.get("if-none-match") == tag:
            return Reply(304)
        return Reply(200, {"ETag": tag} if self.tags else {}, found)

    def copier(self, endpoint: Endpoint | None = None, base: str = "", **settings: Any) -> Copier:
        given = {"where": "t", "max_bytes": 1 << 24, "timeout": MINUTE, "sleep": lambda _: None, **settings}
        source = open_source(base or f"{self.server.url}/assets/", endpoint, connections=4, timeout=given["timeout"])
        return Copier(source, open_store(str(self.folder), None, timeout=MINUTE), **given)

    @property
    def bodies(self) -> list[str]:
        """The paths of the requests that were answered with a file."""
        return [got.path for got in self.server.taken]


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with Receiver() as server:
        yield Web(server, tmp_path)


def named(name: str, version: str | None = None) -> NamedFile:
    return NamedFile(name, version, name)


def test_a_file_is_fetched_once_and_asked_for_by_its_tag_later(web: Web) -> None:
    web.files["/assets/p/a.png"] = b"x" * 3_000_000
    copier = web.copier()
    assert [copier.copy(named("p/a.png")).state for _ in range(3)] == ["copied", "unchanged", "unchanged"]
    assert web.bodies == ["/assets/p/a.png"]
    web.files["/assets/p/a.png"] = b"y"
    assert copier.copy(named("p/a.png")).state is CopyState.COPIED
    assert (web.folder / "p/a.png").read_bytes() == b"y"


def test_a_version_that_is_there_asks_the_server_for_nothing(web: Web) -> None:
    web.files["/assets/a"] = b"x"
    copier = web.copier()
    copier.copy(named("a", "1"))
    asked = len(web.server.asked)
    assert copier.copy(named("a", "1")).state is CopyState.UNCHANGED
    assert len(web.server.asked) == asked


def test_a_server_without_tags_is_asked_once_per_change(web: Web) -> None:
    web.tags = False
    web.files["/assets/a"] = b"x"
    assert web.copier().copy(named("a", "1")).state is CopyState.COPIED
    assert len(web.server.asked) == 1


@pytest.mark.parametrize("name", ["a b.png", "%2e%2e/%2e%2e/etc/passwd", "a?b=c#d", "ü/日本", "a;b", "a/b:c@d"])
def test_every_character_of_a_name_stands_for_itself(web: Web, name: str) -> None:
    from urllib.parse import quote, unquote

    web.files["/assets/" + "/".join(quote(part, safe="") for part in name.split("/"))] = b"x"
    assert web.copier().copy(named(name)).state is CopyState.COPIED
    [got, *_] = web.server.asked
    assert unquote(got.path) == f"/assets/{name}"
    assert got.path.startswith("/assets/")


@pytest.mark.parametrize("status", [404, 410])
def test_an_absent_file_is_told(web: Web, status: int) -> None:
    web.replies = [Reply(status)]
    outcome = web.copier().copy(named("a"))
    assert (outcome.state, outcome.why) == (CopyState.ABSENT, f"the server answers {status}")


@pytest.mark.parametrize("reply", [Reply(503), Reply(429), Reply(500), Reply(silent=True)])
def test_a_server_in_trouble_is_asked_again_and_no_file_counts_as_missing(web: Web, reply: Reply) -> None:
    web.files["/assets/a"] = b"x"
    web.replies = [reply] * 2
    assert web.copier().copy(named("a")).state is CopyState.COPIED
    web.replies = [reply] * 9
    with pytest.raises(StorageUnavailable, match=r"copying the file b: http://127.0.0.1:\d+/assets: "):
        web.copier().copy(named("b"))


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply(401), "refuses the login"),
        (Reply(403), "refuses the login"),
        (Reply(302, {"Location": "http://127.0.0.1/"}), "redirect"),
    ],
)
def test_what_a_person_must_change_stops_at_once(web: Web, reply: Reply, why: str) -> None:
    web.replies = [reply] * 9
    with pytest.raises(ConfigError, match=why):
        web.copier().copy(named("a"))
    assert len(web.server.asked) == 1


def test_what_is_too_large_is_refused_before_it_is_read(web: Web) -> None:
    web.files["/assets/a"] = b"x" * 2000
    outcome = web.copier(max_bytes=1000).copy(named("a"))
    assert (outcome.state, outcome.why) == (CopyState.REFUSED, "it has 2.0 KiB, and max_size is 1000 B")
    assert not (web.folder / "a").exists()


def test_a_compressed_answer_is_refused(web: Web) -> None:
    web.replies = [Reply(200, {"Content-Encoding": "gzip"}, b"zip")]
    assert web.copier().copy(named("a")).state is CopyState.REFUSED


def test_a_file_that_changes_while_it_is_written_ends_as_the_newest(web: Web) -> None:
    """The server is asked again after the write, and has another file by then."""
    web.files["/assets/a"] = b"old"
    answer = web.server.answer

    def then_new(got: Got) -> Reply:
        found = answer(got)
        web.files["/assets/a"] = b"new"
        return found

    web.server.answer = then_new
    assert web.copier().copy(named("a", "1")).state is CopyState.COPIED
    assert (web.folder / "a").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("endpoint", "header"),
    [
        ({"user": "me", "password": "secret"}, "Basic bWU6c2VjcmV0"),
        ({"password": "secret"}, "Bearer secret"),
        ({"extra": {"headers": {"Authorization": "Token secret"}}}, "Token secret"),
    ],
)
def test_the_connection_has_the_login(web: Web, endpoint: Mapping[str, Any], header: str) -> None:
    web.files["/assets/a"] = b"x"
    copier = web.copier(Endpoint("cdn", "http", web.server.url, **endpoint))
    copier.copy(named("a"))
    assert {got.headers["authorization"] for got in web.server.asked} == {header}
    web.replies = [Reply(403)]
    with pytest.raises(ConfigError) as refused:
        copier.copy(named("b"))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("endpoint", "base", "why"),
    [
        ({"password": "secret"}, "http://cdn.example.org/x", "asked without TLS"),
        (
            {"extra": {"oauth2_token_url": "https://x"}},
            "https://cdn.example.org/x",
            "oauth2_token_url, which is not known",
        ),
    ],
)
def test_a_login_that_cannot_be_used_is_refused(web: Web, endpoint: Mapping[str, Any], base: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        web.copier(Endpoint("cdn", "http", "cdn.example.org", **endpoint), base)


def test_check_says_what_the_server_answers(web: Web) -> None:
    source = open_source(f"{web.server.url}/assets", None, connections=1, timeout=MINUTE)
    assert source.require_readable(Deadline(30)) == "it answers (404)"
    web.replies = [Reply(503)]
    with pytest.raises(StorageUnavailable, match="it answers 503"):
        source.require_readable(Deadline(30))
    web.server.close()
    with pytest.raises(StorageUnavailable, match="the connection failed"):
        source.require_readable(Deadline(30))
