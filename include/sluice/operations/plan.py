"""The plan of an action: what it would do, or did, and at what cost. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Stakes:
    """The cost of an action: rows that targets get again, and rows that they do not get, or lose."""

    sent_again: str = NOTHING
    lost: str = NOTHING


@dataclass(frozen=True, slots=True)
class ActionPlan:
    """The steps that a verb would take or took, in sentences. ``details``: the same for programs, as JSON values."""

    what: str
    steps: tuple[str, ...]
    details: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as commands show it."""
        return {"what": self.what, "steps": list(self.steps)}


def together(plans: Sequence[ActionPlan]) -> ActionPlan:
    """Join what was done to several pipelines into one plan."""
    return ActionPlan(plans[0].what, tuple(step for plan in plans for step in plan.steps))


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of an action, before it is done.

    Attributes:
        confirm: data is at stake: the request has to repeat the pipeline's name.
        command: the same on the command line; "" if there is none.
        details: the steps for programs, of some actions.
    """

    action: str
    steps: Sequence[str]
    stakes: Stakes
    confirm: bool
    command: str
    details: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as the API answers it."""
        return {
            "action": self.action,
            "steps": list(self.steps),
            "sent_again": self.stakes.sent_again,
            "lost": self.stakes.lost,
            "confirm": self.confirm,
            "command": self.command,
            "details": self.details,
        }
