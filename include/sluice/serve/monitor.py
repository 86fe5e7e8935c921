"""The monitoring port of ``sluice serve`` and ``sluice run``: health for Kubernetes, metrics for Prometheus.

==============  ========================================================================================================
``/healthz``    200 while the process works; 503 with the reason if its work has ended
``/readyz``     200 if what it needs answers; else 503 with one line for each part that does not
``/metrics``    the metrics of its pipelines (:mod:`sluice.operations.metrics`), and memory and CPU of the process
==============  ========================================================================================================

It asks for no login, so that it listens on loopback unless it is told otherwise.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog
import uvicorn
from fastapi import FastAPI, Header, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse

from sluice.errors import ConfigError, SluiceError
from sluice.operations.metrics import Looks, Seen, exposition
from sluice.operations.status import stages_claimed, status

if TYPE_CHECKING:
    from sluice.flows.runtime import Runtime

_log = structlog.get_logger()
_GRACE_S = 2
Problems = Callable[[], Sequence[str]]
"""Returns what is wrong, a line each; empty: nothing."""


def look(runtime: Runtime) -> Seen:
    """Ask for the status of a pipeline, and what the stages of its newest run did."""
    now, stages = status(runtime), []
    if now.recent and not now.errors:
        try:
            stages = stages_claimed(runtime, now.recent[-1].claim)
        except SluiceError as error:
            _log.info("stages_read_failed", pipeline=runtime.name, error=str(error))
    return Seen(now, time.monotonic(), stages)


def monitoring(looks: Looks, *, unhealthy: Problems, not_ready: Problems) -> FastAPI:
    """Return the application of the monitoring port."""
    app = FastAPI(title="Sluice monitoring", docs_url=None, redoc_url=None, openapi_url=None)

    async def verdict(problems: Problems) -> PlainTextResponse:
        problem_lines = await run_in_threadpool(problems)
        return PlainTextResponse("\n".join(problem_lines or ["ok"]) + "\n", 503 if problem_lines else 200)

    @app.get("/healthz")
    async def healthz() -> PlainTextResponse:
        return await verdict(unhealthy)

    @app.get("/readyz")
    async def readyz() -> PlainTextResponse:
        return await verdict(not_ready)

    @app.get("/metrics")
    async def metrics(accept: str = Header("")) -> Response:
        newest = await run_in_threadpool(looks.newest)
        text, content_type = exposition(newest, accept, process=True)
        return Response(text, media_type=content_type)

    return app


class MonitorServer:
    """Serves :func:`monitoring` from a thread of its own until it is stopped. Port 0: one that is free.

    Raises ConfigError if it cannot listen there.
    """

    def __init__(
        self, host: str, port: int, looks: Looks, *, unhealthy: Problems = list, not_ready: Problems = list
    ) -> None:
        self._looks = looks
        app = monitoring(looks, unhealthy=unhealthy, not_ready=not_ready)
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=_GRACE_S)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host.strip("[]"), port), family=family)
        except OSError as error:
            raise ConfigError(
                f"the monitoring port cannot listen on {host}:{port}: {error.strerror or error}",
                hint="--monitor-port 0 takes a free one",
            ) from None
        self.address = f"http://{host}:{listening.getsockname()[1]}"
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=partial(self._server.run, sockets=[listening]), name="monitor", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Take no further requests."""
        self._server.should_exit = True
        self._thread.join(_GRACE_S + 1)
        self._looks.close()
