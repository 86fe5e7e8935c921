"""The Sluice page inside the Airflow UI: a FastAPI sub-application, mounted at ``/sluice`` by the plugin.

Airflow does not authenticate a plugin's sub-application, so every route here depends on a logged-in user (cookie or
bearer token, else 401), and a pipeline is shown to those who may read its DAG.
"""

from __future__ import annotations

import hashlib
import html
import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import get_user, requires_access_view
from airflow.sdk.configuration import conf
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from pydantic import Field

from sluice.config.folders import docs_address
from sluice.config.loading import yaml_files
from sluice.config.pipeline import PipelineConfig
from sluice.config.problems import shown
from sluice.errors import SluiceError
from sluice.operations.plan import ActionPlan
from sluice.operations.verbs.orders import Restart
from sluice.operations.verbs.verb import Right
from sluice.orchestration.dag_runs import dag_id_of
from sluice.orchestration.dags.control import act, form_actions
from sluice.orchestration.dags.sync import invalid_dag_id
from sluice.orchestration.last_answers import LastAnswers
from sluice.orchestration.page import reads
from sluice.orchestration.page.access import file_for, may_read, verified_file
from sluice.orchestration.page.headers import SecureHeaders
from sluice.orchestration.page.imports import import_for, runtime_to_act
from sluice.orchestration.page.routes import add_routes
from sluice.orchestration.page.served import Served, User
from sluice.orchestration.page_workers import PageWorkers

_log = structlog.get_logger()

_TARGETS_FRESH_S = 5.0
"""Seconds for which a target that matched ZooKeeper is not asked again for the page."""

_LIMIT_S = 20.0
"""Seconds that a request waits for the answers of a pipeline's servers; longer than the deadline of each."""

_ACT_LIMIT_S = 60.0
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_PRIVATE = {"Cache-Control": "no-store"}
_VERSION = re.compile("[0-9a-f]{16}")
_KEPT = {"Cache-Control": "private, max-age=31536000, immutable"}


def ask_status(path: str) -> dict[str, Any]:
    """Return what the page shows of one pipeline file; an error is part of the answer."""
    described = {"asked_ms": int(time.time() * 1000), **headline(Path(path))}
    if described["state"] == "invalid":
        return described
    try:
        pipeline = reads.pipeline_at(Path(path))
        import_for(pipeline)
        from sluice.operations.status import status
        from sluice.orchestration.runtime import runtime_of

        runtime = runtime_of(pipeline)
        runtime.owner, runtime.looks = None, reads.looks()  # it only looks
        return {**described, **status(runtime, keep_s=_TARGETS_FRESH_S).to_json()}
    except SluiceError as error:
        return {**described, "state": "unreachable", "errors": [str(error)]}
    except Exception as error:  # an error of one pipeline must not hide the others
        _log.exception("status_failed", pipeline=described["pipeline"])
        return {
            **described,
            "state": "unreachable",
            "errors": [f"its status cannot be read: {type(error).__name__}: {error}"],
        }


def headline(path: Path) -> dict[str, Any]:
    """Return what a pipeline's file alone says; its ``state`` is ``asked``, or ``invalid``."""
    try:
        stat = path.stat()
        return dict(_headline(path, stat.st_mtime_ns, stat.st_size, stat.st_ino))
    except FileNotFoundError:  # removed meanwhile
        return _invalid(path, f"{shown(path.name)} is not there any more")
    except OSError as error:
        return _invalid(path, f"{shown(path.name)} cannot be read: {error.strerror}")


@lru_cache(2048)
def _headline(path: Path, *_: int) -> dict[str, Any]:
    try:
        pipeline = reads.pipeline_at(path)
    except SluiceError as error:
        return _invalid(path, str(error))
    return {
        "file": shown(path.name),
        "pipeline": pipeline.pipeline,
        "dag_id": dag_id_of(pipeline.pipeline),
        "state": "asked",
        **_described(pipeline),
    }


def _invalid(path: Path, why: str) -> dict[str, Any]:
    return {
        "file": shown(path.name),
        "pipeline": shown(path.stem),
        "dag_id": invalid_dag_id(path),
        "state": "invalid",
        "errors": [shown(why)],
    }


