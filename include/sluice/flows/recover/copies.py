"""Copies of tables as a way back: recorded here, read by the running pipeline. Their ids say what they are for, so that none is made twice."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.coordination.state import PipelineState
from sluice.flows.dump.start import DumpOrder, captured_tables, dump_tables
from sluice.flows.runtime import Runtime
from sluice.model.dumps import POSITION_LOST
from sluice.model.tables import TableId
from sluice.sources.base import SourceSession


def rows_of(runtime: Runtime, source: SourceSession, tables: Iterable[TableId] | None = None) -> dict[TableId, int]:
    """The captured tables that the source has (or those of ``tables``), with its estimate of their rows."""
    there = captured_tables(runtime, source)
    wanted = None if tables is None else set(tables)
    return {table: rows for table, rows in there.items() if wanted is None or table in wanted}


def cost_of(tables: dict[TableId, int]) -> str:
    """What a copy of these tables costs."""
    named = ", ".join(sorted(map(str, tables))[:5]) + (", …" if len(tables) > 5 else "")
    return f"a copy of {len(tables)} tables, about {sum(tables.values()):,} rows ({named or 'none'})"


def copy(
    runtime: Runtime,
    state: PipelineState,
    source: SourceSession,
    tables: Iterable[TableId] | None,
    id_: str,
    *,
    targets: tuple[str, ...] = (),
    replace_rows: bool = True,
) -> None:
    """Record a dump of ``tables`` (None: all that are captured). The running pipeline reads it by itself."""
    found = rows_of(runtime, source, tables)
    if found:
        dump_tables(runtime, state, source, found, DumpOrder(POSITION_LOST, id_, targets), replace_rows=replace_rows)
