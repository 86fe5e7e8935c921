"""A check that a server holds, and logs, everything that its own source has. A replica may be told to leave things out.

What a replica filters still counts as executed: MySQL keeps an empty transaction under its GTID, MariaDB moves its
position on. GTIDs alone therefore never show the rows that are missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.constants import ER

from sluice.model.findings import Finding
from sluice.model.tables import TableId
from sluice.sources.mysql.server.connection import ServerInfo, rows_of
from sluice.sources.table_filter import Selection

_SYSTEM = {"mysql", "sys", "information_schema", "performance_schema", "innodb_memcache", "ndbinfo"}
_FILTERS = (
    "replicate_do_db", "replicate_ignore_db", "replicate_do_table", "replicate_ignore_table", "replicate_wild_do_table",
    "replicate_wild_ignore_table", "replicate_rewrite_db", "replicate_do_domain_ids", "replicate_ignore_domain_ids",
)  # fmt: skip
_OF_SLAVE_STATUS = {name.title(): name for name in _FILTERS} | {
    "Replicate_Ignore_Server_Ids": "replicate_ignore_server_ids"
}
"""Columns of SHOW REPLICA STATUS and of MariaDB's SHOW ALL SLAVES STATUS."""
_SKIPS = ("replica_skip_errors", "slave_skip_errors")
_FORGIVES = ("replica_exec_mode", "slave_exec_mode")
_MARKED = "replicate_events_marked_for_skip"
_NOT_ALLOWED = {ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR}
_REFUSE = "read another server of the group (source.connections), or give this one the rows that it lacks"


@dataclass(frozen=True, slots=True)
class _Filter:
    """A rule: ``setting`` with one ``value`` of its list, and the replication ``channel`` that it holds for ("":
    all).
    """

    setting: str
    value: str
    channel: str = ""

    def spares(self, selection: Selection) -> bool:
        """Return True if this rule cannot touch a captured table.

        A rule for schemas also filters statements, by default schema.
        """
        if self.setting == "replicate_ignore_db":
            return self.value.strip("`").lower() in _SYSTEM
        if self.setting == "replicate_ignore_table":
            schema, dot, table = self.value.partition(".")
            return bool(dot) and not selection.wants(TableId(schema, table))
        if self.setting == "replicate_wild_ignore_table":
            start = _literal_start(self.value)
            schema, dot, _ = start.partition(".")
            return bool(dot) and not selection.wants_schema(schema)
        return False


def replication_findings(connection: Any, info: ServerInfo, selection: Selection) -> list[Finding]:
    """Report what keeps changes of captured tables out of this server (errors), or delays or hides them (warnings)."""
    status = _status(connection, info)
    settings = _settings(connection)
    filters = list(dict.fromkeys([*_of_status(status), *_of_tables(connection, info), *_of_settings(settings)]))
    findings = []
    for name in dict.fromkeys(rule.setting for rule in filters):
        hit = [rule for rule in filters if rule.setting == name and not rule.spares(selection)]
        if hit:
            channels = sorted({rule.channel for rule in hit if rule.channel})
            named = f" of channel {', '.join(channels)}" if channels else ""
            findings.append(
                Finding(
                    "error",
                    name,
                    ",".join(dict.fromkeys(rule.value for rule in hit)),
                    f"this replica leaves out changes of its own source{named}, captured tables among them: rows are "
                    "missing here, and its GTIDs do not show it",
                    f"{_REFUSE}; then remove the filter",
                )
            )
    return findings + _errors_skipped(settings) + _late(status)


def _errors_skipped(settings: dict[str, str]) -> list[Finding]:
    findings = []
    for name in _SKIPS:
        value = settings.get(name, "").upper()
        if value not in {"", "OFF", "NONE"}:
            why = (
                "this replica goes on after errors, without the changes that failed: rows may be missing here, and "
                "its GTIDs do not show it"
            )
            findings.append(Finding("error", name, value, why, f"{_REFUSE}; then start it with {name}=OFF"))
            break
    for name in _FORGIVES:
        if settings.get(name, "").upper() == "IDEMPOTENT":
            why = (
                "this replica goes on where a row that it should change is missing, or one that it should insert is "
                "there"
            )
            findings.append(Finding("warning", name, "IDEMPOTENT", why, f"SET GLOBAL {name} = 'STRICT'"))
            break
    value = settings.get(_MARKED, "").upper()
    if value not in {"", "REPLICATE"}:
        why = "changes that a session of its source marked with @@skip_replication are missing here"
        findings.append(Finding("error", _MARKED, value, why, f"{_REFUSE}; then SET GLOBAL {_MARKED} = 'REPLICATE'"))
    return findings


