"""The replication that the servers have built in: a replica of MySQL or MariaDB, a subscription of PostgreSQL."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from tests.league.judging import Change
from tests.league.servers import COPY
from tests.league.tools.port import Stage, Tool, wait_for


class Native(Tool):
    name = "Native replication"
    servers = ("mysql", "mariadb", "postgresql")
    offers = frozenset({"table", "ddl", "copy", "truncate"})
    writes = True
    own = ""

    def __new__(cls, stage: Stage) -> Any:
        return object.__new__(
            {"mysql": Replica, "mariadb": MariaDBReplica, "postgresql": Subscription}[stage.ends.kind]
        )

    def __init__(self, stage: Stage) -> None:
        self.stage, self.ends, self.schema, self.begun = stage, stage.ends, stage.schema, False

    @staticmethod
    def version() -> str:
        return "of the server"

    @classmethod
    def lacks(cls, server: str) -> frozenset[str]:
        """Return what a kind of server does not offer: a replica copies no rows, a subscription follows no DDL."""
        return frozenset({"ddl"}) if server == "postgresql" else frozenset({"copy"})

    def catch_up(self, mark: int) -> None:
        wait_for(lambda: self.ends.marked(self.schema) >= mark, self.said)

    def changes(self) -> list[Change]:
        return []

    def said(self) -> str:
        """Return the words with which it stands still, "" while it runs."""
        raise NotImplementedError


class Replica(Native):
    """A replica by file and offset, with the relay log recovered after a crash, as the manual has it."""

    STOP, START, RESET = "STOP REPLICA", "START REPLICA", "RESET REPLICA ALL"
    STATUS, IO, SQL = "SHOW REPLICA STATUS", "Replica_IO_Running", "Replica_SQL_Running"

    def start(self) -> None:
        self.ends.target.execute(*([] if self.begun else self.change()), self.START)
        self.begun = True

    def change(self) -> list[str]:
        file, offset = self.ends.position()
        source = self.ends.source
        return [
            self.STOP, self.RESET,
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{source.host}', SOURCE_PORT = {source.port}, SOURCE_USER = 'root', SOURCE_LOG_FILE"
            f" = '{file}', SOURCE_LOG_POS = {offset}, SOURCE_CONNECT_RETRY = 1, SOURCE_RETRY_COUNT = 60, GET_SOURCE_PUBLIC_KEY = 1",
        ]  # fmt: skip

    def stop(self, *, kill: bool) -> None:
        if kill:
            self.ends.target.kill()
            self.ends.target.start()
        self.ends.target.execute(self.STOP)

    def said(self) -> str:
        with contextlib.closing(self.ends.target.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(self.STATUS)
            names = [column[0] for column in cursor.description]
            status = dict(zip(names, (cursor.fetchall() or [()])[0], strict=False))
            if status.get(self.SQL) == "Yes" and status.get(self.IO) in {"Yes", "Connecting", "Preparing"}:
                return ""
            words = [str(status.get(name, "")) for name in ("Last_SQL_Error", "Last_IO_Error")]
            if words[0] and "worker" in words[0]:
                cursor.execute("SELECT last_error_message FROM performance_schema.replication_applier_status_by_worker")
                words += [str(row[0]) for row in cursor.fetchall()]
            return " ".join(filter(None, words))

    def close(self) -> None:
        self.ends.target.execute(self.STOP, self.RESET)


class MariaDBReplica(Replica):
    """A replica by GTIDs, which keeps its place in a table of its own."""

    STOP, START, RESET = "STOP SLAVE", "START SLAVE", "RESET SLAVE ALL"
    STATUS, IO, SQL = "SHOW SLAVE STATUS", "Slave_IO_Running", "Slave_SQL_Running"

    def change(self) -> list[str]:
        source = self.ends.source
        position = ",".join(
            filter(None, (end.execute("SELECT @@gtid_binlog_pos")[0][0] for end in (source, self.ends.target)))
        )
        return [
            self.STOP, self.RESET, f"SET GLOBAL gtid_slave_pos = '{position}'",
            f"CHANGE MASTER TO MASTER_HOST = '{source.host}', MASTER_PORT = {source.port}, MASTER_USER = 'root', MASTER_CONNECT_RETRY = 1, "
            "MASTER_USE_GTID = slave_pos",
        ]  # fmt: skip


class Subscription(Native):
    """One publication for the schema; the slot is made first, as both ends are on one server."""

    def start(self) -> None:
        if self.begun:
            self.ends.source.execute(f"ALTER SUBSCRIPTION s_{self.schema} ENABLE", database=COPY)
            return
        self.begun, source, name = True, self.ends.source, f"native_{self.schema}"
        self.seen = source.log.stat().st_size
        source.execute(
            f"CREATE PUBLICATION p_{self.schema} FOR TABLES IN SCHEMA {self.schema}",
            f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')",
        )
        source.execute(
            f"CREATE SUBSCRIPTION s_{self.schema} CONNECTION 'host={source.host} port={source.port} user=postgres dbname=postgres' "
            f"PUBLICATION p_{self.schema} WITH (create_slot = false, slot_name = '{name}', copy_data = {str(self.stage.case.copy).lower()})",
            database=COPY,
        )

    def stop(self, *, kill: bool) -> None:
        if not kill:
            self.ends.source.execute(f"ALTER SUBSCRIPTION s_{self.schema} DISABLE", database=COPY)
        self.ends.source.execute(
            f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_subscription WHERE subname = 's_{self.schema}' AND pid IS NOT NULL"
        )

    def said(self) -> str:
        text = self.ends.source.log.read_bytes()[self.seen :].decode(errors="replace")
        errors = re.findall(r"ERROR: .*(?:\n.*(?:DETAIL|CONTEXT|HINT): .*)*", text)
        own = [one for one in errors if self.schema in one or "replication slot" in one or "replication origin" in one]
        return own[-1] if len(own) > 1 else ""  # it tries again, and a second time alike is where it stays

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.ends.source.execute(f"ALTER SUBSCRIPTION s_{self.schema} DISABLE", database=COPY)
            self.ends.source.execute(f"ALTER SUBSCRIPTION s_{self.schema} SET (slot_name = NONE)", database=COPY)
        with contextlib.suppress(Exception):
            self.ends.source.execute(f"DROP SUBSCRIPTION s_{self.schema}", database=COPY)
        self.ends.source.execute(f"DROP PUBLICATION IF EXISTS p_{self.schema}")
