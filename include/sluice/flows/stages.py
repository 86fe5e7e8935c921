"""The stages of a pipeline as data: what each one needs, does and records.

The DAG, the loop of a run, ``sluice run``, the status and the documentation of tasks are made from one list,
:func:`pipeline_stages`. A further stage is an entry there, one in :data:`STAGE_TYPES`, and a function in
:mod:`sluice.flows.stage_work`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sluice.config.engine import EngineConfig, RuleConfig
from sluice.config.folders import rules_file
from sluice.config.loading import load_model
from sluice.config.pipeline import PipelineConfig, RunConfig
from sluice.errors import ConfigError
from sluice.model.batches import Batch, StageKind

SLOW_RULES_S = 5.0
"""Seconds that rules took on the batch before, from which on they run in their own tasks, where batches are processed
in parallel.

Faster rules only make the next batch larger.
"""


SHORTEST = 0.5
"""The smallest share of ``run.max_time`` for which a run captures; the share is random, so that pipelines that began
together do not end together.

The end of a run starts a process for each task of the next one; a dozen of them at once starve each other.
"""


def share_of_run() -> float:
    """Return the share of ``run.max_time`` after which one run captures no further batch."""
    return random.uniform(SHORTEST, 1.0)  # noqa: S311 - no secret


def limit_of_run(limits: RunConfig, batches: int, seconds: float, share: float) -> str:
    """Return the limit of the pipeline file at which a run makes no further batch, "" if it may make one.

    Args:
        batches: how many it has made. seconds: since it began. share: of ``run.max_time``, see :func:`share_of_run`.
    """
    if batches >= limits.max_batches:
        return "run.max_batches"
    return "run.max_time" if seconds >= limits.max_time.total_seconds() * share else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageType:
    """The properties that all stages of one kind share.

    Attributes:
        doing: the work as a phase of a run.
        about: what its task does, for the documentation of the DAG; ``{subject}`` is the rule or the target.
        records: the node or row that says that a batch has passed it, in words.
        color: of its task in Airflow's graph.
        is_in_nodes: the node of the batch, or the target's acknowledgement, says whether the batch has passed it;
            otherwise the stage notes each batch in its progress.
        is_serial: it takes the batches of all runs one after the other. False: runs are at it side by side.
    """

    doing: str
    about: str
    records: str
    color: str
    is_in_nodes: bool = False
    is_serial: bool = True


STAGE_TYPES: dict[str, StageType] = {
    StageKind.CAPTURE: StageType(
        doing="draining",
        about="Reads the source's log from the captured position and stores batch after **batch** while changes keep "
        "coming. Does the stages of tasks that have no worker, until they have one.",
        records="the batch, the run that delivers it, and the captured position, in one transaction in ZooKeeper",
        color="#d6eaf8",
    ),
    StageKind.MERGE: StageType(
        doing="merging",
        about="Merges the run's batches to one row per key and applies the fused rules, on Spark.",
        records="the batch's changeset in ZooKeeper, or its first stage where rules have tasks of their own",
        color="#fdebd0",
        is_in_nodes=True,
        is_serial=False,
    ),
    StageKind.RULE: StageType(
        doing="applying",
        about="Takes the run's batches through the rule **{subject}**, and through the fused rules after it.",
        records="the batch's next stage in ZooKeeper, the last rule its changeset",
        color="#fcf3cf",
        is_in_nodes=True,
        is_serial=False,
    ),
    StageKind.LOAD: StageType(
        doing="loading",
        about="Delivers the run's batches to **{subject}**, in order and each once: the target itself remembers the "
        "last one.",
        records="the batch's number at the target, together with its rows",
        color="#d5f5e3",
    ),
    StageKind.ACKNOWLEDGE: StageType(
        doing="acknowledging",
        about="Moves the acknowledged position of **{subject}** in ZooKeeper, batch by batch. A batch is not needed "
        "after that.",
        records="the target's acknowledged position in ZooKeeper",
        color="#e8daef",
        is_in_nodes=True,
    ),
}
"""The kinds of stages there are; :mod:`sluice.flows.stage_work` has the function of each."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of one pipeline.

    Attributes:
        subject: name of the rule or of the target; "" for a stage that there is once.
        needs: names of the stages that a batch has passed before.
    """

    kind: str
    subject: str = ""
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its task: ``merge``, ``load.reporting``."""
        return f"{self.kind}.{self.subject}" if self.subject else str(self.kind)

    @property
    def type(self) -> StageType:
        """The entry of its kind in :data:`STAGE_TYPES`."""
        return STAGE_TYPES[self.kind]

    @property
    def doing(self) -> str:
        """The stage as a phase of a run: ``merging``, ``loading reporting``."""
        return f"{self.type.doing} {self.subject}".strip()

    @property
    def transforms(self) -> bool:
        """True for the merge and the rules, which make the changeset of a batch."""
        return self.kind in {StageKind.MERGE, StageKind.RULE}


