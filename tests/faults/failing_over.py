"""The source of the walk fails over to its replica, and back the next time.

The replica is made when it is first needed, of the source's files.
"""

from __future__ import annotations

import random
import shutil

from devstack.mysql import MySQLServer
from tests.faults.world import SCHEMA, World


def fail_over(world: World, choose: random.Random) -> str:
    """With batches on their way; the server that was read is gone for a while, or lives on.

    Then it follows the other one.
    """
    world.rest()  # who writes is connected to one server
    with world.writing:  # nothing may be written at the replica
        return _fail_over(world, choose)


def _fail_over(world: World, choose: random.Random) -> str:
    before, after = world.source, world.replica
    if not after.data_dir.exists():
        before.stop(60)
        shutil.copytree(before.data_dir, after.data_dir, ignore=shutil.ignore_patterns("auto.cnf"))
        before.start()
        after.start()
        _follow(after, before)
    [(done,)] = before.execute("SELECT @@GLOBAL.gtid_executed")
    [(missing,)] = after.execute(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{done}', 60)")
    assert not missing, f"the replica lacks transactions: {after.execute('SHOW REPLICA STATUS')}"
    gone = choose.random() < 0.5
    if gone:
        before.kill()
    member = world.members[after.server_id]
    world.sluice("failover", str(world.case.path), "--to", member, "--reason", "walk", "--yes")
    after.execute("STOP REPLICA", "RESET REPLICA ALL")
    before.start()
    _follow(before, after)
    world.source, world.replica = after, before
    world.links["source"], world.links["replica"] = world.links["replica"], world.links["source"]
    with world.state() as state:
        assert state.member.read().connection == member
    world.source.execute(f"INSERT INTO `{SCHEMA}`.journal VALUES ('after', 1)")
    return f"to {member}{', the other one was gone' if gone else ''}"


def _follow(replica: MySQLServer, source: MySQLServer) -> None:
    replica.execute(
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {source.port}, SOURCE_USER = 'root', "
        "SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1, SOURCE_CONNECT_RETRY = 1",
        "START REPLICA",
    )
