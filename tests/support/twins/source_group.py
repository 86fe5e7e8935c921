"""Pipelines of a source group on in-memory twins: two stores, of which the second replicates the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sluice.config.connections import Endpoint
from sluice.sources.memory.log import forget_store, store_of
from tests.support.twins.serverless import Serverless, TreeRuntime, serverless


@dataclass
class Member(Serverless):
    """A pipeline that reads one of two stores, ``db1`` and ``db2``."""

    def runtime(self) -> TreeRuntime:
        schema = self.case.schema
        hosts = {"db1": schema, "db2": f"{schema}-replica"}
        made = TreeRuntime(
            self.case.config, lambda name: Endpoint(name, "memory", hosts.get(name, schema)), "local", self.folder
        )
        made.tree = self.tree
        return made

    def reads(self) -> str:
        """Return the store that it reads now."""
        runtime = self.runtime()
        with runtime.state() as state:
            return runtime.member(state)


FILE = """\
version: 1
pipeline: {name}
source: {{connections: [db1, db2], group: shop}}
capture: {{include: ["s[.].*"]}}
coordination: {{connection: z}}
targets: [{{name: reporting, type: memory, connections: [wh1, wh2], group: warehouse}}]
"""
"""The file of one of the pipelines, as its group is told by it."""


def write_files(members: list[Member], folder: Path) -> Path:
    """Write the files of the pipelines into a new folder; return it."""
    folder.mkdir()
    for one in members:
        name = one.case.config.pipeline
        (folder / f"{name}.yaml").write_text(FILE.format(name=name))
    return folder


@contextmanager
def replicated_group(folder: Path) -> Iterator[list[Member]]:
    """Yield the pipelines of :func:`source_group`, with a second store that has all of the first one."""
    with source_group(folder) as found:
        store = store_of(found[0].case.schema)
        store.replica(f"{found[0].case.schema}-replica").follow(store)
        yield found


@contextmanager
def source_group(folder: Path) -> Iterator[list[Member]]:
    """Yield two pipelines of the group ``shop`` that captured a change, and one that captured nothing yet."""
    with serverless(folder) as made:
        config = made.case.config
        source = config.source.model_copy(update={"connection": "db1", "connections": ("db1", "db2"), "group": "shop"})
        found = []
        for name in ("one", "two", "new"):
            case = replace(made.case, config=config.model_copy(update={"source": source, "pipeline": name}))
            found.append(Member(case, folder / name))
        for one in found[:2]:
            one.begin()
        made.case.commit(("insert", "a", (1, "x")))
        for one in found[:2]:
            one.drain()
        yield found
        forget_store(f"{made.case.schema}-replica")


__all__ = ["Member", "replicated_group", "source_group", "write_files"]
