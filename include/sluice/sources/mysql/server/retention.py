"""Findings about how long the server keeps its log.

Amazon RDS and Aurora purge it by a setting of their own, in a table of theirs; ``binlog_expire_logs_seconds`` says 30
days there and means nothing.
"""

from __future__ import annotations

from typing import Any

import pymysql

from sluice.model.findings import Finding
from sluice.sources.mysql.server.connection import ServerInfo, rows_of

SHORT_HORIZON_S = 86_400
MANAGED = ("mysql", "rds_configuration")
"""The table in which Amazon's servers keep settings of the service."""
_HOURS = "binlog retention hours"
_SET = f"CALL mysql.rds_set_configuration('{_HOURS}', 168)"
_MANAGED_BASE = "/rdsdbbin/"
_CANNOT_READ = {1142, 1044, 1143}


def retention_findings(connection: Any, info: ServerInfo, *, managed: bool) -> list[Finding]:
    """Return a warning if the log is kept for less than a day, or nobody knows for how long.

    ``managed``: the login sees :data:`MANAGED`.
    """
    if managed:
        return _managed(connection)
    if info.variables.get("basedir", "").startswith(_MANAGED_BASE):
        return [_unknown()]
    seconds = int(float(info.variables.get("binlog_expire_logs_seconds", "0") or 0))
    if not seconds:
        seconds = int(86_400 * float(info.variables.get("expire_logs_days", "0") or 0))
    if not 0 < seconds < SHORT_HORIZON_S:
        return []
    return [
        Finding(
            "warning",
            "binlog_expire_logs_seconds",
            str(seconds),
            f"the log is purged after {seconds / 3600:.1f} h: a longer stop of this pipeline loses its position",
            f"{'SET GLOBAL' if info.is_mariadb else 'SET PERSIST'} binlog_expire_logs_seconds = 604800",
        )
    ]


def _managed(connection: Any) -> list[Finding]:
    try:
        found = rows_of(connection, "SELECT value FROM mysql.rds_configuration WHERE name = %s", (_HOURS,))
    except pymysql.MySQLError as error:
        if error.args and error.args[0] in _CANNOT_READ:
            return [_unknown()]
        raise
    value = str(found[0][0]) if found and found[0][0] is not None else ""
    if value.isdigit() and int(value) * 3600 >= SHORT_HORIZON_S:
        return []
    if value.isdigit() and int(value):
        why = f"the service purges the log after {value} h: a longer stop of this pipeline loses its position"
    else:
        why = "the service purges the log as soon as it does not need it itself: any stop may lose the position"
    return [Finding("warning", _HOURS, value or "NULL", why, _SET)]


def _unknown() -> Finding:
    return Finding(
        "warning",
        _HOURS,
        "not readable",
        "the server is Amazon's, whose own setting says when the log is purged, and the login may not read it",
        "GRANT SELECT ON mysql.rds_configuration to the login of the connection, then run this check again",
    )


def engine_findings(info: ServerInfo) -> list[Finding]:
    """Return an error for a log that is kept inside InnoDB, as MariaDB can from 12.3 on."""
    engine = info.variables.get("binlog_storage_engine", "")
    if not engine:
        return []
    return [
        Finding(
            "error",
            "binlog_storage_engine",
            engine,
            "the binary log is kept inside a storage engine, and its files and positions cannot be read",
            "start the server without binlog_storage_engine",
        )
    ]


__all__ = ["MANAGED", "engine_findings", "retention_findings"]
