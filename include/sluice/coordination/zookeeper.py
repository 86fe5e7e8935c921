"""ZooKeeper through kazoo."""

from __future__ import annotations

import logging
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import structlog
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

from sluice.config.connections import Endpoint
from sluice.coordination.port import Check, Conflict, Create, Put, Remove, Step, Znode
from sluice.errors import ConfigError, CoordinationUnavailable

_READABLE = select.POLLIN | select.POLLPRI
_FAILED = select.POLLERR | select.POLLHUP


class PollHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's threading handler with ``poll(2)`` in place of an epoll object that is made for every look at a socket.

    Kazoo looks at its socket before each read and each write, some 200 times a batch; an object of its own for each
    took a tenth of a small batch's CPU time (18 us a look, 4 us here). As in kazoo, a socket that failed is ready for
    what was asked of it.
    """

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], failing: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Return which of the sockets can be read and written.

        Raises ValueError for a socket that is closed, as ``select.select`` does.
        """
        poll = select.poll()
        events_of: dict[int, int] = {}
        for sockets, events in ((readers, _READABLE), (writers, select.POLLOUT)):
            for sock in sockets:
                number = _descriptor(sock)
                events_of[number] = events_of.get(number, 0) | events
        for number, events in events_of.items():
            poll.register(number, events)
        ready = dict(poll.poll(None if timeout is None else max(0, round(timeout * 1000))))
        if any(events & select.POLLNVAL for events in ready.values()):
            raise ValueError("a socket is closed")
        return (
            [sock for sock in readers if ready.get(_descriptor(sock), 0) & (_READABLE | _FAILED)],
            [sock for sock in writers if ready.get(_descriptor(sock), 0) & (select.POLLOUT | _FAILED)],
            [],
        )


def _descriptor(socket: Any) -> int:
    number = socket if isinstance(socket, int) else int(socket.fileno())
    if number < 0:
        raise ValueError("a socket is closed")
    return number


_T = TypeVar("_T")
_log = structlog.get_logger()
logging.getLogger("kazoo").setLevel(logging.WARNING)  # its account of every connection is not for a task's log


ANSWER_S = 60.0
"""How long an answer is waited for while no server of the ensemble is there."""


@contextmanager
def connect(
    endpoint: Endpoint, *, session_timeout_s: float, connect_timeout_s: float = 15.0
) -> Iterator[ZookeeperZnodes]:
    """Yield a session on the ensemble at ``endpoint``, closed on leaving. Host may list several: ``h1:2181,h2:2181``.

    Login and password of the endpoint, if set, are used for digest authentication and for the ACL of every node
    created. Raises CoordinationUnavailable if no server answers in time.
    """
    hosts = endpoint.host if ":" in endpoint.host or not endpoint.port else f"{endpoint.host}:{endpoint.port}"
    auth = [("digest", f"{endpoint.user}:{endpoint.password}")] if endpoint.user else None
    acl = [make_digest_acl(endpoint.user, endpoint.password, all=True)] if endpoint.user else None
    client = KazooClient(
        hosts=hosts,
        timeout=session_timeout_s,
        handler=PollHandler(),
        auth_data=auth,
        default_acl=acl,
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=1.5, max_delay=1.0, max_jitter=0.1),
        command_retry=KazooRetry(max_tries=8, delay=0.05, backoff=2, max_delay=1.0, max_jitter=0.1),
    )
    try:
        client.start(timeout=connect_timeout_s)
    except (KazooTimeoutError, KazooException) as error:
        _shut(client)
        raise CoordinationUnavailable(
            f"ZooKeeper did not answer within {connect_timeout_s:.0f} s",
            where=f"connection {endpoint.connection_id} ({hosts})",
            hint="is it running? `sluice check PIPELINE` tries it again",
        ) from error
    try:
        yield ZookeeperZnodes(client, hosts)
    finally:
        _shut(client)


def _shut(client: Any) -> None:
    try:
        client.stop()
        client.close()
    except KazooException as error:
        _log.debug("zookeeper_close_failed", error=str(error))


