"""The stream protocol: named publishers whose messages the server takes once, and the newest message of a stream.

The client library is asynchronous: its loop has a thread of its own, one in a process. A connection goes to the broker
that leads a stream.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import threading
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from sluice.errors import ConfigError, LoadError, MappingError, SluiceError, TargetUnavailable
from sluice.targets.rabbitmq.client import PERMISSIONS, certificate_refused, scrubbed, stream_library
from sluice.targets.rabbitmq.place import Place

_T = TypeVar("_T")
_LARGEST_FRAME = 1 << 30
"""More than any server offers: its own limit counts."""
_HEAD, _EACH = 64, 12
"""Bytes of a frame beside its messages, and of a message beside its contents."""
_FRAMES = 8
"""Frames in a window."""
_HEARTBEAT_S = 60
_LOOK_S = 0.5
_lock = threading.Lock()
_running: list[asyncio.AbstractEventLoop] = []

Numbered = tuple[int, bytes]
"""(publishing id, message)."""


def _loop() -> asyncio.AbstractEventLoop:
    """Return the loop of this process; its thread ends with the process."""
    with _lock:
        if not _running:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="sluice-rabbitmq", daemon=True).start()
            _running.append(loop)
        return _running[0]


class StreamClient:
    """Connections to the brokers of streams, used by one thread. Must be closed. ``doing``: for messages."""

    def __init__(self, place: Place, doing: str) -> None:
        stream_library()
        self._place, self._doing = place, doing
        self._timeout_s = place.options.timeout.total_seconds()
        self._pool: Any = None
        self._publishers: dict[tuple[str, str], _Publisher] = {}
        self._publishing: tuple[Future[None], str] | None = None

    def close(self) -> None:
        """Close the connections; what fails then is of no matter."""
        if self._publishing is not None:
            self._publishing[0].cancel()
        if self._pool is not None:
            with suppress(Exception):
                asyncio.run_coroutine_threadsafe(self._pool.close(), _loop())  # takes a while, and nothing waits for it

    def exists(self, stream: str) -> bool:
        """Return True if there is a stream of that name."""
        return self._run(self._exists(stream), f"looking for the stream {stream}")

    def create(self, stream: str, **arguments: str) -> None:
        """Make a stream, unless it is there."""
        self._run(self._create(stream, arguments), f"making the stream {stream}")

    def delete(self, stream: str) -> None:
        """Remove a stream, if it is there."""
        if self.exists(stream):
            self._run(self._delete(stream), f"removing the stream {stream}")

    def last_id(self, stream: str, publisher: str) -> int:
        """Return the newest publishing id that the stream holds of a publisher; 0 if there is none.

        Raises MappingError without the stream.
        """
        return self._run(self._last_id(stream, publisher), f"asking what the stream {stream} holds")

    def last_message(self, stream: str) -> bytes | None:
        """Return the newest message of a stream that is not empty; None if none came within the timeout."""
        return self._run(self._last_message(stream), f"reading the stream {stream}")

    def frame_bytes(self, stream: str) -> int:
        """Return the most bytes of one message of the stream, as the server's frame limits it."""
        return self._run(self._frame_bytes(stream), f"connecting to the leader of the stream {stream}")

    def publish(self, stream: str, publisher: str, messages: Iterable[Numbered]) -> None:
        """Publish messages, ids ascending, once those before are sent; the server drops those that it has.

        The caller makes its next messages meanwhile. Raises what the messages before met; :meth:`flush` waits for the
        rest, and for the confirms.
        """
        self._end_publishing()
        work = self._publish(stream, publisher, list(messages))
        self._publishing = asyncio.run_coroutine_threadsafe(work, _loop()), f"publishing to the stream {stream}"

    def _end_publishing(self) -> None:
        if self._publishing is not None:
            (future, doing), self._publishing = self._publishing, None
            self._result(future, doing)

    def flush(self) -> None:
        """Wait until every message is confirmed. Raises TargetUnavailable, LoadError."""
        self._end_publishing()
        for (stream, _), publisher in self._publishers.items():
            self._run(publisher.settle(0), f"waiting for confirms of the stream {stream}", None)

    def _run(self, work: Coroutine[Any, Any, _T], doing: str, timeout_s: float | None = 0.0) -> _T:
        """Run work in the loop, within a deadline; None: it keeps one itself."""
        try:
            self._end_publishing()
        except BaseException:
            work.close()
            raise
        patience = self._timeout_s if timeout_s == 0.0 else timeout_s

        async def within() -> _T:
            async with asyncio.timeout(patience):
                return await work

        return self._result(asyncio.run_coroutine_threadsafe(within(), _loop()), doing)

    def _result(self, future: Future[_T], doing: str) -> _T:
        try:
            return future.result()
        except SluiceError:
            raise
        except Exception as error:
            raise self._translated(error, doing) from None

    def _translated(self, error: Exception, doing: str) -> SluiceError:
        kinds = stream_library().exceptions
        slow = f"no answer within {self._timeout_s:g} s" if isinstance(error, TimeoutError) else type(error).__name__
        message = scrubbed(str(error), self._place) or slow
        text, where = (
            f"{self._doing}: {doing} at RabbitMQ {self._place.endpoint.connection_id!r}: {message}",
            self._place.address,
        )
        if isinstance(error, ssl.SSLCertVerificationError):
            return certificate_refused(self._place, self._doing, error)
        if isinstance(error, kinds.AuthenticationFailure | kinds.SASLError | kinds.SASLAuthenticationFailureLoopback):
            return ConfigError(text, where=where, hint="look at login and password of the connection")
        if isinstance(error, kinds.VirtualHostAccessFailure):
            return ConfigError(text, where=where, hint="look at the virtual host, which is the connection's schema")
        if isinstance(error, kinds.AccessRefused):
            return LoadError(text, where=where, hint=PERMISSIONS)
        if isinstance(error, kinds.StreamDoesNotExist):
            hint = f"`sluice check {self._place.pipeline} --apply` makes missing streams"
            return MappingError(f"{self._doing}: {doing}: the stream is not there", where=where, hint=hint)
        if isinstance(error, kinds.PreconditionFailed | kinds.FrameTooLarge):
            return LoadError(text, where=where)
        return TargetUnavailable(text, where=where)

    async def _client(self, stream: str = "") -> Any:
        """Return a connection to any broker, or to the one that leads ``stream``."""
        from rstream.client import Addr, ClientPool

        place = self._place
        if self._pool is None:
            user, password = place.login
            self._pool = ClientPool(
                place.host,
                place.stream_port,
                ssl_context=place.tls,
                vhost=place.vhost,
                username=user,
                password=password,
                frame_max=_LARGEST_FRAME,
                heartbeat=_HEARTBEAT_S,
                load_balancer_mode=False,
                max_retries=1,
            )
        name = f"sluice {place.owner}"
        client = await self._pool.get(name, connection_closed_handler=_ignored)
        if not stream:
            return client
        leader, _ = await client.query_leader_and_replicas(stream)
        if (leader.host, leader.port) == (place.host, place.stream_port):
            return client
        return await self._pool.get(name, Addr(leader.host, leader.port), connection_closed_handler=_ignored)

    async def _exists(self, stream: str) -> bool:
        return bool(await (await self._client()).stream_exists(stream))

    async def _create(self, stream: str, arguments: dict[str, str]) -> None:
        with suppress(stream_library().exceptions.StreamAlreadyExists):
            await (await self._client()).create_stream(stream, arguments)

    async def _delete(self, stream: str) -> None:
        with suppress(stream_library().exceptions.StreamDoesNotExist):
            await (await self._client()).delete_stream(stream)

    async def _frame_bytes(self, stream: str) -> int:
        return int((await self._client(stream)).frame_max) - _HEAD - _EACH

    async def _last_id(self, stream: str, publisher: str) -> int:
        return int(await (await self._client(stream)).query_publisher_sequence(stream, publisher))

    async def _last_message(self, stream: str) -> bytes | None:
        from rstream import schema
        from rstream.constants import OffsetType

        client = await self._client(stream)
        number, chunks = await client.inc_available_id(), asyncio.Queue[Any]()
        name = str(number)
        client.add_handler(schema.Deliver, chunks.put, name=name)
        await client.run_queue_listener_task(subscriber_id=number, handler=chunks.put)
        try:
            await client.subscribe(stream, number, schema.OffsetSpec(OffsetType.LAST), initial_credit=1)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s / 2):
                    chunk = await chunks.get()
                    return list(_entries(bytes(chunk.data), chunk.num_entries))[-1]
            return None
        finally:
            client.remove_handler(schema.Deliver, name=name)
            with suppress(Exception):
                await client.unsubscribe(number)
                await client.stop_queue_listener_task(number)

    async def _publish(self, stream: str, publisher: str, messages: list[Numbered]) -> None:
        open_publisher = self._publishers.get((stream, publisher))
        if open_publisher is None:
            client = await asyncio.wait_for(self._client(stream), self._timeout_s)
            open_publisher = _Publisher(client, await client.inc_available_id(), stream, self._place, self._doing)
            await asyncio.wait_for(client.declare_publisher(stream, publisher, open_publisher.number), self._timeout_s)
            open_publisher.listen()
            self._publishers[stream, publisher] = open_publisher
        await open_publisher.send(messages)


