"""Check, before the first row, that a target's kind offers what the pipeline asks of it, so that no kind has to check
it again.
"""

from __future__ import annotations

from sluice.config.pipeline import SNAPSHOT, TargetConfig
from sluice.errors import ConfigError, LoadError, MappingError
from sluice.model.planned import PlannedTable
from sluice.model.schema_changes import ChangeKind
from sluice.model.whole_rows import LOG_WHOLE_ROWS
from sluice.targets.port import BatchInput, Capabilities, Feature, SchemaChange, TableFinding, Target

_NOBODY = frozenset({ChangeKind.ROWS_REPLACED, ChangeKind.UNKNOWN, ChangeKind.NOTHING})
"""The kinds that no target follows: rows changed without a row event, or a statement that is not understood, are only
checked; or nothing is to be done.
"""


def require_offered(config: TargetConfig, target: Target) -> None:
    """Raise ConfigError if the pipeline file asks for something that the target's kind does not offer."""
    offered = target.capabilities
    if config.consistency not in set(offered.consistency):
        raise ConfigError(
            f"target {config.name!r} ({config.type}) does not offer consistency: {config.consistency}",
            hint=f"it offers {', '.join(sorted(offered.consistency))}",
        )
    if config.changes not in set(offered.inputs):
        if config.changes == "all":
            raise ConfigError(
                f"target {config.name!r} ({config.type}) takes merged rows only",
                hint="write changes: latest, or leave the line out",
            )
        raise ConfigError(
            f"target {config.name!r} ({config.type}) takes every change, not merged rows", hint="write changes: all"
        )
    if config.on_error == "dead_letter" and Feature.ROW_REJECTION not in offered.features:
        raise ConfigError(
            f"target {config.name!r} ({config.type}) cannot leave out single rows",
            hint="write on_error: stop, or leave the line out",
        )
    if config.on_conversion == "copy" and Feature.RECOPIES not in offered.features:
        raise ConfigError(
            f"target {config.name!r} ({config.type}) does not copy a table again whose rows it cannot convert",
            hint="write on_conversion: stop, or leave the line out",
        )
    if config.commit_every is not None and Feature.BUNDLES not in offered.features:
        raise ConfigError(
            f"target {config.name!r} ({config.type}) cannot write several batches in one commit",
            hint="leave commit_every out; capture: {batch: {max_wait: …}} makes larger batches for all targets",
        )


def require_features(config: TargetConfig, offered: Capabilities, batch: BatchInput) -> None:
    """Raise MappingError or LoadError if the batch has rows that this kind of target cannot take."""
    for table in batch.tables:
        if not table.plan.key and Feature.KEYLESS not in offered.features:
            raise MappingError(
                f"{table.plan.source} has no key, and a target of type {config.type} needs one",
                where=str(table.plan.source),
                hint="give it a primary key at the source, or name the columns: mapping: [{from: …, key: [column]}]",
            )
        if table.partial and Feature.PARTIAL_ROWS not in offered.features:
            raise LoadError(
                f"the log has only the changed columns of rows of {table.plan.source}, and a target of type "
                f"{config.type} needs whole rows",
                where=str(table.plan.source),
                hint=f"{LOG_WHOLE_ROWS}; send: rows in the mapping; for what is in the log already: `sluice "
                "skip PIPELINE TARGET BATCH`, `sluice dump start PIPELINE --table SCHEMA.TABLE`, and for deleted rows "
                "`sluice verify PIPELINE --repair`",
            )
        if Feature.DELETE not in offered.features and any(file.deletes for file in table.files):
            raise LoadError(
                f"rows of {table.plan.source} were deleted, and a target of type {config.type} cannot delete",
                where=str(table.plan.source),
                hint="leave deletes out: capture: {events: [insert, update]}",
            )


def without_key(plan: PlannedTable) -> TableFinding:
    """Return the finding for a table without a key at a target that takes its merged rows by their keys."""
    return TableFinding(
        "error", plan.target, "", "it has no key, and changes: latest needs one",
        hint="give it a primary key, name one (mapping: key), or give the target changes: all",
    )  # fmt: skip


def require_kinds(config: TargetConfig, offered: Capabilities, change: SchemaChange) -> None:
    """Raise LoadError if this kind of target cannot follow a schema change."""
    kinds = change.wanted
    if Feature.CUT_OVERS in offered.features and change.cut_overs:
        kinds = frozenset(kind for table_change in change.changes for kind in table_change.kinds)
    missing = sorted(kinds - offered.schema_changes - _NOBODY)
    if not missing and (offered.schema_changes or not change.check_only):
        return
    raise LoadError(
        f"a target of type {config.type} cannot follow {', '.join(missing) or 'a change of definitions'}: "
        f"{change.statement.text[:300]}",
        where=change.where,
        hint="make the change at the target by hand, then "
        f"{to_ignore(config.name, ', '.join(change.ddl_kinds) or 'its kind')}",
    )


def to_ignore(target: str, kinds: str) -> str:
    """Return the end of a hint: how a target goes on without a change of definitions.

    The snapshot has no ``ddl`` in the file.
    """
    if target == SNAPSHOT:
        return (
            f"`sluice skip PIPELINE {SNAPSHOT} BATCH` goes on without this batch there, and "
            f"`sluice dump start PIPELINE --target {SNAPSHOT}` copies its tables into it anew"
        )
    return f"set {kinds} to ignore in the ddl of target {target} until the batch is delivered"
