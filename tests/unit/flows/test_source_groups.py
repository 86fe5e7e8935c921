"""One command moves all pipelines of a source group to another server; one that is refused holds up no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError
from sluice.operations.groups import GroupKind, members, move_group
from sluice.sources.memory.log import store_of
from tests.support.twins.source_group import Member, source_group


@pytest.fixture
def group(tmp_path: Path) -> Iterator[list[Member]]:
    with source_group(tmp_path) as found:
        yield found


def move(group: list[Member], to: str = "", *, dry_run: bool = False) -> list[tuple[str, bool]]:
    runtimes, order = [one.runtime() for one in group], {"to": to, "reason": "a test"}
    moves = move_group(GroupKind.SOURCE, "shop", runtimes, order, by="me", dry_run=dry_run)
    return [(one.pipeline, one.error is None) for one in moves]


@pytest.mark.promise("B48")
def test_all_pipelines_of_a_group_read_the_other_server_at_the_same_place(group: list[Member]) -> None:
    store = store_of(group[0].case.schema)
    replica = store.replica(f"{group[0].case.schema}-replica")
    assert move(group, dry_run=True) == [("one", True), ("two", True), ("new", False)]
    assert [one.reads() for one in group] == ["db1", "db1", "db1"]
    assert move(group) == [("one", True), ("two", True), ("new", False)]
    assert [one.reads() for one in group] == ["db2", "db2", "db1"]
    assert move(group[:2], "db2") == [("one", True), ("two", True)], "it is read already"
    group[0].case.commit(("insert", "a", (2, "y")))
    replica.follow(store)
    for one in group[:2]:
        one.drain()
        assert one.replayed() == {1: "x", 2: "y"}
        with one.runtime().state() as state:
            [entry] = [entry for entry in state.audit.entries() if entry["what"] == "failover"]
        assert (entry["by"], entry["reason"]) == ("me", "a test")


FILE = """\
version: 1
pipeline: {name}
source: {{connections: [db1, db2], group: {group}}}
capture: {{include: ["s[.].*"]}}
coordination: {{connection: z}}
targets: [{{name: t, type: memory, connection: t}}]
"""


def test_a_group_is_the_pipelines_whose_files_name_it(tmp_path: Path) -> None:
    for name, group in (("b", "shop"), ("a", "shop"), ("c", "office")):
        (tmp_path / f"{name}.yaml").write_text(FILE.format(name=name, group=group))
    assert [one.pipeline for one in members(GroupKind.SOURCE, "shop", tmp_path)] == ["a", "b"]
    with pytest.raises(
        ConfigError, match=r"no pipeline has the source group 'shpo'; did you mean 'shop'.*office, shop"
    ):
        members(GroupKind.SOURCE, "shpo", tmp_path)
    (tmp_path / "d.yaml").write_text("version: 1\npipeline: d\ncolour: red\n")
    with pytest.raises(ConfigError, match=r"the file may belong to the group shop, and nothing was done"):
        members(GroupKind.SOURCE, "shop", tmp_path)


def test_a_group_needs_several_servers() -> None:
    with pytest.raises(ValueError, match="a source with a group has several servers"):
        PipelineConfig.model_validate({
            "version": 1, "pipeline": "p", "source": {"connection": "db1", "group": "shop"},
            "capture": {"include": ["s[.].*"]}, "targets": [{"name": "t", "type": "memory", "connection": "t"}],
        })  # fmt: skip
