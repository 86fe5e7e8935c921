"""Rules with their own Airflow task: a batch passes from stage to stage.

The rules, in order, are cut into stages: the first is the merge with the fused rules before the first rule with its own
task; each such rule begins a new stage and takes the fused rules after it along. Between two stages a batch is a
:class:`StageManifest` and its files: merged rows under the source's names. The last stage maps them and makes the
changeset. A pipeline without such rules has one stage, and none of this is written.

Decision: which contents of the rule files run? The plan and the contents are taken when the merge begins and stored
with its result, so that a file that changes while a batch is being processed counts from the next batch on. After a
stage failed, its next attempt takes the contents as they are then: fixing a rule is enough. It would be wrong to read
them again in every stage: a batch could then be made of two versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sluice.errors import SegmentError, first_line
from sluice.flows.transform.changeset_writer import MergeResult, images_of
from sluice.model.tables import TableId
from sluice.rules import RuleConfig, RuleSet
from sluice.rules.script import Rule
from sluice.segments.changeset import ChangesetFile, RuleTotal, write_manifest_with
from sluice.segments.sealed import unsealed
from sluice.segments.store import SegmentStore


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class StoredRule(_Stored):
    """A rule as it was when the batch's merge began."""

    config: RuleConfig
    path: str
    text: str
    engine: str


class StageTable(_Stored):
    """Merged rows of one table under the source's names."""

    schema_: str = Field(alias="schema")
    table: str
    files: tuple[ChangesetFile, ...]

    @property
    def table_id(self) -> TableId:
        """The table as the stage has it."""
        return TableId(self.schema_, self.table)


class StageManifest(_Stored):
    """The output of a stage for the next one, stored as ``changeset-{attempt}/stage.json``."""

    format_version: Literal[1] = 1
    batch: int
    attempt: str
    plan: tuple[tuple[str, ...], ...] = Field(description="Names of the rules of every stage.")
    rules: tuple[StoredRule, ...] = Field(description="All of them, with their contents.")
    tables: tuple[StageTable, ...]
    totals: tuple[RuleTotal, ...] = Field((), description="Of the stages so far.")
    dead_letters: tuple[str, ...] = ()
    dead_letter_rows: int = 0


def stages_of(rules: RuleSet) -> list[RuleSet]:
    """Return the rules by stage; the first stage may have none."""
    stages: list[list[Rule]] = [[]]
    for rule in rules:
        if rule.config.owns_task:
            stages.append([rule])
        else:
            stages[-1].append(rule)
    return [RuleSet(tuple(stage)) for stage in stages]


def stored(rules: RuleSet) -> tuple[StoredRule, ...]:
    """Convert the rules to their form in the manifest."""
    return tuple(StoredRule(config=r.config, path=r.path, text=r.text, engine=r.engine) for r in rules)


def rules_of_stage(manifest: StageManifest, stage: int, engine_path: Path | None, *, anew: bool) -> RuleSet:
    """Return the rules of a stage as stored; ``anew``: as the files are now, if engine.yaml still names them.

    Raises RuleError, ConfigError.
    """
    known_rules = {s.config.name: Rule(s.config, s.path, s.text, s.engine) for s in manifest.rules}
    if anew and engine_path is not None:
        known_rules |= {rule.name: rule for rule in RuleSet.load(engine_path) if rule.name in known_rules}
    rules = RuleSet(tuple(known_rules[name] for name in manifest.plan[stage]))
    rules.validate()
    return rules


def read_stage(store: SegmentStore, path: str) -> StageManifest:
    """Read a stage manifest. Raises SegmentError if it is missing, damaged or of a newer format."""
    try:
        return StageManifest.model_validate_json(unsealed(store.read_text(path)))
    except ValueError as error:
        raise SegmentError(
            f"the manifest between two stages cannot be read: {first_line(error)}",
            where=path,
            hint=f"clear the task merge of this run, or `sluice rollback {store.pipeline}`: the batch is made anew "
            "from its segments",
        ) from error


def write_stage(store: SegmentStore, folder: str, manifest: StageManifest, results: Sequence[MergeResult]) -> str:
    """Write it with the small files of ``results``. Returns its path."""
    path = f"{folder}/stage.json"
    write_manifest_with(store, path, manifest, images_of(results))
    return path


def tables_of(results: Sequence[MergeResult]) -> tuple[StageTable, ...]:
    """Return the output of a stage's units, by table."""
    files: dict[TableId, list[ChangesetFile]] = {}
    for part in (part for result in results for part in result.parts):
        if part.file:
            files.setdefault(part.source, []).append(part.file)
    return tuple(StageTable(schema_=t.schema, table=t.table, files=tuple(files)) for t, files in sorted(files.items()))
