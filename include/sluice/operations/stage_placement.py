"""Queues, pools and executors of stages, as far as ``sluice check`` can check them: only Airflow knows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sluice.config.pipeline import PipelineConfig
from sluice.flows.stages import stages_of


@dataclass(frozen=True, slots=True)
class PlacementRemark:
    """A finding of ``sluice check`` about a location; ``fix`` is "" if nothing is wrong."""

    stage: str
    value: str
    why: str
    fix: str = ""


def placement_remarks(pipeline: PipelineConfig, rules_folder: Path, store_uri: str) -> Iterator[PlacementRemark]:
    """Yield each stage that the pipeline file gives a place, what it leaves without one, and what the places must have
    in common.
    """
    workers = pipeline.workers
    if not workers.stages:
        return
    stages = stages_of(pipeline, rules_folder)
    queues = set()
    for stage in stages:
        place = workers.place(stage.kind, stage.subject)
        queues.add((place.get("queue"), place.get("executor")))
        if place:
            value = ", ".join(f"{key} {name}" for key, name in place.items())
            yield PlacementRemark(
                stage.name, value, "Airflow knows whether it exists: `airflow pools list`, and workers of the queue"
            )
    known_names = {stage.name for stage in stages} | {str(stage.kind) for stage in stages}
    for key in workers.stages:
        if key not in known_names and key != "rule":
            why = "no rule with a task of its own has this name, so that no task is there"
            yield PlacementRemark(
                key, "no such stage", why, "correct the name, or write task: own for the rule in its file"
            )
    if len(queues) > 1 and store_uri.startswith("file:"):
        why = "stages of several places hand each other the batches in the segment store, and this one is a folder"
        fix = (
            "name a store that all of them reach (s3://, gs://, hdfs://), or mount this folder at the same path on "
            "all workers"
        )
        yield PlacementRemark("segments", store_uri, why, fix)
