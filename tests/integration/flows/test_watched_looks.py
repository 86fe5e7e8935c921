"""The page's looks at a pipeline: one session for all, and no question about what did not change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack.zookeeper import ZooKeeperServer
from sluice.coordination import watched_reads
from sluice.coordination.watched_reads import WatchedReads
from sluice.coordination.zookeeper import ZookeeperZnodes
from sluice.operations.control import pause, resume
from sluice.operations.status import Status, status
from tests.support.pipelines.case import Case
from tests.support.tables.numbered import numbered_pipeline


@pytest.fixture
def looks() -> Iterator[WatchedReads]:
    found = WatchedReads(answer_s=3.0)
    yield found
    found.close()


def look(made: Case, looks: WatchedReads) -> Status:
    runtime = made.runtime()
    runtime.looks = looks
    return status(runtime)


def look_until(made: Case, looks: WatchedReads, state: str) -> Status:
    """Look until the pipeline is in a state, as an open page does."""
    ends = time.monotonic() + 120
    while (found := look(made, looks)).state != state:
        assert time.monotonic() < ends, found
        time.sleep(0.1)
    return found


def test_an_unchanged_pipeline_costs_no_request_and_a_change_is_seen(
    tmp_path: Path,
    mysql_source: Any,
    mysql_target: Any,
    zookeeper: Any,
    fresh_schema: Any,
    looks: WatchedReads,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with numbered_pipeline(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema, begin=False) as made:
        made.run_until_head()
        assert look(made, looks).state == "idle"
        asked: list[str] = []
        with monkeypatch.context() as patched:
            guarded = ZookeeperZnodes._guarded

            def counting(self: Any, doing: str, call: Any) -> Any:
                asked.append(doing)
                return guarded(self, doing, call)

            patched.setattr(ZookeeperZnodes, "_guarded", counting)
            patched.setattr(watched_reads, "connect", None)  # no other session
            before = look(made, looks)
        assert (before.state, asked) == ("idle", [])
        pause(made.runtime(), by="test", reason="a look")
        assert "by test" in look_until(made, looks, "paused").paused
        resume(made.runtime(), by="test")
        made.source.execute(f"INSERT INTO `{made.schema}`.t VALUES (77, 'n')")
        made.run_until_head()
        after = look_until(made, looks, "idle")
        assert after.next_batch == before.next_batch + 1
        assert after.to_json()["targets"] == status(made.runtime()).to_json()["targets"]


def test_a_zookeeper_that_went_away_is_said_and_seen_again(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, fresh_schema: Any, looks: WatchedReads
) -> None:
    (tmp_path / "zookeeper").mkdir()
    with (
        ZooKeeperServer(tmp_path / "zookeeper") as server,
        numbered_pipeline(tmp_path, mysql_source, mysql_target, server, fresh_schema, begin=False) as made,
    ):
        made.run_until_head()
        assert look(made, looks).state == "idle"
        server.kill()
        gone = look_until(made, looks, "unreachable")
        assert [one.part for one in gone.no_answer] == ["zookeeper"]
        server.start()
        look_until(made, looks, "idle")
