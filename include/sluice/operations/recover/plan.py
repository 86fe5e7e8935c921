"""The findings of recover and its measures, as values, each measure with the function that carries it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """One line of the table.

    Attributes:
        store: source, zookeeper, segments, or a target's name.
        severity: ok, warning, or loss; found: what is there.
    """

    store: str
    severity: str
    found: str

    def to_json(self) -> dict[str, Any]:
        """Return the finding as commands print it."""
        return {"store": self.store, "severity": self.severity, "found": self.found}


@dataclass(frozen=True)
class Measure:
    """One thing that recover would do.

    Attributes:
        subject: what it is about, as :class:`StoreFinding`; steps: what is done, in sentences; cost: how much work that
            is.
        lost: what no measure can restore; empty: nothing is lost.
        after: what a person runs afterwards, with the pipeline running; "" for nothing.
        left: rows that stay wrong until ``after`` has run, as a sentence; "" for none.
        act: does it.
    """

    subject: str
    steps: tuple[str, ...]
    act: Callable[[], None] = field(compare=False)
    cost: str = ""
    lost: tuple[str, ...] = ()
    after: str = ""
    left: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the measure as commands print it."""
        return {
            "subject": self.subject,
            "steps": list(self.steps),
            "cost": self.cost,
            "lost": list(self.lost),
            "after": self.after,
            "left": self.left,
        }


@dataclass(frozen=True)
class Question:
    """A person has to choose: more than one measure would be right, and only a person knows which.

    ``choices``: what it takes as an answer, and the measure that it stands for.
    """

    subject: str
    why: str
    choices: Mapping[str, Measure]

    def to_json(self) -> dict[str, Any]:
        """Return the question as commands print it, with the measure of each choice."""
        choices = {name: measure.to_json() for name, measure in self.choices.items()}
        return {"subject": self.subject, "why": self.why, "choices": choices}


@dataclass(frozen=True)
class RecoveryPlan:
    """The findings of a recovery, what would be done about them, and what a person has to choose first."""

    pipeline: str
    findings: tuple[StoreFinding, ...]
    measures: tuple[Measure, ...] = ()
    questions: tuple[Question, ...] = ()

    @property
    def whole(self) -> bool:
        """True if nothing is lost."""
        return not self.measures and not self.questions

    @property
    def after(self) -> tuple[str, ...]:
        """Commands for afterwards, each once."""
        return tuple(dict.fromkeys(measure.after for measure in self.measures if measure.after))

    @property
    def left(self) -> tuple[str, ...]:
        """The faults that the measures leave, each once."""
        return tuple(dict.fromkeys(measure.left for measure in self.measures if measure.left))

    def answered(self, answers: Mapping[str, str]) -> RecoveryPlan:
        """Apply ``answers`` (subject -> choice) to the questions.

        Raises ConfigError for an answer that is not a choice.
        """
        measures, open_ = list(self.measures), []
        for question in self.questions:
            answer = answers.get(question.subject)
            if answer is None:
                open_.append(question)
                continue
            measure = question.choices.get(answer)
            if measure is None:
                raise ConfigError(
                    f"{answer!r} is no choice for {question.subject}",
                    where=f"pipeline {self.pipeline}",
                    hint=f"choose one of: {', '.join(question.choices)}",
                )
            measures.append(measure)
        return RecoveryPlan(self.pipeline, self.findings, tuple(measures), tuple(open_))

    def require_answers(self) -> None:
        """Raise ConfigError with the choices of the first open question."""
        if self.questions:
            question = self.questions[0]
            choices = " or ".join(f"--choose {question.subject}={name}" for name in question.choices)
            raise ConfigError(
                f"{question.subject}: {question.why}; nothing was done",
                where=f"pipeline {self.pipeline}",
                hint=f"`sluice recover {self.pipeline}` shows what each choice does; then `sluice recover "
                f"{self.pipeline} --apply` with {choices}",
            )

    def to_json(self) -> dict[str, Any]:
        """Return the plan as commands print it."""
        return {
            "pipeline": self.pipeline,
            "findings": [finding.to_json() for finding in self.findings],
            "measures": [measure.to_json() for measure in self.measures],
            "questions": [question.to_json() for question in self.questions],
        }
