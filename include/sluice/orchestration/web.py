"""The Sluice page inside the Airflow UI: a FastAPI sub-application, mounted at ``/sluice`` by the plugin.

Airflow does not authenticate a plugin's sub-application, so every route here depends on a logged-in user (cookie or
bearer token, else 401), and a pipeline is shown to those who may read its DAG.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import structlog
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagDetails
from airflow.api_fastapi.core_api.security import get_user, requires_access_view
from airflow.sdk.configuration import conf
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from sluice.config.loading import load_pipeline, shown, yaml_files
from sluice.config.pipeline import MAX_GRACE, PipelineConfig
from sluice.errors import SluiceError
from sluice.orchestration.dag_runs import dag_id_of, verify_id_of
from sluice.orchestration.dags.control import ACTIONS, act, open_to_act
from sluice.orchestration.dags.sync import invalid_dag_id
from sluice.segments.store import SegmentStore

_log = structlog.get_logger()

_FRESH_S = 1.0
_FILES = {
    "sluice.css": "text/css",
    "sluice.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "icon-dark.svg": "image/svg+xml",
}
_PRIVATE = {"Cache-Control": "no-store"}

User = Annotated[BaseUser, Depends(get_user)]


class FreshFor:
    """Remembers what ``ask`` returned for a second; callers that come meanwhile share one answer.

    Args:
        ask: key -> value; never raises.
        seconds: how long an answer is fresh.
    """

    def __init__(self, ask: Callable[[str], Any], seconds: float = _FRESH_S) -> None:
        self._ask = ask
        self._seconds = seconds
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._answers: dict[str, tuple[float, Any]] = {}

    def __call__(self, key: str) -> Any:
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            at, answer = self._answers.get(key, (-1e9, None))
            if time.monotonic() - at >= self._seconds:
                answer = self._ask(key)
                self._answers[key] = (time.monotonic(), answer)
            return answer


def ask_status(path: str) -> dict[str, Any]:
    """What the page shows of one pipeline file; an error is part of the answer."""
    now = {"asked_ms": int(time.time() * 1000), "file": shown(Path(path).name)}
    try:
        pipeline = load_pipeline(Path(path))
    except SluiceError as error:
        return {
            **now,
            "pipeline": shown(Path(path).stem),
            "dag_id": invalid_dag_id(Path(path)),
            "state": "invalid",
            "errors": [shown(str(error))],
        }
    described = {**now, "pipeline": pipeline.pipeline, "dag_id": dag_id_of(pipeline.pipeline), **_described(pipeline)}
    try:
        from sluice.flows.operate.status import status
        from sluice.orchestration.runtime import open_runtime

        return {**described, **status(open_runtime(path)).to_json()}
    except SluiceError as error:
        return {**described, "state": "unreachable", "errors": [str(error)]}
    except Exception as error:  # one pipeline's trouble is no reason to show none
        _log.exception("status_failed", pipeline=pipeline.pipeline)
        return {
            **described,
            "state": "unreachable",
            "errors": [f"its status cannot be read: {type(error).__name__}: {error}"],
        }


def _described(pipeline: PipelineConfig) -> dict[str, Any]:
    return {
        "description": pipeline.description,
        "source": pipeline.source.connection,
        "window": pipeline.window,
        "schedule": pipeline.schedule,
    }


def create_app(
    pipelines: Path,
    static: Path,
    *,
    ask: Callable[[str], dict[str, Any]] = ask_status,
    service: Callable[[], dict[str, Any]] | None = None,
) -> FastAPI:
    """The sub-application.

    Args:
        pipelines: folder of the pipeline files.
        static: folder of index.html and the files it names.
        ask: pipeline file -> its status.
        service: what the subscription service in this API server says (:meth:`sluice.orchestration.serving.Serving.told`); None: there is none.
    """
    app = FastAPI(
        title="Sluice",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(own_page), Depends(get_user), Depends(requires_access_view(AccessView.PLUGINS))],
    )

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: Exception) -> JSONResponse:
        """What is wrong, without the value: JSON has no form for some of them (NaN, half of a character)."""
        problems = error.errors() if isinstance(error, RequestValidationError) else ()
        said = [
            {"loc": [shown(str(part)) for part in p["loc"]], "msg": shown(str(p["msg"])), "type": p["type"]}
            for p in problems
        ]
        return JSONResponse({"detail": said}, 422, headers=_PRIVATE)

    fresh = FreshFor(ask)
    pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="sluice-status")

    def visible(user: BaseUser) -> list[dict[str, Any]]:
        found = list(pool.map(fresh, [str(path) for path in yaml_files(pipelines)]))
        return [one for one in found if _may_read(one["dag_id"], user)]

    @app.get("/")
    def index() -> FileResponse:
        return FileResponse(static / "index.html", media_type="text/html", headers=_PRIVATE)

    @app.get("/static/{name}")
    def file(name: str) -> FileResponse:
        if name not in _FILES:
            raise HTTPException(404, "no such file")
        return FileResponse(static / name, media_type=_FILES[name], headers=_PRIVATE)

    @app.get("/api/status")
    def all_statuses(user: User) -> JSONResponse:
        served = {"service": service()} if service is not None else {}
        return JSONResponse({"pipelines": visible(user), **served}, headers=_PRIVATE)

    @app.get("/api/status/{pipeline}")
    def one_status(pipeline: str, user: User) -> JSONResponse:
        for one in visible(user):
            if pipeline in {one["pipeline"], one["dag_id"]}:
                return JSONResponse(one, headers=_PRIVATE)
        raise HTTPException(404, f"there is no pipeline {pipeline!r} that you may see")

    @app.get("/api/runs/{pipeline}")
    def batches_of_run(pipeline: str, run: str, user: User) -> JSONResponse:
        """The batches of a run of the pipeline's DAG that are still known, oldest first, and which targets have each."""
        from sluice.flows.operate.status import batches_claimed
        from sluice.orchestration.runtime import claim, open_runtime

        path = _file_seen(pipelines, pipeline, user)
        try:
            found = batches_claimed(open_runtime(str(path)), claim(dag_id_of(pipeline), run))
        except SluiceError as error:
            raise HTTPException(503, shown(str(error))) from None
        return JSONResponse({"batches": found}, headers=_PRIVATE)

    @app.get("/api/verify/{pipeline}")
    def verifications(pipeline: str, user: User) -> JSONResponse:
        """The last results without their differences, newest first."""
        from sluice.flows.verify.result import kept

        store = _results_of(pipelines, pipeline, user)
        return JSONResponse({"results": [one.summary(0) for one in reversed(kept(store))]}, headers=_PRIVATE)

    @app.get("/api/verify/{pipeline}/{result}")
    def verification(pipeline: str, result: str, user: User) -> JSONResponse:
        """One result; ``latest``: the newest."""
        from sluice.flows.verify.result import named

        store = _results_of(pipelines, pipeline, user)
        try:
            found = named(store, pipeline, "" if result == "latest" else result)
        except SluiceError as error:
            raise HTTPException(503 if error.retryable else 404, shown(str(error))) from None
        return JSONResponse({**found.to_json(), "line": found.in_a_line()}, headers=_PRIVATE)

    @app.post("/api/pipelines/{pipeline}/{action}")
    def control(pipeline: str, action: str, user: User, order: Order) -> JSONResponse:
        path = _file_seen(pipelines, pipeline, user)
        if not _may(user, dag_id_of(pipeline), "PUT"):
            raise HTTPException(403, f"you may see {pipeline}, but not change it")
        if action not in ACTIONS:
            raise HTTPException(404, f"{action!r} is not an action; there are {', '.join(ACTIONS)}")
        try:
            plan = act(open_to_act(str(path)), action, by=f"{user.get_name()}@airflow", **order.model_dump())
        except SluiceError as error:
            raise HTTPException(503 if error.retryable else 409, str(error)) from None
        return JSONResponse(plan.to_json(), headers=_PRIVATE)

    return app


