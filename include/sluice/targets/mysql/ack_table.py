"""The table of acknowledgements of a MySQL target: made, upgraded and read in MySQL's words."""

from __future__ import annotations

from typing import Any, ClassVar

import pymysql
from pymysql.constants import ER

from sluice.model.tables import quoted
from sluice.targets.port import Checkpoint, OtherWriter
from sluice.targets.sql.ack_rows import TABLE, AckRows

NOT_THERE = frozenset({ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR})
"""The server's error codes if the table does not exist yet."""

NO_COLUMN = ER.BAD_FIELD_ERROR
"""The error if the table's version did not store the identity; :meth:`AckTable.upgrade` adds the column."""

_ALTER_WAIT_S = 30

_CREATE = """CREATE TABLE IF NOT EXISTS {table} (
 pipeline VARCHAR(100) NOT NULL, target VARCHAR(100) NOT NULL, scope VARCHAR(200) NOT NULL DEFAULT '',
 epoch BIGINT UNSIGNED NOT NULL, batch BIGINT UNSIGNED NOT NULL, position TEXT,
 identity VARCHAR(64) NOT NULL DEFAULT '',
 updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
 PRIMARY KEY (pipeline, target, scope)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='what Sluice has delivered; do not edit'"""


class AckTable(AckRows):
    """The rows of one pipeline and target. Cursors are given in; transactions are the caller's."""

    SHARED: ClassVar[str] = "LOCK IN SHARE MODE"
    NEW: ClassVar[str] = "INSERT IGNORE INTO {table} ({columns}) VALUES ({places})"
    PUT: ClassVar[str] = "INSERT INTO {table} ({columns}) VALUES ({places}) ON DUPLICATE KEY UPDATE {settings}"
    GIVEN: ClassVar[str] = "VALUES({})"
    IDLE: ClassVar[str] = "TIMESTAMPDIFF(SECOND, updated_at, NOW(6))"
    OPTIONS: ClassVar[str] = (
        " ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='Sluice keeps it; do not edit'"
    )
    SNAPSHOT: ClassVar[tuple[str, ...]] = (
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    )  # fmt: skip

    def __init__(self, schema: str, pipeline: str, target: str) -> None:
        super().__init__(f"{quoted(schema)}.{quoted(TABLE)}", pipeline, target)
        self.schema = schema

    def create(self, cursor: Any) -> None:
        """Make the schema and the table where they are missing."""
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = %s", (self.schema,)
        )  # the privilege to create schemas is not needed if it exists
        if not cursor.fetchone()[0]:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {quoted(self.schema)}")
        cursor.execute(_CREATE.format(table=self.name))

    def upgrade(self, cursor: Any) -> None:
        """Add the column ``identity`` to a table of an older version, in place. Older versions go on with it."""
        cursor.execute(f"SET SESSION lock_wait_timeout = {_ALTER_WAIT_S}")
        try:
            cursor.execute(f"ALTER TABLE {self.name} ADD COLUMN identity VARCHAR(64) NOT NULL DEFAULT ''")
        except pymysql.err.MySQLError as error:
            if error.args[:1] != (ER.DUP_FIELDNAME,):  # another process added it first
                raise
        finally:
            cursor.execute("SET SESSION lock_wait_timeout = DEFAULT")

    def read(self, cursor: Any) -> Checkpoint | None:
        """Return the row of the whole target, None if there is none yet.

        Changes nothing, and reads tables of older versions, too.
        """
        try:
            return self._checkpoint(cursor)
        except pymysql.err.MySQLError as error:
            code = error.args[0] if error.args else 0
            if code in NOT_THERE:
                return None
            if code == NO_COLUMN:
                return self._checkpoint(cursor, identity="''")
            raise

    def others(self, cursor: Any) -> tuple[OtherWriter, ...]:
        """Return pipelines of another name that acknowledge here; none if the table does not exist yet."""
        try:
            return super().others(cursor)
        except pymysql.err.MySQLError as error:
            if error.args and error.args[0] in NOT_THERE:
                return ()
            raise
