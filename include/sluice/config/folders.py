"""Where the user's files are, and addresses that are folders."""

from __future__ import annotations

import os
from pathlib import Path


def repository_folder(name: str, variable: str) -> Path:
    """``include/{name}`` of this repository, or what the environment variable says."""
    configured = os.environ.get(variable)
    return Path(configured) if configured else Path(__file__).resolve().parents[2] / name


def pipelines_folder() -> Path:
    """Where the pipeline files are: ``SLUICE_PIPELINES``, else include/pipelines."""
    return repository_folder("pipelines", "SLUICE_PIPELINES")


def channels_folder() -> Path:
    """Where the channel files are: ``SLUICE_CHANNELS``, else the folder ``channels`` next to that of the pipelines."""
    configured = os.environ.get("SLUICE_CHANNELS")
    return Path(configured) if configured else pipelines_folder().parent / "channels"


def targets_folder() -> Path:
    """Where the user's own kinds of targets are: ``SLUICE_TARGETS``, else include/targets."""
    return repository_folder("targets", "SLUICE_TARGETS")


def rules_folder() -> Path:
    """Where engine.yaml and the rules are: ``SLUICE_RULES``, else include/rules."""
    return repository_folder("rules", "SLUICE_RULES")


def local_folder(uri: str) -> str:
    """The path of an absolute folder or ``file:///…``, without a slash at its end; "" for any other place."""
    path = uri.removeprefix("file://")
    return path.rstrip("/") if path.startswith("/") else ""
