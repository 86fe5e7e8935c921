"""Pre-flight: is the source set up so that its log can be read without loss, and is the stored position still good?

Runs before every capture (a few round trips) and in ``sluice check``. Errors stop the capture; warnings are logged and
shown.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pymysql

from sluice.config.pipeline import PipelineConfig
from sluice.model.findings import Finding
from sluice.model.rights import SETTING, Scope, by_schema, rights_on
from sluice.model.tables import TableId
from sluice.mysql import rights
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.server.connection import (
    IS_GENERATED,
    NOT_OF_THE_SYSTEM,
    RDS_FOLDER,
    ServerInfo,
    first_that_works,
    is_replica,
    retention_s,
    rows_of,
)
from sluice.sources.mysql.server.merge_tables import ENGINE, merge_findings
from sluice.sources.mysql.server.position_check import position_findings
from sluice.sources.mysql.server.remote_tables import ENGINES, remote_findings
from sluice.sources.mysql.server.replication_filters import replication_findings
from sluice.sources.mysql.server.server_ids import AUTO_READERS, ids_of
from sluice.sources.mysql.server.two_way import two_way_findings
from sluice.sources.port import raise_first
from sluice.sources.table_filter import Selection

SHORT_HORIZON_S = 86_400
_UPDATES_LACK_GENERATED = (11, 0, 0)
_ON = {"ON", "1", "TRUE", "YES"}


def preflight(
    connection: Any,
    info: ServerInfo,
    pipeline: PipelineConfig,
    cursor: Position | None,
    server_id: int = 0,
    *,
    two_way: bool = False,
) -> list[Finding]:
    """Return all findings, errors first.

    ``cursor``: the captured position, None before the first capture; ``server_id``: the pipeline's own, 0: don't look
    who else uses it; ``two_way``: the server is a site of a channel.
    """
    selection = Selection.compile(pipeline.capture)
    log_settings = (
        _log_settings(info) + _row_image(info, pipeline) + privileges(connection) + _horizon(connection, info)
    )
    if any(finding.setting == SETTING and finding.severity == "error" for finding in log_settings):
        return sorted(log_settings, key=lambda f: f.severity != "error")
    log_settings += (
        _filters(connection, info, selection)
        + _replicates(connection, info)
        + _same_id(connection, server_id, _readers(pipeline))
    )
    odd = _tables_with(connection, "ENGINE", (ENGINE, *ENGINES))
    log_settings += merge_findings(connection, odd, selection.wants) + remote_findings(odd, selection.wants)
    log_settings += _versioned(connection, info, selection)
    log_settings += _generated_columns(connection, info, selection)
    if pipeline.capture.unlogged_cascades == "stop":
        log_settings += _cascades(connection, info, selection)
    if pipeline.source.connections:
        log_settings += replication_findings(connection, info, selection)
    if two_way:
        log_settings += two_way_findings(connection, info, selection)
    if cursor is not None:
        log_settings += position_findings(connection, info, cursor)
    return sorted(log_settings, key=lambda f: f.severity != "error")


def _tables_with(connection: Any, column: str, values: tuple[str, ...]) -> list[tuple[TableId, str]]:
    """Return every table that has one of these values in a column of information_schema.TABLES, with its value."""
    query = f"SELECT TABLE_SCHEMA, TABLE_NAME, {column} FROM information_schema.TABLES WHERE {column} IN %s"  # noqa: S608
    return [
        (TableId(str(schema), str(name)), str(value)) for schema, name, value in rows_of(connection, query, (values,))
    ]


def require_ready(
    connection: Any,
    info: ServerInfo,
    pipeline: PipelineConfig,
    cursor: Position | None,
    server_id: int = 0,
    *,
    two_way: bool = False,
) -> None:
    """Raise PreflightError, LostPosition or WrongServer for the first error; log warnings."""
    findings = preflight(connection, info, pipeline, cursor, server_id, two_way=two_way)
    raise_first(findings, f"source {pipeline.source.connection} ({info.dialect} {info.version})")


def _log_settings(info: ServerInfo) -> list[Finding]:
    have = info.variables
    log_settings: list[Finding] = []

    def expect(name: str, wanted: str, why: str, fix: str) -> None:
        value = have.get(name, "").upper()
        if value and value != wanted:
            log_settings.append(Finding("error", name, value, why, fix))

    if have.get("log_bin", "").upper() not in _ON:
        return [
            Finding("error", "log_bin", "OFF", "the server keeps no binary log", "start the server with log_bin=binlog")
        ]
    if engine := have.get("binlog_storage_engine", ""):
        why = "the binary log is kept inside a storage engine, and its files and positions cannot be read"
        log_settings.append(
            Finding("error", "binlog_storage_engine", engine, why, "start the server without binlog_storage_engine")
        )
    set_ = "SET GLOBAL" if info.is_mariadb else "SET PERSIST"
    expect(
        "binlog_format",
        "ROW",
        "statements in the log don't say which rows they changed",
        f"{set_} binlog_format = 'ROW'; then reconnect the applications",
    )
    if "PARTIAL_JSON" in have.get("binlog_row_value_options", "").upper() and have.get("binlog_row_image") != "FULL":
        log_settings.append(
            Finding(
                "error",
                "binlog_row_value_options",
                "PARTIAL_JSON",
                "updates of JSON columns come as differences, which need the whole before image",
                "SET PERSIST binlog_row_image = 'FULL', or SET PERSIST binlog_row_value_options = ''",
            )
        )
    if have.get("binlog_checksum", "").upper() == "NONE":
        log_settings.append(
            Finding(
                "warning",
                "binlog_checksum",
                "NONE",
                "a bit that flips in the log, on disk or on the way, goes unnoticed",
                "SET GLOBAL binlog_checksum = 'CRC32'",
            )
        )
    if info.server_id == 0:
        log_settings.append(
            Finding("error", "server_id", "0", "a server without an id refuses replicas", "SET GLOBAL server_id = 1")
        )
    if have.get("encrypt_binlog", "").upper() in _ON and info.is_mariadb:
        log_settings.append(
            Finding(
                "warning",
                "encrypt_binlog",
                "ON",
                "the server decrypts its log for replicas; files on disk can't be read",
            )
        )
    return log_settings


def _row_image(info: ServerInfo, pipeline: PipelineConfig) -> list[Finding]:
    """Report what cannot be done with rows that the log has only a part of; the others are completed."""
    image = info.variables.get("binlog_row_image", "FULL").upper()
    fix = (
        f"{'SET GLOBAL' if info.is_mariadb else 'SET PERSIST'} binlog_row_image = 'FULL'; then reconnect the "
        "applications"
    )
    if image == "FULL":
        return []
    row_image = []
    if pipeline.rules:
        row_image.append(
            Finding(
                "warning",
                "binlog_row_image",
                image,
                "rules work on whole rows: the first update of a table that one of them matches stops the pipeline",
                fix,
            )
        )
    if info.is_mariadb and image == "MINIMAL":
        row_image.append(
            Finding(
                "warning",
                "binlog_row_image",
                image,
                "MariaDB logs REPLACE over an existing row without the columns that it set back to their defaults; "
                "its own replicas miss them too",
                fix,
            )
        )
    return row_image


def _captured(rows: Iterable[tuple[Any, ...]], selection: Selection) -> list[tuple[str, str, str]]:
    """Return the rows (schema, table, name of a part) of captured tables."""
    return [(str(s), str(t), str(name)) for s, t, name in rows if selection.wants(TableId(str(s), str(t)))]


def _generated_columns(connection: Any, info: ServerInfo, selection: Selection) -> list[Finding]:
    """Report generated columns of captured tables that this server leaves out of its log of updates.

    MariaDB 10.11 logs them and 11.8 does not, also with ``binlog_row_image=FULL``; those between were not tried.
    """
    if not info.is_mariadb or info.numbers < _UPDATES_LACK_GENERATED:
        return []
    rows = rows_of(
        connection,
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS "  # noqa: S608 - a constant
        f"WHERE {IS_GENERATED} ORDER BY 1, 2, ORDINAL_POSITION",
    )
    captured = _captured(rows, selection)
    if not captured:
        return []
    return [
        Finding(
            "warning",
            "generated columns",
            ", ".join(".".join(names) for names in captured[:5]) + (", …" if len(captured) > 5 else ""),
            f"this server logs updates without the {len(captured)} generated columns of captured tables: where the "
            "target's column is an ordinary one, it keeps the value from before the update",
            "let the target generate them too, or leave them out (columns of the mapping); sluice verify finds what "
            "differs",
        )
    ]


def rights_findings(connection: Any, pipeline: PipelineConfig, watermarks: TableId | None) -> list[Finding]:
    """Return the rights that the login lacks on captured tables that it sees, and on the table of ``watermarks``."""
    wants = Selection.compile(pipeline.capture).wants
    listed = rows_of(
        connection,
        f"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE {NOT_OF_THE_SYSTEM}",  # noqa: S608 - fixed
    )
    tables = {TableId(str(schema), str(table)) for schema, table in listed}
    granted = rights.GrantedRights.read(connection)
    rights_findings = []
    for schema, names in by_schema(filter(wants, tables)).items():
        rights_findings += granted.missing(rights_on(Scope.CAPTURED, rights.SOURCE), schema, names)
    if watermarks is not None:
        wanted_rights = rights_on(Scope.WATERMARKS, rights.SOURCE)
        if watermarks in tables:
            wanted_rights = [replace(right, privileges=right.privileges[1:]) for right in wanted_rights]
        rights_findings += granted.missing(wanted_rights, watermarks.schema, [watermarks.table])
    return rights_findings


def privileges(connection: Any) -> list[Finding]:
    """Return the privileges of the whole server that the login lacks to read the log."""
    granted = rights.GrantedRights.read(connection)
    return granted.missing([right for right in rights_on(Scope.SERVER, rights.SOURCE) if right.required])


def _filters(connection: Any, info: ServerInfo, selection: Selection) -> list[Finding]:
    """Report captured schemas that ``binlog_do_db`` or ``binlog_ignore_db`` keeps out of the log."""
    if info.log_filter is None:
        return []
    tables = rows_of(
        connection, "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE'"
    )
    schemas = {str(schema) for schema, table in tables if selection.wants(TableId(str(schema), str(table)))}
    lost = info.not_logged(schemas)
    if not lost:
        return []
    setting, value = info.log_filter
    return [
        Finding(
            "error",
            setting,
            ",".join(value),
            f"changes of captured tables in {', '.join(lost[:5])} do not get into the log",
            f"take {setting} out of the server's configuration and restart it, or exclude these schemas",
        )
    ]


def _replicates(connection: Any, info: ServerInfo) -> list[Finding]:
    """Report a replica without ``log_replica_updates``, whose log lacks what it applies."""
    if info.variables.get("log_replica_updates", info.variables.get("log_slave_updates", "ON")).upper() in _ON:
        return []
    if not is_replica(connection, mariadb=info.is_mariadb):
        return []
    name = "log_slave_updates" if info.is_mariadb else "log_replica_updates"
    return [
        Finding(
            "error",
            name,
            "OFF",
            "this server is a replica itself, and what it applies from its own source does not get into its log",
            f"start it with {name}=ON, or capture from its source",
        )
    ]


def _same_id(connection: Any, server_id: int, readers: int) -> list[Finding]:
    """Report other replicas of the same id: they disconnect each other.

    Those of this machine may be this pipeline's own.
    """
    if not server_id:
        return []
    here = socket.gethostname()[:60]
    try:
        replicas = first_that_works(connection, "SHOW REPLICAS", "SHOW SLAVE HOSTS")
    except pymysql.err.OperationalError as error:
        if error.args and error.args[0] == 1227:  # MariaDB lists them to administrators only
            return []
        raise
    own_ids = ids_of(server_id, readers)
    for row in replicas:
        if int(row[0]) in own_ids and str(row[1]) != here:
            return [
                Finding(
                    "warning",
                    "server_id",
                    str(row[0]),
                    f"a replica at {row[1] or 'an unknown host'} uses the same id ({own_ids[int(row[0])]}): two of "
                    "them throw each other out",
                    "give this pipeline another number: source.server_id",
                )
            ]
    return []


def _readers(pipeline: PipelineConfig) -> int:
    """Return the largest possible number of readers."""
    return AUTO_READERS if pipeline.capture.readers == "auto" else pipeline.capture.readers


def _versioned(connection: Any, info: ServerInfo, selection: Selection) -> list[Finding]:
    """Report captured tables with system versioning, whose log has rows of the history and deletes as updates."""
    if not info.is_mariadb:
        return []
    tables = _tables_with(connection, "TABLE_TYPE", ("SYSTEM VERSIONED",))
    captured = [str(table) for table, _ in tables if selection.wants(table)]
    if not captured:
        return []
    return [
        Finding(
            "error",
            "system versioning",
            ", ".join(captured[:5]),
            f"the log of {len(captured)} captured tables has rows of the history, and deletes as updates",
            "exclude them (capture.exclude), or end their history: ALTER TABLE ... DROP SYSTEM VERSIONING",
        )
    ]


def _cascades(connection: Any, info: ServerInfo, selection: Selection) -> list[Finding]:
    """Report cascades, which InnoDB never logs. Since 9.6 MySQL does them above the engine, and logs them."""
    if not info.is_mariadb and info.variables.get("innodb_native_foreign_keys", "").upper() == "OFF":
        return []
    rows = rows_of(
        connection,
        "SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS "
        "WHERE DELETE_RULE IN ('CASCADE', 'SET NULL') OR UPDATE_RULE IN ('CASCADE', 'SET NULL')",
    )
    captured = _captured(rows, selection)
    if not captured:
        return []
    names = ", ".join(f"{schema}.{table} ({name})" for schema, table, name in captured[:5])
    return [
        Finding(
            "error",
            "foreign keys with CASCADE or SET NULL",
            names,
            f"this server does not write the effects of its {len(captured)} cascading foreign keys to its log: they "
            "would be lost",
            "let the application delete the rows itself (ON DELETE RESTRICT), or accept it with "
            "capture.unlogged_cascades: ignore",
        )
    ]


def _horizon(connection: Any, info: ServerInfo) -> list[Finding]:
    seconds = retention_s(connection, info)
    if info.variables.get("basedir", "").startswith(RDS_FOLDER):
        if seconds is None:
            return [
                Finding(
                    "warning",
                    "binlog retention hours",
                    "unknown",
                    "this server is of Amazon RDS, which purges the log by this setting, and the login may not read it",
                    "GRANT SELECT ON mysql.rds_configuration TO the pipeline's user, or look with "
                    "CALL mysql.rds_show_configuration",
                )
            ]
        if seconds < SHORT_HORIZON_S:
            return [
                Finding(
                    "warning",
                    "binlog retention hours",
                    f"{seconds / 3600:g}" if seconds else "NULL",
                    "this server is of Amazon RDS, which purges the log "
                    + (f"after {seconds / 3600:g} h" if seconds else "as soon as it can")
                    + ", whatever binlog_expire_logs_seconds says: a longer stop of this pipeline loses its position",
                    "CALL mysql.rds_set_configuration('binlog retention hours', 168)",
                )
            ]
        return []
    if seconds is not None and seconds < SHORT_HORIZON_S:
        return [
            Finding(
                "warning",
                "binlog_expire_logs_seconds",
                f"{seconds:.0f}",
                f"the log is purged after {seconds / 3600:.1f} h: a longer stop of this pipeline loses its position",
                f"{'SET GLOBAL' if info.is_mariadb else 'SET PERSIST'} binlog_expire_logs_seconds = 604800",
            )
        ]
    return []


__all__ = ["Finding", "preflight", "require_ready"]
