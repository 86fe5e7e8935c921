"""AMQP 0.9.1: a connection and its channel, confirms in windows, and the library's errors as Sluice's.

Decision: pika's asynchronous connection, whose loop runs in the calling thread while something is waited for. Messages
leave in the order in which they are published, and many of them wait for their confirm at a time; the library's
blocking connection waits after each.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

import structlog

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, LoadError, MappingError, SluiceError, TargetUnavailable
from sluice.model.client_packages import install_hint
from sluice.targets.rabbitmq.options import RabbitMQOptions
from sluice.targets.rabbitmq.place import Place

for _name in ("pika", "rstream"):  # they log what is raised here as well, with traces
    if logging.getLogger(_name).level == logging.NOTSET:
        logging.getLogger(_name).setLevel(logging.CRITICAL)

PERMISSIONS = "docs/rabbitmq-target.md lists the permissions that the login needs"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0
_log = structlog.get_logger()
_NOT_FOUND, _REFUSED, _PRECONDITION, _RESOURCE, _FORCED, _INTERNAL = 404, 403, 406, 506, 320, 541


def amqp_library() -> Any:
    """Import ``pika``. Raises ConfigError if it is not installed."""
    try:
        import pika
    except ImportError as error:
        raise _not_installed("pika") from error
    return pika


def stream_library() -> Any:
    """Import ``rstream``. Raises ConfigError if it is not installed."""
    try:
        import rstream
    except ImportError as error:
        raise _not_installed("rstream") from error
    return rstream


def _not_installed(package: str) -> ConfigError:
    return ConfigError(
        f"targets of type rabbitmq need the package {package}, which is not installed", hint=install_hint("rabbitmq")
    )


class Outgoing(NamedTuple):
    """A message on its way.

    Attributes:
        row: number of the row in the batch, for what is said about it. route: routing key, or stream. exchange: "" with
            streams.
        number: of the message in the batch. id: the message id. headers: the key of the row and what is known of the
            change. value: the document; to a stream: the encoded message, which has id and headers in it.
    """

    row: int
    exchange: str
    route: str
    number: int
    id: str
    headers: Mapping[str, str]
    content_type: str
    value: bytes

    @property
    def of_row(self) -> tuple[str, ...]:
        """The row that a message is about; all rows of a table without keys count as one."""
        return self.exchange, self.route, self.headers.get("sluice.table", ""), self.headers.get("key", "")


class AmqpClient:
    """A connection with one channel. Must be closed. ``doing``: for messages."""

    def __init__(self, place: Place, doing: str) -> None:
        self._place, self._doing = place, doing
        self._timeout_s = place.options.timeout.total_seconds()
        self._failed: BaseException | None = None
        self._blocked = False
        self._closing = False
        self._awaited: Callable[[], bool] = lambda: False
        self._channel: Any = None
        self._waiting: dict[int, Outgoing] = {}
        self._returned: dict[str, str] = {}
        self._unrouted: list[tuple[Outgoing, str]] = []
        self._refused: dict[int, Outgoing] = {}
        self._overtook: dict[int, Outgoing] = {}
        self._window = place.options.confirm_window
        self._interrupted = False
        self._sent = self._confirmed = 0
        self._connect()

    def close(self) -> None:
        """Close the connection; what fails then is of no matter."""
        self._closing = True
        with suppress(Exception):
            if self._connection.is_open:
                self._connection.close()
                self._wait(lambda: self._connection.is_closed, "closing the connection", 5.0)
        with suppress(Exception):
            self._connection.ioloop.close()

    def publish(self, message: Outgoing) -> None:
        """Publish a message; wait for confirms where a window of them is under way, and for room in a full queue.

        Raises TargetUnavailable, LoadError.
        """
        self._send(message)
        if len(self._waiting) >= self._window:
            most = self._window // 2
            self._wait(lambda: len(self._waiting) <= most, "waiting for confirms")
            self._settle()
            self._window = min(self._place.options.confirm_window, 2 * self._window)

    def _send(self, message: Outgoing) -> None:
        pika = amqp_library()
        properties = pika.BasicProperties(
            message_id=message.id,
            content_type=message.content_type,
            delivery_mode=2,
            app_id="sluice",
            headers=dict(message.headers),
        )
        mandatory = self._place.options.unroutable == "refuse"
        self._require_open()
        try:
            self._channel.basic_publish(message.exchange, message.route, message.value, properties, mandatory=mandatory)
        except pika.exceptions.AMQPError as error:
            raise self._translated(self._failed or error) from None
        self._sent += 1
        self._waiting[self._sent] = message

    def _settle(self) -> None:
        """Send the messages that a full queue refused again, one by one, until it has room for each.

        Another message of the same row that was taken meanwhile is sent again after it, so that the row's newest state
        comes last. Raises TargetUnavailable if a message finds no room within ``options.room_timeout``.
        """
        if not self._refused:
            first = next(iter(self._waiting), self._sent)
            self._overtook = {tag: message for tag, message in self._overtook.items() if tag > first}
            return
        self._window = 1  # and grows again: few messages are on their way when the queue is full the next time
        self._wait(lambda: not self._waiting, "waiting for confirms")
        rows: dict[tuple[str, ...], int] = {}
        for tag, message in sorted(self._refused.items()):
            rows.setdefault(message.of_row, tag)
        later = {tag: message for tag, message in self._overtook.items() if tag > rows.get(message.of_row, tag)}
        again = [message for _, message in sorted({**self._refused, **later}.items())]
        _log.info("queue_full", target=self._place.owner, messages=len(again))
        for message in again:
            self._send_until_taken(message)
        self._overtook = {}

    def _send_until_taken(self, message: Outgoing) -> None:
        patience_s = self._place.options.room_timeout.total_seconds()
        until, pause_s = time.monotonic() + patience_s, _FIRST_PAUSE_S
        while True:
            self._refused = {}
            self._send(message)
            self._wait(lambda: not self._waiting, "waiting for a confirm")
            if not self._refused:
                return
            if self._interrupted or time.monotonic() > until:
                raise TargetUnavailable(
                    f"{self._doing}: the server refused message {message.id}"
                    + (f" for {patience_s:g} s" if not self._interrupted else "")
                    + ", for example because a queue is full",
                    where=f"{self._place.address}, exchange {message.exchange or '(default)'}, "
                    f"routing key {message.route}",
                    hint="let its consumers read, or raise max-length; the batch is sent again from its beginning. "
                    "options.room_timeout is how long a message waits for room",
                )
            timer = self._connection.ioloop.call_later(pause_s, self._connection.ioloop.stop)
            self._connection.ioloop.start()
            self._connection.ioloop.remove_timeout(timer)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    def interrupt(self) -> None:
        """End the wait for room in a queue."""
        self._interrupted = True

    def flush(self) -> list[tuple[Outgoing, str]]:
        """Wait until every message is confirmed; return those that no queue got, and why. Raises as :meth:`publish`."""
        self._wait(lambda: not self._waiting, "waiting for confirms")
        self._settle()
        unrouted, self._unrouted = self._unrouted, []
        return unrouted

    def exists(self, what: str, name: str) -> bool:
        """Return True if there is a queue or an exchange of that name.

        Raises SluiceError for another reason than that it is missing.
        """
        try:
            if what == "queue":
                self._ask(lambda callback: self._channel.queue_declare(name, passive=True, callback=callback))
            else:
                self._ask(lambda callback: self._channel.exchange_declare(name, passive=True, callback=callback))
        except MappingError:
            self._failed = None
            self._open_channel()  # the server closed the other one with its answer
            return False
        return True

    def declare(self, what: str, name: str, kind: str) -> None:
        """Make a durable queue (``kind``: quorum, classic or stream) or exchange (topic, direct, …).

        Raises LoadError.
        """
        if what == "queue":
            arguments = {"x-queue-type": kind}
            self._ask(
                lambda callback: self._channel.queue_declare(name, durable=True, arguments=arguments, callback=callback)
            )
        else:
            self._ask(lambda callback: self._channel.exchange_declare(name, kind, durable=True, callback=callback))

    def _connect(self) -> None:
        pika, place = amqp_library(), self._place
        tls, (user, password) = place.tls, place.login
        parameters = pika.ConnectionParameters(
            host=place.host,
            port=place.port,
            virtual_host=place.vhost,
            credentials=pika.PlainCredentials(user, password),
            ssl_options=pika.SSLOptions(tls, place.host) if tls is not None else None,
            heartbeat=0,  # the loop rests while rows become messages; each wait has its own deadline
            connection_attempts=1,
            socket_timeout=self._timeout_s,
            stack_timeout=self._timeout_s,
            client_properties={"connection_name": f"sluice {place.owner}"},
        )
        self._connection = pika.SelectConnection(
            parameters,
            on_open_callback=lambda _: self._look(),
            on_open_error_callback=lambda _, error: self._fail(error),
            on_close_callback=lambda _, error: self._fail(error),
            custom_ioloop=pika.adapters.select_connection.IOLoop(),
        )
        self._connection.add_on_connection_blocked_callback(lambda *_: setattr(self, "_blocked", True))
        self._connection.add_on_connection_unblocked_callback(lambda *_: setattr(self, "_blocked", False))
        self._wait(lambda: bool(self._connection.is_open), "connecting")
        self._open_channel()

    def _open_channel(self) -> None:
        self._channel = self._connection.channel(on_open_callback=lambda _: self._look())
        self._channel.add_on_close_callback(
            lambda channel, error: self._fail(error) if channel is self._channel else None
        )
        self._wait(lambda: bool(self._channel.is_open), "opening a channel")
        self._channel.add_on_return_callback(self._on_return)
        self._waiting, self._sent = {}, 0
        self._ask(lambda callback: self._channel.confirm_delivery(self._on_confirm, callback=callback))

    def _ask(self, send: Callable[[Callable[[Any], None]], Any]) -> None:
        """Send a request and wait for its answer."""
        answers: list[Any] = []

        def done(frame: Any) -> None:
            answers.append(frame)
            self._look()

        send(done)
        self._wait(lambda: bool(answers), "waiting for an answer")

    def _on_confirm(self, frame: Any) -> None:
        tag, refused = frame.method.delivery_tag, type(frame.method).__name__ == "Nack"
        numbers = [tag]
        if frame.method.multiple:
            numbers = []
            for number in self._waiting:  # ascending
                if number > tag:
                    break
                numbers.append(number)
        for number in numbers:
            message = self._waiting.pop(number, None)
            if message is None:
                continue
            why = self._returned.pop(message.id, None)
            if why is not None:
                self._unrouted.append((message, why))
            elif refused:
                self._refused[number] = message
            elif self._refused or number > next(iter(self._waiting), number):
                self._overtook[number] = message
        self._confirmed += len(numbers)
        self._look()

    def _on_return(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """Note a message that no queue got; its confirm follows."""
        self._returned[str(properties.message_id)] = f"{method.reply_code} {method.reply_text}"

    def _fail(self, error: BaseException) -> None:
        self._failed = self._failed or error
        self._look()

    def _look(self) -> None:
        if self._failed is not None or self._awaited():
            self._connection.ioloop.stop()

    def _require_open(self) -> None:
        if self._failed is not None and not self._closing:
            raise self._translated(self._failed)

    def _wait(self, is_over: Callable[[], bool], doing: str, timeout_s: float = 0.0) -> None:
        """Run the loop until ``is_over``. The deadline moves while confirms arrive.

        Raises TargetUnavailable, LoadError, ConfigError, MappingError.
        """
        patience, loop = timeout_s or self._timeout_s, self._connection.ioloop
        until, confirmed = time.monotonic() + patience, self._confirmed
        self._awaited = is_over
        try:
            while not is_over():
                self._require_open()
                if self._confirmed != confirmed:
                    until, confirmed = time.monotonic() + patience, self._confirmed
                remaining_s = until - time.monotonic()
                if remaining_s <= 0:
                    why = " (it blocks publishers: its memory or disk is low)" if self._blocked else ""
                    raise TargetUnavailable(
                        f"{self._doing}: {doing}: RabbitMQ did not answer within {patience:g} s{why}",
                        where=self._place.address,
                    )
                timer = loop.call_later(remaining_s, loop.stop)
                loop.start()
                loop.remove_timeout(timer)
            self._require_open()
        finally:
            self._awaited = lambda: False

    def _translated(self, error: BaseException) -> SluiceError:
        return translated(error, self._place, self._doing)


_open: dict[int, tuple[str, AmqpClient]] = {}
"""Clients of this process, with the target of each."""


@contextmanager
def connected(place: Place, doing: str) -> Iterator[AmqpClient]:
    """Open a connection and close it. Raises ConfigError, TargetUnavailable."""
    client = AmqpClient(place, doing)
    _open[id(client)] = (place.owner, client)
    try:
        yield client
    finally:
        del _open[id(client)]
        client.close()


def interrupt(owner: str) -> None:
    """End the waits for room in queues of a target in this process."""
    for name, client in list(_open.values()):
        if name == owner:
            client.interrupt()


def scrubbed(text: str, place: Place) -> str:
    """Return the text without the password."""
    password = place.endpoint.password
    return text.replace(password, "***") if len(password) > 2 else text


def _innermost(error: BaseException) -> BaseException:
    """Return the error that an attempt to connect ended with: pika wraps it several times."""
    while True:
        inner = (*getattr(error, "exceptions", ()), getattr(error, "exception", None), *error.args[:1])
        inner_errors = [candidate for candidate in inner if isinstance(candidate, BaseException)]
        if not inner_errors:
            return error
        error = inner_errors[-1] if getattr(error, "exceptions", ()) else inner_errors[0]


def certificate_refused(place: Place, doing: str, error: ssl.SSLCertVerificationError) -> ConfigError:
    """Return the error that the server's certificate is not accepted."""
    return ConfigError(
        f"{doing}: the certificate of RabbitMQ {place.endpoint.connection_id!r} is not accepted: "
        f"{error.verify_message}",
        where=place.address,
        hint="name the certificate of its authority in the connection's extra: ca",
    )


