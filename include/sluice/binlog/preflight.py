"""Pre-flight: is the source set up so that its log can be read without loss, and is the stored position still good?

Runs before every drain (two round trips) and in ``sluice check``. Errors stop the drain; warnings are logged and shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import structlog

from sluice.binlog.connection import ServerInfo, rows_of
from sluice.binlog.selection import Selection
from sluice.config.pipeline import PipelineConfig
from sluice.errors import LostPosition, PreflightError, TerminalError, WrongServer
from sluice.model.positions import Position, split_file
from sluice.model.tables import TableId

_log = structlog.get_logger()

SHORT_HORIZON_S = 86_400
_ON = {"ON", "1", "TRUE", "YES"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the pre-flight: ``severity`` is warning or error; ``kind`` the error it becomes.

    ``setting`` and ``value`` as the server has them; ``why`` it matters; ``fix``: the statement that mends it.
    """

    severity: str
    setting: str
    value: str
    why: str
    fix: str = ""
    kind: type[TerminalError] = PreflightError


def preflight(connection: Any, info: ServerInfo, pipeline: PipelineConfig, cursor: Position | None) -> list[Finding]:
    """Everything there is to say, errors first. ``cursor``: the captured position, None before the first drain."""
    found = _log_settings(info) + _privileges(connection) + _horizon(info)
    if pipeline.capture.unlogged_cascades == "stop":
        found += _cascades(connection, info, Selection.compile(pipeline.capture))
    if cursor is not None:
        found += _position(info, cursor)
    return sorted(found, key=lambda f: f.severity != "error")


def require_ready(connection: Any, info: ServerInfo, pipeline: PipelineConfig, cursor: Position | None) -> None:
    """Raises PreflightError, LostPosition or WrongServer for the first error; logs warnings."""
    found = preflight(connection, info, pipeline, cursor)
    for finding in found:
        if finding.severity == "warning":
            _log.warning("preflight", setting=finding.setting, value=finding.value, why=finding.why, fix=finding.fix)
    errors = [f for f in found if f.severity == "error"]
    if not errors:
        return
    first = errors[0]
    others = "".join(f"; also {f.setting} is {f.value}" for f in errors[1:])
    raise first.kind(
        f"{first.setting} is {first.value}: {first.why}{others}",
        where=f"source {pipeline.source.connection} ({info.flavour} {info.version})",
        hint=first.fix or None,
    )


def _log_settings(info: ServerInfo) -> list[Finding]:
    have = info.variables
    found: list[Finding] = []

    def expect(name: str, wanted: str, why: str, fix: str) -> None:
        value = have.get(name, "").upper()
        if value and value != wanted:
            found.append(Finding("error", name, value, why, fix))

    if have.get("log_bin", "").upper() not in _ON:
        return [
            Finding("error", "log_bin", "OFF", "the server keeps no binary log", "start the server with log_bin=binlog")
        ]
    set_ = "SET GLOBAL" if info.is_mariadb else "SET PERSIST"
    expect(
        "binlog_format",
        "ROW",
        "statements in the log don't say which rows they changed",
        f"{set_} binlog_format = 'ROW'; then reconnect the applications",
    )
    if have.get("binlog_row_metadata", "").upper() != "FULL":
        value = have.get("binlog_row_metadata", "") or "unknown to this version"
        found.append(
            Finding(
                "error",
                "binlog_row_metadata",
                value,
                "without it the log has no column names, signs, charsets, labels and keys",
                f"{set_} binlog_row_metadata = 'FULL'",
            )
        )
    expect(
        "binlog_row_image",
        "FULL",
        "updates would come with a part of the columns",
        f"{set_} binlog_row_image = 'FULL'; then reconnect the applications",
    )
    if "PARTIAL_JSON" in have.get("binlog_row_value_options", "").upper() and have.get("binlog_row_image") != "FULL":
        found.append(
            Finding(
                "error",
                "binlog_row_value_options",
                "PARTIAL_JSON",
                "updates of JSON columns come as differences, which need the whole before image",
                "SET PERSIST binlog_row_image = 'FULL', or SET PERSIST binlog_row_value_options = ''",
            )
        )
    if have.get("encrypt_binlog", "").upper() in _ON and info.is_mariadb:
        found.append(
            Finding(
                "warning",
                "encrypt_binlog",
                "ON",
                "the server decrypts its log for replicas; files on disk can't be read",
            )
        )
    return found


