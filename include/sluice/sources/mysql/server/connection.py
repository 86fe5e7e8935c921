"""SQL connections to the source, and what the server says about itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER
from pymysql.cursors import Cursor

from sluice.config.connections import Endpoint, tls_settings
from sluice.config.credentials import logged_in
from sluice.errors import ConfigError, PreflightError, SourceUnavailable, UnsupportedType
from sluice.model.dialects import MARIADB, MYSQL, Dialect
from sluice.model.tables import TableId, quoted_table
from sluice.mysql.client import SHOW_INVISIBLE_KEYS, AccessDenied, MySQLConnection, server_words
from sluice.sources.mysql.position import Position

Connected = TypeVar("Connected")

CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60
NOT_OF_THE_SYSTEM = "TABLE_SCHEMA NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema')"
"""A condition for tables of information_schema.

The server's own schemas have thousands of columns: without it a look at them takes 40 ms.
"""
_LOGIN_ERRORS = {1044, 1045, 1251, 1698, 2059, 3118, 3955}


def connect_settings(endpoint: Endpoint) -> dict[str, Any]:
    """Return the arguments of ``pymysql.connect`` but the password, for :func:`log_in`. Raises ConfigError.

    TLS is as :func:`sluice.config.connections.tls_settings` says.
    """
    settings: dict[str, Any] = {
        "host": endpoint.host,
        "port": endpoint.port or 3306,
        "user": endpoint.user,
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": CONNECT_TIMEOUT_S,
        "read_timeout": READ_TIMEOUT_S,
        "write_timeout": READ_TIMEOUT_S,
    }
    if endpoint.extra.get("unix_socket"):
        settings["unix_socket"] = endpoint.extra["unix_socket"]
    return settings | tls_settings(endpoint)


def log_in(endpoint: Endpoint, connect: Callable[..., Connected], settings: Mapping[str, Any]) -> Connected:
    """Return ``connect(**settings)`` with the password of now. Raises what it raises; ConfigError,
    CredentialsUnavailable.
    """
    return logged_in(endpoint, lambda password: connect(**settings, password=password), _is_login_refused)


def _is_login_refused(error: Exception) -> bool:
    return isinstance(error, pymysql.err.MySQLError) and bool(error.args) and error.args[0] in _LOGIN_ERRORS


@contextmanager
def source_errors(endpoint: Endpoint, doing: str, *, login: bool = False) -> Iterator[None]:
    """Turn PyMySQL's errors into Sluice's: a refused login is a ConfigError, everything else SourceUnavailable.

    The password is never shown. ``login``: the block connects, so what is wrong with TLS files is a ConfigError too.
    """
    try:
        yield
    except pymysql.err.MySQLError as error:
        code = error.args[0] if error.args else 0
        words = server_words(error)
        where = f"connection {endpoint.connection_id}, {endpoint.address}"
        if isinstance(error, AccessDenied):
            raise PreflightError(
                f"{doing}: the server refuses it to user {endpoint.user!r}: {words} ({code})",
                where=where,
                hint=error.hint,
            ) from error
        if _is_login_refused(error):
            raise ConfigError(
                f"{doing}: the server refuses user {endpoint.user!r}: {words}",
                where=where,
                hint=f"fix login or password of the connection {endpoint.connection_id}",
            ) from error
        if isinstance(error, pymysql.err.OperationalError | pymysql.err.InterfaceError):
            raise SourceUnavailable(f"{doing}: {words} ({code})", where=where) from error
        raise PreflightError(f"{doing}: the server says: {words} ({code})", where=where) from error
    except (OSError, ValueError, RuntimeError) as error:
        where = f"connection {endpoint.connection_id}, {endpoint.address}"
        if login and isinstance(
            error, FileNotFoundError | ValueError | RuntimeError
        ):  # TLS files; cryptography is missing
            raise ConfigError(f"{doing}: {error}", where=where, hint="look at the connection's TLS settings") from error
        if not isinstance(error, OSError):
            raise
        raise SourceUnavailable(f"{doing}: {error}", where=where) from error


@contextmanager
def connected(endpoint: Endpoint) -> Iterator[MySQLConnection]:
    """Yield an SQL connection; what is raised in the block stays as it is.

    Raises ConfigError for a refused login, SourceUnavailable.
    """
    with source_errors(endpoint, "connecting to the source", login=True):
        connection = log_in(endpoint, MySQLConnection, connect_settings(endpoint))
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"SET @sluice = 1{SHOW_INVISIBLE_KEYS}")
        except BaseException:
            connection.close()
            raise
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def open_connection(endpoint: Endpoint) -> Iterator[MySQLConnection]:
    """Yield an SQL connection for questions only: what is raised in the block is the source's.

    Raises ConfigError, SourceUnavailable.
    """
    with connected(endpoint) as connection, source_errors(endpoint, "asking the source"):
        yield connection


@dataclass(frozen=True, kw_only=True)
class ServerInfo:
    """A server's description of itself.

    Attributes:
        dialect: MySQL's or MariaDB's; version: as printed; numbers: its first three numbers.
        server_uuid: ``@@server_uuid``, or ``mariadb:<server_id>``.
        head: where its log ends now; None-like (file ``""``) if it keeps no log.
        binary_logs: (name, size in bytes) of each log file, oldest first; archived ones in front.
        archived: how many of them are archived. not_archived: the file in front of them; "" without an archive.
        variables: the settings that matter here, lower-case names.
        do_db, ignore_db: schemas that alone get into the log, or do not (``binlog_do_db``, ``binlog_ignore_db``).
    """

    dialect: Dialect
    version: str
    numbers: tuple[int, ...]
    server_uuid: str
    server_id: int
    head: Position
    binary_logs: tuple[tuple[str, int], ...]
    variables: dict[str, str] = field(default_factory=dict)
    do_db: tuple[str, ...] = ()
    ignore_db: tuple[str, ...] = ()
    archived: int = 0
    not_archived: str = ""

    @property
    def is_mariadb(self) -> bool:
        """True for MariaDB."""
        return self.dialect == MARIADB

    @property
    def log_filter(self) -> tuple[str, tuple[str, ...]] | None:
        """The setting by which changes of some schemas do not get into the log, with its value; None: all of them
        do.
        """
        if self.do_db:
            return "binlog_do_db", self.do_db
        return ("binlog_ignore_db", self.ignore_db) if self.ignore_db else None

    def not_logged(self, schemas: Iterable[str]) -> list[str]:
        """Return those of ``schemas`` that do not get into the log, by name."""
        return sorted(s for s in schemas if (s not in self.do_db if self.do_db else s in self.ignore_db))

    def bytes_behind(self, position: Position) -> int | None:
        """Return the bytes of log between ``position`` and the head; None if its file is no longer there."""
        if position.file == self.head.file:
            return max(self.head.offset - position.offset, 0)
        names = [name for name, _ in self.binary_logs]
        if position.file not in names:
            return None
        following = self.binary_logs[names.index(position.file) :]
        return max(sum(size for _, size in following) - position.offset, 0)


_VARIABLES = (
    "log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_row_value_options",
    "binlog_transaction_compression",
    "log_bin_compress", "binlog_checksum", "binlog_expire_logs_seconds", "expire_logs_days", "gtid_mode",
    "enforce_gtid_consistency",
    "server_id", "server_uuid", "version", "version_comment", "gtid_purged", "gtid_executed", "gtid_binlog_pos",
    "gtid_current_pos",
    "binlog_annotate_row_events", "encrypt_binlog", "binlog_encryption", "lower_case_table_names",
    "binlog_row_event_max_size", "time_zone",
    "innodb_native_foreign_keys", "log_replica_updates", "log_slave_updates", "basedir", "binlog_storage_engine",
)  # fmt: skip


def rows_of(connection: Connection[Cursor], sql: str, args: Any = None) -> list[tuple[Any, ...]]:
    """Return all rows of a statement."""
    with connection.cursor() as cursor:
        cursor.execute(sql, args)
        return [tuple(row) for row in cursor.fetchall()]


def type_text(column_type: Any, column: str, table: TableId) -> str:
    """Return a COLUMN_TYPE that was asked for as bytes. Raises UnsupportedType if a label in it is no text."""
    try:
        return column_type.decode() if isinstance(column_type, bytes) else str(column_type)
    except UnicodeDecodeError as error:
        raise UnsupportedType(
            f"the server prints labels of {column} that are no UTF-8",
            where=str(table),
            hint=f"SHOW CREATE TABLE {quoted_table(table)} shows them; name them anew in ALTER TABLE … MODIFY, "
            "or exclude the table (capture.exclude)",
        ) from error


def first_that_works(connection: Connection[Cursor], *statements: str) -> list[tuple[Any, ...]]:
    """Return the rows of the first statement that this server's version understands."""
    error: Exception | None = None
    for statement in statements:
        try:
            return rows_of(connection, statement)
        except pymysql.err.ProgrammingError as caught:  # 1064: the words changed in 8.2
            error = caught
    assert error is not None
    raise error


