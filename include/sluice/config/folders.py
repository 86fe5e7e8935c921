"""The folders of the user's files, and addresses that are folders."""

from __future__ import annotations

import os
from pathlib import Path

from sluice.errors import ConfigError


def users_folder(name: str, variable: str) -> Path:
    """Return a folder of the user's files: the one that the environment variable names, else the folder ``name`` in
    ``include/`` of a checkout, or in Airflow's home (``AIRFLOW_HOME``, by default ``~/airflow``) if Sluice is installed
    as a package.
    """
    configured = os.environ.get(variable)
    if configured:
        return Path(configured)
    root = Path(__file__).resolve().parents[2]
    if root.name != "include":
        root = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()
    return root / name


def pipelines_folder() -> Path:
    """Return the folder of the pipeline files: ``SLUICE_PIPELINES``, else ``pipelines`` (:func:`users_folder`)."""
    return users_folder("pipelines", "SLUICE_PIPELINES")


def channels_folder() -> Path:
    """Return the folder of the channel files: ``SLUICE_CHANNELS``, else ``channels`` next to the pipelines' folder."""
    configured = os.environ.get("SLUICE_CHANNELS")
    return Path(configured) if configured else pipelines_folder().parent / "channels"


def targets_folder() -> Path:
    """Return the folder of the user's own kinds of targets: ``SLUICE_TARGETS``, else ``targets``
    (:func:`users_folder`).
    """
    return users_folder("targets", "SLUICE_TARGETS")


def sources_folder() -> Path:
    """Return the folder of the user's own kinds of sources: ``SLUICE_SOURCES``, else ``sources``
    (:func:`users_folder`).
    """
    return users_folder("sources", "SLUICE_SOURCES")


def formats_folder() -> Path:
    """Return the folder of the user's own message formats: ``SLUICE_FORMATS``, else ``formats``."""
    return users_folder("formats", "SLUICE_FORMATS")


def rules_folder() -> Path:
    """Return the folder of engine.yaml and the rules: ``SLUICE_RULES``, else ``rules`` (:func:`users_folder`)."""
    return users_folder("rules", "SLUICE_RULES")


def rules_file(folder: Path, name: str) -> Path:
    """Return the path of a rules file. Raises ConfigError if it leads out of the rules' folder, as a link may."""
    path = folder / name
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise ConfigError(
            f"rules: {name} leads out of the rules' folder",
            where=str(folder),
            hint="put the file itself into the folder",
        )
    return path


def local_folder(uri: str) -> str:
    """Return the path of an absolute folder or ``file:///…``, without a slash at its end; "" for any other location."""
    path = uri.removeprefix("file://")
    return path.rstrip("/") if path.startswith("/") else ""


def docs_address() -> str:
    """Return the address of the documentation's site, "" if ``SLUICE_DOCS`` names none that a browser opens."""
    address = os.environ.get("SLUICE_DOCS", "").rstrip("/")
    return address if address.startswith(("https://", "http://")) else ""
