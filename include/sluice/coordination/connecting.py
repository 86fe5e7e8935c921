"""Sessions of the store that holds the positions: ZooKeeper, a SQLite file, or what an installed package brings.

The type of the connection chooses: ``coordination.connection`` of type ``zookeeper`` is ZooKeeper, ``sqlite`` a file of
this machine (:mod:`sluice.coordination.sqlite`), one of another type is the entry point of that name under
``sluice.coordination``. It names a function like :func:`connect`. What it has to keep is
:mod:`sluice.testing.position_stores`.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache

from sluice.config.connections import Endpoint
from sluice.coordination.port import Znodes
from sluice.errors import ConfigError

GROUP = "sluice.coordination"

Connect = Callable[..., AbstractContextManager[Znodes]]


@contextmanager
def connect(endpoint: Endpoint, *, session_timeout_s: float, connect_timeout_s: float = 15.0) -> Iterator[Znodes]:
    """Yield a session on what answers at ``endpoint``, closed on leaving.

    Args:
        session_timeout_s: how long a silent session keeps its ephemeral nodes. connect_timeout_s: how long to wait for
            the first answer.

    Raises:
        CoordinationUnavailable: nothing answers in time. ConfigError: the login is refused, or the package that brings
            this type cannot be loaded.
    """
    own = _of(endpoint.kind)
    if endpoint.kind == "sqlite":
        from sluice.coordination import sqlite

        own = sqlite.connect
    elif own is None:
        from sluice.coordination import zookeeper

        own = zookeeper.connect
    with own(endpoint, session_timeout_s=session_timeout_s, connect_timeout_s=connect_timeout_s) as znodes:
        yield znodes


@cache
def _of(kind: str) -> Connect | None:
    """Return the function of the package that has this type of connection; None: it is one of Sluice's own."""
    if kind not in {"", "zookeeper", "sqlite"}:
        for point in importlib.metadata.entry_points(group=GROUP, name=kind):
            try:
                connect: Connect = point.load()
            except Exception as error:
                raise ConfigError(
                    f"the coordination store {kind!r} cannot be loaded: {type(error).__name__}: {error}",
                    where=point.value,
                    hint="reinstall the package that brings it, or use a connection of type zookeeper",
                ) from error
            return connect
    return None
