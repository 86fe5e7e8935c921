"""Stand by for an Airflow: work while none is alive, hand back when one is.

Pipeline and rules come from a copy if the shared folder is gone.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import structlog

from sluice.config.folders import pipelines_folder, rules_file, rules_folder
from sluice.config.loading import find_pipeline_file, load_pipeline
from sluice.config.pipeline import PipelineConfig
from sluice.coordination.leader_election import BEAT_S
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, Fenced, SluiceError
from sluice.flows.run import Step, run
from sluice.flows.runtime import Runtime
from sluice.model.backoff import wait_after

_log = structlog.get_logger()

STANDBY = "standby:"
"""The beginning of the names of installations that work only while no other one does."""


def stand_by(opened: Callable[[], Runtime], name: str) -> Iterator[Step]:
    """Deliver while no installation but other standbys has been heard of for as long as a takeover takes; never ends.

    ``opened``: the pipeline as its files are now; asked before each round. ``name``: of this standby.

    Raises:
        What cannot pass by itself, as a run does.
    """
    me, quiet_since, failed, has_reported = f"{STANDBY}{name}", time.monotonic(), 0, False
    while True:
        runtime = opened()
        runtime.owner = me
        try:
            with runtime.state() as state:
                patience_s = state.election.patience_s
                if _others(state, me):
                    quiet_since = time.monotonic()
                if time.monotonic() - quiet_since < patience_s:
                    if not has_reported:
                        has_reported = True
                        yield Step("standing by")
                        _log.info(
                            "standby_started",
                            pipeline=runtime.name,
                            reason="another installation lives, or did just now",
                        )
                else:
                    has_reported = False
                    with closing(cast(Generator[Step, None, None], run(runtime, until_head=True))) as steps:
                        for step in steps:
                            yield step
                            if step.phase == "acknowledged" and _others(state, me):
                                _log.info("standby_ended", pipeline=runtime.name)
                                break
            failed = 0
            time.sleep(BEAT_S)
        except SluiceError as error:
            if not error.retryable and not isinstance(error, Fenced):
                raise
            failed += 1
            retry = runtime.pipeline.retry
            pause_s = wait_after(failed, retry.delay, retry.max_delay).total_seconds()
            _log.warning("run_attempt_failed", pipeline=runtime.name, error=str(error), retry_in_s=pause_s)
            time.sleep(pause_s)


def _others(state: PipelineState, me: str) -> bool:
    """Return True if an installation other than a standby is alive, or has announced a restart."""
    leader = state.election.leader(me)
    if leader is not None and not leader.owner.startswith(STANDBY) and not leader.is_silent:
        return True
    return any(not name.startswith(STANDBY) for name in state.election.others_alive(me))


# -- the files ---------------------------------------------------------------------------------------------------------


def copies_folder() -> Path:
    """Return the folder of the standbys' copies: ``SLUICE_STANDBY``, else the user's data folder."""
    configured = os.environ.get("SLUICE_STANDBY")
    return Path(configured) if configured else Path.home() / ".local/share/sluice/standby"


@dataclass
class LocalCopy:
    """The pipeline's file and its rules as they were last seen whole, on this machine's own disk.

    ``name``: of the pipeline, or the path of its file; ``folder``: of all copies.
    """

    name: str
    folder: Path
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    _warned: bool = False

    def open(self, build: Callable[[PipelineConfig], Runtime]) -> Runtime:
        """Build the pipeline from the shared files, which are copied if they changed; from the copy if they cannot be
        read.

        Raises ConfigError if neither can be read.
        """
        try:
            path, pipeline = find_pipeline_file(self.name, pipelines_folder())
            runtime = build(pipeline)
            if pipeline.rules and not rules_file(rules_folder(), pipeline.rules).is_file():
                raise ConfigError(f"{pipeline.rules} is not in the rules folder", where=str(rules_folder()))
            self._keep(path, runtime)
            self._warned = False
            return runtime
        except (ConfigError, OSError) as error:
            kept_path = self._folder / "pipeline.yaml"
            if not kept_path.is_file():
                raise
            if not self._warned:
                _log.warning("local_copy_used", pipeline=self.name, folder=str(self._folder), error=str(error))
                self._warned = True
            runtime = build(load_pipeline(kept_path))
            runtime.rules_folder = self._folder / "rules"
            return runtime

    @property
    def _folder(self) -> Path:
        return self.folder / Path(self.name).stem

    def _keep(self, path: Path, runtime: Runtime) -> None:
        now = _signature(path, runtime.rules_folder if runtime.pipeline.rules else None)
        if now == self._seen:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        if runtime.pipeline.rules:
            new_path, kept_path = self._folder / "rules.new", self._folder / "rules"
            shutil.rmtree(new_path, ignore_errors=True)
            shutil.copytree(runtime.rules_folder, new_path, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.rmtree(kept_path, ignore_errors=True)
            new_path.rename(kept_path)
        text = self._folder / "pipeline.new"
        shutil.copyfile(path, text)
        text.replace(self._folder / "pipeline.yaml")
        self._seen = now


def _signature(path: Path, rules: Path | None) -> dict[str, tuple[int, int]]:
    """Return size and modification time of every file."""
    files = [path, *(rule_file for rule_file in sorted(rules.rglob("*")) if rule_file.is_file())] if rules else [path]
    stats = ((str(file), file.stat()) for file in files if "__pycache__" not in file.parts)
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats}
