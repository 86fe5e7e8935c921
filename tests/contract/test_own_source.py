"""A user's own kind of source is found as a file and as a package, and a pipeline from it runs without a line of ours.

What such a kind has to do is in ``test_sources.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.errors import ConfigError
from sluice.sources import Kind, executed, kinds, open_source, reads_marks
from tests.support.running.packages import install
from tests.support.twins.pipes import Pipe, pipe
from tests.support.twins.source_kinds import pipeline

FEED = """\
from dataclasses import dataclass

from sluice.sources.memory.position import executed as read
from sluice.sources.memory.source import MemorySource


@dataclass(frozen=True)
class Feed(MemorySource):
    kind = "feed"
    reads_marks = True
    executed = staticmethod(read)


SOURCE = Feed
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's sources folder, with a kind of source of its own, ``feed``."""
    made = tmp_path / "sources"
    made.mkdir()
    (made / "feed.py").write_text(FEED)
    monkeypatch.setenv("SLUICE_SOURCES", str(made))
    return made


@pytest.fixture
def one(folder: Path, tmp_path: Path) -> Iterator[Pipe]:
    """A pipeline from it."""
    for made in pipe(tmp_path, "copy"):
        config = made.made.case.config
        source = config.source.model_copy(update={"type": "feed"})
        made.made.case.config = config.model_copy(update={"source": source})
        yield made


@pytest.mark.promise("B50")
def test_a_pipeline_reads_and_copies_from_a_file_of_the_users_own(one: Pipe) -> None:
    assert type(one.made.runtime().source).__name__ == "Feed"
    one.commit(("insert", "a", (1, "x")), ("insert", "a", (2, "y")))
    one.deliver()
    one.commit(("update", "a", (1, "z")), ("delete", "a", (2,)))
    one.deliver()
    assert one.rows() == {1: "z"}
    one.dump()
    assert one.rows() == {1: "z"}


def test_what_it_says_of_marks_and_transactions(one: Pipe) -> None:
    one.commit(("insert", "a", (1, "x")))
    with one.made.runtime().source.open() as session:
        assert session.head is not None
        assert executed("feed", session.head) == executed("memory", session.head) != ""
    assert reads_marks("feed")


def test_a_package_brings_a_kind_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_SOURCES", str(tmp_path / "none"))
    points, code = "[sluice.sources]\nmyfeed = my_feed:Feed\n", "class Feed:\n    pass\n"
    install(monkeypatch, tmp_path / "site", "my-feed", entry_points=points, modules={"my_feed": code})
    found = kinds()["myfeed"]
    assert found == Kind("myfeed", "package my-feed", "my_feed:Feed", family="sources")
    assert found.load().__name__ == "Feed"
    assert not reads_marks("myfeed")


def test_errors_name_the_file_and_the_line(folder: Path) -> None:
    def opened(kind: str) -> None:
        open_source(pipeline("p", kind, "s"), lambda _: None)  # type: ignore[arg-type,return-value]

    (folder / "broken.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(ConfigError, match=r"source type 'broken' needs the Python package") as raised:
        opened("broken")
    assert raised.value.where == f"{folder}/broken.py:1"
    (folder / "silent.py").write_text("class Feed:\n    pass\n")
    with pytest.raises(ConfigError, match="a file of the sources folder ends with SOURCE = YourClass"):
        opened("silent")
    with pytest.raises(
        ConfigError, match=r"which does not exist; did you mean .feed.\?.*known types: .*docs/own-source.md"
    ):
        opened("fead")
    (folder / "mysql.py").write_text("SOURCE = None\n")
    with pytest.raises(ConfigError, match="two source types 'mysql'"):
        kinds()
