"""Health and metrics in Airflow's API server, at ``/sluice-monitor``: apart from the page, whose every route asks for
Airflow's login, which a scraper does not have.

================  ======================================================================================================
``/healthz``      200 while the server works
``/readyz``       200 if the pipelines' folder can be read
``/metrics``      the metrics of all pipelines, for whoever has the token in ``SLUICE_METRICS_TOKEN``; without that
                  variable there is no such address
================  ======================================================================================================
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fastapi import FastAPI, Header, HTTPException, Response
from fastapi.concurrency import run_in_threadpool

from sluice.config.loading import load_pipeline, yaml_files
from sluice.errors import SluiceError
from sluice.operations.metrics import Looks, Seen, exposition

TOKEN = "SLUICE_METRICS_TOKEN"  # noqa: S105 - the name of the variable


def _look(path: str) -> Seen:
    from sluice.orchestration.runtime import open_runtime
    from sluice.serve.monitor import look

    return look(open_runtime(path))


def create_monitor(pipelines: Callable[[], Path], look: Callable[[str], Seen] = _look) -> FastAPI:
    """Create the application.

    Args:
        pipelines: returns the folder of the pipeline files. look: asks the pipeline of a file.
    """
    app = FastAPI(title="Sluice monitoring", docs_url=None, redoc_url=None, openapi_url=None)
    looks = Looks(lambda: _valid(pipelines()), look)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    def readyz() -> dict[str, str]:
        if not os.access(pipelines(), os.R_OK | os.X_OK):
            raise HTTPException(503, "the folder of the pipeline files cannot be read")
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics(accept: str = Header(""), authorization: str = Header("")) -> Response:
        token = os.environ.get(TOKEN)
        if not token:
            raise HTTPException(404, f"set {TOKEN} for the API server; scrapers send it as a bearer token")
        if not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, f"send {TOKEN} as a bearer token", {"WWW-Authenticate": "Bearer"})
        newest = await run_in_threadpool(looks.newest)
        text, content_type = exposition(newest, accept)
        return Response(text, media_type=content_type, headers={"Cache-Control": "no-store"})

    return app


def _valid(folder: Path) -> list[str]:
    """Return the pipeline files that can be read."""
    files = []
    for path in yaml_files(folder):
        with suppress(SluiceError):  # the page shows what is wrong with it
            load_pipeline(path)
            files.append(str(path))
    return files