def pipeline_stages(pipeline: PipelineConfig, rules: Sequence[RuleConfig]) -> tuple[Stage, ...]:
    """Return the stages of a pipeline, each after those that it needs. ``rules``: all rules, in order."""
    capture = Stage(StageKind.CAPTURE)
    pipeline_stages = [capture, Stage(StageKind.MERGE, needs=(capture.name,))]
    for rule in (rule for rule in rules if rule.owns_task):
        pipeline_stages.append(Stage(StageKind.RULE, rule.name, (pipeline_stages[-1].name,)))
    ready = pipeline_stages[-1].name
    for target in pipeline.targets:
        load = Stage(StageKind.LOAD, target.name, (ready,))
        pipeline_stages += [load, Stage(StageKind.ACKNOWLEDGE, target.name, (load.name,))]
    return tuple(pipeline_stages)


def stages_of(pipeline: PipelineConfig, folder: Path) -> tuple[Stage, ...]:
    """Return the stages of a pipeline whose rules are in ``folder``, as :func:`pipeline_stages` lists them."""
    return pipeline_stages(pipeline, rules_of(pipeline, folder))


def rules_of(pipeline: PipelineConfig, folder: Path) -> tuple[RuleConfig, ...]:
    """Return the rules in order; none if engine.yaml in ``folder`` is invalid, which the merge then reports."""
    if pipeline.rules is None:
        return ()
    try:
        path = rules_file(folder, pipeline.rules)
        stat = path.stat()
        return _rules(path, stat.st_mtime_ns, stat.st_size)
    except (ConfigError, OSError):
        return ()


@lru_cache(maxsize=256)
def _rules(path: Path, _modified_ns: int, _size: int) -> tuple[RuleConfig, ...]:
    """Read the rules of one version of a file. Raises ConfigError."""
    return tuple(load_model(path, EngineConfig).in_order)


def rules_in(stage: Stage, rules: Sequence[RuleConfig]) -> tuple[RuleConfig, ...]:
    """Return the rules that run in the merge or in the rule ``stage``: its own, and fused ones up to the next rule with
    its own task.
    """
    if not stage.transforms:
        return ()
    configs: dict[str, list[RuleConfig]] = {"": []}
    at = ""
    for rule in rules:
        at = rule.name if rule.owns_task else at
        configs.setdefault(at, []).append(rule)
    return tuple(configs.get(stage.subject, ()))


def display_name(stage: Stage, rules: Sequence[RuleConfig]) -> str:
    """Return the display name of a task, with the number of fused rules that run in it: ``merge + 3 rules``."""
    fused = sum(not rule.owns_task for rule in rules_in(stage, rules))
    return f"{stage.name} + {fused} rule{'s' if fused > 1 else ''}" if fused else stage.name


_FIRST_LINE = re.compile(r'\s*(?:#.*\s+)*[rRuU]?("""|\'\'\'|"|--)\s*(.+)')


def described(rule: RuleConfig, folder: Path) -> str:
    """Return the purpose of a rule: its ``description``, or the first line of its file in ``folder``; "" if there is
    none.
    """
    if rule.description or not rule.path:
        return " ".join(rule.description.split())
    try:
        head = (folder / rule.path).read_text(errors="replace")[:2000]
    except OSError:
        return ""
    match = _FIRST_LINE.match(head)
    return match[2].partition(match[1])[0].strip() if match else ""


def has_passed(stage: Stage, stages: Sequence[Stage], batch: Batch) -> bool:
    """Return True if ``batch`` has passed the capture, merge or rule ``stage``.

    For a load see the target's acknowledgement.
    """
    if batch.dropped or not batch.needs_merge or stage.kind is StageKind.CAPTURE:
        return True
    transforms = [stage.name for stage in stages if stage.transforms]
    return stage.transforms and len(batch.stages) > transforms.index(stage.name)


__all__ = [
    "SLOW_RULES_S",
    "STAGE_TYPES",
    "Stage",
    "StageKind",
    "StageType",
    "described",
    "display_name",
    "has_passed",
    "limit_of_run",
    "pipeline_stages",
    "rules_in",
    "rules_of",
    "share_of_run",
    "stages_of",
]
