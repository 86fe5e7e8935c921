"""The source fails over to a replica: found again by GTIDs, checked for what it lacks, and both sides equal after
it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devstack.mariadb import MariaDBServer
from devstack.mysql import MySQLServer
from sluice.errors import LostPosition, OutOfOrder, PreflightError, SourceUnavailable, WrongServer
from sluice.flows.capture.drain import drain
from sluice.flows.dump.start import start
from sluice.flows.dump.worker import work
from sluice.flows.run import run
from sluice.model.dumps import ChunkState, Marking, Tuning
from sluice.operations.check import check
from sluice.operations.status import status
from sluice.operations.verify.log_window import LogWindow
from sluice.operations.verify.verify import VerifySpec, verify
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.reader.warm_up import compile_kernels
from tests.support.pipelines.case import Case, assert_same_rows, case
from tests.support.pipelines.dumping import delivering
from tests.support.pipelines.znodes import znodes
from tests.support.running.waiting import wait_until
from tests.support.servers.fixtures import UNSAFE
from tests.support.tables.numbered import rows, sluice


@dataclass
class Group:
    """Two servers; the second follows the first."""

    first: Any
    second: Any

    @property
    def mariadb(self) -> bool:
        return isinstance(self.first, MariaDBServer)

    def follow(self) -> None:
        address = f"'127.0.0.1', {{0}}_PORT = {self.first.port}, {{0}}_USER = 'root'"
        if self.mariadb:
            self.second.execute(
                f"CHANGE MASTER TO MASTER_HOST = {address.format('MASTER')}, MASTER_USE_GTID = slave_pos", "START SLAVE"
            )
        else:
            self.second.execute(
                f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = {address.format('SOURCE')}, SOURCE_AUTO_POSITION = 1, "
                "GET_SOURCE_PUBLIC_KEY = 1",
                "START REPLICA",
            )

    def apply(self, on: bool) -> None:
        """Does the second one go on following?"""
        self.second.execute(f"{'START' if on else 'STOP'} {'SLAVE' if self.mariadb else 'REPLICA'}")

    def own_transactions(self) -> str:
        """Of the second one: those that the first one lacks."""
        if self.mariadb:
            [(state,)] = self.second.execute("SELECT @@gtid_binlog_state")
            return ",".join(one for one in state.split(",") if one.split("-")[1] == "72")
        [(executed, uuid)] = self.second.execute("SELECT @@gtid_executed, @@server_uuid")
        return ",".join(one for one in executed.split(",") if uuid in one)

    def caught_up(self, schema: str) -> None:
        def same() -> bool:
            asked = f"SELECT COUNT(*), MAX(id) FROM `{schema}`.t"
            try:
                return bool(self.first.execute(asked) == self.second.execute(asked))
            except Exception:  # the table is not there yet
                return False

        wait_until(same, "the replica")


@pytest.fixture(scope="module", params=[MySQLServer, MariaDBServer], ids=["mysql", "mariadb"])
def group(request: Any, tmp_path_factory: Any) -> Iterator[Group]:
    compile_kernels()
    folder = tmp_path_factory.mktemp("group")
    options = {} if request.param is MySQLServer else {"log_slave_updates": "ON"}
    with (
        request.param(folder / "a", name="first", server_id=71, options={**UNSAFE, **options}) as first,
        request.param(folder / "b", name="second", server_id=72, options={**UNSAFE, **options}) as second,
    ):
        made = Group(first, second)
        made.follow()
        yield made


@pytest.fixture
def made(group: Group, tmp_path: Path, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    if not group.first.running:
        group.first.start()
        group.apply(False)  # else it tries again a minute later
        group.apply(True)
    schema = fresh_schema(mysql_target)
    table = f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, note VARCHAR(40))"
    group.second.execute("FLUSH BINARY LOGS", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")  # files and offsets are its own
    group.first.execute(f"CREATE DATABASE `{schema}`", table)
    mysql_target.execute(table)
    group.caught_up(schema)
    with case(tmp_path, group.first, mysql_target, zookeeper, schema) as one:
        one.connections["case_second"] = group.second.connection_json()
        settings(one)
        one.run_until_head()
        yield one


def settings(made: Case, more: str = "") -> None:
    source = f"{{connections: [case_source, case_second]{more}}}"
    made.path.write_text(made.yaml.replace("{connection: case_source, start: latest}", source))


def insert(made: Case, *numbers: int) -> None:
    for number in numbers:
        made.source.execute(f"INSERT INTO `{made.schema}`.t VALUES ({number}, 'n{number}')")


def captured(made: Case) -> Any:
    with made.runtime().state() as state:
        cursor = state.cursor()
    assert cursor is not None
    return Position.of(cursor.position)


@pytest.mark.promise("B48")
def test_another_server_is_read_and_the_first_one_again(group: Group, made: Case) -> None:
    """With a batch that waits, a definition that changed, and rows that were not captured yet."""
    insert(made, 1, 2)
    made.run_until_head()
    made.source.execute(f"ALTER TABLE `{made.schema}`.t ADD COLUMN more INT")
    made.run_until_head()
    made.source.execute(f"INSERT INTO `{made.schema}`.t VALUES (3, 'three', 3)")
    assert drain(made.runtime(), claim="test:a:3", idle_wait_s=5).batch
    made.source.execute(f"UPDATE `{made.schema}`.t SET note = 'later' WHERE id = 3")
    group.caught_up(made.schema)
    before = captured(made)
    plan = sluice(made, "failover", "case", "--dry-run")
    assert "read from now on: case_second" in plan
    assert captured(made) == before
    [line] = [one for one in check(made.runtime()).findings if one.setting == "server case_second"]
    assert (line.severity, line.why) == ("ok", "a failover to it is possible")
    sluice(made, "failover", "case", "--to", "case_second", "--reason", "maintenance", "--yes")
    after = captured(made)
    assert after.log_epoch != before.log_epoch
    assert after.gtid_set == before.gtid_set
    made.run_until_head()
    assert_same_rows(made)
    made.source.execute(
        f"INSERT INTO `{made.schema}`.t VALUES (4, 'four', 4)", f"DELETE FROM `{made.schema}`.t WHERE id = 1"
    )
    group.caught_up(made.schema)
    made.run_until_head()
    assert_same_rows(made)
    with made.runtime().state() as state:
        said = [entry for entry in state.audit.entries() if entry["what"] == "failover"]
    assert (said[-1]["reason"], said[-1]["to"].split(",")[0]) == ("maintenance", "case_second")

    made.source.execute(f"INSERT INTO `{made.schema}`.t VALUES (5, 'five', 5)")
    sluice(made, "failover", "case", "--yes")
    assert captured(made).log_epoch == before.log_epoch
    made.run_until_head()
    assert_same_rows(made)
    assert rows(made, made.target) == [2, 3, 4, 5]


def test_what_goes_on_during_a_failover_compares_no_two_logs(group: Group, made: Case, monkeypatch: Any) -> None:
    insert(made, 1, 2)
    runtime = made.runtime()
    under_way = run(runtime, until_head=True)
    assert next(under_way).phase == "draining"  # and where the log ends is known
    assert status(made.runtime()).server == "case_source"
    group.caught_up(made.schema)
    sluice(made, "failover", "case", "--to", "case_second", "--yes")
    assert status(made.runtime()).server == "case_second"
    (made.folder / "broken.yaml").write_text("version: 1\nwindwo: 3")
    said = made.cli("status")  # the good one is shown, the other one named
    (made.folder / "broken.yaml").unlink()
    assert said.returncode == 1
    assert "reads case_second of its source group" in said.stdout
    assert "windwo: there is no such key" in said.stdout + said.stderr
    insert(made, 3)
    group.caught_up(made.schema)
    list(under_way)
    assert rows(made, made.target) == [1, 2, 3]
    znodes(made, "")  # which server is read is lost with the rest
    sluice(made, "recover", "case", "--apply", "--yes")
    assert status(made.runtime()).server == "case_second"

    insert(made, 4)
    group.caught_up(made.schema)
    done: list[str] = []

    def fails_over(self: LogWindow, place: str, since: float) -> None:
        if not done:  # the verification waits for row 4, which nobody captures now
            done.append(place)
            sluice(made, "failover", "case", "--to", "case_source", "--yes")

    before = group.second.execute("SELECT @@gtid_executed" if not group.mariadb else "SELECT @@gtid_binlog_state")
    monkeypatch.setattr(LogWindow, "_require_movement", fails_over)
    with pytest.raises(OutOfOrder, match="failed over during the verification"):
        verify(made.runtime(), VerifySpec())
    monkeypatch.undo()
    # Nothing was written to the replica: it would lack in the other server.
    assert (
        group.second.execute("SELECT @@gtid_executed" if not group.mariadb else "SELECT @@gtid_binlog_state") == before
    )
    made.run_until_head()
    with delivering(made):
        assert verify(made.runtime(), VerifySpec()).outcome == "equal"


def test_a_server_that_lacks_transactions_is_refused_and_says_which(group: Group, made: Case, monkeypatch: Any) -> None:
    monkeypatch.setattr("sluice.flows.capture.failover.PATIENCE_S", 0.2)
    group.apply(False)
    try:
        insert(made, 1, 2)
        made.run_until_head()
        before = captured(made)
        with pytest.raises(
            LostPosition, match=r"transactions that were read up to .* are not on this server"
        ) as caught:
            sluice(made, "failover", "case", "--to", "case_second", "--yes")
        [line] = [one for one in check(made.runtime()).findings if one.setting == "server case_second"]
        assert (line.severity, line.fix[:6]) == ("warning", "choose")
        last = str(before.last_event.gtid)
        assert (last if group.mariadb else last.partition(":")[2]) in caught.value.message
        assert captured(made) == before
        insert(made, 3)
        made.run_until_head()
        assert rows(made, made.target) == [1, 2, 3]
    finally:
        group.apply(True)
    monkeypatch.undo()
    sluice(made, "failover", "case", "--yes")  # waits for what is on its way
    insert(made, 4)
    group.caught_up(made.schema)
    made.run_until_head()
    assert_same_rows(made)


def test_a_connection_that_leads_to_another_server_goes_on_there(group: Group, made: Case) -> None:
    """One connection, e.g. a name or an address that moves with the role."""
    made.path.write_text(made.yaml)
    insert(made, 1, 2)
    made.run_until_head()
    insert(made, 3)
    group.caught_up(made.schema)
    made.connections["case_source"] = group.second.connection_json()
    with pytest.raises(WrongServer, match="another server answers"):
        made.run_until_head()
    plan = json.loads(sluice(made, "recover", "case", "--json").splitlines()[-1])
    assert plan["questions"] == []
    assert "has every transaction that was read" in plan["measures"][0]["steps"][0]
    sluice(made, "recover", "case", "--apply", "--yes")
    made.run_until_head()
    assert_same_rows(made)
    assert rows(made, made.target) == [1, 2, 3]


def test_a_server_that_is_silent_is_replaced_after_the_delay(group: Group, made: Case) -> None:
    insert(made, 1)
    made.run_until_head()
    insert(made, 2)
    group.caught_up(made.schema)
    group.first.stop()
    with pytest.raises(SourceUnavailable, match="`sluice failover case`"):
        drain(made.runtime(), claim="test:a:0", idle_wait_s=0.1)
    assert captured(made).server_uuid
    settings(made, ", failover: when_unreachable, failover_delay: 1h")
    with pytest.raises(SourceUnavailable, match=r"another server of the group is read in 3\d\d\d s"):
        drain(made.runtime(), claim="test:a:0", idle_wait_s=0.1)
    settings(made, ", failover: when_unreachable, failover_delay: 0s")
    assert drain(made.runtime(), claim="test:a:1", idle_wait_s=5).batch
    made.run_until_head()
    made.source = group.second
    assert_same_rows(made)
    assert rows(made, made.target) == [1, 2]
    with made.runtime().state() as state:
        said = state.audit.entries()[-1]
        assert state.member.read().connection == "case_second"
        assert not state.member.read().silent_since_ms
    assert (said["what"], said["by"]) == ("failover", "sluice")
    plan = json.loads(sluice(made, "recover", "case", "--json").splitlines()[-1])
    assert all(finding["severity"] == "ok" for finding in plan["findings"])


def test_a_dump_goes_on_at_the_other_server(group: Group, made: Case) -> None:
    """Chunks that were marked in the first server's log are read again, without marks in a replica; while somebody
    reads, there is no failover.
    """
    insert(made, *range(1, 31))
    made.run_until_head()
    made.target.execute(
        f"UPDATE `{made.schema}`.t SET note = 'wrong'", f"INSERT INTO `{made.schema}`.t VALUES (99, 'x')"
    )
    group.first.execute(f"UPDATE `{made.schema}`.t SET note = 'later' WHERE id < 5")
    dump = start(made.runtime(), replace=True, tuning=Tuning(chunk_rows=10, parallelism=1))
    stop = threading.Event()
    reading: list[Any] = []

    def marked(step: str, chunk: Any) -> None:
        if step == "claimed" and chunk.id.number == 2:
            with pytest.raises(OutOfOrder, match="a dump is being read"):
                sluice(made, "failover", "case", "--yes")
            reading.append(chunk)
            stop.set()

    work(made.runtime(), dump.id, stop=stop, hook=marked)
    assert reading
    with made.runtime().state() as state:
        assert any(chunk.state is ChunkState.MARKED for chunk in state.dumps.chunks(dump.id))
        assert state.dumps.require(dump.id).marking is Marking.TABLE
    group.caught_up(made.schema)
    own = group.own_transactions()
    sluice(made, "failover", "case", "--yes")
    with made.runtime().state() as state:
        assert all(chunk.state is ChunkState.TODO for chunk in state.dumps.chunks(dump.id))
        assert state.dumps.require(dump.id).marking is (Marking.SNAPSHOT if group.mariadb else Marking.GTID)
    group.first.execute(f"UPDATE `{made.schema}`.t SET note = 'last' WHERE id > 25")
    with delivering(made):
        work(made.runtime(), dump.id)
    group.caught_up(made.schema)
    made.run_until_head()
    assert_same_rows(made)
    assert group.own_transactions() == own
    assert group.first.execute(f"SELECT COUNT(*) FROM `{made.schema}`.t WHERE note = 'last'") == [(5,)]


def replicates(group: Group, **filters: str) -> None:
    """Give the second server these replication filters (lists of quoted names, as MySQL writes them), and no others."""
    known = ("wild_ignore_table", "ignore_db", "do_db", "ignore_table")
    group.apply(False)
    if group.mariadb:
        plain = {name: filters.get(name, "").replace("'", "").replace("`", "") for name in known}
        group.second.execute(*(f"SET GLOBAL replicate_{name} = '{value}'" for name, value in plain.items()))
    else:
        listed = ", ".join(f"REPLICATE_{name.upper()} = ({filters.get(name, '')})" for name in known)
        group.second.execute(f"CHANGE REPLICATION FILTER {listed}")
    group.apply(True)


def test_a_replica_that_filters_is_refused_and_what_it_lacks_is_said(group: Group, made: Case) -> None:
    """Filtered transactions are empty ones with their GTIDs: nothing but the filter, or the rows themselves, shows what
    is missing.
    """
    schema = made.schema
    others = [f"CREATE TABLE `{schema}`.{name} (id INT PRIMARY KEY, note VARCHAR(40))" for name in ("lost_a", "lost_b")]
    made.target.execute(*others)
    made.source.execute(others[0])
    group.caught_up(schema)
    try:
        replicates(group, wild_ignore_table=f"'{schema}.lost%'")
        made.source.execute(
            others[1], *(f"INSERT INTO `{schema}`.{n} VALUES (1, 'x'), (2, 'y')" for n in ("lost_a", "lost_b"))
        )
        insert(made, 1, 2)
        group.caught_up(schema)
        made.run_until_head()
        before = captured(made)
        with pytest.raises(PreflightError, match=r"replicate_wild_ignore_table.*GTIDs do not show it"):
            sluice(made, "failover", "case", "--yes")
        [line] = [one for one in check(made.runtime()).findings if one.setting == "server case_second"]
        assert (line.severity, "replicate_wild_ignore_table" in line.why) == ("warning", True)
        assert captured(made) == before
        made.connections["case_source"], kept = group.second.connection_json(), made.connections["case_source"]
        group_settings = made.path.read_text()
        made.path.write_text(made.yaml)  # one connection, which moves to the replica
        plan = json.loads(sluice(made, "recover", "case", "--json").splitlines()[-1])
        assert "another server answers" not in json.dumps(plan["measures"])
        made.connections["case_source"] = kept
        made.path.write_text(group_settings)

        harmless = {"ignore_db": "`mysql`", "ignore_table": f"`{schema}_other`.`x`", "wild_ignore_table": "'other.%'"}
        replicates(group, **harmless)  # what is lost stays lost, and no setting tells it
        [line] = [one for one in check(made.runtime()).findings if one.setting == "server case_second"]
        for name, why in (("lost_a", "has no row in it"), ("lost_b", "does not have the table")):
            assert f"target copy holds rows of {schema}.{name}, and the source {why}" in line.why
        assert line.severity == "warning"
        assert "LOOK FIRST: target copy holds rows" in sluice(made, "failover", "case", "--dry-run")
        sluice(made, "failover", "case", "--yes")
        assert not any("leaves out" in said for said in status(made.runtime()).warnings)
        replicates(group, wild_ignore_table=f"'{schema}.lost%'")
        assert any("replicate_wild_ignore_table" in said for said in status(made.runtime()).warnings)
        replicates(group, **harmless)
        found = {one.table.rpartition(".")[2]: one for one in verify(made.runtime(), VerifySpec()).tables}
        assert found["lost_a"].extra == 2
        assert "does not have the table" in found["lost_b"].skipped
        assert found["t"].differing == 0
    finally:
        replicates(group)


def test_a_replica_that_logs_nothing_or_skips_errors_is_refused(group: Group, made: Case) -> None:
    insert(made, 1)
    made.run_until_head()
    group.caught_up(made.schema)
    name = "slave_skip_errors" if group.mariadb else "replica_skip_errors"
    for setting, value in ((name, "1062"), ("log_slave_updates" if group.mariadb else "log_replica_updates", "OFF")):
        group.second.stop()
        kept = dict(group.second.options)
        group.second.options[setting] = value
        group.second.start()
        try:
            with pytest.raises(PreflightError, match=setting):
                sluice(made, "failover", "case", "--yes")
        finally:
            group.second.stop()
            group.second.options.clear()
            group.second.options.update(kept)
            group.second.start()
    group.caught_up(made.schema)


@pytest.mark.promise("B48")
def test_a_server_that_logged_what_was_read_behind_what_was_not_is_refused(group: Group, made: Case) -> None:
    """Somebody wrote at the replica: from there on, what was read already would be read a second time."""
    own = "SET gtid_domain_id = 5" if group.mariadb else "DO 0"
    group.second.execute(own, f"INSERT INTO `{made.schema}`.t VALUES (900, 'of the replica alone')")
    insert(made, 1, 2)
    wait_until(lambda: len(group.second.execute(f"SELECT 1 FROM `{made.schema}`.t")) == 3, "the replica")
    made.run_until_head()
    before = captured(made)
    with pytest.raises(LostPosition, match="logged on this server after others that were not") as refused:
        sluice(made, "failover", "case", "--to", "case_second", "--yes")
    assert captured(made) == before
    assert "would be read again" in refused.value.message
    assert str(refused.value.hint).startswith("choose another server of the group; or begin at the end of this one")
    insert(made, 3)
    made.run_until_head()
    assert rows(made, made.target) == [1, 2, 3]