class ZookeeperZnodes:
    """See :class:`sluice.coordination.port.Znodes`.

    Attributes:
        answer_s: how long an answer is waited for; None: :data:`ANSWER_S`.
    """

    def __init__(self, client: Any, hosts: str) -> None:
        self.answer_s: float | None = None
        self._client = client
        self._hosts = hosts
        self._expired = False
        client.add_listener(self._listen)

    def _listen(self, state: str) -> None:
        if state == KazooState.LOST:
            self._expired = True

    @property
    def alive(self) -> bool:
        """True until ZooKeeper has said that the session expired."""
        return not self._expired

    def get(self, path: str, changed: Callable[..., None] | None = None) -> Znode | None:
        """Return a node, or None, and watch it if ``changed`` is given."""

        def call() -> Znode | None:
            try:
                data, stat = self._asked(lambda: self._client.get_async(path, watch=changed))
            except NoNodeError:
                return None
            return Znode(data, stat.version, stat.mtime, stat.ephemeralOwner != 0)

        return self._guarded(f"reading {path}", call)

    def children(self, path: str, changed: Callable[..., None] | None = None) -> list[str]:
        """Return the names of children, sorted, and watch them if ``changed`` is given."""

        def call() -> list[str]:
            try:
                return sorted(self._asked(lambda: self._client.get_children_async(path, watch=changed)))
            except NoNodeError:
                return []

        return self._guarded(f"listing {path}", call)

    def ensure(self, path: str) -> None:
        """Create a node and those above it where they are missing."""
        self._guarded(f"creating {path}", lambda: self._asked(lambda: self._client.ensure_path_async(path)))

    def notify(self, path: str, changed: Callable[..., None], *, children: bool = False) -> None:
        """Watch a node, or its children. Nothing happens if there is none."""

        def call() -> None:
            with suppress(NoNodeError):
                if children:
                    self._asked(lambda: self._client.get_children_async(path, watch=changed))
                    return
            self._asked(lambda: self._client.exists_async(path, watch=changed))

        self._guarded(f"watching {path}", call)

    def transact(self, steps: Sequence[Step]) -> None:
        """Do all steps or none.

        It is not retried after a lost connection: the caller reads the state to see if it went through.
        """

        def call() -> None:
            transaction = self._client.transaction()
            for step in steps:
                match step:
                    case Check():
                        transaction.check(step.path, step.version)
                    case Create():
                        transaction.create(step.path, step.data, ephemeral=step.ephemeral)
                    case Put():
                        transaction.set_data(step.path, step.data, step.version)
                    case Remove():
                        transaction.delete(step.path, step.version)
            for i, result in enumerate(transaction.commit()):
                if isinstance(result, RolledBackError | RuntimeInconsistency) or not isinstance(result, Exception):
                    continue
                if isinstance(result, NoAuthError):
                    raise result
                reason = "the node exists" if isinstance(result, NodeExistsError) else type(result).__name__
                raise Conflict(i, steps[i], reason)

        self._guarded(f"committing {len(steps)} steps on {steps[-1].path}", call)

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """Return the answer to a question within a time limit.

        The client itself waits without end for servers that are gone.

        A commit has no limit: if it were abandoned, it could go through later, when something else was concluded.
        """
        return self._client.retry(lambda: ask().get(timeout=self.answer_s or ANSWER_S))

    def _guarded(self, doing: str, call: Callable[[], _T]) -> _T:
        if self._expired:
            raise CoordinationUnavailable(f"{doing}: the ZooKeeper session has expired", where=self._hosts)
        try:
            return call()
        except (NoAuthError, AuthFailedError) as error:
            raise ConfigError(
                f"{doing}: ZooKeeper refused access",
                where=self._hosts,
                hint="the connection's login and password must match the ACL of the nodes",
            ) from error
        except (
            ConnectionLoss,
            SessionExpiredError,
            ConnectionClosedError,
            OperationTimeoutError,
            KazooTimeoutError,
        ) as error:
            raise CoordinationUnavailable(
                f"{doing}: the connection to ZooKeeper was lost ({type(error).__name__})",
                where=self._hosts,
                hint="is it running? `sluice check PIPELINE` tries it again",
            ) from error
        except KazooException as error:
            raise CoordinationUnavailable(f"{doing}: {type(error).__name__} {error}", where=self._hosts) from error


def probe(endpoint: Endpoint) -> str:
    """Open a session and read the root. Raises CoordinationUnavailable, ConfigError."""
    with connect(endpoint, session_timeout_s=10, connect_timeout_s=8) as znodes:
        znodes.children("/")
    return "ZooKeeper answers"
