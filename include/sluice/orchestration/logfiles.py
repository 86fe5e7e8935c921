"""Airflow's log files of Sluice's own DAGs, by age. Airflow never removes them.

A run is removed as a whole, when the newest file of it is old. The newest runs of each DAG stay whatever their age:
among them are those that are open, and wait.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

KEPT_RUNS = 50
"""The newest runs of each DAG that are kept; more than a window is wide."""

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class OldLogs:
    """A folder (or one file) of logs: how many files, how large, when last written (seconds since 1970)."""

    path: Path
    files: int
    size_bytes: int
    written_s: float


def task_logs(base: Path, dags: Collection[str], *, before_s: float, keep_runs: int = KEPT_RUNS) -> Iterator[OldLogs]:
    """Yield runs of these DAGs whose logs were last written before that time.

    ``base``: ``[logging] base_log_folder``.
    """
    for dag in sorted(dags):
        runs = [logs for folder in _folders(base / f"dag_id={dag}", "run_id=") if (logs := _measured(folder))]
        runs.sort(key=lambda run: run.written_s, reverse=True)
        yield from (run for run in runs[keep_runs:] if run.written_s < before_s)


def processor_logs(base: Path, files: Collection[str], *, before_s: float) -> Iterator[OldLogs]:
    """Yield the DAG processor's logs of these DAG files, one file per day.

    ``base``: ``[logging] dag_processor_child_process_log_directory``.
    """
    for day in _folders(base, ""):
        if not _DAY.fullmatch(day.name):
            continue
        for bundle in _folders(day, ""):
            for name in sorted(files):
                logs = _measured(bundle / f"{name}.log")
                if logs and logs.written_s < before_s:
                    yield logs


def remove(logs: OldLogs) -> None:
    """Remove it, and folders above it that are empty then.

    What is gone already is no error; what may not be removed raises OSError.
    """
    if logs.path.is_dir():
        shutil.rmtree(logs.path)
    else:
        logs.path.unlink(missing_ok=True)
    above = logs.path.parent
    while _DAY.fullmatch(above.name) or _DAY.fullmatch(above.parent.name):
        try:
            above.rmdir()
        except OSError:  # not empty
            return
        above = above.parent


def _folders(base: Path, prefix: str) -> list[Path]:
    if not base.is_dir():
        return []
    return sorted(
        path for path in base.iterdir() if path.name.startswith(prefix) and path.is_dir() and not path.is_symlink()
    )


def _measured(path: Path) -> OldLogs | None:
    """Measure the files below a path; None if there are none, or they are gone meanwhile."""
    count, size, newest = 0, 0, 0.0
    for file in [path] if path.is_file() else path.rglob("*"):
        with suppress(OSError):
            if file.is_file():
                at = file.stat()
                count, size, newest = count + 1, size + at.st_size, max(newest, at.st_mtime)
    return OldLogs(path, count, size, newest) if count else None
