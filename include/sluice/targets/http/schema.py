"""What `sluice check` says of a receiver: where rows go and what is promised. Nothing is asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.errors import LoadError
from sluice.model.planned import PlannedTable
from sluice.targets.feature_check import without_key
from sluice.targets.http.writer import HttpPlace
from sluice.targets.port import Input, TableFinding


@dataclass(frozen=True)
class HttpSchema:
    """See :class:`sluice.targets.port.TargetSchema`: a receiver has no tables."""

    place: HttpPlace
    input: Input

    def compare(self, tables: Sequence[PlannedTable]) -> Sequence[TableFinding]:
        """Return a line for each table: its address, what goes into a request, the order and the guarantee."""
        return [self._about(plan) for plan in tables]

    def _about(self, plan: PlannedTable) -> TableFinding:
        options = self.place.options
        if self.input is Input.MERGED and not plan.key:
            return without_key(plan)
        if "key" in options.named and not plan.key:
            return TableFinding("error", plan.target, "", "it has no key, and options.path or headers name {key}")
        method = options.methods.insert
        rows = "one row" if options.single else f"up to {options.batch.max_rows} rows"
        return TableFinding(
            "ok",
            plan.target,
            "",
            f"{method} {self.place.receiver.base}{options.path}, {rows} of {options.format} a request, in order by "
            f"{options.ordering}; at least once: a repeat has the same {options.idempotency_header}",
        )

    def apply(self, statement: str) -> None:
        """Raise LoadError, as nothing is proposed."""
        raise LoadError(f"this is no statement of an HTTP target: {statement[:300]}")
