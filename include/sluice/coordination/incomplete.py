"""Tables of targets that may lack rows or values: a table or a column was missing there when a batch came, and was made
by hand.

What the target held in it before is gone, and no statement of the log restores it: only a copy of the table does. So
each stays noted until the table was copied, or was verified and is equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from sluice.coordination.layout import INCOMPLETE, Layout
from sluice.coordination.port import Put, Znodes, committed
from sluice.model.stored_fields import known_fields
from sluice.model.tables import TableId


@dataclass(frozen=True, slots=True)
class IncompleteTable:
    """A source table whose rows at ``target`` may lack the values of ``columns``; no columns: rows of it may be
    missing.

    ``since_ms``: when that was met, milliseconds since 1970. A copy that began later ends it. ``why``: the cause, "" if
    the table or the columns were missing at the target.
    """

    target: str
    schema: str
    table: str
    columns: tuple[str, ...] = ()
    since_ms: int = 0
    why: str = ""

    @property
    def source(self) -> TableId:
        """The source's name of it."""
        return TableId(self.schema, self.table)


class IncompleteTables:
    """Incomplete tables of one pipeline: one node, moved by compare-and-set."""

    def __init__(self, znodes: Znodes, layout: Layout) -> None:
        self._z = znodes
        self._path = layout.incomplete

    def all(self) -> tuple[IncompleteTable, ...]:
        """Return the notes in the order in which they were met."""
        return self._read()[0]

    def add(
        self,
        target: str,
        missing: Sequence[tuple[TableId, tuple[str, ...]]],
        *,
        why: str = "",
        since_ms: Mapping[TableId, int] = MappingProxyType({}),
    ) -> None:
        """Note tables that ``target`` lacks (no columns), or that lack columns there; now, or ``since_ms``.

        What is noted already keeps its time, unless there is a ``why``: then it happened once more.
        """
        now = int(time.time() * 1000)

        def changed(tables: tuple[IncompleteTable, ...]) -> tuple[IncompleteTable, ...]:
            by_table = {(table.target, table.source): table for table in tables}
            for source, columns in missing:
                at = since_ms.get(source, now)
                before = by_table.get((target, source))
                if before is None or why:
                    by_table[target, source] = IncompleteTable(target, source.schema, source.table, columns, at, why)
                elif before.columns and (not columns or not set(columns) <= set(before.columns)):
                    names = tuple(dict.fromkeys((*before.columns, *columns))) if columns else ()
                    by_table[target, source] = replace(before, columns=names, since_ms=at)
            return tuple(by_table.values())

        self._change(changed)

    def complete(self, is_complete: Callable[[IncompleteTable], bool]) -> None:
        """Forget those that are complete by now."""
        if any(map(is_complete, self.all())):
            self._change(lambda tables: tuple(table for table in tables if not is_complete(table)))

    def _read(self) -> tuple[tuple[IncompleteTable, ...], int]:
        node = self._z.get(self._path)
        if node is None or not node.data:
            return (), node.version if node else -1
        stored = INCOMPLETE.decode(self._path, node.data)["tables"]
        tables = (
            IncompleteTable(**{**known_fields(IncompleteTable, fields), "columns": tuple(fields["columns"])})
            for fields in stored
        )
        return tuple(tables), node.version

    def _change(self, changed: Callable[[tuple[IncompleteTable, ...]], tuple[IncompleteTable, ...]]) -> None:
        while True:
            before, version = self._read()
            after = changed(before)
            if after == before:
                return
            if version == -1:
                self._z.ensure(self._path)
                version = 0
            if committed(
                self._z, Put(self._path, INCOMPLETE.encode({"tables": [asdict(table) for table in after]}), version)
            ):
                return
