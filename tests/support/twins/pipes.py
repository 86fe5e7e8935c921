"""A pipeline from a source in memory to targets in memory, through the flows of a real one; and the command line on
it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sluice.flows.dump.start import start
from sluice.flows.dump.worker import work
from sluice.flows.run import run
from sluice.flows.runtime import Runtime
from sluice.model.dumps import Chunk, DumpState, Tuning
from sluice.targets.memory.store import MemoryStore, forget_store, memory_store
from tests.support.running.command_line import printed
from tests.support.running.waiting import beside
from tests.support.twins.serverless import Serverless, serverless


@dataclass
class Pipe:
    """A pipeline with its targets' stores."""

    made: Serverless
    stores: dict[str, MemoryStore]

    def commit(self, *writes: tuple[str, str, tuple[Any, ...]]) -> None:
        self.made.case.commit(*writes)

    def deliver(self) -> list[str]:
        """Up to the head of now; the phases."""
        return [step.phase for step in run(self.made.runtime(), until_head=True)]

    def rows(self, target: str = "copy") -> dict[Any, Any]:
        return {row["id"]: row["v"] for row in self.stores[target].tables[self.made.table].all()}

    def dump(self, **wanted: Any) -> None:
        """Copy the table in chunks of ten rows; a delivery follows each chunk."""
        dump = start(self.made.runtime(), tuning=Tuning(chunk_rows=10, parallelism=1), **wanted)

        def told(step: str, _: Chunk) -> None:
            if step == "marked":
                self.deliver()

        assert work(self.made.runtime(), dump.id, hook=told).state is DumpState.DONE
        self.deliver()

    def set_segments(self, **named: Any) -> None:
        """Change what the pipeline file says in ``capture.segments``."""
        config = self.made.case.config
        segments = config.capture.segments.model_copy(update=named)
        capture = config.capture.model_copy(update={"segments": segments})
        self.made.case.config = config.model_copy(update={"capture": capture})

    def refuse(self, why: str, target: str = "copy") -> None:
        """The table of ``target`` takes no row with the value ``bad``; "": all."""
        self.stores[target].tables[self.made.table].refuses = lambda row: why if why and row["v"] == "bad" else ""

    def sluice(self, *command: str) -> str:
        """A command line on this pipeline; what it printed. Raises what the command does."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "sluice.config.loading.find_pipeline_file", lambda name, _: (Path(name), self.made.case.config)
            )
            patch.setattr(Runtime, "build", lambda *_, **__: self.made.runtime())
            return printed(command, {})

    def acknowledged(self, target: str = "copy") -> int:
        with self.made.runtime().state() as state:
            process = state.acks.get(target)
        return process.batch if process else 0


@contextmanager
def delivering(made: Pipe) -> Iterator[None]:
    """A thread delivers what comes, until the end of the block."""

    def deliver(over: threading.Event) -> None:
        while not over.wait(0.02):
            made.deliver()

    with beside(deliver):
        yield


def pipe(folder: Path, *names: str, **config: Any) -> Iterator[Pipe]:
    stores = {name: f"{folder.name}-{name}" for name in names}
    on_error = config.pop("on_error", "stop")
    targets = [
        {"name": name, "type": "memory", "connection": "t", "on_error": on_error, "options": {"store": store}}
        for name, store in stores.items()
    ]
    (folder / "rules").mkdir()
    try:
        with serverless(folder, targets=targets, **config) as made:
            for store in stores.values():
                memory_store(store).create(made.table, ["id", "v"], ["id"])
            made.begin()
            yield Pipe(made, {name: memory_store(store) for name, store in stores.items()})
    finally:
        for store in stores.values():
            forget_store(store)
