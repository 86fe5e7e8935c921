"""The store of positions: ZooKeeper and its model keep the contract, and a package may bring another one."""

from __future__ import annotations

import importlib
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.config.connections import Endpoint
from sluice.coordination import connecting
from sluice.coordination.memory import MemoryTree
from sluice.coordination.port import Znodes
from sluice.coordination.shared_session import SharedSessions
from sluice.errors import ConfigError
from sluice.flows.runtime import Runtime
from sluice.testing.position_stores import CHECKS, Check, Open
from tests.support.running.packages import install
from tests.support.twins.source_kinds import pipeline


@pytest.fixture(params=["memory", "sqlite", "zookeeper"])
def open_session(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "memory":
        tree = MemoryTree()

        @contextmanager
        def opened() -> Iterator[Znodes]:
            session = tree.session()
            try:
                yield session
            finally:
                session.expire()

        return opened
    if request.param == "sqlite":
        file = Endpoint("zookeeper_default", "sqlite", str(tmp_path / "positions.db"))
        return lambda: connecting.connect(file, session_timeout_s=6)
    server = request.getfixturevalue("zookeeper")
    endpoint = Endpoint("zookeeper_default", "zookeeper", server.hosts)
    return lambda: connecting.connect(endpoint, session_timeout_s=6)


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_a_store_of_positions_keeps_the_contract(check: Check, open_session: Open) -> None:
    check.run(open_session, f"/test/{uuid.uuid4().hex}")


PACKAGE = """\
from contextlib import contextmanager

from sluice.coordination.memory import MemoryTree

TREE = MemoryTree()


@contextmanager
def connect(endpoint, *, session_timeout_s, connect_timeout_s=15.0):
    session = TREE.session()
    try:
        yield session
    finally:
        session.expire()
"""


@pytest.mark.promise("G5")
def test_the_type_of_the_connection_chooses_a_store_of_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = "[sluice.coordination]\nmytree = my_coordination_tree:connect\nbroken = my_coordination_tree:nothing\n"
    install(monkeypatch, tmp_path, "my-tree", entry_points=points, modules={"my_coordination_tree": PACKAGE})
    connecting._of.cache_clear()
    connections: dict[str, Any] = {"nowhere": {"conn_type": "mytree", "host": "a"}}

    def resolver(name: str) -> Endpoint:
        from sluice.config.connections import parse_connection

        return parse_connection(name, json.dumps(connections[name]))

    runtime = Runtime.build(pipeline("p", "memory", "s"), resolver=resolver)
    with runtime.state() as state:
        state.pause_switch.set(open_=False, by="me", reason="tea")
    sessions = SharedSessions()
    try:
        session = sessions.get(resolver("nowhere"), 10.0)
        assert session.alive
    finally:
        sessions.close()
    tree = importlib.import_module("my_coordination_tree").TREE
    assert any(path.startswith("/data/sync/p/") for path in tree.nodes)
    connections["nowhere"]["conn_type"] = "broken"
    with (
        pytest.raises(ConfigError, match=r"coordination store 'broken' cannot be loaded: AttributeError"),
        runtime.state(),
    ):
        pass
