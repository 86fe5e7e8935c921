"""Copies to a site that users write to: in a channel, whoever asks for a copy has to allow it to overwrite such
writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.config.pipeline import PipelineConfig
from sluice.coordination.channel_side import ChannelMembership
from sluice.errors import ConfigError
from sluice.model.load_marks import MarkRules
from sluice.targets.registry import marks_loads


def require_overwrite(
    pipeline: PipelineConfig,
    member: ChannelMembership | None,
    loads: MarkRules | None,
    targets: Sequence[str],
    *,
    overwrite: bool,
    removes: bool,
) -> None:
    """Refuse a dump that may overwrite newer rows at a site that users write to, unless that was allowed.

    A copied row may be older than the target's: that one was written there and is on its way, or arrived at the source
    after the row was read. Nothing is refused if no written site is copied to, or if the channel sends back what is
    lost there (not for rows that the copy removes).

    Args:
        member, loads: the pipeline's channel, and what its capture does with marked loads; None: it has none.
        targets: names; none: all of the pipeline.
        overwrite: the user allowed it.
        removes: rows that the source does not have are deleted.

    Raises:
        ConfigError: it may overwrite rows, and the user did not allow that.
    """
    if overwrite or member is None or (loads is not None and loads.sends_back and not removes):
        return
    sites = [target.name for target in pipeline.targets if marks_loads(target.type)]
    copied = [name for name in sites if not targets or name in targets]
    if copied:
        raise ConfigError(
            f"target {copied[0]} is a site of channel {member.channel} and takes writes of its own: a copy overwrites "
            f"those that the source of {pipeline.pipeline} does not have yet",
            where=f"pipeline {pipeline.pipeline}",
            hint=f"stop writing at {copied[0]} and wait until {member.partner} has delivered everything (`sluice "
            f"status {member.partner}`); then, or where such writes may be lost, ask again with --overwrite (in the "
            "form in Airflow: overwrite)",
        )


__all__ = ["require_overwrite"]