def is_replica(connection: Connection[Cursor], *, mariadb: bool) -> bool:
    """Return True if the server follows another one, or is set up to."""
    if not mariadb:
        return bool(first_that_works(connection, "SHOW REPLICA STATUS", "SHOW SLAVE STATUS"))
    try:
        return bool(rows_of(connection, "SHOW ALL SLAVES STATUS"))
    except pymysql.err.OperationalError as error:  # that takes a privilege of its own
        if error.args[0] != ER.SPECIFIC_ACCESS_DENIED_ERROR:
            raise
        return int(rows_of(connection, "SHOW GLOBAL STATUS LIKE 'Slaves_running'")[0][1]) > 0


def _log_status(connection: Connection[Cursor]) -> list[tuple[Any, ...]]:
    return first_that_works(connection, "SHOW BINARY LOG STATUS", "SHOW MASTER STATUS")


def log_status(connection: Connection[Cursor]) -> tuple[str, int, str]:
    """Return (file, offset, executed GTIDs) of the end of the server's log, taken at once.

    ``("", 0, "")`` if it keeps none.
    """
    status = _log_status(connection)
    if not status:
        return "", 0, ""
    return str(status[0][0]), int(status[0][1]), str(status[0][4]).replace("\n", "") if len(status[0]) > 4 else ""


