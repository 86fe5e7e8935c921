"""The HTTP server of the service, with documents as lines (NDJSON) or as server-sent events.

=====================================  ====================================================================================
``GET /v1/pipelines``                  names of the pipelines of which something may be read
``GET /v1/pipelines/{name}/tables``    their tables that may be read, with columns
``GET /v1/pipelines/{name}/changes``   documents; the query says of what
``POST /v1/changes``                   the same; the body is a ticket (:class:`sluice.serve.requests.ReadRequest`)
``GET /openapi.json``                  the description of all this
``GET /healthz``, ``GET /readyz``      200: it works, and ZooKeeper answers; else 503. They ask for no login
=====================================  ====================================================================================

An error is JSON (RFC 9457): ``title`` (the class), ``detail``, ``retryable``, and what a program may act on
(``oldest``, ``batch``).
"""  # noqa: E501

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

import structlog
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import JSONResponse, Response
from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from sluice import __version__
from sluice.config.connections import is_loopback
from sluice.config.pipeline import IDENTIFIER
from sluice.config.problems import problems_of, shown
from sluice.errors import AccessDenied, BatchesGone, ConfigError, SluiceError, TooManyReads
from sluice.formats import MessageFormat
from sluice.model.nearest import meant
from sluice.serve.access import ANYBODY, Reader, Readers
from sluice.serve.documents import DocumentShape
from sluice.serve.http_connections import KEEP_ALIVE_S, REQUEST_S, Connection, notice_lost_peers
from sluice.serve.http_streams import Pull, PulledResponse, about, encoding_of, events, lines
from sluice.serve.read import Reading
from sluice.serve.requests import MAX_BYTES, MAX_NUMBER, MAX_WAIT_S, ReadRequest, parsed, wrong_request
from sluice.serve.service import Service

_log = structlog.get_logger()
_NDJSON, _EVENTS, _PROBLEM = "application/x-ndjson", "text/event-stream", "application/problem+json"
_LOOK_S = 0.5
"""How soon a client that hung up while it waited is noticed."""

_AS_IN_A_TICKET = ("transactions", "piece_rows", "piece_bytes", "max_rows", "max_bytes")
Count = Annotated[int, Field(ge=1, le=MAX_NUMBER)] | None
Wait = Annotated[float, Field(ge=0, le=MAX_WAIT_S, allow_inf_nan=False)] | Literal["unlimited"] | None


class HowSent(BaseModel):
    """The form of an answer, and how long to wait for it."""

    format: MessageFormat = Field("debezium-json", description="What a document looks like; docs/formats.md.")
    marks: bool = Field(
        False, description="NDJSON: a line after each batch, with its number and position. Server-sent events have it."
    )
    wait: Wait = Field(
        None,
        description="Seconds to wait for a batch that is not stored yet, or unlimited. A read that follows ends after "
        "so long without one, another waits so long for the batch that it begins with (long poll).",
    )


