"""The acknowledgement in the target itself: table ``_sluice_ack``, one row a pipeline and target.

Raising the epoch needs the row exclusively and so waits for every transaction that holds it shared: after ``take_over`` no older process
can commit anything.
"""

# ruff: noqa: S608 - identifiers are quoted, values are parameters

from __future__ import annotations

import json
from typing import Any

import pymysql
from pymysql.constants import ER

from sluice.errors import Fenced
from sluice.model.positions import Position
from sluice.model.tables import quoted
from sluice.targets.base import Fence

TABLE = "_sluice_ack"
DDL = "#ddl"
"""Scope of the row that says how far a batch's DDL has come. No table is called so: a table's scope has a dot."""

NOT_THERE = frozenset({ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR})
"""What a server says when the table has not been made yet."""

WHOLE = ""
"""Scope of the row that speaks for the whole target; other rows speak for one table without a key."""

_CREATE = """CREATE TABLE IF NOT EXISTS {table} (
 pipeline VARCHAR(100) NOT NULL, target VARCHAR(100) NOT NULL, scope VARCHAR(200) NOT NULL DEFAULT '',
 epoch BIGINT UNSIGNED NOT NULL, batch BIGINT UNSIGNED NOT NULL, position TEXT,
 updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
 PRIMARY KEY (pipeline, target, scope)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='what Sluice has delivered; do not edit'"""


