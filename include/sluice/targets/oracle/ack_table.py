"""The table of acknowledgements of an Oracle target, in Oracle's SQL."""

from __future__ import annotations

from typing import Any, ClassVar

import oracledb

from sluice.targets.oracle.connection import NOT_THERE, NOT_UNIQUE, code_of
from sluice.targets.port import Checkpoint, OtherWriter
from sluice.targets.sql.ack_rows import AckRows
from sluice.targets.sql.names import quoted

TABLE = "SLUICE_ACK"
"""The name of the table: people read it without quotes, which a name with _ in front would need."""

_CREATE = """CREATE TABLE {table} (
 pipeline VARCHAR2(100 CHAR) NOT NULL, target VARCHAR2(100 CHAR) NOT NULL, scope VARCHAR2(200 CHAR) NOT NULL,
 epoch NUMBER(19) NOT NULL, batch NUMBER(19) NOT NULL, position CLOB, identity VARCHAR2(64 CHAR),
 updated_at TIMESTAMP(6) DEFAULT LOCALTIMESTAMP NOT NULL,
 PRIMARY KEY (pipeline, target, scope))"""
_NAME_TAKEN = 955


class AckTable(AckRows):
    """The rows of one pipeline and target. Cursors are given in; transactions are the caller's.

    Decision: Oracle has no lock of a row that readers share, so each writing transaction locks the row of the target
    for itself, and a target has one writer at a time (:attr:`Capabilities.max_writers`). Rows go over in arrays, which
    a second writer would make faster, but a lock that is not there cannot keep a paused writer out.
    """

    WHOLE: ClassVar[str] = "#target"
    NEW: ClassVar[str] = "INSERT INTO {table} ({columns}) VALUES ({places})"
    TOUCHED: ClassVar[str] = ", updated_at = LOCALTIMESTAMP"
    IDLE: ClassVar[str] = (
        "EXTRACT(DAY FROM (LOCALTIMESTAMP - updated_at) DAY(9) TO SECOND) * 86400"
        " + EXTRACT(HOUR FROM (LOCALTIMESTAMP - updated_at) DAY(9) TO SECOND) * 3600"
        " + EXTRACT(MINUTE FROM (LOCALTIMESTAMP - updated_at) DAY(9) TO SECOND) * 60"
    )

    def __init__(self, schema: str, pipeline: str, target: str, lock_wait_s: int) -> None:
        place = f"{quoted(schema)}.{quoted(TABLE)}" if schema else quoted(TABLE)
        super().__init__(place.replace("%", "%%"), pipeline, target)
        self.schema = schema
        self.SHARED = self.EXCLUSIVE = f"FOR UPDATE WAIT {lock_wait_s}"  # type: ignore[misc]

    def create(self, cursor: Any) -> None:
        """Make the table, unless another process did."""
        try:
            cursor.execute(_CREATE.format(table=self.name.replace("%%", "%")))
        except oracledb.Error as error:
            if code_of(error) != _NAME_TAKEN:
                raise

    def read(self, cursor: Any) -> Checkpoint | None:
        """Return the row of the whole target, None if there is none yet. Changes nothing."""
        try:
            return self._checkpoint(cursor)
        except oracledb.Error as error:
            if code_of(error) == NOT_THERE:
                return None
            raise

    def others(self, cursor: Any) -> tuple[OtherWriter, ...]:
        """Return pipelines of another name that acknowledge here; none if the table does not exist yet."""
        try:
            return super().others(cursor)
        except oracledb.Error as error:
            if code_of(error) == NOT_THERE:
                return ()
            raise

    def _begin(self, cursor: Any, began: int) -> None:
        try:
            super()._begin(cursor, began)
        except oracledb.Error as error:
            if code_of(error) != NOT_UNIQUE:
                raise

    def _put(self, cursor: Any, scope: str, **values: Any) -> None:
        """Update the row, or insert it: the row of the target is locked, so that no other process does."""
        settings = ", ".join(f"{name} = %s" for name in values) + self.TOUCHED
        whose = (*self._who, scope)
        cursor.execute(
            f"UPDATE {self.name} SET {settings} WHERE pipeline = %s AND target = %s AND scope = %s",  # noqa: S608 - quoted
            (*values.values(), *whose),
        )
        if cursor.rowcount:
            return
        columns = ("pipeline", "target", "scope", *values)
        places = ", ".join(["%s"] * len(columns))
        cursor.execute(
            f"INSERT INTO {self.name} ({', '.join(columns)}) VALUES ({places})",  # noqa: S608 - quoted
            (*whose, *values.values()),
        )
