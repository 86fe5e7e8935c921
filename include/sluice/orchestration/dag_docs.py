"""The texts about a sync DAG in the Airflow UI."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.config.engine import RuleConfig
from sluice.config.folders import rules_folder
from sluice.config.pipeline import PipelineConfig, TargetConfig
from sluice.flows.stages import Stage, StageKind, described, rules_in

DRAIN = """Reads the source's log from the captured position and stores a **batch** of changes; while changes keep coming, one after the other.

Small batches are merged, loaded and acknowledged here, too. Its log has a line for each, and a table of all of them at the end. A batch that is
large, that changes definitions, or whose delivery fails is left to the tasks that follow, and ends the run (`docs/capture.md`).

It looks for changes itself for two seconds; when there are none it waits in the triggerer (*deferred*), which holds no
worker. Runs drain one after the other: each waits for the drain of the run before it. A retry, or Clear, finds the
same batches again, makes no further one, and leaves what is not done of them to the tasks that follow."""  # noqa: E501

MERGE = """Merges the run's batches to one row per key and applies the fused rules, on Spark. Runs merge in parallel.

Those that the drain has merged are not merged again; the log has the rows and seconds of both.

A retry starts from the stored batch again; what an earlier attempt wrote is left aside."""


SENSE = """Waits for changes at the source, stores the first **batch** of them, and ends: then all other tasks of the run start and work side by side.

It looks for changes itself for two seconds; when there are none it waits in the triggerer (*deferred*), which holds no worker. A run begins when
the one before it is over."""  # noqa: E501


def own_task_doc(stage: Stage, rules: Sequence[RuleConfig]) -> str:
    """Return the documentation of a task that works in parallel with the others of its run; ``rules``: all rules."""
    text = stage.type.about.format(subject=stage.subject)
    if stage.kind is StageKind.RULE:
        text += "\n\n" + rule_doc(next(rule for rule in rules if rule.name == stage.subject))
    text += rules_doc(stage, rules)
    return (
        f"{text}\n\n{_place(stage)} The log has a line every five seconds and a table of all batches at the end.\n\n"
        "A retry, or Clear, starts at the first batch that this task lacks. While a task before it is red, and while "
        "no batch comes, it waits in the triggerer."
    )


def stage_doc(stage: Stage, pipeline: PipelineConfig, rules: Sequence[RuleConfig]) -> str:
    """Return the documentation of a stage's task; ``rules``: all rules."""
    match stage.kind:
        case StageKind.CAPTURE:
            text = DRAIN
        case StageKind.MERGE:
            text = MERGE
        case StageKind.RULE:
            text = rule_doc(next(rule for rule in rules if rule.name == stage.subject))
        case StageKind.LOAD:
            text = load_doc(pipeline.target(stage.subject))
        case StageKind.ACKNOWLEDGE:
            text = ack_doc(pipeline.target(stage.subject))
        case _:
            text = stage.type.about.format(subject=stage.subject)
    return f"{text}{rules_doc(stage, rules)}\n\n{_place(stage)}"


def rules_doc(stage: Stage, rules: Sequence[RuleConfig]) -> str:
    """Return a Markdown table of the rules that run in a stage's task, in order; "" if there are none."""
    own_rules = rules_in(stage, rules)
    if not own_rules:
        return ""
    rows = ["| rule | what it is for | tables | |", "|---|---|---|---|"]
    for rule in own_rules:
        kind = f"built-in `{rule.builtin}`" if rule.builtin else f"`{rule.path}`, {rule.type}"
        about = described(rule, rules_folder()).replace("|", "\\|")
        rows.append(f"| **{rule.name}** | {about} | `{rule.match.schema_}.{rule.match.table}` | {kind} |")
    return "\n\nRules that run here, in this order:\n\n" + "\n".join(rows)