def _described(pipeline: PipelineConfig) -> dict[str, Any]:
    return {
        "description": pipeline.description,
        "source": pipeline.source.connection,
        "target_names": [target.name for target in pipeline.targets],
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
    """Create the sub-application.

    Args:
        pipelines: folder of the pipeline files.
        static: folder of index.html and the files it names.
        ask: pipeline file -> its status.
        service: what the subscription service in this API server says
            (:meth:`sluice.orchestration.api_service.ApiService.state`); None: there is none.
    """
    app = FastAPI(
        title="Sluice",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(own_page), Depends(get_user), Depends(requires_access_view(AccessView.PLUGINS))],
    )

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: Exception) -> JSONResponse:
        """Answer what is wrong without the value: JSON has no form for some values (NaN, half of a character)."""
        problems = error.errors() if isinstance(error, RequestValidationError) else ()
        details = [
            {"loc": [shown(str(part)) for part in p["loc"]], "msg": shown(str(p["msg"])), "type": p["type"]}
            for p in problems
        ]
        return JSONResponse({"detail": details}, 422, headers=_PRIVATE)

    answers = LastAnswers(ask)
    own = PageWorkers("sluice-page", 4, _LIMIT_S, "Airflow does not say in time what you may see; try again")
    looking = PageWorkers("sluice-look", 8, _LIMIT_S, "the pipeline's servers do not answer in time; try again")
    curves = PageWorkers("sluice-curves", 2, 60.0, "the segment stores do not answer in time; try again")
    acting = PageWorkers(
        "sluice-act",
        4,
        _ACT_LIMIT_S,
        "ZooKeeper does not answer in time; it may still be done: `sluice audit PIPELINE` tells",
    )

    def readable(user: BaseUser) -> dict[str, dict[str, Any]]:
        """Return the headlines of the pipelines that ``user`` may see, by path."""
        files = {str(path): headline(path) for path in yaml_files(pipelines)}
        answers.forget(files)
        return {path: head for path, head in files.items() if may_read(head["dag_id"], user)}

    async def statuses(heads: dict[str, dict[str, Any]], listed: bool = False) -> list[dict[str, Any]]:
        """Return the answers, except one of another file under the same name: the user may not be allowed to see
        that. ``listed``: as the rows of a list, without waiting for each.
        """
        pairs = zip(await answers.newest(heads, listed=listed), heads.values(), strict=True)
        return [answer if answer["dag_id"] == head["dag_id"] else head for answer, head in pairs]

    files = {path.relative_to(static).as_posix(): path for path in static.rglob("*") if path.suffix in _KINDS}
    version = _version(files)

    @app.get("/")
    async def index() -> HTMLResponse:
        page = (static / "index.html").read_text("utf-8").replace('"static/', f'"static/{version}/')
        site = html.escape(docs_address())
        return HTMLResponse(page.replace("<html ", f'<html data-docs="{site}" ', 1), headers=_PRIVATE)

    @app.get("/static/{name:path}")
    async def file(name: str) -> FileResponse:
        """Return a file that the page names. What this server's page names never changes, so a browser asks for it
        once; the page of another release may ask this server, too.
        """
        folder, _, rest = name.partition("/")
        path = files.get(rest if _VERSION.fullmatch(folder) else name)
        if path is None:
            raise HTTPException(404, "no such file")
        return FileResponse(path, media_type=_KINDS[path.suffix], headers=_KEPT if folder == version else _PRIVATE)

    @app.get("/api/status")
    async def all_statuses(user: User) -> JSONResponse:
        served = {"service": service()} if service is not None else {}
        heads = await own.run(partial(readable, user))
        return JSONResponse({"pipelines": await statuses(heads), **served}, headers=_PRIVATE)

    @app.get("/api/status/{pipeline}")
    async def one_status(pipeline: str, user: User) -> JSONResponse:
        heads = await own.run(partial(readable, user))
        wanted_heads = {path: head for path, head in heads.items() if pipeline in {head["pipeline"], head["dag_id"]}}
        for status in await statuses(wanted_heads):
            return JSONResponse(status, headers=_PRIVATE)
        raise HTTPException(404, f"there is no pipeline {pipeline!r} that you may see")

    @app.get("/api/runs/{pipeline}")
    async def batches_of_run(pipeline: str, run: str, user: User) -> JSONResponse:
        """List the batches of a run of the pipeline's DAG that are still known, oldest first, the targets that have
        each, and what each stage did.
        """
        path, dag_id = await own.run(partial(file_for, pipelines, pipeline, user)), dag_id_of(pipeline)
        batches = await looking.run(
            partial(reads.asked, path, "the batches", lambda runtime: reads.batches_of_run(runtime, dag_id, run))
        )
        return JSONResponse(batches, headers=_PRIVATE)

    @app.get("/api/verify/{pipeline}")
    async def verifications(pipeline: str, user: User) -> JSONResponse:
        """List the last results without their differences, newest first."""
        path = await own.run(partial(verified_file, pipelines, pipeline, user))
        results = await looking.run(partial(reads.asked, path, "the verifications", reads.results))
        return JSONResponse({"results": [result.summary(0) for result in reversed(results)]}, headers=_PRIVATE)

    @app.get("/api/verify/{pipeline}/{result}")
    async def verification(pipeline: str, result: str, user: User) -> JSONResponse:
        """Return one result; ``latest``: the newest."""
        path = await own.run(partial(verified_file, pipelines, pipeline, user))
        name = "" if result == "latest" else result
        stored_result = await looking.run(
            partial(reads.asked, path, "the verifications", lambda runtime: reads.result(runtime, pipeline, name))
        )
        return JSONResponse({**stored_result.to_json(), "line": stored_result.in_a_line()}, headers=_PRIVATE)

    @app.post("/api/pipelines/{pipeline}/{action}")
    async def control(pipeline: str, action: str, user: User, order: Order) -> JSONResponse:
        path = await own.run(partial(file_for, pipelines, pipeline, user, Right.ACT))
        if action not in form_actions():
            raise HTTPException(404, f"{action!r} is not an action; there are {', '.join(form_actions())}")

        def do() -> ActionPlan:
            fields = order.model_dump(exclude={"confirm"})
            return act(runtime_to_act(path), action, by=f"{user.get_name()}@airflow", **fields)

        try:
            plan = await acting.run(do)
        except SluiceError as error:
            raise HTTPException(503 if error.retryable else 409, str(error)) from None
        return JSONResponse(plan.to_json(), headers=_PRIVATE)

    add_routes(app, Served(pipelines, own, looking, acting, curves, readable, statuses, service))
    app.add_middleware(SecureHeaders)
    return app


def _version(files: Mapping[str, Path]) -> str:
    """Return a word for the contents of the files that the page names."""
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(f"{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


class Order(Restart):
    """Body of a request to act on a pipeline; see :func:`sluice.orchestration.dags.control.act`."""

    dry_run: bool = Field(False, strict=True)


async def own_page(request: Request) -> None:
    """Refuse what another site's page makes a browser send with the user's cookie.

    A request that changes something has a JSON body, which no form can send, and a browser says that it comes from a
    page of this address. A program that is no browser says neither, and is accepted.
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
    """Return the addresses of this Airflow: where the request was sent, and the configured one, in case a proxy stands
    before it.
    """
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
