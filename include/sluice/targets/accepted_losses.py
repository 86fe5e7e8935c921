"""The policy on columns that lose values: ``accept_loss`` of the target has to name each of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sluice.config import patterns
from sluice.config.pipeline import SNAPSHOT, TargetConfig
from sluice.errors import MappingError
from sluice.model.planned import PlannedTable
from sluice.targets.port import TableFinding, about_values

_IN_ONE_LINE = 20
"""The most columns that one hint adds to ``accept_loss``."""


def judged(config: TargetConfig, plans: Sequence[PlannedTable], findings: Sequence[TableFinding]) -> list[TableFinding]:
    """Return the findings of a target, and what the mapping itself loses. A loss that the pipeline file does not accept
    is an error with the line that accepts it, and the other choices.
    """
    all_findings = [*findings, *_of_mapping(plans)]
    missing = list(
        dict.fromkeys(_name(finding) for finding in all_findings if finding.loses and not _is_accepted(config, finding))
    )
    return [
        _refused(config, finding, missing) if finding.loses and _name(finding) in missing else finding
        for finding in all_findings
    ]


def require_accepted(config: TargetConfig, plans: Sequence[PlannedTable], findings: Sequence[TableFinding]) -> None:
    """Raise MappingError for the first column that loses values without the pipeline file's accepting it."""
    sources = {plan.target: plan.source for plan in plans}
    for finding in judged(config, plans, findings):
        if finding.loses and finding.severity == "error":
            raise MappingError(
                f"column {finding.column!r} of {finding.table}: {finding.why}",
                where=str(sources[finding.table]),
                hint=finding.hint,
            )


def _of_mapping(plans: Sequence[PlannedTable]) -> list[TableFinding]:
    """Return what the mapping itself loses, before any target gets the values."""
    return [
        about_values(plan.target, column.name, f"{column.sql_type} -> {column.wanted}", column.loses)
        for plan in plans
        for column in plan.columns
        if column.loses and not column.generated
    ]


def _name(finding: TableFinding) -> str:
    return f"{finding.table}.{finding.column}"


def _is_accepted(config: TargetConfig, finding: TableFinding) -> bool:
    return any(patterns.fullmatch(pattern, _name(finding)) for pattern in config.accept_loss)


def _refused(config: TargetConfig, finding: TableFinding, missing: Sequence[str]) -> TableFinding:
    names = missing if len(missing) <= _IN_ONE_LINE else [_name(finding)]
    place = "snapshot" if config.name == SNAPSHOT else f"target {config.name}"
    alternative = finding.statement or finding.hint
    hint = (
        f"to accept it, write under {place}: {accepting_line([*config.accept_loss, *map(re.escape, names)])}; to keep "
        "the values, " + (alternative or "send the column as another type: mapping.columns.convert")
    )
    why = f"values would be lost: {finding.why}"
    return replace(finding, severity="error", why=why, statement="", hint=f"{hint}; or leave it out: columns.exclude")


def accepting_line(patterns: Sequence[str]) -> str:
    """Return the line of a pipeline file that accepts losses of the columns that ``patterns`` match."""
    quoted = ("'" + pattern.replace("'", "''") + "'" for pattern in patterns)
    return f"accept_loss: [{', '.join(quoted)}]"


__all__ = ["accepting_line", "judged", "require_accepted"]
