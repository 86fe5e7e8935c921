"""Which pipelines send a change round without end: rings, and not stars, cascades or channels."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sluice.config.channel import Channels
from sluice.config.connections import Endpoint, parse_connection
from sluice.config.pipeline import PipelineConfig
from sluice.model.load_marks import LoadMark
from sluice.operations.channel import ring, sent_to_itself

PORTS = {"a": 1, "b": 2, "c": 3}


def resolver(connection: str) -> Endpoint:
    return parse_connection(connection, f"mysql://u@127.0.0.1:{PORTS[connection]}/")


def found(tmp_path: Path, name: str, *pipelines: str, channels: tuple[str, ...] = (), more: str = "") -> list[str]:
    """``pipelines``: names such as ab, each from a server to another one; ``channels``: such as ab, of ab and ba, or
    ab:loop_back.
    """
    folder = tmp_path / "pipelines"
    folder.mkdir(exist_ok=True)
    (tmp_path / "channels").mkdir(exist_ok=True)
    for one in pipelines:
        text = (
            f"pipeline: {one}\nsource: {{connection: {one[0]}}}\ntargets: [{{name: t, type: mysql, connection: "
            f"{one[1]}}}]\n"
        )
        (folder / f"{one}.yaml").write_text(text + more)
    for one in channels:
        text = (
            f"channel: {one[:2]}\npipelines: [{one[:2]}, {one[1::-1]}]\nmain: {one[:2]}\nconsistency: "
            f"{one[3:] or 'none'}\n"
        )
        one = one[:2]
        (tmp_path / "channels" / f"{one}.yaml").write_text(text)
    return ring(name, channels=Channels(tmp_path / "channels"), pipelines_folder=folder, resolver=resolver)


def test_two_in_opposite_directions_need_a_channel(tmp_path: Path) -> None:
    assert found(tmp_path, "ab", "ab", "ba") == ["ab", "ba"]
    assert found(tmp_path, "ab", "ab", "ba", channels=("ab",)) == []


def test_three_in_a_row_need_an_end(tmp_path: Path) -> None:
    assert found(tmp_path, "ab", "ab", "bc") == []
    assert found(tmp_path, "ab", "ab", "bc", "ca") == ["ab", "bc", "ca"]


def test_a_star_of_channels_is_no_ring(tmp_path: Path) -> None:
    star = ("ab", "ba", "ac", "ca")
    assert [found(tmp_path, name, *star, channels=("ab", "ac")) for name in star] == [[]] * 4


def test_one_channel_of_a_star_may_loop_back(tmp_path: Path) -> None:
    star = ("ab", "ba", "ac", "ca")
    assert [found(tmp_path, name, *star, channels=("ab:loop_back", "ac")) for name in star] == [[]] * 4


def test_two_that_loop_back_are_a_ring(tmp_path: Path) -> None:
    star = ("ab", "ba", "ac", "ca")
    both = ("ab:loop_back", "ac:loop_back")
    assert found(tmp_path, "ab", *star, channels=both) == ["ab", "ba", "ac", "ca"]


def test_channels_in_a_triangle_are_one(tmp_path: Path) -> None:
    every = ("ab", "ba", "ac", "ca", "bc", "cb")
    assert found(tmp_path, "ab", *every, channels=("ab", "ac", "bc")) == ["ab", "bc", "ca"]


def test_a_mark_that_is_ignored_ends_a_ring(tmp_path: Path) -> None:
    assert found(tmp_path, "ab", "ab", "bc", "ca", more="mark: once\nignore_marks: [once]\n") == []


@pytest.mark.parametrize("broken", ["pipeline: [", "pipeline: x\n"])
def test_files_that_cannot_be_read_are_left_out(tmp_path: Path, broken: str) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "broken.yaml").write_text(broken)
    assert found(tmp_path, "ab", "ab") == []
    assert found(tmp_path, "no_such", "ab") == []


def test_one_pipeline_within_one_server_is_no_ring_by_itself(tmp_path: Path) -> None:
    """Only its tables tell: what it writes into a captured one comes back, see the test of check."""
    assert found(tmp_path, "aa", "aa") == []
    assert found(tmp_path, "ab", "ab", "bb", "ba") == ["ab", "ba"]


def test_a_target_is_the_server_that_is_read(tmp_path: Path) -> None:
    def config(text: str) -> PipelineConfig:
        return PipelineConfig.model_validate(yaml.safe_load(f"pipeline: p\n{text}"))

    both = (
        "source: {connection: a}\ntargets: [{name: here, type: mysql, connection: a}, {name: there, type: mysql, "
        "connection: b}]\n"
    )
    mark = LoadMark("p", "", "once", "")
    assert sent_to_itself(config(both), None, resolver) == {"here"}
    assert sent_to_itself(config(both + "mark: once\nignore_marks: [once]\n"), mark, resolver) == frozenset()
    assert sent_to_itself(config(both + "mark: once\n"), mark, resolver) == {"here"}
