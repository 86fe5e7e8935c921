"""A pipeline to two targets, of which one may be away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.coordination.quarantine import Quarantined
from sluice.flows.capture.drain import drain
from sluice.flows.load.ack import ack
from sluice.flows.load.isolation import deliver
from sluice.flows.load.load import LoadOutcome
from sluice.flows.runtime import Runtime
from sluice.flows.transform.merge import merge
from tests.support.pipelines.case import Case


@dataclass
class Two:
    """A pipeline to ``copy`` and ``archive``, which may be away."""

    case: Case
    archive: Any
    runtime: Runtime

    def change(self, number: int) -> None:
        self.case.source.execute(
            f"INSERT INTO `{self.case.schema}`.t VALUES ({number}, 'n{number}')",
            f"UPDATE `{self.case.schema}`.t SET note = CONCAT(note, '+')",
        )

    def run_once(self, name: str) -> dict[str, LoadOutcome | Quarantined]:
        """Deliver one batch to both targets, as a DAG run does."""
        batch = drain(self.runtime, claim=f"test:here:{name}", idle_wait_s=2).batch
        assert batch is not None
        merge(self.runtime, batch)
        outcomes = {t.name: deliver(self.runtime, t.name, batch) for t in self.runtime.pipeline.targets}
        for target, outcome in outcomes.items():
            if isinstance(outcome, LoadOutcome):
                ack(self.runtime, target, batch)
        return outcomes

    def acked(self) -> dict[str, int]:
        with self.runtime.state() as state:
            found = {t: state.acks.get(t) for t in state.targets}
        return {t: process.batch if process else 0 for t, process in found.items()}

    def rows(self, server: Any) -> list[Any]:
        return list(server.execute(f"SELECT * FROM `{self.case.schema}`.t ORDER BY id"))
