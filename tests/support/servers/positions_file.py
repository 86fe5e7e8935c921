"""A file of positions where a test has a ZooKeeper otherwise."""

from __future__ import annotations

import json
from pathlib import Path


class PositionsFile:
    """A file that need not exist yet."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.hosts = str(file)

    def connection_json(self) -> str:
        """The value for ``AIRFLOW_CONN_<ID>``."""
        return json.dumps({"conn_type": "sqlite", "host": self.hosts})

    def files(self) -> dict[Path, bytes]:
        """The file, and those that SQLite keeps beside it, with their content."""
        return {file: file.read_bytes() for file in self.file.parent.glob(f"{self.file.name}*")}

    def remove(self) -> None:
        """Remove them."""
        for file in self.files():
            file.unlink()

    def put_back(self, files: dict[Path, bytes]) -> None:
        """Have them as they were."""
        self.remove()
        for file, content in files.items():
            file.write_bytes(content)
