"""The DAG ``catchup__{pipeline}``: delivers to quarantined targets what the others already have."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sluice.errors import LeaseHeld, Paused, Restarted, SluiceError
from sluice.model.backoff import wait_after
from sluice.orchestration.operators import SluiceOperator
from sluice.orchestration.runtime import open_runtime
from sluice.orchestration.triggers import HeldTrigger, HoldTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


DOC = """Pipelines with more than one target: a target that fails is **quarantined**, and the others go on. Its batches wait in the
segments. The task `catch_up.{target}` tries again and again, delivers what is missing in batch order, and lets the target go with the
others when nothing is left. While no target is quarantined all of them wait in the triggerer, which holds no worker."""  # noqa: E501


class CatchUpOperator(SluiceOperator):
    """Delivers what a quarantined target lacks; waits in the triggerer between failed attempts and while the target is
    not quarantined.
    """

    ui_color = "#d5f5e3"

    def __init__(self, *, target: str, delay: timedelta, max_delay: timedelta, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target = target
        self.delay = delay
        self.max_delay = max_delay

    def work(self, context: Context, failed: int = 0, **_: Any) -> None:
        """Catch up while the target is quarantined. ``failed``: failed attempts in a row."""
        from sluice.flows.load.isolation import catch_up

        runtime = open_runtime(self.pipeline)
        try:
            while (outcome := catch_up(runtime, self.target)).quarantined:
                failed = 0
                self.log.info("caught up %s", outcome.to_json())
        except (Paused, Restarted):
            raise
        except LeaseHeld as error:
            self.log.info("standing by: %s", error)
            self.wait(HoldTrigger(self.pipeline, self.max_delay.total_seconds()))
        except SluiceError as error:
            pause = wait_after(failed + 1, self.delay, self.max_delay)
            self.log.error("%s stays quarantined, the next attempt is in %s: %s", self.target, pause, error)
            self.wait(HoldTrigger(self.pipeline, pause.total_seconds()), failed=failed + 1)
        self.log.info("%s is out of quarantine: %s", self.target, outcome.to_json())
        self.wait(HeldTrigger(self.pipeline, self.target))