def _place(stage: Stage) -> str:
    """Return the stages that a batch passes before this one, and what records it."""
    needs = f"A batch comes here after {', '.join(f'`{name}`' for name in stage.needs)}. " if stage.needs else ""
    return f"{needs}It is recorded by {stage.type.records}."


def rule_doc(rule: RuleConfig) -> str:
    """Return the documentation of ``rule.{name}``."""
    what = f"the built-in rule `{rule.builtin}`" if rule.builtin else f"`{rule.path}`, type `{rule.type}`"
    return (
        f"Takes the merged batch through the rule **{rule.name}** ({what}) on "
        f"`{rule.match.schema_}.{rule.match.table}`, and through the fused "
        "rules after it. Batches go through in parallel.\n\nA retry starts from what the task before left. The rule's "
        "contents are those of the batch's merge; after a failure the next attempt takes the file as it is then."
    )


def load_doc(target: TargetConfig) -> str:
    """Return the documentation of ``load.{target}``."""
    return (
        f"Delivers the run's merged batches to **{target.name}** ({target.type}, connection `{target.connection}`), "
        f"consistency `{target.consistency}`, {target.parallelism} connections.\n\n"
        "Those that the drain has delivered are not delivered again. "
        "Batches are delivered in order: each load waits for the load of the run before it. The target itself "
        "remembers the last batch, so a retry, or Clear, never delivers a batch twice."
    )


def ack_doc(target: TargetConfig) -> str:
    """Return the documentation of ``ack.{target}``."""
    return (
        f"Moves the acknowledged position of **{target.name}** in ZooKeeper to the end of the run's last batch. "
        "From here on its batches are not needed again."
    )


def pipeline_doc(pipeline: PipelineConfig, path: str, stages: Sequence[Stage]) -> str:
    """Return the documentation of the DAG: what goes where, by which stages, and what to do when it is red."""
    source = pipeline.source.connection
    parts = [pipeline.description, f"Keeps other stores in step with `{source}`. File: `{path}`."]
    rows = ["| at the source | target | becomes | how |", "|---|---|---|---|"]
    for target in pipeline.targets:
        how = f"{target.type}, {target.changes}, consistency {target.consistency}"
        rows += [f"| `{m.from_}` | {target.name} | `{m.to}`{_columns(m)} | {how} |" for m in pipeline.mapping]
        rest = "every other captured table" if pipeline.mapping else "every captured table"
        rows.append(f"| {rest} | {target.name} | its own name | {how} |")
    parts.append("\n".join(rows))
    parts.append(f"Stages, a task each: {', '.join(f'`{stage.name}`' for stage in stages)}.")
    capture = pipeline.capture
    included = ", ".join(f"`{r}`" for r in capture.include)
    excluded = ", ".join(f"`{r}`" for r in capture.exclude)
    parts.append(
        f"Captured: {included}{f' but not {excluded}' if excluded else ''}; rules: "
        f"{f'`{pipeline.rules}`' if pipeline.rules else 'none'}; up to {pipeline.window} batches in flight; a batch "
        f"closes after {capture.batch.max_changes:,} changes, {capture.batch.max_bytes / 2**20:,.0f} MiB of log or "
        f"{capture.batch.max_wait.total_seconds():g} s."
    )
    parts.append(
        "**When a task is red:** its log ends with one message that says what happened and what to do. Nothing is "
        "lost: "
        "positions move only after delivery. Fix the cause; the next attempt continues automatically, or press "
        "*Clear* on the red task. Positions, lag and batches: the **Sluice** tab of this page."
    )
    return "\n\n".join(part for part in parts if part)


def _columns(mapping: object) -> str:
    columns = mapping.columns  # type: ignore[attr-defined]
    notes = []
    if columns.include is not None:
        notes.append("only " + ", ".join(columns.include))
    if columns.exclude:
        notes.append("without " + ", ".join(columns.exclude))
    notes += [f"{old} as {new}" for old, new in columns.rename.items()]
    return f" ({'; '.join(notes)})" if notes else ""
