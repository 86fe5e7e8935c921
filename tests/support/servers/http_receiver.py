"""A receiver of requests, made with the standard library: it keeps what it takes, and answers as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Got:
    """A request as it arrived. ``headers``: by lower-case names."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def key(self) -> str:
        """The Idempotency-Key."""
        return self.headers.get("idempotency-key", "")

    @property
    def documents(self) -> list[Any]:
        """The documents of an array, or the only one."""
        found = json.loads(self.body)
        return found if isinstance(found, list) else [found]


@dataclass(frozen=True)
class Reply:
    """An answer. ``silent``: none is given, and the connection is closed."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    silent: bool = False


OK = Reply()


@dataclass
class Receiver:
    """The receiver, at a free port of the loopback.

    ``answer``: what it says to a request; a request that gets 2xx is in ``taken``.
    """

    answer: Callable[[Got], Reply] = lambda got: OK
    asked: list[Got] = field(default_factory=list)
    taken: list[Got] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                if len(body) < length:  # who sent it died meanwhile
                    self.close_connection = True
                    return
                headers = {name.lower(): value for name, value in self.headers.items()}
                got = Got(self.command, self.path, headers, body)
                with receiver.lock:
                    receiver.asked.append(got)
                    receiver.at_once += 1
                    receiver.most_at_once = max(receiver.most_at_once, receiver.at_once)
                try:
                    reply = receiver.answer(got)
                finally:
                    with receiver.lock:
                        receiver.at_once -= 1
                if reply.status // 100 == 2:
                    with receiver.lock:
                        receiver.taken.append(got)
                if reply.silent:
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign,assignment]  # who asked is gone
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        """Stop it."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
