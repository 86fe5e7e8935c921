"""The acknowledgement in the target itself: table ``_sluice_ack``, one row per pipeline and target.

Raising the epoch needs the row exclusively and so waits for every transaction that holds it shared: after ``take_over``
no older process can commit anything. A dialect provides its own SQL: :class:`AckRows`.
"""

# ruff: noqa: S608 - identifiers are quoted, values are parameters

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.targets.port import Agrees, Checkpoint, Fence, OtherWriter
from sluice.targets.port.record import Record, require_batch, require_no_newer, require_present, require_record, seal_of

TABLE = "_sluice_ack"
DDL = "#ddl"
"""The scope of the row that holds the progress of a batch's DDL. No table has this name: a table's scope has a dot."""

TABLES = "#tables"
"""The scope of the row that lists the tables that the pipeline writes: others remove no rows of them."""

MOST_NAMES = 60_000
"""Bytes of names in that row, at most; MySQL's column takes 65,535."""

MINE = "pipeline = %s AND target = %s"
"""The condition of the rows of one pipeline and target; not as a row of values, which not every dialect compares."""

UNIT = "#unit:"
"""The prefix of scopes of rows that list written work units of a batch: then the plan's name, a colon, the unit's
number.
"""

MADE = "#made:"
"""The prefix of scopes of rows that name the tables that ``sluice check --apply`` made, until their first copy."""

LEFT_OUT = "#indexes:"
"""The prefix of scopes of rows that list the indexes that are built once a table is filled. No reset removes them."""

SEAL = "seal"
"""The key of the seal in the position: a checksum of batch and position.

An older version writes a position without one, and ignores a newer one's.
"""


