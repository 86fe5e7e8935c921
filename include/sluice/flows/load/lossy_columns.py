"""Columns that would lose values, looked for before the first row of each definition goes to a target."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Final

from sluice.model.dialects import Dialect
from sluice.model.planned import PlannedTable
from sluice.targets.accepted_losses import require_accepted
from sluice.targets.port import Target

_MOST = 20_000
_accepted: Final[dict[Hashable, None]] = {}
"""The definitions that this process has found to lose nothing without consent; the oldest are forgotten first."""


def require_known_losses(
    pipeline: str, target: Target, plans: Sequence[PlannedTable], dialect: Dialect, *, again: bool
) -> None:
    """Raise MappingError for a column that would lose values without the pipeline file's accepting it.

    The target is asked once for each definition of a table, and ``again`` after it followed a schema change.
    """
    keys = {_definition(pipeline, target, plan): plan for plan in plans}
    new = {key: plan for key, plan in keys.items() if again or key not in _accepted}
    schema = target.schema() if new else None
    if schema is not None:
        wanted = [replace(plan, dialect=dialect) for plan in new.values()]
        require_accepted(target.config, wanted, schema.compare(wanted))
    _accepted.update(dict.fromkeys(new))
    while len(_accepted) > _MOST:
        del _accepted[next(iter(_accepted))]


def _definition(pipeline: str, target: Target, plan: PlannedTable) -> Hashable:
    config = target.config
    options = repr(sorted(config.options.items()))
    columns = tuple((column.name, column.sql_type, column.type, column.key, column.nullable) for column in plan.columns)
    return pipeline, config.name, config.servers, config.accept_loss, options, plan.source, plan.target, columns


__all__ = ["require_known_losses"]
