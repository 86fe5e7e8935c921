"""Pipeline files to make DAGs of, and stand-ins for the flows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.running import standin

PIPELINE = """
version: 1
pipeline: {name}
description: The shop's tables, for reports
source: {{connection: shop_mysql}}
capture: {{include: ["shop\\\\..*"], exclude: ["shop\\\\.tmp_.*"]}}
schedule: {schedule}
window: 3
spark: {{mode: {mode}}}
retry: {{attempts: 5, delay: 2s, max_delay: 30s}}
mapping:
  - {{from: shop.orders, to: reporting.orders, columns: {{exclude: [internal_note], rename: {{ts: created_at}}}}}}
targets:
  - {{name: reporting, type: mysql, connection: reporting_mysql}}
  - {{name: archive, type: mysql, connection: archive_mysql, consistency: batch}}
"""

WritePipeline = Callable[..., Path]


@pytest.fixture
def pipelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that the DAG file reads."""
    folder = tmp_path / "pipelines"
    folder.mkdir()
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    return folder


@pytest.fixture
def write_pipeline(pipelines: Path) -> WritePipeline:
    """Writes a pipeline file."""

    def write(
        name: str = "shop", *, schedule: str = "continuous", mode: str = "connect", file: str | None = None
    ) -> Path:
        path = pipelines / f"{file or name}.yaml"
        path.write_text(PIPELINE.format(name=name, schedule=schedule, mode=mode))
        return path

    return write


@pytest.fixture
def flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stand-ins in place of the flows."""
    folder = tmp_path / "standin"
    folder.mkdir()
    monkeypatch.setenv("STANDIN_DIR", str(folder))
    for name, module in standin.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("sluice.orchestration.assets._events", lambda runtime, target, claim: [])
    return standin


@pytest.fixture(scope="session")
def airflow_database() -> None:
    """Airflow's tables in the test's SQLite file."""
    from airflow.utils.db import initdb

    initdb()