class _Publisher:
    """A publisher of one stream: what it sent, and what of it is not confirmed yet. In the loop's thread."""

    def __init__(self, client: Any, number: int, stream: str, place: Place, doing: str) -> None:
        self._client, self.number, self._stream, self._place, self._doing = client, number, stream, place, doing
        self._timeout_s = place.options.timeout.total_seconds()
        self._waiting: set[int] = set()
        self._refused: dict[int, int] = {}
        self._moved = asyncio.Event()

    def listen(self) -> None:
        """Hear what the server says of this publisher."""
        from rstream import schema

        self._client.add_handler(schema.PublishConfirm, self._confirmed, name=f"confirm-{self.number}")
        self._client.add_handler(schema.PublishError, self._failed, name=f"error-{self.number}")

    def _confirmed(self, frame: Any) -> None:
        if frame.publisher_id == self.number:
            self._waiting.difference_update(frame.publishing_ids)
            self._moved.set()

    def _failed(self, frame: Any) -> None:
        if frame.publisher_id == self.number:
            self._refused.update({error.publishing_id: error.response_code for error in frame.errors})
            self._moved.set()

    async def send(self, messages: list[Numbered]) -> None:
        """Send messages in frames, with at most a window of messages unconfirmed: of several frames, so that the server
        has one to write while it confirms another.
        """
        window = self._place.options.confirm_window
        for part in self._frames(messages, -(-window // _FRAMES)):
            await self.settle(window - len(part))
            await self._frame(part)

    def _frames(self, messages: list[Numbered], most_messages: int) -> Iterator[list[Numbered]]:
        most, part, size = int(self._client.frame_max), list[Numbered](), _HEAD
        for number, data in messages:
            added = len(data) + _EACH
            if part and (size + added > most or len(part) >= most_messages):
                yield part
                part, size = [], _HEAD
            part.append((number, data))
            size += added
        if part:
            yield part

    async def _frame(self, part: list[Numbered]) -> None:
        from rstream import schema

        self._waiting.update(number for number, _ in part)
        messages = [schema.Message(publishing_id=number, filter_value=None, data=data) for number, data in part]
        frame = schema.Publish(publisher_id=self.number, messages=messages)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._client.send_publish_frame(frame)
        except TimeoutError:
            raise self._away("it takes no more messages, for example because its memory or disk is low") from None

    async def settle(self, most: int) -> None:
        """Wait until at most ``most`` messages are unconfirmed; the deadline moves while confirms arrive."""
        until = asyncio.get_running_loop().time() + self._timeout_s
        while len(self._waiting) > max(most, 0):
            self._require_taken()
            before = len(self._waiting)
            self._moved.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):  # a broken connection says nothing
                    await self._moved.wait()
            now = asyncio.get_running_loop().time()
            if len(self._waiting) < before:
                until = now + self._timeout_s
            elif now > until:
                raise self._away(f"it confirmed no message within {self._timeout_s:g} s")
        self._require_taken()

    def _require_taken(self) -> None:
        if self._refused:
            number, code = min(self._refused.items())
            kind = stream_library().exceptions.ServerError.from_code(code).__name__
            raise self._away(f"it refused message {number}: {kind}")
        if not self._client.is_connection_alive():
            raise self._away("the connection ended")

    def _away(self, why: str) -> TargetUnavailable:
        return TargetUnavailable(
            f"{self._doing}: publishing to the stream {self._stream}: {why}", where=self._place.address
        )


def _entries(data: bytes, count: int) -> Iterator[bytes]:
    """Yield the messages of a chunk without sub-batches, as this client writes them."""
    at = 0
    for _ in range(count):
        (size,) = struct.unpack_from(">I", data, at)
        if size >> 31:
            raise LoadError("a stream that holds Sluice's own records has messages of another program")
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


def _ignored(_: Any) -> None:
    """Do nothing: a closed connection is seen where it is used."""


@contextmanager
def stream_connected(place: Place, doing: str) -> Iterator[StreamClient]:
    """Open connections as they are needed, and close them."""
    client = StreamClient(place, doing)
    try:
        yield client
    finally:
        client.close()


__all__ = ["Numbered", "StreamClient", "stream_connected"]