class WhatIsRead(HowSent):
    """A read, as a query has it."""

    tables: list[str] = Field(
        [], description="Names (schema.table) or anchored regular expressions (RE2); none: all that may be read."
    )
    from_: Literal["earliest", "latest", "snapshot"] = Field(
        "earliest",
        alias="from",
        description="earliest: the oldest stored batch; latest: what comes next; snapshot: all rows of the snapshot, "
        "and what came after it.",
    )
    from_batch: int | None = Field(None, ge=1, le=MAX_NUMBER)
    from_timestamp: AwareDatetime | None = None
    from_position: str | None = Field(None, description="file:offset in the source's log")
    to: int | None = Field(None, ge=0, le=MAX_NUMBER, description="The last batch; none: the last that is stored.")
    follow: bool = Field(False, description="Go on with new batches as they are stored.")
    columns: list[str] | None = Field(None, description="Columns of the tables; none: all.")
    transactions: bool = Field(
        False, description="Changes in the order of their commits, with an event where a transaction begins and ends."
    )
    piece_rows: Count = Field(None, description="Documents that are sent at once, at most.")
    piece_bytes: Count = Field(None, description="Bytes of documents that are sent at once, at most.")
    max_rows: Count = Field(
        None, description="The answer ends with the batch with which it has so many changes, as stored."
    )
    max_bytes: Count = Field(None, description="The same by the bytes that stored changes take in memory.")
    on_lost_batches: Literal["snapshot", "stop"] | None = Field(
        None,
        description="As in a ticket; NDJSON without marks: stop, unless it says snapshot (header Sluice-Reset-Batch).",
    )

    def request(self, pipeline: str, last_event: int | None) -> ReadRequest:
        """Return the query as a ticket. Raises ConfigError.

        ``last_event``: number of the last batch that the client of server-sent events had.
        """
        starts: dict[str, Any] = {
            "batch": self.from_batch, "timestamp": self.from_timestamp, "position": self.from_position,
        }  # fmt: skip
        named = {name: value for name, value in starts.items() if value is not None}
        places = [f"from_{name}" for name in named] + (["from"] if self.from_ != "earliest" else [])
        if len(places) > 1:
            raise ConfigError(f"a read begins at one place, not at {' and '.join(places)}")
        if last_event is not None:
            named = {"batch": last_event + 1}
        more = {} if self.columns is None else {"columns": self.columns}
        try:
            return ReadRequest.model_validate({
                "pipeline": pipeline, "tables": self.tables, "from": named or self.from_, "to": self.to,
                "follow": self.follow,
                "on_lost_batches": self.on_lost_batches, "wait": self.wait,
                **{name: getattr(self, name) for name in _AS_IN_A_TICKET}, **more,
            })  # fmt: skip
        except ValidationError as error:
            raise wrong_request(error, "the query") from None


@dataclass(frozen=True)
class _Asked:
    """The reader who asks, and the form of the answer."""

    reader: Reader
    how: HowSent
    as_events: bool
    encoding: str


class HttpServer:
    """Serves from a thread of its own until it is ended.

    Args:
        port: 0: one that is free. readers: who may read; None: whoever can connect may read everything.
        tls: files of the certificate (with its chain) and of the private key, PEM.

    Raises:
        OSError: it cannot listen there, or cannot use the certificate.
    """

    def __init__(
        self,
        service: Service,
        host: str,
        port: int,
        *,
        readers: Readers | None = None,
        tls: tuple[FilePath, FilePath] | None = None,
    ) -> None:
        self._ending = threading.Event()
        self._threads = ThreadPoolExecutor(service.slots.most + 2, "http-read")
        app = application(_Reads(service, readers, self._ending.is_set, self._threads))
        if readers is None and is_loopback(host):  # a page in a browser of this machine is not to read by another name
            app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1", "[::1]", host])
        files = {"ssl_certfile": str(tls[0]), "ssl_keyfile": str(tls[1])} if tls is not None else {}
        config = uvicorn.Config(
            app,
            http=Connection,
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=8,
            **files,  # type: ignore[arg-type]
        )
        config.load()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host.strip("[]"), port), family=family)
        notice_lost_peers(listening)
        self.port: int = listening.getsockname()[1]
        self._server = uvicorn.Server(config)
        run = partial(self._server.run, sockets=[listening])
        self._thread = threading.Thread(target=run, name="http", daemon=True)
        self._thread.start()

    def stop(self, patience_s: float = 10.0) -> bool:
        """Take no further requests, and wait for the open ones. False: one is still open."""
        self._ending.set()
        self._server.should_exit = True
        self._thread.join(patience_s)
        self._threads.shutdown(wait=False)
        return not self._thread.is_alive()


