"""One client's session of a named subscription: what it reads, what it acknowledged, and whether it still has the
subscription.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sluice.coordination.subscriptions import Subscription, fenced
from sluice.errors import BatchesGone, ConfigError, OutOfOrder
from sluice.flows.runtime import Runtime
from sluice.serve.access import Reader
from sluice.serve.read import Reading, Sent
from sluice.serve.requests import FromBatch, ReadRequest, SubscribeRequest


class AckWindow:
    """The window of one session.

    Attributes:
        acknowledged: everything up to this batch is; batches that nothing is sent of count with the one before them.
        sent: the last batch that was sent, or passed over.
    """

    def __init__(self, size: int, acknowledged: int, sent: int | None = None, outstanding: Iterable[int] = ()) -> None:
        """Start a window. ``sent``, ``outstanding``: what an earlier session of the same client had sent, ascending."""
        self.size = size
        self.acknowledged = acknowledged
        self.sent = acknowledged if sent is None else sent
        self._outstanding = deque(outstanding)

    @property
    def is_full(self) -> bool:
        """Nothing more is sent before something is acknowledged."""
        return len(self._outstanding) >= self.size

    def send(self, number: int) -> None:
        """Note that batch ``number`` was sent."""
        self.sent = number
        self._outstanding.append(number)

    def pass_over(self, number: int) -> None:
        """Note that nothing is sent of batch ``number``."""
        self.sent = number
        self._settle()

    def acknowledge(self, number: int) -> None:
        """Acknowledge everything up to ``number``; a repeat is harmless.

        Raises ConfigError for a batch that was not sent.
        """
        if number > self.sent:
            raise ConfigError(f"batch {number} cannot be acknowledged: the last one that was sent is {self.sent}")
        while self._outstanding and self._outstanding[0] <= number:
            self._outstanding.popleft()
        self._settle()

    def roll_back(self) -> None:
        """Send again what was not acknowledged."""
        self.sent = self.acknowledged
        self._outstanding.clear()

    def _settle(self) -> None:
        self.acknowledged = self._outstanding[0] - 1 if self._outstanding else self.sent


_ATTEMPTS = 20
"""To take a subscription over while others do, too."""


@dataclass
class Session:
    """Attributes: held: the subscription as this session had it last. window: what was sent and is not acknowledged."""

    reading: Reading
    request: SubscribeRequest
    held: Subscription
    window: AckWindow

    @property
    def hello(self) -> dict[str, Any]:
        """The first message to a client."""
        return {
            "subscription": self.held.name,
            "session": self.held.session,
            "acknowledged": self.held.batch,
            "first": self.window.sent + 1,
            "window": self.window.size,
        }

    def of_batch(self, number: int) -> Generator[Sent, None, None] | None:
        """Return what is sent of a batch, or of the snapshot as of it; None for nothing.

        Raises as :class:`Reading`, OutOfOrder.
        """
        snapshot = self.reading.snapshot
        if snapshot is not None and number == snapshot.batch:
            return self.reading.of_snapshot(snapshot)
        if self.held.from_snapshot and number == self.held.batch + 1:
            raise OutOfOrder(
                f"the snapshot that subscription {self.held.name} began with is to be sent again, by a session that "
                "went on after it",
                hint='connect again, without "session"',
            )
        manifest = self.reading.manifest(number)
        return None if manifest is None else self.reading.of_batch(manifest)

    @property
    def ends_after(self) -> int | None:
        """The last batch of a session that does not follow."""
        return None if self.request.follow else self.reading.last

    def acknowledge(self, number: int) -> None:
        """Store that everything up to batch ``number`` is acknowledged.

        Raises ConfigError, Fenced, SubscriptionOver, CoordinationUnavailable.
        """
        self.window.acknowledge(number)
        self._store()

    def pass_over(self, number: int) -> None:
        """Store that nothing is sent of batch ``number``. Raises as :meth:`acknowledge`."""
        self.window.pass_over(number)
        self._store()

    def require(self, changed: Callable[..., None]) -> None:
        """Raise Fenced or SubscriptionOver if this session lost the subscription.

        ``changed``: called when that is to be asked again.
        """
        self.reading.join()
        with self.reading.runtime.state() as state:
            self.held = state.subscriptions.require(self.held, changed)

    def _store(self) -> None:
        if self.window.acknowledged > self.held.batch:
            self.reading.join()
            with self.reading.runtime.state() as state:
                self.held = state.subscriptions.acknowledge(self.held, self.window.acknowledged, _now_ms())


def connected(
    runtime: Runtime, request: SubscribeRequest, reader: Reader, read: Callable[[ReadRequest], Reading]
) -> Session:
    """Return a new session, which fences the earlier ones of this name.

    Raises:
        Fenced: it was to go on with a session that is no longer the last one. SubscriptionOver, AccessDenied: see
            :meth:`Subscriptions.usable`; an expired one begins with the snapshot, if that can be read. What ``read``
            does.
    """
    name = request.subscription
    for _ in range(_ATTEMPTS):
        with runtime.state() as state:
            known_subscriptions = state.subscriptions
            anew = request.reset or request.on_lost_batches != "stop"
            seen_subscription = (
                known_subscriptions.owned(name, reader.name)
                if request.reset
                else known_subscriptions.usable(name, reader.name, expired=anew)
            )
        if request.session is not None and not _is_last(request, seen_subscription):
            raise fenced(request.pipeline, name, seen_subscription)
        kept_subscription = None if request.reset else seen_subscription
        try:
            reading = read(request if kept_subscription is None else _goes_on(request, kept_subscription))
        except BatchesGone:
            with runtime.state() as state:
                state.subscriptions.usable(name, reader.name)  # says that it expired, if it did
            raise
        sent = reading.first - (1 if reading.snapshot is None else 2)
        acknowledged = sent if kept_subscription is None or reading.snapshot is not None else kept_subscription.batch
        from_snapshot = reading.snapshot is not None or (
            kept_subscription is not None and kept_subscription.from_snapshot
        )
        with runtime.state() as state:
            held_subscription = state.subscriptions.connect(
                name,
                reader.name,
                seen_subscription,
                acknowledged,
                _now_ms(),
                from_snapshot=from_snapshot,
                client=request.client,
            )
        if held_subscription is not None:
            outstanding = sorted(islice(_sent_before(reading, held_subscription, sent), request.window))
            return Session(
                reading, request, held_subscription, AckWindow(request.window, acknowledged, sent, outstanding)
            )
    raise OutOfOrder(f"subscription {name} of {runtime.name} is taken over by one client after the other")


def _is_last(request: SubscribeRequest, seen_subscription: Subscription | None) -> bool:
    """Return True if no other client connected since the session that this one continues.

    The answer to the client's own last call may have been lost with the connection.
    """
    if seen_subscription is None or request.session is None:
        return False
    own = (
        bool(request.client)
        and seen_subscription.client == request.client
        and seen_subscription.session > request.session
    )
    return own or seen_subscription.session == request.session


def _goes_on(request: SubscribeRequest, subscription: Subscription) -> ReadRequest:
    """Return the request from the batch after the acknowledged one; a session that continues another may have had more.

    If nothing is acknowledged of the snapshot that it began with, and the client did not have it, it begins with the
    snapshot again.
    """
    start, first = request.from_, subscription.batch + 1
    if request.session is not None and isinstance(start, FromBatch) and not subscription.expired_ms:
        first = max(first, start.batch)
    if subscription.from_snapshot and first == subscription.batch + 1:
        return request.model_copy(update={"from_": "snapshot"})
    return request.model_copy(update={"from_": FromBatch(batch=first)})


def _sent_before(reading: Reading, held_subscription: Subscription, sent: int) -> Iterator[int]:
    """Yield the batches that the session before this one had sent and that are not acknowledged, newest first."""
    for number in range(sent, held_subscription.batch, -1):
        is_snapshot = held_subscription.from_snapshot and number == held_subscription.batch + 1
        if is_snapshot or reading.manifest(number) is not None:
            yield number


def _now_ms() -> int:
    return int(time.time() * 1000)
