"""``sluice recover`` of a pipeline of numbered rows: its plan, what it did, and both sides equal after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sluice.flows.capture.drain import drain
from tests.support.pipelines.case import Case
from tests.support.tables.numbered import deliver, insert, sluice


def drained(made: Case, number: int) -> int:
    insert(made, number)
    batch = drain(made.runtime(), claim=f"test:a:{number}", idle_wait_s=5).batch
    assert batch is not None
    return batch


def look(made: Case, *options: str) -> dict[str, Any]:
    """The plan."""
    found: dict[str, Any] = json.loads(sluice(made, "recover", "case", "--json", *options).splitlines()[-1])
    return found


def losses(plan: dict[str, Any]) -> list[str]:
    return [finding["store"] for finding in plan["findings"] if finding["severity"] == "loss"]


def recovered(made: Case, *options: str) -> dict[str, Any]:
    """Do it; nothing is lost afterwards, and the audit has it."""
    done = look(made, "--apply", "--yes", *options)
    assert done["applied"]
    assert done["measures"]
    after = look(made)
    assert losses(after) == []
    assert after["measures"] == []
    with made.runtime().state() as state:
        said = [entry for entry in state.audit.entries() if entry["what"] == "recover"]
    assert [entry["subject"] for entry in said][-len(done["measures"]) :] == [m["subject"] for m in done["measures"]]
    return done


def goes_on(made: Case, *numbers: int) -> None:
    made.run_until_head()
    made.assert_equal()
    deliver(made, *numbers)
    made.assert_equal()


def store(made: Case) -> Path:
    return made.folder / "store" / "case"