def _late(status: list[dict[str, str]]) -> list[Finding]:
    return [
        Finding(
            "warning",
            "SOURCE_DELAY",
            f"{row['SQL_Delay']} s",
            "this replica applies changes late on purpose: what is captured from it is as late",
            "CHANGE REPLICATION SOURCE TO SOURCE_DELAY = 0 (MariaDB: CHANGE MASTER TO MASTER_DELAY = 0)",
        )
        for row in status
        if row.get("SQL_Delay", "0") not in {"0", "", "None"}
    ][:1]


# -- where a server tells it -------------------------------------------------------------------------------------------


def _status(connection: Any, info: ServerInfo) -> list[dict[str, str]]:
    """Return the rows of the replica status by column name; none if the login may not ask."""
    statements = ("SHOW ALL SLAVES STATUS",) if info.is_mariadb else ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
    for statement in statements:
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                names = [str(column[0]) for column in cursor.description or ()]
                return [dict(zip(names, map(str, row), strict=True)) for row in cursor.fetchall()]
        except pymysql.err.ProgrammingError:  # 1064: the words changed in 8.0.22
            continue
        except pymysql.err.OperationalError as error:
            if error.args[0] in _NOT_ALLOWED:
                return []
            raise
    return []


def _settings(connection: Any) -> dict[str, str]:
    names = ",".join(f"'{name}'" for name in (*_FILTERS, *_SKIPS, *_FORGIVES, _MARKED))
    query = f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"
    return {str(name).lower(): str(value or "") for name, value in rows_of(connection, query)}


def _of_status(status: list[dict[str, str]]) -> Iterator[_Filter]:
    for row in status:
        channel = row.get("Channel_Name") or row.get("Connection_name") or ""
        for column, name in _OF_SLAVE_STATUS.items():
            for value in _listed(row.get(column, "")):
                yield _Filter(name, value, channel)


def _of_settings(settings: dict[str, str]) -> Iterator[_Filter]:
    """Yield the filters of MariaDB's variables; they exist without a connection to a source, too."""
    for name in _FILTERS:
        for value in _listed(settings.get(name, "")):
            yield _Filter(name, value)


def _of_tables(connection: Any, info: ServerInfo) -> Iterator[_Filter]:
    """Yield MySQL's filters; the global ones exist without a channel, too."""
    if info.is_mariadb:
        return
    for table, channel in (
        ("replication_applier_global_filters", "''"),
        ("replication_applier_filters", "CHANNEL_NAME"),
    ):
        try:
            query = f"SELECT FILTER_NAME, FILTER_RULE, {channel} FROM performance_schema.{table}"  # noqa: S608 - names above
            rows = rows_of(connection, query)
        except pymysql.err.MySQLError as error:
            if error.args and error.args[0] in {*_NOT_ALLOWED, ER.NO_SUCH_TABLE}:
                continue  # SHOW REPLICA STATUS says the same of every channel
            raise
        for name, rule, where in rows:
            for value in _listed(str(rule or "")):
                yield _Filter(str(name).lower(), value, str(where))


def _listed(text: str) -> list[str]:
    """Split a list of rules as servers print it: ``a.b,c.d``, ``` `a`,`b` ```, ``(a,b),(c,d)``."""
    if text in {"", "None"}:
        return []
    pairs = re.findall(r"\([^)]*\)", text)
    rules = pairs or [part.strip() for part in text.split(",")]
    return [part.replace("`", "") for part in rules if part not in {"", "0"}]


def _literal_start(pattern: str) -> str:
    """Return what every name that a wildcard pattern fits begins with."""
    characters = []
    rest = iter(pattern)
    for char in rest:
        if char in "%_":
            break
        characters.append(next(rest, "") if char == "\\" else char)
    return "".join(characters)