class Order(BaseModel):
    """Body of a request to act on a pipeline; see :func:`sluice.orchestration.dags.control.act`."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field("", max_length=2000)
    grace_s: float | None = Field(None, ge=0, le=MAX_GRACE.total_seconds(), allow_inf_nan=False, strict=True)
    dry_run: bool = Field(False, strict=True)


def own_page(request: Request) -> None:
    """Refuses what another site's page makes a browser send with the user's cookie.

    A request that changes something has a JSON body, which no form can send, and a browser says that it comes from a page of this address.
    A program that is no browser says neither, and may.
    """
    if request.method in {"GET", "HEAD", "OPTIONS"}:
        return
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "send JSON: Content-Type: application/json")
    if request.headers.get("sec-fetch-site", "none").lower() not in {"same-origin", "none"}:
        raise HTTPException(403, "this request comes from a page of another site")
    origin = request.headers.get("origin")
    if origin is not None and _address(origin) not in _addresses(request):
        raise HTTPException(403, f"this request comes from a page of another site: {shown(origin)[:200]}")


def _addresses(request: Request) -> set[tuple[str, str, int | None]]:
    """Of this Airflow: where the request was sent, and what Airflow's settings call it, where a proxy stands before it."""
    own = {
        _address(f"{request.url.scheme}://{request.headers.get('host', '')}"),
        _address(conf.get("api", "base_url", fallback="")),
    }
    return {address for address in own if address[1]}


def _address(url: str) -> tuple[str, str, int | None]:
    try:
        parts = urlsplit(url)
        default = {"http": 80, "https": 443}.get(parts.scheme)
        return parts.scheme, parts.hostname or "", parts.port or default
    except ValueError:
        return "", "", None


def _file_of(folder: Path, pipeline: str) -> Path | None:
    for path in yaml_files(folder):
        with suppress(SluiceError):
            if load_pipeline(path).pipeline == pipeline:
                return path
    return None


def _file_seen(folder: Path, pipeline: str, user: BaseUser) -> Path:
    """The file of a pipeline that ``user`` may see; the answer 404 for all others."""
    path = _file_of(folder, pipeline)
    if path is None or not _may_read(dag_id_of(pipeline), user):
        raise HTTPException(404, f"there is no pipeline {pipeline!r} that you may see")
    return path


def _results_of(folder: Path, pipeline: str, user: BaseUser) -> SegmentStore:
    """Where the results of a pipeline's verifications are; for those who may read the DAG that makes them. They may hold values of rows."""
    from sluice.orchestration.runtime import open_runtime

    path = _file_of(folder, pipeline)
    if path is None or not _may_read(verify_id_of(pipeline), user):
        raise HTTPException(404, f"there is no pipeline {pipeline!r} whose verifications you may see")
    return open_runtime(str(path)).store


def _may(user: BaseUser, dag_id: str, method: ResourceMethod) -> bool:
    return bool(get_auth_manager().is_authorized_dag(method=method, details=DagDetails(id=dag_id), user=user))


def _may_read(dag_id: str, user: BaseUser) -> bool:
    return _may(user, dag_id, "GET")