@dataclass
class _Reads:
    """State that requests share."""

    service: Service
    readers: Readers | None
    is_ending: Callable[[], bool]
    threads: ThreadPoolExecutor

    async def answer(self, client: Request, request: ReadRequest, options: _Asked) -> Response:
        """Answer with what is read, from its first piece on."""
        removed_event = threading.Event()
        is_over = lambda: removed_event.is_set() or self.is_ending()  # noqa: E731
        give_back = self.service.slots.take(options.reader.name)
        try:
            opened = asyncio.get_running_loop().run_in_executor(
                self.threads, _opened, self.service, request, options, is_over
            )
            while not (await asyncio.wait({opened}, timeout=_LOOK_S))[0]:
                if await client.is_disconnected():
                    removed_event.set()
            reading = opened.result()
        except BaseException:
            removed_event.set()
            give_back()
            raise
        sending = events if options.as_events else partial(lines, marks=options.how.marks)
        pieces = sending(reading, is_over, removed_event.is_set)

        def hung_up() -> None:
            removed_event.set()
            reading.feed.wake()

        headers = {"Cache-Control": "no-store", "Vary": "Accept, Accept-Encoding"}
        headers |= {"Content-Encoding": options.encoding} if options.encoding else {}
        if reading.snapshot is not None:
            headers["Sluice-Reset-Batch"] = str(reading.snapshot.batch)
        if not request.follow:
            headers["Sluice-Next-Batch"] = str(max(reading.first, reading.last + 1))
        pull = Pull(pieces, options.encoding, self.threads, give_back)
        media = _EVENTS if options.as_events else _NDJSON
        return PulledResponse(pull, hung_up, headers, media, keep_alive=options.as_events)


def application(reads: _Reads) -> FastAPI:
    """Return the service as an ASGI application."""
    app = FastAPI(
        title="Sluice", version=__version__, summary="The stored changes of pipelines", docs_url=None, redoc_url=None
    )
    app.state.reads = reads
    app.add_exception_handler(SluiceError, _error_response)
    app.add_exception_handler(RequestValidationError, _told_of_query)
    app.include_router(_router)
    app.include_router(_health)
    return app


_health = APIRouter(include_in_schema=False)


@_health.get("/healthz")
async def healthz() -> dict[str, str]:
    """Answer as long as the server works."""
    return {"status": "ok"}


@_health.get("/readyz")
def readyz(request: Request) -> JSONResponse:
    """Answer 200 if ZooKeeper answers for every pipeline, else 503."""
    ready = not _reads_of(request).service.not_ready()  # names of pipelines are for those who may read them
    return JSONResponse({"status": "ok" if ready else "ZooKeeper does not answer"}, 200 if ready else 503)


def _reads_of(request: Request) -> _Reads:
    reads: _Reads = request.app.state.reads
    return reads


Reads = Annotated[_Reads, Depends(_reads_of)]


def _reader_of(reads: Reads, authorization: Annotated[str | None, Header()] = None) -> Reader:
    return reads.readers.known(authorization) if reads.readers is not None else ANYBODY


def _sending(accept: Annotated[str, Header()] = "", accept_encoding: Annotated[str, Header()] = "") -> tuple[bool, str]:
    """Return whether the client wants server-sent events, and the encoding it gets."""
    return _EVENTS in accept, encoding_of(accept_encoding)


Asking = Annotated[Reader, Depends(_reader_of)]
Sending = Annotated[tuple[bool, str], Depends(_sending)]


def _query(model: type[BaseModel] | None = None) -> Any:
    """Return a route's dependency that checks the query: only parameters of ``model``, one value each but for lists.

    A parameter that is not read would make the answer wider than what was asked for. Raises ConfigError.
    """
    known_fields = (
        {field.alias or name: field for name, field in model.model_fields.items()} if model is not None else {}
    )

    async def only_known(request: Request) -> None:
        for name in dict.fromkeys(key for key, _ in request.query_params.multi_items()):
            if name not in known_fields:
                hint = f"there are {', '.join(known_fields)}" if known_fields else "this address has none"
                raise ConfigError(
                    f"the query has a parameter {shown(name)[:100]!r}, which is none{meant(name, known_fields)}",
                    hint=hint,
                )
            if len(request.query_params.getlist(name)) > 1 and "list" not in str(known_fields[name].annotation):
                raise ConfigError(f"the query has {name} more than once", hint="send it once")

    return Depends(only_known)