class AckTable:
    """The rows of one pipeline and target. Cursors are given in; transactions are the caller's."""

    def __init__(self, schema: str, pipeline: str, target: str) -> None:
        self.schema = schema
        self.name = f"{quoted(schema)}.{quoted(TABLE)}"
        self._who = (pipeline, target)

    def create(self, cursor: Any) -> None:
        """Make the schema and the table where they are missing."""
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = %s", (self.schema,)
        )  # who may not make schemas need not, where it is there
        if not cursor.fetchone()[0]:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {quoted(self.schema)}")
        cursor.execute(_CREATE.format(table=self.name))

    def read(self, cursor: Any) -> tuple[int, int]:
        """(epoch, batch), (0, 0) if there is no row yet."""
        try:
            row = self._find(cursor)
        except pymysql.err.MySQLError as error:
            if error.args[:1] and error.args[0] in NOT_THERE:
                return 0, 0
            raise
        return (int(row[0]), int(row[1])) if row else (0, 0)

    def take_over(self, cursor: Any, epoch: int, began: int = 0) -> int:
        """Raise the epoch (a first meeting holds batch ``began``); returns the batch held. In a transaction.

        Raises:
            Fenced: a higher epoch was here.
        """
        row = self._find(cursor, "FOR UPDATE")
        if row is None:
            cursor.execute(
                f"INSERT IGNORE INTO {self.name} (pipeline, target, scope, epoch, batch) VALUES (%s, %s, '', 0, %s)",
                (*self._who, began),
            )
        held_epoch, batch = self._row(cursor, "FOR UPDATE") if row is None else (int(row[0]), int(row[1]))
        if held_epoch > epoch:
            raise self._fenced(epoch, held_epoch)
        if held_epoch < epoch:
            cursor.execute(
                f"UPDATE {self.name} SET epoch = %s WHERE (pipeline, target, scope) = (%s, %s, '')", (epoch, *self._who)
            )
        return batch

    def guard(self, cursor: Any, fence: Fence, *, exclusive: bool = False) -> None:
        """First in every writing transaction: nobody newer is here, and nothing later was acknowledged. Raises Fenced."""
        epoch, batch = self._row(cursor, "FOR UPDATE" if exclusive else "LOCK IN SHARE MODE")
        if epoch != fence.epoch:
            raise self._fenced(fence.epoch, epoch)
        if batch != fence.held:
            raise Fenced(
                f"batch {fence.batch} was to be written after batch {fence.held}, and the target holds batch {batch} by now",
                where=f"{self._who[0]}.{self._who[1]}",
                hint="another run delivered it; this one has nothing left to do",
            )

    def reset(self, cursor: Any, epoch: int, batch: int, position: Position) -> None:
        """Say that the target holds ``batch``, an earlier one too, and take over. In a transaction. Raises Fenced."""
        self.take_over(cursor, epoch, batch)
        cursor.execute(
            f"UPDATE {self.name} SET batch = %s, position = %s WHERE (pipeline, target, scope) = (%s, %s, '')",
            (batch, json.dumps(position.to_json()), *self._who),
        )
        cursor.execute(f"DELETE FROM {self.name} WHERE (pipeline, target, scope) = (%s, %s, %s)", (*self._who, DDL))

    def acknowledge(self, cursor: Any, epoch: int, batch: int, position: Position) -> None:
        """The target holds ``batch``. In a transaction. Raises Fenced."""
        held_epoch, held = self._row(cursor, "FOR UPDATE")
        if held_epoch != epoch:
            raise self._fenced(epoch, held_epoch)
        if held < batch:
            cursor.execute(
                f"UPDATE {self.name} SET batch = %s, position = %s WHERE (pipeline, target, scope) = (%s, %s, '')",
                (batch, json.dumps(position.to_json()), *self._who),
            )

    def table_done(self, cursor: Any, scope: str, batch: int) -> bool:
        """True if the keyless table ``scope`` already holds ``batch``. Takes the row's lock."""
        cursor.execute(
            f"SELECT batch FROM {self.name} WHERE (pipeline, target, scope) = (%s, %s, %s) FOR UPDATE",
            (*self._who, scope),
        )
        row = cursor.fetchone()
        return row is not None and int(row[0]) >= batch

    def table_holds(self, cursor: Any, scope: str, fence: Fence) -> None:
        """The keyless table ``scope`` holds the batch from this transaction on."""
        cursor.execute(
            f"INSERT INTO {self.name} (pipeline, target, scope, epoch, batch) VALUES (%s, %s, %s, %s, %s) "
            "ON DUPLICATE KEY UPDATE epoch = VALUES(epoch), batch = VALUES(batch)",
            (*self._who, scope, fence.epoch, fence.batch),
        )

    def others(self, cursor: Any) -> tuple[str, ...]:
        """Pipelines of another name that acknowledge here."""
        cursor.execute(
            f"SELECT DISTINCT pipeline FROM {self.name} WHERE pipeline <> %s ORDER BY pipeline", self._who[:1]
        )
        return tuple(str(row[0]) for row in cursor.fetchall())

    def ddl_state(self, cursor: Any) -> tuple[int, dict[str, Any]]:
        """(batch, what was noted of its DDL), (0, {}) if nothing was."""
        cursor.execute(
            f"SELECT batch, position FROM {self.name} WHERE (pipeline, target, scope) = (%s, %s, %s)", (*self._who, DDL)
        )
        row = cursor.fetchone()
        return (int(row[0]), json.loads(row[1] or "{}")) if row else (0, {})

    def note_ddl(self, cursor: Any, fence: Fence, state: dict[str, Any]) -> None:
        """Remember how far the DDL of the batch has come. In a transaction, behind :meth:`guard`."""
        cursor.execute(
            f"INSERT INTO {self.name} (pipeline, target, scope, epoch, batch, position) VALUES (%s, %s, %s, %s, %s, %s) "
            "ON DUPLICATE KEY UPDATE epoch = VALUES(epoch), batch = VALUES(batch), position = VALUES(position)",
            (*self._who, DDL, fence.epoch, fence.batch, json.dumps(state)),
        )

    def _find(self, cursor: Any, lock: str = "") -> tuple[Any, ...] | None:
        cursor.execute(
            f"SELECT epoch, batch FROM {self.name} WHERE (pipeline, target, scope) = (%s, %s, '') {lock}", self._who
        )
        row: tuple[Any, ...] | None = cursor.fetchone()
        return row

    def _row(self, cursor: Any, lock: str) -> tuple[int, int]:
        row = self._find(cursor, lock)
        if row is None:
            raise Fenced(
                "the target's acknowledgement row is gone",
                where=f"{self.name}, {self._who[0]}.{self._who[1]}",
                hint="was it deleted by hand? the next try makes it anew",
            )
        return int(row[0]), int(row[1])

    def _fenced(self, mine: int, theirs: int) -> Fenced:
        return Fenced(
            f"epoch {theirs} took this target over from epoch {mine}",
            where=f"{self._who[0]}.{self._who[1]}",
            hint="a newer run is at work; this one must not write any more",
        )
