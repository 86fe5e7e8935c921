"""The page's application in a stand-in of Airflow's API server, over a socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from devstack import ports
from tests.support.servers.airflows import wait_until


@contextmanager
def serving(page: FastAPI) -> Iterator[tuple[FastAPI, str]]:
    """Serve the page below ``/sluice``; yield the stand-in of Airflow and its address."""
    airflow, port = FastAPI(), ports.free_port()
    airflow.mount("/sluice", page)
    server = uvicorn.Server(uvicorn.Config(airflow, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, "the server", 60.0)
        yield airflow, f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(60)


__all__ = ["serving"]