def translated(error: BaseException, place: Place, doing: str) -> SluiceError:
    """Return an error of pika as one of Sluice."""
    if isinstance(error, SluiceError):
        return error
    kinds = amqp_library().exceptions
    error = _innermost(error)
    code = int(getattr(error, "reply_code", 0) or 0)
    message = scrubbed(str(getattr(error, "reply_text", "") or error or type(error).__name__), place)
    text, where = f"{doing} at RabbitMQ {place.endpoint.connection_id!r}: {message}", place.address
    if isinstance(error, ssl.SSLCertVerificationError):
        return certificate_refused(place, doing, error)
    if isinstance(error, kinds.ProbableAuthenticationError | kinds.AuthenticationError):
        return ConfigError(text, where=where, hint="look at login and password of the connection")
    if isinstance(error, kinds.ProbableAccessDeniedError):
        return ConfigError(text, where=where, hint="look at the virtual host, which is the connection's schema")
    if code == _NOT_FOUND:
        return MappingError(text, where=where, hint=f"`sluice check {place.pipeline} --apply` makes what is missing")
    if code == _REFUSED:
        return LoadError(text, where=where, hint=PERMISSIONS)
    if code == _PRECONDITION and "size" in message:
        return LoadError(
            text,
            where=where,
            hint="raise max_message_size of the server to options.max_message_bytes, or lower that option",
        )
    if code in {_RESOURCE, _FORCED, _INTERNAL} or not code:
        return TargetUnavailable(text, where=where)
    return LoadError(f"{text} ({code})", where=where)


__all__ = [
    "PERMISSIONS",
    "AmqpClient",
    "Outgoing",
    "amqp_library",
    "connected",
    "interrupt",
    "scrubbed",
    "stream_library",
    "translated",
]


def probe(endpoint: Endpoint) -> str:
    """Log in and open a channel. Raises ConfigError, TargetUnavailable."""
    place = Place(endpoint, RabbitMQOptions(timeout=timedelta(seconds=8)), "", "probe")
    place.require_usable()
    with connected(place, "connecting"):
        return f"RabbitMQ, virtual host {place.vhost}"
