"""What the stages of a run did: the outcome of one batch, the sums of a stage, and the batches that passed all stages.

They are the end of a task's log, its result, and the record that another process reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.segments.changeset import RuleTotal

KEPT = 20
"""Batches whose figures are stored for another process; the sums cover all batches."""

SAY_EVERY_S = 5.0
"""Seconds after which the sums of a stage are written again: what a process that dies has done since is not in them."""


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of one stage for one batch.

    Attributes:
        rows: passed on, or written and deleted at the target.
        errors: rows on which a rule failed.
        later: why the target gets the batch at another time, "" if it has it; later stages then skip the batch.
        rules: what each rule that ran in this stage did.
        already: an earlier attempt or another process had done it, or the rule does not apply to the batch.
    """

    batch: int
    seconds: float = 0.0
    rows: int = 0
    errors: int = 0
    later: str = ""
    rules: tuple[RuleTotal, ...] = ()
    already: bool = False


@dataclass
class StageSums:
    """The sums of one stage over the batches of a run.

    Attributes:
        rules: what the rules that ran in this stage did, in the order in which they ran.
        newest: the last batches, oldest first.
    """

    batches: int = 0
    rows: int = 0
    errors: int = 0
    seconds: float = 0.0
    first: int = 0
    rules: dict[str, RuleTotal] = field(default_factory=dict)
    newest: list[Done] = field(default_factory=list)

    @classmethod
    def of(cls, outcomes: Iterable[Done]) -> StageSums:
        """Add up these batches."""
        sums = cls()
        for outcome in outcomes:
            sums.add(outcome)
        return sums

    def add(self, outcome: Done, most: int | None = None) -> None:
        """Add a further batch. ``most``: batches whose figures are kept; None: of all."""
        self.first = self.first or outcome.batch
        self.batches += 1
        self.rows += outcome.rows
        self.errors += outcome.errors
        self.seconds += outcome.seconds
        self._add_rules(outcome.rules)
        self.newest.append(outcome)
        if most is not None:
            del self.newest[:-most]

    def __add__(self, more: StageSums) -> StageSums:
        """Add up both; ``more`` came later."""
        sums = StageSums(
            batches=self.batches + more.batches,
            rows=self.rows + more.rows,
            errors=self.errors + more.errors,
            seconds=self.seconds + more.seconds,
            first=self.first or more.first,
            rules=dict(self.rules),
            newest=[*self.newest, *more.newest],
        )
        sums._add_rules(more.rules.values())
        return sums

    def _add_rules(self, rules: Iterable[RuleTotal]) -> None:
        for rule in rules:
            known_rule = self.rules.get(rule.name)
            self.rules[rule.name] = known_rule + rule if known_rule else rule

    def result(self) -> dict[str, Any]:
        """Return the result of a task."""
        result: dict[str, Any] = {
            "batches": self.batches,
            "rows": self.rows,
            "errors": self.errors,
            "seconds": round(self.seconds, 3),
        }
        if self.newest:
            result |= {"first": self.first, "last": self.newest[-1].batch}
        if self.rules:
            result["rules"] = [rule.model_dump() for rule in self.rules.values()]
        return result

    def to_json(self) -> dict[str, Any]:
        """Return the sums as JSON, with the figures of the last batches; another thread may be adding meanwhile."""
        return {
            "batches": self.batches,
            "rows": self.rows,
            "errors": self.errors,
            "seconds": self.seconds,
            "first": self.first,
            "rules": [rule.model_dump() for rule in list(self.rules.values())],
            "newest": [[o.batch, round(o.seconds, 4), o.rows, o.errors, o.later] for o in list(self.newest)],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StageSums:
        """Read the sums that :meth:`to_json` returned."""
        return cls(
            data["batches"],
            data["rows"],
            data["errors"],
            data["seconds"],
            data["first"],
            {total["name"]: RuleTotal.model_validate(total) for total in data["rules"]},
            [Done(*figures) for figures in data["newest"]],
        )

    def table(self, rows: str = "rows") -> str:
        """Print the batches, a line each, and below them the rules. ``rows``: heading of the column that is counted."""
        lines = [["batch", rows, "errors", "seconds", ""]]
        lines += [[str(o.batch), str(o.rows), str(o.errors), f"{o.seconds:.2f}", o.later] for o in self.newest]
        parts = [aligned(lines)]
        if earlier := self.batches - len(self.newest):
            parts.append(f"and {earlier} before them: the log of drain has them")
        if self.rules:
            parts.append(rules_table(tuple(self.rules.values())))
        return "\n".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredBatch:
    """A batch that the loop delivered, with the seconds of its stages.

    Attributes:
        loaded: target -> seconds; None for one that is quarantined, or for which the batch waits.
        waits: targets that get the batch later, with others (``commit_every``).
        rows: rows written or removed, at all targets.
    """

    batch: int
    changes: int
    closed_by: str
    drained_s: float
    merged_s: float
    loaded: tuple[tuple[str, float | None], ...]
    rows: int
    waits: frozenset[str] = frozenset()

    def __str__(self) -> str:
        loads = ", ".join(f"{target} {self._load(target, seconds)}" for target, seconds in self.loaded)
        return (
            f"batch {self.batch}: {self.changes} changes, closed by {self.closed_by}; drain {self.drained_s:.2f} s, "
            f"merge {self.merged_s:.2f} s, {loads}; {self.rows} rows"
        )

    def _load(self, target: str, seconds: float | None) -> str:
        if seconds is not None:
            return f"{seconds:.2f} s"
        return "waits" if target in self.waits else "quarantined"


def counted(batches: int) -> str:
    """Format a number of batches: ``1 batch``, ``2 batches``."""
    return f"{batches} batch{'es' if batches != 1 else ''}"


def table(batches: Sequence[DeliveredBatch]) -> str:
    """Format the batches of a micro-batch loop as a table for the end of the task log."""
    targets = [target for target, _ in batches[-1].loaded] if batches else []
    lines = [["batch", "changes", "closed by", "drain s", "merge s", *(f"{target} s" for target in targets), "rows"]]
    for batch in batches:
        loads = dict(batch.loaded)
        seconds = (batch.drained_s, batch.merged_s, *(loads.get(target) for target in targets))
        cells = ["-" if value is None else f"{value:.2f}" for value in seconds]
        lines.append([str(batch.batch), str(batch.changes), batch.closed_by, *cells, str(batch.rows)])
    return aligned(lines)


def rules_table(rules: Sequence[RuleTotal]) -> str:
    """Print a line for each rule."""
    lines = [["rule", "rows in", "rows out", "changed", "errors", "dead letters", "seconds"]]
    lines += [
        [
            r.name,
            str(r.rows_in),
            str(r.rows_out),
            "-" if r.changed is None else str(r.changed),
            str(r.errors),
            str(r.dead_letters),
            f"{r.seconds:.2f}",
        ]
        for r in rules
    ]
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Print a table as text, its columns to the right."""
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


__all__ = ["KEPT", "SAY_EVERY_S", "DeliveredBatch", "Done", "StageSums", "aligned", "rules_table", "table"]
