"""The page's application in a stand-in of Airflow's API server, over a socket, and commands through it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from click.testing import CliRunner
from fastapi import FastAPI

from devstack import ports
from sluice.cli import all_commands, service
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


@contextmanager
def api_of(page: FastAPI, monkeypatch: pytest.MonkeyPatch) -> Iterator[FastAPI]:
    """Let ``SLUICE_API`` name the page, which is served meanwhile; yield the stand-in of Airflow."""
    with serving(page) as (airflow, address):
        monkeypatch.setenv("SLUICE_API", address)
        monkeypatch.setenv("SLUICE_API_TOKEN", "right")
        try:
            yield airflow
        finally:
            service.choose("")


def sluice(*words: str) -> str:
    """Run a command in this process; return what it printed. Raises what it raised."""
    result = CliRunner().invoke(all_commands(), list(words))
    if result.exception is not None:
        raise result.exception
    return str(result.stdout)


__all__ = ["api_of", "serving", "sluice"]
