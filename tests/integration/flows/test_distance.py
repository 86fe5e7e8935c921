"""Round trips: what a distance costs a batch.

Each is counted by a proxy before the source and one before the target.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sluice.flows.capture.drain import drain
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from tests.support.pipelines.case import case
from tests.support.servers.proxy import TcpProxy

DRAIN = 28
LOAD = 20
ACK = 4
"""A login is about eight.

A verb that logs in again, a row that goes alone, a table that is asked for by itself: all go far beyond these.

A drain makes 21 to 25: the server sends its TLS session tickets when it likes, and a busy machine may cut what goes one
way, so each of the two connections may count some more."""


@pytest.mark.promise("B18")
def test_a_batch_takes_few_round_trips_whatever_is_in_it(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    tables = [f"t{number}" for number in range(12)]
    for server in (mysql_source, mysql_target):
        server.execute(*(f"CREATE TABLE `{schema}`.{table} (id INT PRIMARY KEY, note VARCHAR(40))" for table in tables))
    with (
        TcpProxy(mysql_source.host, mysql_source.port) as near,
        TcpProxy(mysql_target.host, mysql_target.port) as far,
        case(tmp_path, mysql_source, mysql_target, zookeeper, schema, target_extra="    parallelism: 1") as made,
    ):
        for connection, link in (("case_source", near), ("case_target", far)):
            made.connections[connection] = json.dumps({**json.loads(made.connections[connection]), "port": link.port})
        made.run_until_head()
        for number, rows in enumerate((1, 200), start=1):
            values = ", ".join(f"({row}, 'n{number}')" for row in range(rows))
            for table in tables:
                mysql_source.execute(
                    f"REPLACE INTO `{schema}`.{table} VALUES {values}",
                    f"DELETE FROM `{schema}`.{table} WHERE id % 7 = 3",
                )
            runtime, took = made.runtime(), [(near.round_trips, far.round_trips)]
            batch = drain(runtime, claim=f"test:a:{number}", idle_wait_s=5).batch
            assert batch is not None
            merge(runtime, batch)
            took.append((near.round_trips, far.round_trips))
            load(runtime, "copy", batch)
            took.append((near.round_trips, far.round_trips))
            ack(runtime, "copy", batch)
            took.append((near.round_trips, far.round_trips))
            assert took[1][0] - took[0][0] <= DRAIN
            assert took[2][1] - took[1][1] <= LOAD + 2 * len(tables)
            assert took[3][1] - took[2][1] <= ACK
            assert (took[1][1], took[3][0]) == (took[0][1], took[1][0])
        made.assert_equal(*tables)
