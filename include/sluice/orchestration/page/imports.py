"""What the page's threads import, by one of them, before any other goes on.

Threads that import packages with circular imports at the same time (numba is one) may meet half a module, and the
package then stays broken for as long as the process lives.
"""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.config.loading import load_pipeline
from sluice.config.pipeline import PipelineConfig

if TYPE_CHECKING:
    from sluice.flows.runtime import Runtime

_MODULES = (
    "sluice.operations.status",
    "sluice.operations.adopt",
    "sluice.operations.groups",
    "sluice.operations.deadletters.replay",
    "sluice.operations.history",
    "sluice.operations.tables",
    "sluice.operations.verify.result",
    "sluice.flows.log_digests",
    "sluice.flows.dump.start",
    "sluice.flows.dump.progress",
)

_lock = threading.Lock()
_ready: set[str] = set()
"""Types of sources whose modules are imported."""


def import_for(pipeline: PipelineConfig) -> None:
    """Import what reads and actions of this pipeline need; other threads wait meanwhile."""
    kind = pipeline.source.type
    if kind in _ready:
        return
    with _lock:
        if kind in _ready:
            return
        for name in _MODULES:
            importlib.import_module(name)
        from sluice.sources import load_kind

        load_kind(kind)
        _ready.add(kind)


def runtime_to_act(path: Path) -> Runtime:
    """Open a pipeline's runtime for somebody who controls it. Raises SluiceError."""
    from sluice.orchestration.dags.control import open_to_act

    import_for(load_pipeline(path))
    return open_to_act(str(path))
