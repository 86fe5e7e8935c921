"""The last check of a saved pipeline: one versioned JSON document in the segment store, written by a worker.

The page reads it, so that Airflow's API server opens nothing that a pipeline file names to check it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from sluice.flows.runtime import Runtime
    from sluice.operations.check import CheckReport
    from sluice.segments.store import SegmentStore

FOLDER = "check"
PATH = f"{FOLDER}/last.json"


class LastCheck(BaseModel):
    """A check, and the statements that were run for it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format_version: Literal[1] = 1
    by: str = ""
    run: str = Field("", description="The Airflow run that checked.")
    began_ms: int = 0
    ended_ms: int = 0
    applied: tuple[str, ...] = Field((), description="Statements that were run, each with its place; then it was "
                                     "checked again.")  # fmt: skip
    report: dict[str, Any] = Field(description="As `sluice check --json` prints it.")

    @property
    def missing(self) -> list[str]:
        """The statements that `sluice check --apply` would run, each with its place."""
        at_source = [f"source: {statement}" for statement in self.report["source_statements"]]
        return at_source + [f"target {entry['target']}: {entry['statement']}" for entry in self.report["statements"]]


def check_and_keep(runtime: Runtime, *, apply: bool, by: str, run: str, reason: str = "") -> LastCheck:
    """Check a pipeline and store the result; ``apply``: run the statements that make what is missing, and check again.

    Raises SluiceError if a statement fails; those before it stay.
    """
    from sluice.operations.check import check, make_missing

    def checked(applied: tuple[str, ...] = ()) -> tuple[CheckReport, LastCheck]:
        began_ms, report = _now_ms(), check(runtime)
        plain = report.to_json()
        return report, LastCheck(by=by, run=run, began_ms=began_ms, ended_ms=_now_ms(), applied=applied, report=plain)

    report, last = checked()
    if apply and last.missing:
        make_missing(runtime, report)
        details = {"statements": len(last.missing), "reason": reason}
        with runtime.state() as state:
            state.audit.note(by=by, what="check --apply", details=details)
        _, last = checked(tuple(last.missing))
    runtime.store.write_bytes(PATH, (last.model_dump_json(indent=1) + "\n").encode())
    return last


def last_check(store: SegmentStore) -> LastCheck | None:
    """Return the last check; None: there was none, or a newer version wrote it."""
    if PATH not in store.list_files(FOLDER):
        return None
    try:
        return LastCheck.model_validate_json(store.read_bytes(PATH))
    except ValueError:
        return None


def _now_ms() -> int:
    return int(time.time() * 1000)


__all__ = ["LastCheck", "check_and_keep", "last_check"]
