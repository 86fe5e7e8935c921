"""Named subscriptions: how far a reader of stored batches has acknowledged, moved by compare-and-set.

A client that connects raises ``session``. Every move checks it and the node's version, so that of two clients of one
name only the newer moves the cursor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from sluice.coordination.identity import Identity
from sluice.coordination.layout import SUBSCRIPTION, Layout
from sluice.coordination.port import Create, Put, Remove, Step, Znodes, committed
from sluice.errors import AccessDenied, ConfigError, Fenced, SubscriptionOver
from sluice.model.stored_fields import known_fields

MOST = 100
"""Subscriptions of one pipeline."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The stored state of one subscription.

    Attributes:
        reader: whose it is. batch: the last acknowledged batch; nothing up to it is delivered again.
        session: how many clients have connected; the last one may move the cursor.
        made_ms, connected_ms, acknowledged_ms: when, milliseconds since 1970; acknowledged_ms 0: nothing was.
        expired_ms: when retention took batches that it had not acknowledged; 0: it did not.
        client: which client connected last, as it named itself; "": it did not.
        identity: of the pipeline's state that ``batch`` is a number of.
        from_snapshot: nothing is acknowledged since it began with the snapshot as of the batch after ``batch``, so that
            the next client does so, too.
    """

    name: str
    reader: str
    batch: int
    session: int = 1
    made_ms: int = 0
    connected_ms: int = 0
    acknowledged_ms: int = 0
    expired_ms: int = 0
    identity: str = ""
    from_snapshot: bool = False
    client: str = ""
    version: int = -1

    def encoded(self) -> bytes:
        """Return the content of its node."""
        return SUBSCRIPTION.encode({name: value for name, value in asdict(self).items() if name not in _OUTSIDE})


_OUTSIDE = ("name", "version")
"""Told by the node itself."""


def fenced(pipeline: str, name: str, now: Subscription | None) -> Fenced:
    """Return the error for a client that lost the subscription; ``now``: its present state."""
    what = "was deleted" if now is None else "is another client's now, which connected later"
    return Fenced(
        f"subscription {name} of {pipeline} {what}",
        hint="of one name one client reads at a time: end this one, or give it a name of its own",
    )


class Subscriptions:
    """The subscriptions of one pipeline."""

    def __init__(self, znodes: Znodes, layout: Layout, identity: Identity) -> None:
        self._z = znodes
        self._at = layout
        self._identity = identity

    def get(self, name: str, changed: Callable[..., None] | None = None) -> Subscription | None:
        """Return a subscription, None if there is none.

        ``changed``: called when it changes next, see :meth:`Znodes.notify`.
        """
        path = self._at.subscription(name)
        node = self._z.get(path, changed)
        if node is None or not node.data:
            return None
        return SUBSCRIPTION.parse(
            path, node.data, lambda data: Subscription(name, version=node.version, **known_fields(Subscription, data))
        )

    def all(self) -> list[Subscription]:
        """Return all subscriptions, by name."""
        return [
            subscription
            for subscription in map(self.get, self._z.children(self._at.subscriptions))
            if subscription is not None
        ]

    def usable(self, name: str, reader: str, *, expired: bool = False) -> Subscription | None:
        """Return a subscription (:meth:`get`) for a reader that wants to continue it.

        ``expired``: also one that lost batches that it had not acknowledged.

        Raises:
            AccessDenied: it is another reader's. SubscriptionOver: it cannot continue, and has to begin anew.
        """
        subscription = self.owned(name, reader)
        if subscription is not None:
            self._require_going(replace(subscription, expired_ms=0) if expired else subscription)
        return subscription

    def _require_going(self, subscription: Subscription) -> None:
        pipeline = self._at.pipeline
        if subscription.expired_ms:
            raise SubscriptionOver(
                f"subscription {subscription.name} of {pipeline} has expired: batches after {subscription.batch} were "
                "removed before it acknowledged them",
                hint=_BEGIN_ANEW,
            )
        if subscription.identity and subscription.identity != self._identity.read():  # "": from before the first batch
            raise SubscriptionOver(
                f"subscription {subscription.name} is of an earlier state of {pipeline}, whose batch numbers meant "
                "other batches",
                hint=_BEGIN_ANEW,
            )

    def owned(self, name: str, reader: str) -> Subscription | None:
        """Return a subscription (:meth:`get`). Raises AccessDenied if it is another reader's."""
        subscription = self.get(name)
        if subscription is not None and subscription.reader != reader:
            raise AccessDenied(
                f"subscription {name} of {self._at.pipeline} belongs to another reader",
                hint=f"take another name; or `sluice subscriptions delete {self._at.pipeline} {name}`",
            )
        return subscription

    def connect(
        self,
        name: str,
        reader: str,
        previous: Subscription | None,
        acknowledged: int,
        now_ms: int,
        *,
        from_snapshot: bool = False,
        client: str = "",
    ) -> Subscription | None:
        """Give the subscription to a client, with its cursor at batch ``acknowledged``.

        None: it changed since ``previous``.

        ``from_snapshot``: what it is given first is the snapshot as of the batch after that.

        Raises:
            ConfigError: the pipeline has too many.
        """
        if previous is None and len(self._z.children(self._at.subscriptions)) >= MOST:
            raise ConfigError(
                f"{self._at.pipeline} has {MOST} subscriptions, which is the limit",
                hint=f"`sluice subscriptions list {self._at.pipeline}` shows them, `sluice subscriptions delete` "
                "removes one",
            )
        path = self._at.subscription(name)
        made_ms, session, version = (
            (previous.made_ms, previous.session + 1, previous.version) if previous else (now_ms, 1, -1)
        )
        begun = Subscription(
            name, reader, acknowledged, session, made_ms, now_ms,
            identity=self._identity.read(), from_snapshot=from_snapshot, client=client,
        )  # fmt: skip
        if previous is not None and previous.batch == acknowledged:
            begun = replace(begun, acknowledged_ms=previous.acknowledged_ms)
        if previous is None:
            self._z.ensure(self._at.subscriptions)
        step: Step = Put(path, begun.encoded(), version) if previous else Create(path, begun.encoded())
        return replace(begun, version=version + 1) if committed(self._z, step) else None

    def acknowledge(self, subscription: Subscription, batch: int, now_ms: int) -> Subscription:
        """Acknowledge everything up to ``batch``; the cursor never moves back.

        ``subscription``: as the client's session had it last.

        Raises:
            Fenced: a newer client has it, or it was deleted. SubscriptionOver: it expired.
        """
        while True:
            now = self.require(subscription)
            if batch <= now.batch:
                return now
            moved = replace(now, batch=batch, acknowledged_ms=now_ms, from_snapshot=False)
            if committed(self._z, Put(self._at.subscription(subscription.name), moved.encoded(), now.version)):
                return replace(moved, version=now.version + 1)

    def require(self, subscription: Subscription, changed: Callable[..., None] | None = None) -> Subscription:
        """Return its present state, if the session of ``subscription`` still has it. Raises as :meth:`acknowledge`."""
        now = self.get(subscription.name, changed)
        if now is None or (now.made_ms, now.session, now.reader) != (
            subscription.made_ms,
            subscription.session,
            subscription.reader,
        ):
            raise fenced(self._at.pipeline, subscription.name, now)
        self._require_going(now)
        return now

    def expire(self, name: str, below: int, now_ms: int) -> bool:
        """Expire the subscription before retention removes batches up to ``below``. False: it has acknowledged them."""
        while True:
            now = self.get(name)
            if now is None or now.batch >= below:
                return False
            if now.expired_ms:
                return True
            over = replace(now, expired_ms=now_ms)
            if committed(self._z, Put(self._at.subscription(name), over.encoded(), now.version)):
                return True

    def delete(self, name: str) -> bool:
        """Remove it: it holds nothing back, and its client is told at its next step. False: there is none."""
        path = self._at.subscription(name)
        return self._z.get(path) is not None and committed(self._z, Remove(path))


_BEGIN_ANEW = (
    'connect with "reset": true (in Python reset=True): it begins anew at "from", and what lies between is missing'
)
