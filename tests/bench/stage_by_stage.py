"""One batch after the other through its stages in this process, with connections kept as a run of the DAG keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from sluice.coordination.state import PipelineState
from sluice.flows.capture.drain import drain
from sluice.flows.capture.kept_source import KeptSource
from sluice.flows.runtime import Runtime
from sluice.flows.stage_work import do
from sluice.flows.stages import stages_of
from sluice.model.batches import Batch

ENGINE = """\
version: 1
rules:
- {name: hide_text, builtin: hash, match: {table: orders}, params: {columns: [v], salt_env: SLUICE_BENCH_SALT, length: 40}}
"""
"""One rule, which reads its salt from the environment."""

Counted = Callable[[str, Callable[[], object]], None]
"""Takes the name of a stage and its work, which it does and measures."""


@dataclass(frozen=True)
class Stages:
    """Connections that a run of the DAG keeps from one batch to the next."""

    runtime: Runtime
    state: PipelineState
    kept: KeptSource

    def deliver(self, claim: str, counted: Counted) -> Batch:
        """Capture the next batch, and take it through all stages; return it."""
        first, *later = stages_of(self.runtime.pipeline, self.runtime.rules_folder)
        counted(first.name, partial(drain, self.runtime, claim=claim, idle_wait_s=5.0, kept=self.kept))
        [batch] = self.state.batches.claimed_all(claim)
        for stage in later:
            counted(stage.name, partial(do, self.runtime, stage, batch.number))
        return batch


@contextmanager
def stage_by_stage(runtime: Runtime) -> Iterator[Stages]:
    """Open the connections."""
    with runtime.state(caches_reads=True) as state, KeptSource() as kept:
        yield Stages(runtime, state, kept)


__all__ = ["ENGINE", "Counted", "Stages", "stage_by_stage"]
