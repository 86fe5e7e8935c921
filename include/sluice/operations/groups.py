"""Groups: one order moves all pipelines that share a source (``source.group``) or a target (``targets[].group``).

The pipelines are asked side by side, as each waits for its servers most of the time. One that is refused holds up no
other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sluice.config.loading import load_pipeline, yaml_files
from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError, SluiceError
from sluice.flows.runtime import Runtime
from sluice.model.nearest import meant
from sluice.operations import control, target_switch

AT_ONCE = 16
"""Pipelines that are moved at the same time: a replica that lags holds each up for
:data:`sluice.operations.target_switch.PATIENCE_S`.
"""


class GroupKind(StrEnum):
    """The side of the pipelines that a group stands on."""

    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True, slots=True)
class Place:
    """A source or target of a pipeline that is in a group.

    Attributes:
        target: the name of the target, "" for the source.
        servers: the connections of the group.
    """

    pipeline: str
    target: str
    servers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupMove:
    """The answer of one pipeline: the steps of its failover or switch, or the error that refused it."""

    pipeline: str
    steps: tuple[str, ...] = ()
    error: SluiceError | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as the command prints it."""
        error = None if self.error is None else {"message": self.error.message, "hint": self.error.hint}
        return {"pipeline": self.pipeline, "steps": list(self.steps), "error": error}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> GroupMove:
        """Read what :meth:`to_json` gave."""
        stored_error = stored["error"]
        error = None if stored_error is None else ConfigError(stored_error["message"], hint=stored_error["hint"])
        return cls(stored["pipeline"], tuple(stored["steps"]), error)


def places(kind: GroupKind, pipeline: PipelineConfig) -> dict[str, list[Place]]:
    """Return the groups of a kind that a pipeline is in, each with the pipeline's places in it."""
    places: dict[str, list[Place]] = {}
    if kind is GroupKind.SOURCE:
        if pipeline.source.group:
            places[pipeline.source.group] = [Place(pipeline.pipeline, "", tuple(pipeline.source.servers))]
        return places
    for target in pipeline.targets:
        if target.group:
            places.setdefault(target.group, []).append(Place(pipeline.pipeline, target.name, tuple(target.servers)))
    return places


def members(kind: GroupKind, group: str, folder: Path) -> list[PipelineConfig]:
    """Return the pipelines that are in a group, by name.

    Raises ConfigError if no pipeline has it, or if a file that cannot be read may be one of them.
    """
    members: list[PipelineConfig] = []
    groups: set[str] = set()
    for path in yaml_files(folder):
        try:
            pipeline = load_pipeline(path)
        except ConfigError as error:
            error.hint = f"the file may belong to the group {group}, and nothing was done: mend it, or take it away"
            raise
        own_places = places(kind, pipeline)
        groups |= own_places.keys()
        if group in own_places:
            members.append(pipeline)
    if not members:
        known_groups = sorted(groups)
        raise ConfigError(
            f"no pipeline has the {kind} group {group!r}{meant(group, known_groups)}",
            where=str(folder),
            hint=f"known groups: {', '.join(known_groups)}"
            if known_groups
            else f"a pipeline file names it, beside the connections of the {kind}: group: NAME",
        )
    return sorted(members, key=lambda pipeline: pipeline.pipeline)


def move_group(
    kind: GroupKind, group: str, runtimes: Iterable[Runtime], order: Mapping[str, Any], *, by: str, dry_run: bool
) -> Iterator[GroupMove]:
    """Move each pipeline of a group to another server, and yield the answers in the order of ``runtimes``.

    Args:
        order: ``to``, a connection, or "" for the first other server that has everything; ``reason``; of a target
            group also ``rewind``: batches that the other server lacks are delivered to it again.
        dry_run: only say what it would do.
    """
    how = {name: value for name, value in order.items() if name in {"reason", "rewind"}}
    how |= {"by": by, "dry_run": dry_run}

    def steps_of(runtime: Runtime) -> Iterator[str]:
        if kind is GroupKind.SOURCE:
            yield from _failed_over(runtime, order["to"], **how)
            return
        for place in places(kind, runtime.pipeline)[group]:
            yield from target_switch.switch(runtime, place.target, order["to"], **how).steps

    def moved(runtime: Runtime) -> GroupMove:
        steps: list[str] = []
        try:
            steps.extend(steps_of(runtime))
        except SluiceError as error:
            error.name_pipeline(runtime.name)
            return GroupMove(runtime.name, tuple(steps), error)
        return GroupMove(runtime.name, tuple(steps))

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="group") as pool:
        yield from pool.map(moved, runtimes)


def _failed_over(runtime: Runtime, to: str, **how: Any) -> Iterable[str]:
    """Fail a pipeline over, unless it reads the server already."""
    with runtime.state() as state:
        stays = bool(to) and state.cursor() is not None and runtime.member(state) == to
    return (f"{to} is read already",) if stays else control.failover(runtime, to, **how).steps


__all__ = ["AT_ONCE", "GroupKind", "GroupMove", "Place", "members", "move_group", "places"]