class AckRows:
    """The rows of one pipeline and target in table ``name`` (quoted).

    Cursors are given in; transactions are the caller's.

    Attributes:
        WHOLE: the scope of the row of the whole target: a text that is not NULL there.
        SHARED: ends a SELECT that locks the rows it reads against writers, not against other readers. EXCLUSIVE: ends
            one that locks them against both.
        NEW: inserts a row (columns, places), unless there is one.
        PUT: inserts a row (columns, places, settings), or changes the one that is there. GIVEN: in it, the value for a
            column.
        TOUCHED: further settings of an UPDATE. IDLE: seconds since a row was written.
        OPTIONS: the end of a CREATE TABLE. SNAPSHOT: statements that begin a transaction which sees one moment.
    """

    WHOLE: ClassVar[str] = ""
    SHARED: ClassVar[str]
    EXCLUSIVE: ClassVar[str] = "FOR UPDATE"
    NEW: ClassVar[str]
    PUT: ClassVar[str]
    GIVEN: ClassVar[str]
    TOUCHED: ClassVar[str] = ""
    IDLE: ClassVar[str]
    OPTIONS: ClassVar[str] = ""
    SNAPSHOT: ClassVar[tuple[str, ...]] = ()
    schema: str

    def __init__(self, name: str, pipeline: str, target: str) -> None:
        self.name = name
        self._who = (pipeline, target)
        self.pipeline, self.owner = pipeline, f"{pipeline}.{target}"
        self.record_place = f"{name.replace('%%', '%')}, {self.owner}"

    def read(self, cursor: Any) -> Checkpoint | None:
        """Return the row of the whole target, None if there is none yet. Changes nothing."""
        return self._checkpoint(cursor)

    def take_over(
        self, cursor: Any, epoch: int, began: int = 0, *, identity: str = "", agrees: Agrees | None = None
    ) -> int:
        """Raise the epoch (a first meeting holds batch ``began``); returns the batch held. In a transaction.

        ``agrees`` is asked first, with the row locked. ``identity`` is stored, unless it is empty.

        Raises:
            Fenced: a higher epoch was here. What ``agrees`` raises.
        """
        checkpoint = self._checkpoint(cursor, self.EXCLUSIVE)
        if agrees is not None:
            agrees(checkpoint)
        if checkpoint is None:
            self._begin(cursor, began)
            begun = self._checkpoint(cursor, self.EXCLUSIVE)
            checkpoint = require_present(Record(begun) if begun is not None else None, self).checkpoint
        require_no_newer(checkpoint, epoch, self.record_place)
        if checkpoint.epoch < epoch or (identity and checkpoint.identity != identity):
            cursor.execute(
                f"UPDATE {self.name} SET epoch = %s, identity = %s{self.TOUCHED} WHERE {MINE} AND scope = %s",
                (epoch, identity or checkpoint.identity, *self._who, self.WHOLE),
            )
        return checkpoint.batch

    def guard(self, cursor: Any, fence: Fence, *, exclusive: bool = False) -> bool:
        """Raise Fenced if a newer process writes or something later was acknowledged.

        Call it first in every writing transaction.

        ``exclusive``: the transaction acknowledges, too. Returns True if it was already committed under the same epoch,
        so that nothing is left to do.
        """
        batch = self._batch(cursor, self.EXCLUSIVE if exclusive else self.SHARED, fence.epoch)
        if exclusive and batch == fence.batch:
            return True
        require_batch(batch, fence, self.record_place)
        return False

    def reset(
        self, cursor: Any, epoch: int, batch: int, position: Offset, *, identity: str = "", anew: bool = False
    ) -> None:
        """Record that the target holds ``batch``, possibly an earlier one, and take over. Call it in a transaction.

        Raises Fenced.

        ``anew``: tables forget which batch they hold, as its number will be another batch's. That the pipeline writes
        them stays noted.
        """
        self.take_over(cursor, epoch, batch, identity=identity)
        cursor.execute(
            f"UPDATE {self.name} SET batch = %s, position = %s{self.TOUCHED} WHERE {MINE} AND scope = %s",
            (batch, self._sealed(batch, position), *self._who, self.WHOLE),
        )
        which = "scope <> %s AND scope <> %s AND scope NOT LIKE %s" if anew else "(scope = %s OR scope LIKE %s)"
        parameters = (self.WHOLE, TABLES, f"{LEFT_OUT}%") if anew else (DDL, f"{UNIT}%")
        cursor.execute(f"DELETE FROM {self.name} WHERE {MINE} AND {which}", (*self._who, *parameters))

    def forget(self, cursor: Any) -> None:
        """Remove every row of this pipeline and target, except what the next load still has to build."""
        cursor.execute(f"DELETE FROM {self.name} WHERE {MINE} AND scope NOT LIKE %s", (*self._who, f"{LEFT_OUT}%"))

    def acknowledge(
        self,
        cursor: Any,
        epoch: int,
        batch: int,
        position: Offset,
        *,
        marked: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> bool:
        """Record that the target holds ``batch``. Call it in a transaction. Raises Fenced.

        ``marked``: the origin marker around it, if it was not recorded before. Returns False if it was.
        """
        held_batch = self._batch(cursor, self.EXCLUSIVE, epoch)
        if held_batch < batch:
            with marked():
                cursor.execute(
                    f"UPDATE {self.name} SET batch = %s, position = %s{self.TOUCHED} WHERE {MINE} AND scope = %s",
                    (batch, self._sealed(batch, position), *self._who, self.WHOLE),
                )
        return held_batch < batch

    def table_done(self, cursor: Any, scope: str, batch: int) -> bool:
        """Return True if the keyless table ``scope`` already holds ``batch``. Takes the row's lock."""
        cursor.execute(
            f"SELECT batch FROM {self.name} WHERE {MINE} AND scope = %s {self.EXCLUSIVE}",
            (*self._who, scope),
        )
        row = cursor.fetchone()
        return row is not None and int(row[0]) >= batch

    def table_holds(self, cursor: Any, scope: str, fence: Fence) -> None:
        """Record that the keyless table ``scope`` holds the batch from this transaction on."""
        self._put(cursor, scope, epoch=fence.epoch, batch=fence.batch)

    def noted_units(self, cursor: Any) -> dict[str, tuple[int, dict[str, int]]]:
        """Return (batch, what it wrote) of each unit that is noted, by its name."""
        cursor.execute(
            f"SELECT scope, batch, position FROM {self.name} WHERE {MINE} AND scope LIKE %s",
            (*self._who, f"{UNIT}%"),
        )
        return {
            str(scope).removeprefix(UNIT): (int(batch), dict(json.loads(counts or "{}")))
            for scope, batch, counts in cursor.fetchall()
        }

    def note_unit(self, cursor: Any, fence: Fence, unit: str, counts: dict[str, int]) -> None:
        """Note that a unit is written, in its own transaction."""
        self._put(cursor, f"{UNIT}{unit}", epoch=fence.epoch, batch=fence.batch, position=json.dumps(counts))

    def forget_units(self, cursor: Any) -> None:
        """Remove the notes of units. Call it in a transaction, after :meth:`guard`."""
        cursor.execute(f"DELETE FROM {self.name} WHERE {MINE} AND scope LIKE %s", (*self._who, f"{UNIT}%"))

    def others(self, cursor: Any) -> tuple[OtherWriter, ...]:
        """Return pipelines of another name that acknowledge here, with what is noted of their tables."""
        cursor.execute(
            f"SELECT pipeline, scope, position, {self.IDLE} FROM {self.name} WHERE pipeline <> %s "
            "AND scope NOT LIKE %s ORDER BY pipeline",
            (self._who[0], f"{MADE}%"),
        )
        idle: dict[str, float] = {}
        tables: dict[str, frozenset[str]] = {}
        for pipeline, scope, position, seconds in cursor.fetchall():
            name = str(pipeline)
            idle[name] = min(float(seconds or 0), idle.get(name, float("inf")))
            if scope == TABLES:
                tables[name] = tables.get(name, frozenset()) | frozenset(json.loads(position or "[]"))
        place = self.name.replace("%%", "%")
        return tuple(
            OtherWriter(name, tables.get(name), seconds, f"DELETE FROM {place} WHERE pipeline = '{name}'")
            for name, seconds in idle.items()
        )

    def noted_tables(self, cursor: Any) -> frozenset[str]:
        """Return the tables that are noted as written by this pipeline and target."""
        cursor.execute(f"SELECT position FROM {self.name} WHERE {MINE} AND scope = %s", (*self._who, TABLES))
        row = cursor.fetchone()
        return frozenset(json.loads(row[0] or "[]")) if row else frozenset()

    def note_tables(self, cursor: Any, fence: Fence, tables: frozenset[str]) -> None:
        """Note what is written from now on; for very many tables only their schemas.

        Call it in a transaction, after :meth:`guard`.
        """
        names = json.dumps(sorted(tables))
        if len(names) > MOST_NAMES:
            names = json.dumps(sorted({f"{name.partition('.')[0]}.*" for name in tables}))
        self._put(cursor, TABLES, epoch=fence.epoch, batch=fence.batch, position=names)

    def made_tables(self, cursor: Any) -> frozenset[TableId]:
        """Return the tables that Sluice made and has not copied rows into yet."""
        return frozenset(TableId(*note["table"]) for note in self._noted(cursor, MADE))

    def note_made(self, cursor: Any, table: TableId) -> None:
        """Note that Sluice made a table. Call it in a transaction."""
        note = json.dumps({"table": [table.schema, table.table]})
        self._put(cursor, f"{MADE}{table}", epoch=0, batch=0, position=note)

    def left_out(self, cursor: Any) -> dict[TableId, dict[str, str]]:
        """Return the definitions of indexes that are left out, by table and name."""
        return {TableId(*note["table"]): dict(note["indexes"]) for note in self._noted(cursor, LEFT_OUT)}

    def note_left_out(self, cursor: Any, fence: Fence, table: TableId, indexes: Mapping[str, str]) -> None:
        """Note which indexes of a table are left out; none: all of them stand.

        Call it in a transaction, after :meth:`guard`.
        """
        scopes = [f"{MADE}{table}"]
        if indexes:
            note = json.dumps({"table": [table.schema, table.table], "indexes": list(indexes.items())})
            self._put(cursor, f"{LEFT_OUT}{table}", epoch=fence.epoch, batch=fence.batch, position=note)
        else:
            scopes.append(f"{LEFT_OUT}{table}")
        for scope in scopes:
            cursor.execute(f"DELETE FROM {self.name} WHERE {MINE} AND scope = %s", (*self._who, scope))

    def _noted(self, cursor: Any, prefix: str) -> list[dict[str, Any]]:
        """Return what the rows say whose scope has the prefix."""
        cursor.execute(
            f"SELECT position FROM {self.name} WHERE {MINE} AND scope LIKE %s ORDER BY scope",
            (*self._who, f"{prefix}%"),
        )
        return [dict(json.loads(position)) for (position,) in cursor.fetchall()]

    def ddl_state(self, cursor: Any, batch: int) -> dict[str, Any]:
        """Return what was noted about the DDL of ``batch``, {} if nothing was."""
        cursor.execute(f"SELECT batch, position FROM {self.name} WHERE {MINE} AND scope = %s", (*self._who, DDL))
        row = cursor.fetchone()
        return dict(json.loads(row[1] or "{}")) if row and int(row[0]) == batch else {}

    def note_ddl(self, cursor: Any, fence: Fence, state: dict[str, Any]) -> None:
        """Remember how far the DDL of the batch has come. In a transaction, after :meth:`guard`."""
        self._put(cursor, DDL, epoch=fence.epoch, batch=fence.batch, position=json.dumps(state))

    def _begin(self, cursor: Any, began: int) -> None:
        """Insert the row of the whole target, and that no table is written yet, unless another process was faster."""
        columns, places = "pipeline, target, scope, epoch, batch, position", "%s, %s, %s, 0, %s, %s"
        sql = self.NEW.format(table=self.name, columns=columns, places=places)
        for scope, position in ((self.WHOLE, None), (TABLES, "[]")):
            cursor.execute(sql, (*self._who, scope, began, position))

    def _put(self, cursor: Any, scope: str, **values: Any) -> None:
        columns = ("pipeline", "target", "scope", *values)
        settings = ", ".join(f"{name} = {self.GIVEN.format(name)}" for name in values) + self.TOUCHED
        sql = self.PUT.format(
            table=self.name, columns=", ".join(columns), places=", ".join(["%s"] * len(columns)), settings=settings
        )
        cursor.execute(sql, (*self._who, scope, *values.values()))

    def _checkpoint(self, cursor: Any, lock: str = "", *, identity: str = "identity") -> Checkpoint | None:
        cursor.execute(
            f"SELECT epoch, batch, position, {identity} FROM {self.name} WHERE {MINE} AND scope = %s {lock}",
            (*self._who, self.WHOLE),
        )
        row: tuple[Any, ...] | None = cursor.fetchone()
        if row is None:
            return None
        note = dict(json.loads(row[2])) if row[2] else {}
        seal = note.pop(SEAL, None)
        edited = seal is not None and seal != self._seal(int(row[1]), note)
        return Checkpoint(int(row[0]), int(row[1]), Offset.from_json(note) if note else None, str(row[3] or ""), edited)

    def _sealed(self, batch: int, position: Offset) -> str:
        fields = position.to_json()
        return json.dumps({**fields, SEAL: self._seal(batch, fields)})

    def _seal(self, batch: int, fields: dict[str, Any]) -> int:
        """Return the seal of what is written together.

        Epoch and identity are written without it, and so are not in it.
        """
        return seal_of(self._who, batch, fields)

    def _batch(self, cursor: Any, lock: str, epoch: int) -> int:
        """Lock the row of the whole target and return the batch held. Raises Fenced unless ``epoch`` took it over."""
        cursor.execute(
            f"SELECT epoch, batch FROM {self.name} WHERE {MINE} AND scope = %s {lock}", (*self._who, self.WHOLE)
        )
        row: tuple[Any, ...] | None = cursor.fetchone()
        record = Record(Checkpoint(int(row[0]), int(row[1]))) if row is not None else None
        return require_record(record, self, epoch).checkpoint.batch