PipelineName = Annotated[str, Path(pattern=IDENTIFIER)]
_router = APIRouter(prefix="/v1")
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {_NDJSON: {"schema": {"type": "string"}}, _EVENTS: {"schema": {"type": "string"}}}},
    410: {"description": "Batches at the beginning are no longer stored", "content": {_PROBLEM: {}}},
    429: {"description": "As many reads are open as may be", "content": {_PROBLEM: {}}},
}
_TICKET = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": ReadRequest.model_json_schema()}}}
}


@_router.get("/pipelines", dependencies=[_query()])
def list_pipelines(reads: Reads, reader: Asking) -> dict[str, list[str]]:
    """List the pipelines of which something may be read."""
    return {"pipelines": reads.service.pipelines(reader)}


@_router.get("/pipelines/{pipeline}/tables", dependencies=[_query()])
def list_tables(pipeline: PipelineName, reads: Reads, reader: Asking) -> dict[str, list[dict[str, Any]]]:
    """List the tables that may be read, with their columns and the columns' Arrow types."""
    tables = reads.service.tables(pipeline, reader)
    return {
        "tables": [
            {"table": str(table), "columns": [{"name": name, "type": str(kind)} for name, kind in shape.columns]}
            for table, shape in tables.items()
        ]
    }


@_router.get(
    "/pipelines/{pipeline}/changes", response_class=Response, responses=_ANSWERS, dependencies=[_query(WhatIsRead)]
)
async def get_changes(
    client: Request,
    pipeline: PipelineName,
    what: Annotated[WhatIsRead, Query()],
    reads: Reads,
    *,
    reader: Asking,
    sending: Sending,
    last_event_id: Annotated[int | None, Header(ge=0, lt=MAX_NUMBER)] = None,
) -> Response:
    """Return documents, one per change."""
    return await reads.answer(client, what.request(pipeline, last_event_id), _Asked(reader, what, *sending))


@_router.post(
    "/changes",
    response_class=Response,
    responses=_ANSWERS,
    openapi_extra=_TICKET,
    dependencies=[_query(HowSent)],
)
async def post_changes(
    client: Request,
    how: Annotated[HowSent, Query()],
    reads: Reads,
    reader: Asking,
    sending: Sending,
) -> Response:
    """Return documents for a ticket, which may have a predicate."""
    text = b""
    try:
        async with asyncio.timeout(REQUEST_S):
            async for part in client.stream():
                text += part
                if len(text) > MAX_BYTES:
                    break
    except TimeoutError:
        raise ConfigError(f"the ticket was not sent within {REQUEST_S:.0f} s", hint="send all of it at once") from None
    request: ReadRequest = parsed(text)
    if how.wait is not None and request.wait is not None:
        raise ConfigError("both the ticket and the query have wait", hint="leave out one of them")
    if how.wait is not None:
        request = request.model_copy(update={"wait": how.wait})
    return await reads.answer(client, request, _Asked(reader, how, *sending))


def _opened(service: Service, request: ReadRequest, options: _Asked, is_over: Callable[[], bool]) -> Reading:
    if request.on_lost_batches is None and not options.as_events and not options.how.marks:
        request = request.model_copy(update={"on_lost_batches": "stop"})  # no line would say that all rows come
    shaping = partial(
        DocumentShape.of, form=options.how.format, source=service.document_name(request.pipeline, options.reader)
    )
    reading = service.open(request, options.reader, shaping)
    reading.await_first(is_over)
    return reading


async def _error_response(_: Request, error: Exception) -> Response:
    assert isinstance(error, SluiceError)
    status = 503 if error.retryable else 500
    if isinstance(error, AccessDenied):
        status = 403 if error.known else 401
    elif isinstance(error, ConfigError):
        status = 400
    elif isinstance(error, BatchesGone):
        status = 410
    elif isinstance(error, TooManyReads):
        status = 429
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse({**about(error), "status": status}, status, headers, _PROBLEM)


async def _told_of_query(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = problems_of(error.errors())[0]
    return await _error_response(request, ConfigError(first.sentence(), hint="GET /openapi.json says what there is"))
