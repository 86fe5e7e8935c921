"""Conflicts of a channel: how many there were, and the last ones."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from sluice.config.channel import find_channel
from sluice.config.connections import ConnectionResolver
from sluice.config.loading import find_pipeline
from sluice.errors import ConfigError
from sluice.flows.runtime import Runtime
from sluice.model.load_marks import MarkRules
from sluice.segments.conflicts import kept_conflicts, total_conflicts
from sluice.segments.store import SegmentStore


def counted(store: SegmentStore, loads: MarkRules | None) -> int | None:
    """Return how many conflicts the pipeline has met; None if it is not its channel's pipeline that meets them.

    Raises SegmentError.
    """
    return total_conflicts(store) if loads is not None and loads.sends_back else None


def conflicts(name: str, *, folder: Path, pipelines_folder: Path, resolver: ConnectionResolver) -> dict[str, Any]:
    """Return the latest conflicts of a channel, newest first, and how many there were.

    Raises ConfigError, SegmentError.
    """
    path, channel = find_channel(name, folder)
    meets = next((pipeline for pipeline in channel.pipelines if channel.sends_back(pipeline)), None)
    if meets is None:
        raise ConfigError(
            f"channel {channel.channel} has consistency {channel.consistency}, which tells no conflicts",
            where=str(path),
            hint="consistency: time_intersection tells them, and repairs them; `sluice verify` finds rows that differ",
        )
    main = find_pipeline(channel.other(meets), pipelines_folder)
    runtime = Runtime.build(find_pipeline(meets, pipelines_folder), resolver=resolver)
    batches = kept_conflicts(runtime.store)
    return {
        "channel": channel.channel,
        "met_by": meets,
        "won": main.source.connection,
        "count": batches[0].total if batches else 0,
        "conflicts": [
            {
                **record.model_dump(by_alias=True, exclude={"at_us"}),
                "batch": batch.batch,
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.at_us / 1e6)),
            }
            for batch in batches
            for record in reversed(batch.listed)
        ],
    }


__all__ = ["conflicts", "counted"]
