"""The folders of the user's files, and addresses that are folders."""

from __future__ import annotations

import os
from pathlib import Path


def repository_folder(name: str, variable: str) -> Path:
    """Return ``include/{name}`` of this repository, or the folder that the environment variable names."""
    configured = os.environ.get(variable)
    return Path(configured) if configured else Path(__file__).resolve().parents[2] / name


def pipelines_folder() -> Path:
    """Return the folder of the pipeline files: ``SLUICE_PIPELINES``, else include/pipelines."""
    return repository_folder("pipelines", "SLUICE_PIPELINES")


def channels_folder() -> Path:
    """Return the folder of the channel files: ``SLUICE_CHANNELS``, else ``channels`` next to the pipelines' folder."""
    configured = os.environ.get("SLUICE_CHANNELS")
    return Path(configured) if configured else pipelines_folder().parent / "channels"


def targets_folder() -> Path:
    """Return the folder of the user's own kinds of targets: ``SLUICE_TARGETS``, else include/targets."""
    return repository_folder("targets", "SLUICE_TARGETS")


def rules_folder() -> Path:
    """Return the folder of engine.yaml and the rules: ``SLUICE_RULES``, else include/rules."""
    return repository_folder("rules", "SLUICE_RULES")


def local_folder(uri: str) -> str:
    """Return the path of an absolute folder or ``file:///…``, without a slash at its end; "" for any other location."""
    path = uri.removeprefix("file://")
    return path.rstrip("/") if path.startswith("/") else ""
