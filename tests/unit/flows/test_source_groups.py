"""One command moves all pipelines of a source group to another server; one that is refused holds up no other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sluice.config.connections import Endpoint
from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError
from sluice.operations.source_groups import fail_over_group, pipelines_of
from sluice.sources.memory.log import forget_store, store_of
from tests.support.twins.serverless import Serverless, TreeRuntime, serverless


@dataclass
class Member(Serverless):
    """A pipeline that reads one of two stores."""

    def runtime(self) -> TreeRuntime:
        schema = self.case.schema
        hosts = {"db1": schema, "db2": f"{schema}-replica"}
        made = TreeRuntime(
            self.case.config, lambda name: Endpoint(name, "memory", hosts.get(name, schema)), "local", self.folder
        )
        made.tree = self.tree
        return made


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[Member]]:
    """Two pipelines of the group ``shop`` that captured a change, and one that captured nothing yet."""
    with serverless(tmp_path) as made:
        config = made.case.config
        source = config.source.model_copy(update={"connection": "db1", "connections": ("db1", "db2"), "group": "shop"})
        found = []
        for name in ("one", "two", "new"):
            case = replace(made.case, config=config.model_copy(update={"source": source, "pipeline": name}))
            found.append(Member(case, tmp_path / name))
        for one in found[:2]:
            one.begin()
        made.case.commit(("insert", "a", (1, "x")))
        for one in found[:2]:
            one.drain()
        yield found
        forget_store(f"{made.case.schema}-replica")


def move(members: list[Member], to: str = "", *, dry_run: bool = False) -> list[tuple[str, bool]]:
    runtimes = [one.runtime() for one in members]
    moves = fail_over_group(runtimes, to, by="me", reason="a test", dry_run=dry_run)
    return [(one.pipeline, one.error is None) for one in moves]


def reads(member: Member) -> str:
    runtime = member.runtime()
    with runtime.state() as state:
        return runtime.member(state)


@pytest.mark.promise("B48")
def test_all_pipelines_of_a_group_read_the_other_server_at_the_same_place(members: list[Member]) -> None:
    store = store_of(members[0].case.schema)
    replica = store.replica(f"{members[0].case.schema}-replica")
    assert move(members, dry_run=True) == [("one", True), ("two", True), ("new", False)]
    assert [reads(one) for one in members] == ["db1", "db1", "db1"]
    assert move(members) == [("one", True), ("two", True), ("new", False)]
    assert [reads(one) for one in members] == ["db2", "db2", "db1"]
    assert move(members[:2], "db2") == [("one", True), ("two", True)], "it is read already"
    members[0].case.commit(("insert", "a", (2, "y")))
    replica.follow(store)
    for one in members[:2]:
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
    assert [one.pipeline for one in pipelines_of("shop", tmp_path)] == ["a", "b"]
    with pytest.raises(
        ConfigError, match=r"no pipeline has the source group 'shpo'; did you mean 'shop'.*office, shop"
    ):
        pipelines_of("shpo", tmp_path)
    (tmp_path / "d.yaml").write_text("version: 1\npipeline: d\ncolour: red\n")
    with pytest.raises(ConfigError, match=r"the file may belong to the group shop, and nothing was done"):
        pipelines_of("shop", tmp_path)


def test_a_group_needs_several_servers() -> None:
    with pytest.raises(ValueError, match="a source with a group has several servers"):
        PipelineConfig.model_validate({
            "version": 1, "pipeline": "p", "source": {"connection": "db1", "group": "shop"},
            "capture": {"include": ["s[.].*"]}, "targets": [{"name": "t", "type": "memory", "connection": "t"}],
        })  # fmt: skip
