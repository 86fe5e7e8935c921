"""What the DAG families share."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

START = datetime(2024, 1, 1, tzinfo=UTC)
"""Before any run; sync DAGs don't catch up, so it says nothing about what is delivered."""

OWNER = "sluice"


def pipeline_files(folder: Path) -> list[Path]:
    """The pipeline files in ``folder``, by name."""
    return sorted(path for path in folder.glob("*.y*ml") if path.suffix in {".yaml", ".yml"})
