"""A process that loads batches into Delta tables and dies, or stops, at one call of its client."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import deltalake
from deltalake.table import TableAlterer, TableMerger

from sluice.errors import SluiceError


@dataclass
class At:
    """Sends itself ``number`` at call ``call`` of the client (0: the first), before it or, ``after``, when it returned."""

    call: int
    after: bool
    number: int
    calls: list[str] = field(default_factory=list)

    def watch(self, owner: Any, name: str) -> None:
        work = getattr(owner, name)

        def watched(*args: Any, **more: Any) -> Any:
            due = len(self.calls) == self.call
            self.calls.append(name)
            if due and not self.after:
                os.kill(os.getpid(), self.number)
            found = work(*args, **more)
            if due and self.after:
                os.kill(os.getpid(), self.number)
            return found

        setattr(owner, name, watched)


def load(bench: Any, batches: list[Any], epoch: int, at: At | None, said: Any) -> None:
    """Take over, write what is not there yet, commit; ``said`` gets the calls and the error."""
    if at is not None:
        at.watch(deltalake.DeltaTable, "__init__")
        at.watch(deltalake, "write_deltalake")
        at.watch(TableMerger, "execute")
        at.watch(TableAlterer, "set_table_properties")
    error = ""
    try:
        target = bench.target()
        held = target.checkpoints.take_over(epoch).batch
        if at is None:
            said.put("begun")
        for batch in batches:
            if batch.number <= held:
                continue
            with target.open(epoch) as session:
                writer = session.begin(batch)
                writer.prepare()
                results = [unit.write() for phase in writer.plan(1) for unit in phase]
                writer.commit(results)
    except SluiceError as raised:
        error = f"{type(raised).__name__}: {raised}"
    except BaseException as raised:
        error = repr(raised)
    finally:
        said.put((at.calls if at is not None else [], error))