def _privileges(connection: Any) -> list[Finding]:
    grants = " ".join(str(row[0]).upper() for row in rows_of(connection, "SHOW GRANTS"))
    on_all = re.findall(r"GRANT (.*?) ON \*\.\*", grants)
    held = ",".join(on_all)
    if "ALL PRIVILEGES" in held or "SUPER" in held:
        return []
    return [
        Finding(
            "error",
            "privileges",
            f"{names[0]} is missing",
            "the user may not read the log",
            f"GRANT {names[0]} ON *.* TO the pipeline's user",
        )
        for names in (("REPLICATION SLAVE", "REPLICATION REPLICA"), ("REPLICATION CLIENT", "BINLOG MONITOR"))
        if not any(name in held for name in names)
    ]


def _cascades(connection: Any, info: ServerInfo, selection: Selection) -> list[Finding]:
    """InnoDB's own cascades never reach the log; since 9.6 MySQL does them above the engine, and they do."""
    if not info.is_mariadb and info.variables.get("innodb_native_foreign_keys", "").upper() == "OFF":
        return []
    rows = rows_of(
        connection,
        "SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS "
        "WHERE DELETE_RULE IN ('CASCADE', 'SET NULL') OR UPDATE_RULE IN ('CASCADE', 'SET NULL')",
    )
    captured = [(str(s), str(t), str(c)) for s, t, c in rows if selection.wants(TableId(str(s), str(t)))]
    if not captured:
        return []
    names = ", ".join(f"{schema}.{table} ({name})" for schema, table, name in captured[:5])
    return [
        Finding(
            "error",
            "foreign keys with CASCADE or SET NULL",
            names,
            f"this server does not write the effects of its {len(captured)} cascading foreign keys to its log: they would be lost",
            "let the application delete the rows itself (ON DELETE RESTRICT), or accept it with capture.unlogged_cascades: ignore",
        )
    ]


def _horizon(info: ServerInfo) -> list[Finding]:
    seconds = int(float(info.variables.get("binlog_expire_logs_seconds", "0") or 0))
    if 0 < seconds < SHORT_HORIZON_S:
        return [
            Finding(
                "warning",
                "binlog_expire_logs_seconds",
                str(seconds),
                f"the log is purged after {seconds / 3600:.1f} h: a longer stop of this pipeline loses its position",
                "SET PERSIST binlog_expire_logs_seconds = 604800",
            )
        ]
    return []


def _position(info: ServerInfo, cursor: Position) -> list[Finding]:
    if not info.head.file:
        return []
    if cursor.server_uuid != info.server_uuid:
        return [
            Finding(
                "error",
                "server",
                info.server_uuid,
                f"another server answers: the position {cursor} belongs to {cursor.server_uuid}",
                "point the connection at the right server, or `sluice seek` to a position of the new one",
                WrongServer,
            )
        ]
    base, number = split_file(cursor.file)
    head_base, head_number = split_file(info.head.file)
    if base != head_base:
        return [
            Finding(
                "error",
                "log_bin_basename",
                head_base,
                f"the position is in files called {base}",
                "`sluice seek` to a position that exists",
                WrongServer,
            )
        ]
    sizes = {split_file(name)[1]: (name, size) for name, size in info.binary_logs}
    if number not in sizes:
        names = [name for name, _ in info.binary_logs]
        have = f"the server has {names[0]} to {names[-1]}" if names else "the server has none"
        if number > head_number:
            why = f"{have}: its numbering was reset (RESET BINARY LOGS), or it is a copy from an older backup"
        else:
            why = f"it was purged before it was drained; {have}"
        return [
            Finding(
                "error",
                "position",
                str(cursor),
                why,
                "choose: restore the file on the server; `sluice seek PIPELINE earliest` and repair the gap; or a new copy of the tables",
                LostPosition,
            )
        ]
    name, size = sizes[number]
    if cursor.offset > size:
        return [
            Finding(
                "error",
                "position",
                str(cursor),
                f"{name} has only {size} bytes: the server lost the end of its log, or it is another server",
                "compare both sides, then `sluice seek PIPELINE latest`",
                LostPosition,
            )
        ]
    return []
