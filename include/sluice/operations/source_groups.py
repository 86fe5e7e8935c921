"""One failover for all pipelines that share a source group (``source.group``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.config.loading import load_pipeline, yaml_files
from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError, SluiceError
from sluice.flows.runtime import Runtime
from sluice.model.nearest import meant
from sluice.operations import control


@dataclass(frozen=True, slots=True)
class GroupMove:
    """The answer of one pipeline: the steps of its failover or switch, or the error that refused it."""

    pipeline: str
    steps: tuple[str, ...] = ()
    error: SluiceError | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as the command prints it."""
        said = None if self.error is None else {"message": self.error.message, "hint": self.error.hint}
        return {"pipeline": self.pipeline, "steps": list(self.steps), "error": said}


def pipelines_of(group: str, folder: Path) -> list[PipelineConfig]:
    """Return the pipelines of a group, by name.

    Raises ConfigError if no pipeline has it, or if a file that cannot be read may be one of them.
    """
    return members_of(group, folder, lambda one: {one.source.group}, "source")


def members_of(
    group: str, folder: Path, groups_of: Callable[[PipelineConfig], set[str]], what: str
) -> list[PipelineConfig]:
    """Return the pipelines that are in a group, by name. ``what``: the kind of group, for messages. Raises
    ConfigError.
    """
    found: list[PipelineConfig] = []
    groups: set[str] = set()
    for path in yaml_files(folder):
        try:
            one = load_pipeline(path)
        except ConfigError as error:
            error.hint = f"the file may belong to the group {group}, and nothing was done: mend it, or take it away"
            raise
        groups |= groups_of(one)
        if group in groups_of(one):
            found.append(one)
    if not found:
        known = sorted(groups - {""})
        raise ConfigError(
            f"no pipeline has the {what} group {group!r}{meant(group, known)}",
            where=str(folder),
            hint=f"known groups: {', '.join(known)}"
            if known
            else f"a pipeline file names it, beside the connections of the {what}: group: NAME",
        )
    return sorted(found, key=lambda one: one.pipeline)


def fail_over_group(
    runtimes: Iterable[Runtime], to: str, *, by: str, reason: str, dry_run: bool
) -> Iterator[GroupMove]:
    """Fail over each pipeline to ``to``, or "" for the first other server that has everything that it read.

    Yield each answer as it comes. A pipeline that is refused does not hold up the others.
    """
    for runtime in runtimes:
        try:
            with runtime.state() as state:
                stays = bool(to) and state.cursor() is not None and runtime.member(state) == to
            if stays:
                yield GroupMove(runtime.name, (f"{to} is read already",))
                continue
            plan = control.failover(runtime, to, by=by, reason=reason, dry_run=dry_run)
            yield GroupMove(runtime.name, plan.steps)
        except SluiceError as error:
            error.name_pipeline(runtime.name)
            yield GroupMove(runtime.name, error=error)
