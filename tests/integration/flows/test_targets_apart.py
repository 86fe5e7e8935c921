"""Two targets, one of which fails: the other goes on, nothing that the failing one needs is removed, and it catches up
by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devstack.mysql import MySQLServer
from sluice.coordination.quarantine import Quarantined
from sluice.errors import TargetUnavailable
from sluice.flows.capture.drain import drain
from sluice.flows.load.isolation import catch_up
from sluice.flows.load.load import LoadOutcome
from sluice.operations.retention import prune
from sluice.sources.mysql.reader.warm_up import compile_kernels
from tests.support.flows.two_targets import Two
from tests.support.pipelines.case import case
from tests.support.servers.proxy import TcpProxy


@dataclass
class Linked(Two):
    """``archive`` is reached through ``link``."""

    link: TcpProxy


@pytest.fixture(scope="module")
def archive(server_folder: Path) -> Iterator[MySQLServer]:
    with MySQLServer(server_folder / "archive", name="mysql-archive", server_id=104) as server:
        yield server


@pytest.fixture
def two(
    tmp_path: Path,
    mysql_source: Any,
    mysql_target: Any,
    archive: MySQLServer,
    zookeeper: Any,
    fresh_schema: Callable[..., str],
) -> Iterator[Linked]:
    compile_kernels()  # compiling the kernels takes longer than this pipeline's ZooKeeper session
    schema = fresh_schema(mysql_source, mysql_target, archive)
    for server in (mysql_source, mysql_target, archive):
        server.execute(f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, note VARCHAR(200))")
    with (
        case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made,
        TcpProxy(archive.host, archive.port) as link,
    ):
        made.connections["case_archive"] = archive.connection_json(schema=schema).replace(
            f'"port": {archive.port}', f'"port": {link.port}'
        )
        text = made.yaml.replace('/store"}', '/store", retain: 0s}').rstrip()
        assert "retain: 0s" in text
        made.path.write_text(text + "\n  - {name: archive, type: mysql, connection: case_archive}\n")
        runtime = made.runtime()
        drain(runtime, claim="test:here:begin", idle_wait_s=0.1)
        yield Linked(made, archive, runtime, link)


def test_a_failing_target_holds_only_itself(two: Linked) -> None:
    two.change(1)
    assert all(isinstance(o, LoadOutcome) for o in two.run_once("1").values())
    two.link.refusing = True
    two.link.cut()
    for number in range(2, 9):  # more than the window of three
        two.change(number)
        outcomes = two.run_once(str(number))
        assert isinstance(outcomes["copy"], LoadOutcome)
        assert isinstance(outcomes["archive"], Quarantined)
    assert two.rows(two.case.target) == two.rows(two.case.source)
    assert two.acked() == {"copy": 8, "archive": 1}
    hold = outcomes["archive"]
    assert isinstance(hold, Quarantined)
    assert "archive" in hold.error or "connect" in hold.error.lower()
    with pytest.raises(TargetUnavailable):
        catch_up(two.runtime, "archive")
    with two.runtime.state() as state:
        held = state.quarantine.reason("archive")
    assert held is not None
    assert held.attempts == 2
    kept = set(two.runtime.store.batches())
    assert 1 in prune(two.runtime).removed
    assert set(two.runtime.store.batches()) == kept - {1}, "what archive still needs must stay"
    two.link.heal()
    outcome = catch_up(two.runtime, "archive", batches=3)
    assert (outcome.quarantined, outcome.batches, outcome.left) == (True, 3, 4)
    assert two.acked()["archive"] == 4
    outcome = catch_up(two.runtime, "archive")
    assert (outcome.quarantined, outcome.left) == (False, 0)
    assert two.rows(two.archive) == two.rows(two.case.source)
    assert two.acked() == {"copy": 8, "archive": 8}
    two.change(9)
    assert all(isinstance(o, LoadOutcome) for o in two.run_once("9").values())
