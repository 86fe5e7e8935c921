"""The body of an answer by HTTP: documents of a read as lines or as server-sent events, compressed, a piece at a
time.
"""

from __future__ import annotations

import asyncio
import json
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from concurrent.futures import Executor
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import structlog
import zstandard
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sluice.errors import SluiceError
from sluice.formats import columns
from sluice.serve.documents import DOCUMENT
from sluice.serve.read import Reading
from sluice.serve.requests import for_programs

_log = structlog.get_logger()
KEEP_ALIVE_S = 15.0
"""Server-sent events: something is sent at least this often, so that no proxy takes the connection for dead."""

Pieces = Generator[bytes, None, None]


def about(error: SluiceError) -> dict[str, Any]:
    """Return what a program learns of an error."""
    return {"title": type(error).__name__, "detail": str(error), **for_programs(error)}


def lines(reading: Reading, is_over: Callable[[], bool], is_gone: Callable[[], bool], *, marks: bool) -> Pieces:
    """Yield NDJSON: one document per line. ``marks`` adds a line ``{"batch": …}`` after each batch.

    With marks, a line ``{"reset": …}`` comes before the rows of a snapshot, ``{"error": …}`` where the stream breaks
    off, and ``{"end": …}`` where no batch came for as long as the client waits. Without marks a stream that breaks off
    is cut, so that it does not pass for complete. Raises SluiceError then.
    """
    try:
        for piece, mark in reading.sent(is_over, is_gone):
            if mark and marks:
                yield mark + b"\n"
            elif not mark:
                yield _together("", piece[DOCUMENT], "\n")
    except SluiceError as error:
        _log.warning("stream_failed", pipeline=reading.request.pipeline, error=str(error))
        if not marks:
            raise
        yield json.dumps({"error": about(error)}).encode() + b"\n"


def events(reading: Reading, is_over: Callable[[], bool], is_gone: Callable[[], bool]) -> Pieces:
    """Yield server-sent events: one per document, and one of type ``batch`` after each batch, whose id is its number.

    An event of type ``reset`` comes before the rows of a snapshot, ``error`` at the end of a stream that breaks off,
    and ``end`` where no batch came for as long as the client waits.
    """
    yield b"retry: 3000\n\n"
    try:
        for piece, mark in reading.sent(is_over, is_gone):
            if mark and "reset" in (mark_fields := json.loads(mark)):
                yield b"event: reset\ndata: %b\n\n" % mark
            elif mark and "end" in mark_fields:
                yield b"event: end\ndata: %b\n\n" % json.dumps(mark_fields["end"]).encode()
            elif mark:
                yield b"event: batch\nid: %d\ndata: %b\n\n" % (mark_fields["batch"], mark)
            else:
                yield _together("data: ", piece[DOCUMENT], "\n\n")
    except SluiceError as error:
        _log.warning("stream_failed", pipeline=reading.request.pipeline, error=str(error))
        yield b"event: error\ndata: %b\n\n" % json.dumps(about(error)).encode()


def _together(before: str, documents: pa.Array, after: str) -> bytes:
    """Join all documents, each with the text around it. No document becomes a Python object."""
    texts = columns.joined(before, documents, after)
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return bytes(memoryview(data)[ends[0] : ends[-1]])


class Encoder(Protocol):
    """Compresses a stream; what is put in can be read at once at the other end."""

    def put(self, piece: bytes) -> bytes:
        """Return the next bytes."""

    def finish(self) -> bytes:
        """Return the last bytes."""


class _Plain:
    def put(self, piece: bytes) -> bytes:
        return piece

    def finish(self) -> bytes:
        return b""


class _Gzip:
    def __init__(self) -> None:
        self._made = zlib.compressobj(6, zlib.DEFLATED, 31)

    def put(self, piece: bytes) -> bytes:
        return self._made.compress(piece) + self._made.flush(zlib.Z_SYNC_FLUSH)

    def finish(self) -> bytes:
        return self._made.flush()


class _Zstd:
    def __init__(self) -> None:
        self._made = zstandard.ZstdCompressor().compressobj()

    def put(self, piece: bytes) -> bytes:
        return self._made.compress(piece) + self._made.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)

    def finish(self) -> bytes:
        return self._made.flush()


ENCODERS: Mapping[str, Callable[[], Encoder]] = {"zstd": _Zstd, "gzip": _Gzip}
"""Name in HTTP -> the encoder, the best first."""


def encoding_of(accepted: str) -> str:
    """Return the best encoding that a client accepts (``Accept-Encoding``); "" for none."""
    is_accepted = {}
    for part in accepted.lower().split(","):
        name, *options = (piece.strip() for piece in part.split(";"))
        is_accepted[name] = not any(
            option.replace(" ", "") in {"q=0", "q=0.0", "q=0.00", "q=0.000"} for option in options
        )
    return next((name for name in ENCODERS if is_accepted.get(name, False)), "")


class Pull:
    """A read that a client pulls: one thread of ``executor`` at a time works on it.

    ``ended``: called when it is over, once.
    """

    def __init__(self, pieces: Pieces, encoding: str, executor: Executor, ended: Callable[[], None]) -> None:
        self._pieces = pieces
        self._encoder: Encoder = ENCODERS[encoding]() if encoding else _Plain()
        self._executor = executor
        self._ended = ended
        self._lock = threading.Lock()

    def start_next(self) -> asyncio.Future[bytes | None]:
        """Start to make the next bytes; None after the last ones."""
        return asyncio.get_running_loop().run_in_executor(self._executor, self._next)

    def idle(self) -> bytes:
        """Return a comment that is sent while there is nothing else to send."""
        return self._encoder.put(b": waiting\n\n")

    def abandon(self) -> None:
        """Abandon the read, once the thread that works on it has noticed."""
        self._executor.submit(self._close)

    def _next(self) -> bytes | None:
        with self._lock:
            piece = next(self._pieces, None)
            return None if piece is None else self._encoder.put(piece)

    def last(self) -> bytes:
        """Return the end of the compressed stream."""
        return self._encoder.finish()

    def _close(self) -> None:
        with self._lock:
            self._pieces.close()
        self._ended()


class PulledResponse(StreamingResponse):
    """Streams what a :class:`Pull` gives, as fast as the client takes it.

    ``on_hang_up``: called when the client is not there any more, or has all.
    """

    def __init__(
        self,
        pull: Pull,
        on_hang_up: Callable[[], None],
        headers: Mapping[str, str],
        media_type: str,
        *,
        keep_alive: bool,
    ) -> None:
        super().__init__(self._body(), headers=headers, media_type=media_type)
        self._pull = pull
        self._gone = on_hang_up
        self._keep_alive = KEEP_ALIVE_S if keep_alive else None

    async def _body(self) -> AsyncIterator[bytes]:
        while True:
            following = self._pull.start_next()
            while not (await asyncio.wait({following}, timeout=self._keep_alive))[0]:
                yield self._pull.idle()
            piece = following.result()
            if piece is None:
                yield self._pull.last()
                return
            yield piece

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Starlette."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._gone()
            self._pull.abandon()
