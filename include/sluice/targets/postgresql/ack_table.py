"""The table of acknowledgements of a PostgreSQL target, in PostgreSQL's SQL."""

from __future__ import annotations

from typing import Any, ClassVar

import psycopg

from sluice.postgresql.names import quoted
from sluice.targets.port import Checkpoint, OtherWriter
from sluice.targets.postgresql.connection import NOT_THERE
from sluice.targets.sql.ack_rows import TABLE, AckRows

_CREATE = """CREATE TABLE IF NOT EXISTS {table} (
 pipeline text NOT NULL, target text NOT NULL, scope text NOT NULL DEFAULT '',
 epoch bigint NOT NULL, batch bigint NOT NULL, position text, identity text NOT NULL DEFAULT '',
 updated_at timestamp with time zone NOT NULL DEFAULT now(),
 PRIMARY KEY (pipeline, target, scope))"""
_LOCK = 7_355_608_002
"""The number of an advisory lock: two sessions that create the same table at once disturb each other, IF NOT EXISTS or
not.
"""


class AckTable(AckRows):
    """The rows of one pipeline and target. Cursors are given in; transactions are the caller's."""

    SHARED: ClassVar[str] = "FOR SHARE"
    NEW: ClassVar[str] = "INSERT INTO {table} ({columns}) VALUES ({places}) ON CONFLICT DO NOTHING"
    PUT: ClassVar[str] = (
        "INSERT INTO {table} ({columns}) VALUES ({places}) ON CONFLICT (pipeline, target, scope) DO UPDATE SET "
        "{settings}"
    )
    GIVEN: ClassVar[str] = "EXCLUDED.{}"
    TOUCHED: ClassVar[str] = ", updated_at = now()"
    IDLE: ClassVar[str] = "EXTRACT(EPOCH FROM now() - updated_at)"
    SNAPSHOT: ClassVar[tuple[str, ...]] = ("BEGIN ISOLATION LEVEL REPEATABLE READ",)

    def __init__(self, schema: str, pipeline: str, target: str) -> None:
        super().__init__(f"{quoted(schema)}.{quoted(TABLE)}".replace("%", "%%"), pipeline, target)
        self.schema = schema

    def create(self, cursor: Any) -> None:
        """Make the schema and the table where they are missing; who may not make schemas need not, where it is
        there.
        """
        cursor.execute("BEGIN")
        try:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            cursor.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self.schema,))
            if cursor.fetchone() is None:
                cursor.execute(f"CREATE SCHEMA {quoted(self.schema)}")
            cursor.execute(_CREATE.format(table=self.name.replace("%%", "%")))
            cursor.execute("COMMIT")
        except BaseException:
            if not cursor.connection.closed:
                cursor.execute("ROLLBACK")
            raise

    def read(self, cursor: Any) -> Checkpoint | None:
        """Return the row of the whole target, None if there is none yet. Changes nothing."""
        try:
            return self._checkpoint(cursor)
        except psycopg.Error as error:
            if error.sqlstate in NOT_THERE:
                return None
            raise

    def others(self, cursor: Any) -> tuple[OtherWriter, ...]:
        """Return pipelines of another name that acknowledge here; none if the table does not exist yet."""
        try:
            return super().others(cursor)
        except psycopg.Error as error:
            if error.sqlstate in NOT_THERE:
                return ()
            raise
