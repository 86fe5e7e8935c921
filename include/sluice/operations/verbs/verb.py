"""A verb: one thing that people can do to a pipeline, with its plan, its cost, and the command line that does the same.

Commands start with this module: what a verb works with is imported inside the functions.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sluice.operations.plan import ActionPlan, Plan, Stakes
from sluice.operations.verbs.orders import Order, Spelling

if TYPE_CHECKING:
    from sluice.flows.runtime import Runtime


class Right(StrEnum):
    """A right of a user at a pipeline.

    ``read``: see it. ``rows``: see values of rows, as task logs show them. ``act``: steer it. ``check``: steer it, and
    open runs that check it. ``dump``, ``verify``: open runs that copy or compare. ``verified``: see what comparisons
    found.
    """

    READ = "read"
    ROWS = "rows"
    ACT = "act"
    CHECK = "check"
    DUMP = "dump"
    VERIFY = "verify"
    VERIFIED = "verified"


@dataclass(frozen=True, slots=True)
class Command:
    """The command of a verb.

    Attributes:
        words: the command without ``sluice``.
        help: text of a command that is made from the order; "": its function is written in :mod:`sluice.cli`.
        reason: it takes ``--reason``.
        more: options that the verb always has.
    """

    words: str
    help: str = ""
    reason: bool = False
    more: Sequence[str] = ()

    def line(self, pipeline: str, order: Order) -> list[str]:
        """Return the words of the command line that does what ``order`` says."""
        words = [*self.words.split(), pipeline, *(["--reason", order.reason] if self.reason and order.reason else [])]
        options: list[str] = []
        for name, spelling in spellings(type(order)).items():
            value = getattr(order, name)
            if value is None or value is False or value == "" or value == []:
                continue
            if spelling.flags:
                options.append(spelling.flags[value][0])
            elif value is True:
                options.append(spelling.option)
            else:
                for part in _parts(value, spelling):
                    if spelling.argument:
                        words.append(part)
                    else:
                        options += [spelling.option, part]
        return [*words, *options, *self.more]


def _parts(value: Any, spelling: Spelling) -> list[str]:
    """Return the values of a field as words of the command line."""
    if isinstance(value, list):
        return value
    if spelling.parts:
        return [part.strip() for part in value.split(spelling.parts) if part.strip()]
    return [(f"{value:g}" if isinstance(value, float) else str(value)) + spelling.unit]


def spellings(order: type[Order]) -> dict[str, Spelling]:
    """Return the spelling of each field that an order has of its own, with its option and its help."""
    complete: dict[str, Spelling] = {}
    for name, info in order.model_fields.items():
        if name not in Order.model_fields:
            spelling = next((word for word in info.metadata if isinstance(word, Spelling)), Spelling())
            option = spelling.option or "--" + name.replace("_", "-")
            complete[name] = replace(spelling, option=option, help=spelling.help or info.description or "")
    return complete


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One thing that people can do to a pipeline.

    Attributes:
        title, what: of its button, and what it does.
        order: its fields.
        right: what a user has to be allowed.
        do: (runtime, order, who, dry run) -> the steps that it took; None where Airflow does it.
        plan: the steps that it would take, with ``{pipeline}`` in them, or (runtime, order) -> those; it asks servers
            and changes nothing. None: ``do`` says them in a dry run, and the command shows them and asks.
        stakes: its cost, or order -> its cost.
        confirms: data is at stake, or order -> it is.
        command: the same on the command line; None: there is none.
        of_channel: the command also takes the name of a channel, and acts on both of its pipelines.
        in_form: the form of the DAG ``sluice_control`` offers it.
    """

    name: str
    title: str
    what: str
    order: type[Order] = Order
    right: Right = Right.ACT
    do: Callable[[Runtime, Any, str, bool], ActionPlan] | None = None
    plan: Sequence[str] | Callable[[Runtime, Any], Sequence[str] | ActionPlan] | None = None
    stakes: Stakes | Callable[[Any], Stakes] = field(default_factory=Stakes)
    confirms: bool | Callable[[Any], bool] = False
    command: Command | None = None
    of_channel: bool = False
    in_form: bool = False

    def at_stake(self, order: Order) -> bool:
        """Return True if the order has to be confirmed by the pipeline's name."""
        return self.confirms(order) if callable(self.confirms) else self.confirms

    def command_line(self, pipeline: str, order: Order) -> str:
        """Return the command that does the same; "" if there is none."""
        return shlex.join(["sluice", *self.command.line(pipeline, order)]) if self.command is not None else ""

    def planned(self, runtime: Runtime, order: Order) -> Plan:
        """Return the plan. Raises SluiceError if the action is not possible now."""
        if self.plan is None:
            assert self.do is not None
            answer: Sequence[str] | ActionPlan = self.do(runtime, order, "", True)
        elif callable(self.plan):
            answer = self.plan(runtime, order)
        else:
            answer = [step.format(pipeline=runtime.name) for step in self.plan]
        steps, details = (answer.steps, answer.details) if isinstance(answer, ActionPlan) else (tuple(answer), {})
        stakes = self.stakes(order) if callable(self.stakes) else self.stakes
        command = self.command_line(runtime.name, order)
        return Plan(self.name, steps, stakes, self.at_stake(order), command, details)


__all__ = ["Command", "Right", "Verb", "spellings"]