def log_end(connection: Connection[Cursor]) -> tuple[str, int]:
    """Return (file, offset) of the end of the server's log, ``("", 0)`` if it keeps none."""
    status = _log_status(connection)
    return (str(status[0][0]), int(status[0][1])) if status else ("", 0)


def server_info(connection: MySQLConnection) -> ServerInfo:
    """Ask the server. Raises PreflightError if it may not be asked (REPLICATION CLIENT)."""
    names = ",".join(f"'{name}'" for name in _VARIABLES)
    variables = {
        str(name).lower(): str(value)
        for name, value in rows_of(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    }
    version = variables.get("version", "")
    mariadb = "mariadb" in version.lower() or "mariadb" in variables.get("version_comment", "").lower()
    plain = version.split("-")[0]
    if mariadb and version.startswith("5.5.5-"):
        plain = version.split("-")[1]
    numbers = tuple(int(part) for part in plain.split(".") if part.isdigit())
    server_id = int(variables.get("server_id", "0") or 0)
    uuid = f"mariadb:{server_id}" if mariadb else variables.get("server_uuid", "")
    head = Position(uuid, "", 0)
    logs: tuple[tuple[str, int], ...] = ()
    do_db: tuple[str, ...] = ()
    ignore_db: tuple[str, ...] = ()
    if variables.get("log_bin", "").upper() in {"ON", "1"}:
        ends = "SHOW MASTER STATUS" if mariadb or numbers < (8, 2) else "SHOW BINARY LOG STATUS"
        status, log_rows = connection.ask_all([ends, "SHOW BINARY LOGS"])
        if status:
            executed = (
                variables.get("gtid_binlog_pos", "") if mariadb else (str(status[0][4]) if len(status[0]) > 4 else "")
            )
            do_db, ignore_db = (tuple(filter(None, str(text or "").split(","))) for text in status[0][2:4])
            head = Position(uuid, str(status[0][0]), int(status[0][1]), executed.replace("\n", ""))
        logs = tuple((str(row[0]), int(row[1])) for row in log_rows)
    dialect = MARIADB if mariadb else MYSQL
    return ServerInfo(
        dialect=dialect,
        version=version,
        numbers=numbers,
        server_uuid=uuid,
        server_id=server_id,
        head=head,
        binary_logs=logs,
        variables=variables,
        do_db=do_db,
        ignore_db=ignore_db,
    )


IS_GENERATED = "GENERATION_EXPRESSION IS NOT NULL AND GENERATION_EXPRESSION <> ''"
"""SQL condition on information_schema.COLUMNS for generated columns; MySQL has '' for others, MariaDB NULL."""

RDS_FOLDER = "/rdsdbbin/"
"""Where Amazon RDS and Aurora install their servers. They purge by a setting of their own."""


def retention_s(connection: Connection[Cursor], info: ServerInfo) -> float | None:
    """Return for how many seconds the server keeps a closed log file; None: until somebody removes it.

    Amazon RDS and Aurora purge by ``binlog retention hours`` of ``mysql.rds_configuration``, whatever
    binlog_expire_logs_seconds says; without it as soon as they can (0). None there: the login may not read the setting.
    """
    if info.variables.get("basedir", "").startswith(RDS_FOLDER):
        try:
            rows = rows_of(
                connection, "SELECT value FROM mysql.rds_configuration WHERE name = 'binlog retention hours'"
            )
        except (pymysql.err.OperationalError, pymysql.err.ProgrammingError):  # the login may not read it
            return None
        return 3600.0 * float(rows[0][0]) if rows and rows[0][0] is not None else 0.0
    seconds = float(info.variables.get("binlog_expire_logs_seconds", "0") or 0)
    return seconds or 86_400 * float(info.variables.get("expire_logs_days", "0") or 0) or None


def collations(connection: Connection[Cursor]) -> dict[int, tuple[str, str]]:
    """Return collation id -> (collation, charset) of every collation the server has."""
    rows = rows_of(connection, "SELECT ID, COLLATION_NAME, CHARACTER_SET_NAME FROM information_schema.COLLATIONS")
    collations = {int(row[0]): (str(row[1]), str(row[2])) for row in rows if row[0] is not None and row[2] is not None}
    if not collations or any(
        row[2] is None for row in rows
    ):  # MariaDB 10.10+: ids of the uca1400 family stand elsewhere
        sql = (
            "SELECT ID, FULL_COLLATION_NAME, CHARACTER_SET_NAME FROM "
            "information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
        )
        for number, name, charset in rows_of(connection, sql):
            if number is not None and charset is not None:
                collations[int(number)] = (str(name), str(charset))
    return collations


def probe(endpoint: Endpoint) -> str:
    """Log in and return the server's version. Raises ConfigError, SourceUnavailable."""
    with open_connection(endpoint) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@version")
        version = str((cursor.fetchone() or ("",))[0])
    return f"{'MariaDB' if 'mariadb' in version.lower() else 'MySQL'} {version}"
