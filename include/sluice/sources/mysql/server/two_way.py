"""Requirements of a channel's server, which applications and Sluice write to while another site is written to as
well.
"""

# ruff: noqa: S608 - a fixed condition

from __future__ import annotations

from typing import Any

from sluice.model.findings import Finding
from sluice.model.load_marks import TABLE
from sluice.model.tables import TableId
from sluice.sources.mysql.server.connection import NOT_OF_THE_SYSTEM, ServerInfo, rows_of
from sluice.sources.table_filter import Selection

_NAMED = 5


def two_way_findings(connection: Any, info: ServerInfo, selection: Selection) -> list[Finding]:
    """Report marks that do not get into the log, and numbers that both sites assign."""
    return [*_marks_left_out(connection, info), *_same_numbers(connection, selection)]


def numbering(connection: Any) -> tuple[int, int]:
    """Return the ``auto_increment_increment`` and ``auto_increment_offset`` that new sessions have."""
    [(step, first)] = rows_of(connection, "SELECT @@GLOBAL.auto_increment_increment, @@GLOBAL.auto_increment_offset")
    return int(step), int(first)


def _marks_left_out(connection: Any, info: ServerInfo) -> list[Finding]:
    if info.log_filter is None:
        return []
    query = "SELECT TABLE_SCHEMA FROM information_schema.TABLES WHERE TABLE_NAME = %s"
    lost = info.not_logged(str(row[0]) for row in rows_of(connection, query, (TABLE,)))
    if not lost:
        return []
    setting, value = info.log_filter
    return [
        Finding(
            "error",
            setting,
            ",".join(value),
            f"the marks of loads in {', '.join(lost)}.{TABLE} do not get into the log: what the channel loads would "
            "be sent back",
            f"take {setting} out of the server's configuration and restart it, or set ack_schema of the target to a "
            "schema that is logged",
        )
    ]


def _same_numbers(connection: Any, selection: Selection) -> list[Finding]:
    if numbering(connection)[0] > 1:
        return []
    query = (
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.COLUMNS WHERE EXTRA LIKE '%auto_increment%' "
        f"AND {NOT_OF_THE_SYSTEM}"
    )
    tables = _wanted(rows_of(connection, query), selection)
    if not tables:
        return []
    return [
        Finding(
            "warning",
            "auto_increment_increment",
            "1",
            f"both sites give the same numbers to new rows of {_names(tables)}, and one row overwrites the other",
            "SET PERSIST (MariaDB: SET GLOBAL) auto_increment_increment = 2, auto_increment_offset = 1 at one site, "
            "offset 2 at the other one; reconnect the applications",
        )
    ]


def unique_keys(connection: Any, selection: Selection) -> list[Finding]:
    """Report unique values that two rows may claim, for a person who asks: it cannot be changed."""
    query = (
        "SELECT DISTINCT TABLE_SCHEMA, TABLE_NAME FROM information_schema.STATISTICS "
        f"WHERE NON_UNIQUE = 0 AND INDEX_NAME <> 'PRIMARY' AND {NOT_OF_THE_SYSTEM}"
    )
    tables = _wanted(rows_of(connection, query), selection)
    if not tables:
        return []
    return [
        Finding(
            "warning",
            "unique keys",
            _names(tables),
            "if both sites give one value to two different rows, each target replaces its own row by the other "
            "site's, and the sites differ",
            "let each site give away values that the other one cannot, or write such tables at one site only",
        )
    ]


def _wanted(rows: Any, selection: Selection) -> list[str]:
    return sorted({str(table) for s, t in rows if selection.wants(table := TableId(str(s), str(t)))})


def _names(tables: list[str]) -> str:
    more = f" and {len(tables) - _NAMED} more" if len(tables) > _NAMED else ""
    return f"{', '.join(tables[:_NAMED])}{more}"
