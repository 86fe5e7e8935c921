"""A receiver of an HTTP target on loopback: it keeps the newest document of each row and the keys of requests, so that
it sees repeats.

Documents are those of debezium-json, in arrays, at ``/SCHEMA/TABLE``. The process is
``python -m devstack.http_receiver FILE PORT``; the file is an SQLite database, which survives a crash.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from devstack import ports
from devstack.server import Server

_TABLES = """
CREATE TABLE IF NOT EXISTS requests (key TEXT PRIMARY KEY, times INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS newest (table_name TEXT, key TEXT, document TEXT NOT NULL, PRIMARY KEY (table_name, key)) WITHOUT ROWID;
"""  # noqa: E501
_KEYS = (("order_id", "line"), ("id",))
"""Keys of the demo's tables: the first whose columns a row has."""


@dataclass
class HttpReceiver(Server):
    """The receiver's process."""

    name: str = "http"
    port: int = 0

    @property
    def file(self) -> Path:
        """The database."""
        return self.folder / "received.db"

    def connection_json(self) -> str:
        """Return the value for ``AIRFLOW_CONN_<ID>``."""
        return json.dumps({"conn_type": "http", "host": f"http://{self.host}", "port": self.port})

    def start(self, timeout_s: float = 30.0) -> HttpReceiver:
        """Start the process and wait until its port accepts connections.

        Raises ServerFailed with the end of its log.
        """
        if self.running:
            return self
        self.port = self.port or ports.free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._spawn([sys.executable, "-m", "devstack.http_receiver", str(self.file), str(self.port)])
        self._wait_ready(lambda: ports.accepts(self.port), timeout_s)
        return self

    def query(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return rows of the database."""
        if not self.file.is_file():
            return []
        with closing(_opened(self.file)) as database:
            return database.execute(statement, tuple(values)).fetchall()


def _opened(file: Path) -> sqlite3.Connection:
    found = sqlite3.connect(file, timeout=30, check_same_thread=False)
    found.execute("PRAGMA journal_mode = WAL")
    found.executescript(_TABLES)
    return found


def take(database: sqlite3.Connection, table: str, key: str, documents: Sequence[dict[str, Any]]) -> bool:
    """Keep the documents of a request in one transaction; return False, and keep nothing, if its key was there
    before.
    """
    with database:
        database.execute("INSERT INTO requests VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET times = times + 1", (key,))
        [(times,)] = database.execute("SELECT times FROM requests WHERE key = ?", (key,)).fetchall()
        if times > 1:
            return False
        for document in documents:
            row = document["after"] or document["before"]
            columns = next((names for names in _KEYS if set(names) <= row.keys()), tuple(row))
            told = json.dumps([row[name] for name in columns])
            if document["op"] == "d":
                database.execute("DELETE FROM newest WHERE table_name = ? AND key = ?", (table, told))
            else:
                database.execute("INSERT OR REPLACE INTO newest VALUES (?, ?, ?)", (table, told, json.dumps(document)))
    return True


def serve(file: Path, port: int) -> ThreadingHTTPServer:
    """Return a server that takes documents; its caller runs it."""
    database, lock = _opened(file), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            try:
                documents = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
                table = ".".join(map(unquote, self.path.strip("/").split("/")))
                with lock:
                    take(database, table, self.headers["Idempotency-Key"], documents)
                self._answer(204)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self._answer(400, f"{type(error).__name__}: {error}".encode())

        def _answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            if status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: a request is a row of the database."""

    return ThreadingHTTPServer((ports.LOOPBACK, port), Handler)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2])).serve_forever()
