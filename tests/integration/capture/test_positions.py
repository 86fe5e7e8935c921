"""Where a pipeline may start, and what the pre-flight finds, on both kinds of server."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from devstack.mariadb import MariaDBServer
from devstack.mysql import MySQLServer
from sluice.config.connections import parse_connection
from sluice.config.pipeline import PipelineConfig, StartPosition
from sluice.errors import ConfigError, LostPosition, PreflightError, WrongServer
from sluice.model.dialects import MYSQL
from sluice.model.offset import Offset
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.reader.start_position import dump_start, resolve_start
from sluice.sources.mysql.server.connection import ServerInfo, open_connection, server_info
from sluice.sources.mysql.server.preflight import preflight, require_ready
from tests.support.running.waiting import wait_until

PIPELINE = PipelineConfig.model_validate({
    "pipeline": "p",
    "source": {"connection": "c"},
    "targets": [{"name": "t", "type": "mysql", "connection": "c"}],
})


@pytest.fixture(scope="module", params=[MySQLServer, MariaDBServer], ids=["mysql", "mariadb"])
def server(request, tmp_path_factory):
    with request.param(tmp_path_factory.mktemp("source") / "s", server_id=5) as made:
        made.execute(
            "CREATE DATABASE d",
            "CREATE TABLE d.t (id INT PRIMARY KEY)",
            "INSERT INTO d.t VALUES (1)",
            "FLUSH BINARY LOGS",
        )
        made.execute("INSERT INTO d.t VALUES (2)")
        time.sleep(1.1)
        made.moment = datetime.now(UTC).isoformat()
        made.middle = head(made)
        time.sleep(1.1)
        made.execute("INSERT INTO d.t VALUES (3)", "FLUSH BINARY LOGS", "INSERT INTO d.t VALUES (4)")
        yield made


def head(server) -> Position:
    with open_connection(endpoint(server)) as connection:
        return server_info(connection).head


def endpoint(server):
    return parse_connection("c", server.connection_json())


def resolve(server, start) -> Position:
    with open_connection(endpoint(server)) as connection:
        return resolve_start(endpoint(server), connection, server_info(connection), start, 4711)


def transactions_from(server, position: Position) -> int:
    """How many begin in that file at or behind ``position``; the server refuses one that is not an event's start."""
    events = server.execute(f"SHOW BINLOG EVENTS IN '{position.file}' FROM {position.offset}")
    return sum(event[2].lower() == "gtid" for event in events)


def ends_at_head(server, start) -> bool:
    """MariaDB writes a checkpoint event some time after it rotated, so the head may move by itself while we look."""
    before = head(server)
    found = resolve(server, start)
    return before.order <= found.order <= head(server).order


@pytest.mark.promise("A15")
def test_every_way_to_say_where(server) -> None:
    end = head(server)
    assert resolve(server, "earliest").order == (1, 4)
    for start in (StartPosition(timestamp=server.moment), StartPosition(gtid=server.middle.gtid_set)):
        found = resolve(server, start)
        assert found.file == server.middle.file
        assert transactions_from(server, found) == 1
    assert resolve(server, StartPosition(file=end.file, offset=end.offset)).order == end.order
    assert ends_at_head(server, "latest")
    assert ends_at_head(server, StartPosition(gtid=end.gtid_set))
    assert ends_at_head(server, StartPosition(timestamp="2999-01-01T00:00:00Z"))


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (StartPosition(timestamp="2020-01-01T00:00:00Z"), LostPosition),
        (StartPosition.model_construct(file=None, gtid=None, timestamp="yesterday"), ConfigError),
        (StartPosition(gtid="no such thing"), ConfigError),
        (StartPosition(file="binlog.009999"), LostPosition),
        (StartPosition(file="binlog.000001", offset=10**9), LostPosition),
    ],
)
def test_a_start_that_is_not_there(server, start, kind) -> None:
    with pytest.raises(kind):
        resolve(server, start)


