"""Installed packages of a test: their metadata and modules in a folder that this process imports from."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

import pytest


def install(
    monkeypatch: pytest.MonkeyPatch,
    site: Path,
    name: str,
    *,
    version: str = "1.0",
    entry_points: str = "",
    modules: Mapping[str, str] | None = None,
) -> None:
    """Install the distribution ``name`` into the folder ``site``, and put the folder on the path for this test.

    ``entry_points``: the text of its file. ``modules``: the text of each module.
    """
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if entry_points:
        (info / "entry_points.txt").write_text(entry_points)
    for module, text in (modules or {}).items():
        (site / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
