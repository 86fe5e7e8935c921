"""A server that speaks MongoDB's protocol: FerretDB 1.24 on SQLite, built from its Go module by the machine's Go.

No mongod can be fetched from a package registry. This FerretDB has no transactions, closes the connection at a
Decimal128, and never answers to a command with about a hundred updates.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymongo
import structlog
from pymongo.errors import PyMongoError

from devstack import paths, ports
from devstack.debian import FetchFailed, lock
from devstack.server import Server

VERSION = "1.24.2"
_MODULE = Path(__file__).with_name("ferretdb")
_BUILD_S = 1_800.0
"""Seconds for a build: about two minutes of one processor, and the modules have to come."""
_log = structlog.get_logger()


def find_ferretdb() -> Path:
    """Return the program as built earlier, else build it now: two minutes of one processor. Raises FetchFailed."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(_MODULE.iterdir()))).hexdigest()
    folder = paths.home() / "ferretdb"
    program = folder / digest[:12] / "ferretdb"
    with lock(folder / ".lock"):
        if not program.is_file():
            _build(folder, program)
    return program


def _build(folder: Path, program: Path) -> None:
    compiler = shutil.which("go")
    if compiler is None:
        raise FetchFailed("FerretDB is built by Go 1.24 or newer, and there is no go on this machine")
    _log.info("ferretdb_build_started", into=str(folder))
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as scratch:
        module = Path(scratch) / "module"
        shutil.copytree(_MODULE, module)
        argv = [
            compiler,
            "build",
            "-mod=readonly",
            "-buildvcs=false",
            "-trimpath",
            "-o",
            str(Path(scratch) / "ferretdb"),
            ".",
        ]
        given = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": ""}
        try:
            done = subprocess.run(
                argv, check=False, cwd=module, env=given, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                timeout=_BUILD_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise FetchFailed(f"building FerretDB did not finish in {_BUILD_S / 60:.0f} minutes") from error
        if done.returncode:
            lines = "\n".join(f"    {line}" for line in done.stderr.splitlines()[-6:])
            raise FetchFailed(f"building FerretDB failed:\n{lines}")
        program.parent.mkdir(parents=True, exist_ok=True)
        os.replace(Path(scratch) / "ferretdb", program)


@dataclass
class FerretDBServer(Server):
    """One server without a login. ``start`` on the same folder goes on with its data, also after a crash.

    Args:
        port: 0: a free one; kept over restarts.
    """

    name: str = "ferretdb"
    port: int = 0

    def start(self, timeout_s: float = 60.0) -> FerretDBServer:
        """Start and wait until it answers. Raises ServerFailed with the end of its log."""
        if self.running:
            return self
        program = find_ferretdb()
        self.port = self.port or ports.free_port()
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        self._spawn([str(program), f"{self.host}:{self.port}", str(data)], env={"DO_NOT_TRACK": "1"})
        self._wait_ready(self._answers, timeout_s)
        return self

    def connection_json(self) -> str:
        """Return the value for ``AIRFLOW_CONN_<ID>``, as the MongoDB provider of Airflow has it."""
        return json.dumps({"conn_type": "mongo", "host": self.host, "port": self.port})

    def client(self) -> pymongo.MongoClient[dict[str, Any]]:
        """Return a client."""
        return pymongo.MongoClient(self.host, self.port, serverSelectionTimeoutMS=2_000, socketTimeoutMS=30_000)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.admin.command("ping").get("ok"))
        except PyMongoError:
            return False