@pytest.mark.parametrize(
    ("changed", "kind", "says"),
    [
        ({"file": "binlog.000999"}, LostPosition, "numbering was reset"),
        ({"offset": 10**9}, LostPosition, "lost the end of its log"),
        ({"server_uuid": "another"}, WrongServer, "another server answers"),
        ({"file": "other-bin.000001"}, WrongServer, "files called other-bin"),
    ],
)
def test_a_position_that_is_not_good_stops(server, changed, kind, says) -> None:
    end = head(server)
    data = {**end.as_offset().to_json(), **changed}
    with open_connection(endpoint(server)) as connection, pytest.raises(kind, match=says):
        require_ready(connection, server_info(connection), PIPELINE, Position.of(Offset.from_json(data)))


def test_a_good_source_has_no_findings(server) -> None:
    with open_connection(endpoint(server)) as connection:
        assert preflight(connection, server_info(connection), PIPELINE, head(server)) == []


@pytest.mark.promise("A8", "F4")
@pytest.mark.parametrize(
    ("setting", "bad", "good"),
    [
        ("binlog_format", "STATEMENT", "ROW"),
    ],
)
def test_a_setting_that_loses_changes_stops_with_its_remedy(server, setting, bad, good) -> None:
    server.execute(f"SET GLOBAL {setting} = '{bad}'")
    try:
        with open_connection(endpoint(server)) as connection, pytest.raises(PreflightError) as caught:
            require_ready(connection, server_info(connection), PIPELINE, None)
    finally:
        server.execute(f"SET GLOBAL {setting} = '{good}'")
    assert setting in caught.value.message
    assert bad in caught.value.message
    assert setting in (caught.value.hint or "")


def test_missing_privileges_are_named(server, tmp_path: Path) -> None:
    server.execute("CREATE USER limited@'127.0.0.1' IDENTIFIED BY 'x'", "GRANT SELECT ON d.* TO limited@'127.0.0.1'")
    login = endpoint(server)
    from dataclasses import replace

    weak = replace(login, user="limited", password="x")
    with pytest.raises(PreflightError, match="REPLICATION"), open_connection(weak) as connection:
        require_ready(connection, server_info(connection), PIPELINE, None)


def test_cascades_that_the_log_lacks_stop(server) -> None:
    server.execute(
        "CREATE TABLE d.parent (id INT PRIMARY KEY)",
        "CREATE TABLE d.child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
        "INSERT INTO d.parent VALUES (1)",
        "INSERT INTO d.child VALUES (1, 1)",
    )
    try:
        before = head(server)
        server.execute("DELETE FROM d.parent")
        events = server.execute(f"SHOW BINLOG EVENTS IN '{before.file}' FROM {before.offset}")
        logged = sum(1 for event in events if event[2] in {"Delete_rows", "Delete_rows_v1"}) == 2
        with open_connection(endpoint(server)) as connection:
            found = preflight(connection, server_info(connection), PIPELINE, None)
        assert [f.severity for f in found if "CASCADE" in f.setting] == ([] if logged else ["error"])
    finally:
        server.execute("DROP TABLE d.child", "DROP TABLE d.parent")


def test_a_start_beyond_four_gibibytes_is_the_next_file_or_an_error() -> None:
    logs = (("binlog.000001", 5 * 2**30), ("binlog.000002", 4711))
    info = ServerInfo(
        dialect=MYSQL,
        version="9.7.4",
        numbers=(9, 7, 4),
        server_uuid="u",
        server_id=1,
        head=Position("u", "binlog.000002", 4711),
        binary_logs=logs,
    )
    assert dump_start(info, Position("u", "binlog.000001", 5 * 2**30 - 44)) == Position("u", "binlog.000002", 4)
    near = Position("u", "binlog.000001", 2**32 - 1)
    assert dump_start(info, near) == near
    with pytest.raises(LostPosition, match="beyond 4 GiB"):
        dump_start(info, Position("u", "binlog.000001", 2**32 + 5))


def test_transactions_that_were_purged_are_not_passed_over(server) -> None:
    """Stands last: the files of the module's server are gone then."""
    newest = head(server).file

    def is_purged() -> bool:  # MariaDB keeps a file until its commits are known to be durable
        server.execute(f"PURGE BINARY LOGS TO '{newest}'")
        return [row[0] for row in server.execute("SHOW BINARY LOGS")] == [newest]

    wait_until(is_purged, "the purge")
    with pytest.raises(LostPosition, match="purged transactions that are not in the given GTID"):
        resolve(server, StartPosition(gtid=server.middle.gtid_set))
    assert ends_at_head(server, StartPosition(gtid=head(server).gtid_set))
