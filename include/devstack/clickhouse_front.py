"""The HTTP interface of ClickHouse in front of its engine in this process: ``python clickhouse_front.py FOLDER PORT``.

The engine is ClickHouse's own, as the package chdb-core has it, with its tables on disk; the interface is ours, and
has what a target of type clickhouse asks for: a statement in the address or in the body, the data of an INSERT after
it, settings, and the number of an error in a header. Statements run one after the other. It needs the standard
library and the engine alone.
"""

from __future__ import annotations

import base64
import os
import re
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

_INSERT = re.compile(r"(INSERT INTO .*?)\s+FORMAT\s+(\w+)\s*", re.DOTALL)
_CODE = re.compile(r"Code: (\d+)")
_OF_THE_INTERFACE = frozenset({"query", "wait_end_of_query"})
_STATUSES = {**dict.fromkeys((60, 81), 404), **dict.fromkeys((27, 47, 53, 62, 117), 400), 48: 501, 497: 403, 516: 403}
"""The status of an error by its number, as the server has it; 500 for others."""


def serve(engine: Any, port: int, login: str) -> ThreadingHTTPServer:
    """Return a server on loopback; its caller runs it.

    ``login``: ``user:password`` that requests must have, "" for any.
    """
    lock = threading.Lock()
    wanted = f"Basic {base64.b64encode(login.encode()).decode()}" if login else ""

    def run(statement: str) -> bytes:
        with lock:
            return bytes(engine.query(statement, "TabSeparated").bytes() or b"")

    def insert(statement: str, form: str, settings: dict[str, str], data: bytes) -> bytes:
        with tempfile.NamedTemporaryFile(suffix=".data") as file:
            file.write(data)
            file.flush()
            given = ", ".join(f"{name} = {_literal(value)}" for name, value in settings.items())
            return run(f"{statement} FROM INFILE '{file.name}'{f' SETTINGS {given}' if given else ''} FORMAT {form}")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(200, b"Ok.\n")

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if wanted and self.headers.get("Authorization") != wanted:
                self._answer(403, b"Code: 516. DB::Exception: Authentication failed. (AUTHENTICATION_FAILED)", 516)
                return
            given = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
            settings = {name: value for name, value in given.items() if name not in _OF_THE_INTERFACE}
            found = _INSERT.fullmatch(given.get("query", ""))
            try:
                answer = (
                    run(given.get("query") or data.decode())
                    if found is None
                    else insert(found[1], found[2], settings, data)
                )
            except Exception as error:
                code = _CODE.search(str(error))
                number = int(code[1]) if code else 1001  # a C++ exception
                self._answer(_STATUSES.get(number, 500), str(error).encode(), number)
                return
            self._answer(200, answer)

        def _answer(self, status: int, body: bytes, code: int = 0) -> None:
            self.send_response(status)
            if code:
                self.send_header("X-ClickHouse-Exception-Code", str(code))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


if __name__ == "__main__":
    from chdb import session  # in the engine's environment alone

    serve(session.Session(sys.argv[1]), int(sys.argv[2]), os.environ.get("CLICKHOUSE_LOGIN", "")).serve_forever()
