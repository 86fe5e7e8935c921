"""kill -9 of any process amid a comparison and a repair: the one that verifies or delivers, servers, ZooKeeper.

In the end both sides are equal.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devstack.mysql import MySQLServer
from devstack.zookeeper import ZooKeeperServer
from sluice.coordination import zookeeper
from sluice.errors import RetryableError
from sluice.flows.dump.worker import work
from sluice.model.dumps import DumpState
from sluice.operations.verify.result import VerifyResult
from sluice.operations.verify.verify import Progress, VerifySpec, verify
from tests.support.pipelines import dumping
from tests.support.pipelines.case import REPOSITORY, Case, case
from tests.support.pipelines.dumping import begin, both, delivering
from tests.support.servers.fixtures import UNSAFE

pytestmark = pytest.mark.timeout(900)

CHILD = """
import os, signal, sys
from pathlib import Path
from sluice.config.connections import from_environment
from sluice.config.loading import load_pipeline
from sluice.flows.runtime import Runtime
from sluice.operations.verify.verify import VerifySpec, verify
runtime = Runtime.build(load_pipeline(Path(sys.argv[1])), resolver=from_environment, runner="local")
told = lambda progress: progress.doing == sys.argv[2] and os.kill(os.getpid(), signal.SIGKILL)
verify(runtime, VerifySpec(repair=True, by="the child"), told)
"""


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path / "zookeeper") as started:
        yield started


@pytest.fixture
def own(tmp_path: Path, zoo: ZooKeeperServer) -> Iterator[Case]:
    """Servers that may be killed."""
    with (
        MySQLServer(tmp_path / "source", server_id=901, options=UNSAFE) as source,
        MySQLServer(tmp_path / "target", server_id=902, options=UNSAFE) as target,
    ):
        for server in (source, target):
            server.execute("CREATE DATABASE own")
        with case(tmp_path / "case", source, target, zoo, "own", extra="dump: {chunk_rows: 50}") as made:
            yield made


def plant(made: Case) -> int:
    """Rows that differ: changed, missing, and only at the target."""
    made.target.execute(
        "USE own",
        "UPDATE t SET v = CONCAT(v, ' ') WHERE id % 29 = 1",
        "DELETE FROM t WHERE id % 31 = 2",
        "INSERT INTO t VALUES (-1, 'extra'), (5000, 'extra')",
    )
    [(different,)] = made.target.execute("SELECT COUNT(*) FROM own.t WHERE v LIKE '% '")
    [(there,)] = made.target.execute("SELECT COUNT(*) FROM own.t")
    return int(different) + 600 - (int(there) - 2) + 2


def until_equal(made: Case) -> VerifyResult:
    """A person, or Airflow, presses again: what is left of a repair goes on first."""
    with delivering(made):
        with made.runtime().state() as state:
            dumps = [dump for dump in state.dumps.ids() if state.dumps.get(dump).state is DumpState.RUNNING]
        for dump in dumps:
            work(made.runtime(), dump)
        return verify(made.runtime(), VerifySpec(repair=True))


def test_killed_in_the_middle(own: Case, zoo: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumping, "PASSING", 1000)
    monkeypatch.setattr(zookeeper, "ANSWER_S", 5.0)
    both(own, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(40))")
    begin(own)
    own.source.execute("USE own", f"INSERT INTO t VALUES {','.join(f'({i}, {i * 7})' for i in range(600))}")
    own.run_until_head()

    def killing(kill: Callable[[], None], doing: str) -> Callable[[Progress], None]:
        done: list[str] = []

        def told(progress: Progress) -> None:
            if progress.doing == doing and not done:
                done.append(doing)
                kill()

        return told

    for doing in ("verifying", "repairing"):
        for server in (own.source, own.target, zoo):
            assert plant(own) > 30
            with delivering(own):
                try:
                    # A target that is gone during a repair is waited for: two minutes, if nobody says otherwise.
                    asked = VerifySpec(repair=True, patience_s=10)
                    result = verify(own.runtime(), asked, killing(server.kill, doing))
                    assert server.running, f"{doing} went on without its server: {result.in_a_line()}"
                except RetryableError as error:
                    print(f"{doing}: {error}")
                finally:
                    if not server.running:
                        server.start()
            result = until_equal(own)
            assert (result.outcome, result.rows) == ("equal", 600)
            own.assert_equal("t")
        planted = plant(own)
        with delivering(own):
            child = subprocess.run(
                [sys.executable, "-c", CHILD, str(own.path), doing],
                env={**own.environment, "PYTHONPATH": f"{REPOSITORY}/include"},
                capture_output=True,
                timeout=240,
                check=False,
            )
            assert child.returncode == -9, child.stderr.decode()[-2000:]
            if doing == "verifying":
                assert verify(own.runtime(), VerifySpec()).differing == planted
        assert until_equal(own).outcome == "equal"
        own.assert_equal("t")


@pytest.mark.parametrize("doing", ["verifying", "repairing"])
def test_the_process_that_delivers_is_killed(own: Case, doing: str) -> None:
    """Nobody starts it again for a while: the verification says so. Then what is left of the repair goes on first."""
    both(own, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(40))")
    begin(own)
    own.source.execute("USE own", f"INSERT INTO t VALUES {','.join(f'({i}, {i * 7})' for i in range(600))}")
    own.run_until_head()
    plant(own)
    delivers = subprocess.Popen(own.command("run", "case"), env=own.environment, cwd=own.folder)
    try:

        def told(progress: Progress) -> None:
            if progress.doing == doing and delivers.poll() is None:
                own.source.execute("INSERT INTO own.t VALUES (700, 'on its way')")
                delivers.kill()
                delivers.wait()

        with pytest.raises(RetryableError, match="nothing moved for"):
            verify(own.runtime(), VerifySpec(repair=True, patience_s=20), told)
    finally:
        delivers.kill()
        delivers.wait()
    assert until_equal(own).outcome == "equal"
    own.run_until_head()
    own.assert_equal("t")
