"""MERGE (MRG_MyISAM) tables: names under which the rows of other tables are read and written.

Both servers log a change under the name that the statement used, the MERGE table's or its member's. So neither name has
all changes of its rows in the log, and a copy of both has each row twice. A primary key of a MERGE table is not unique:
two members may have the same one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pymysql

from sluice.errors import ConfigError
from sluice.model.findings import Finding
from sluice.model.tables import TableId, quoted_table
from sluice.mysql.client import create_table_of
from sluice.sources.mysql.server.connection import rows_of

ENGINE = "MRG_MYISAM"
"""Its name in information_schema."""
_ENGINES = {ENGINE.lower(), "merge"}
_TABLES = f"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE ENGINE = '{ENGINE}'"  # noqa: S608 - a constant
_UNION = re.compile(r"\) ENGINE=MRG_MyISAM[^\n]*? UNION=\(([^\n]*?)\)(?: |$)", re.I)
_METHOD = re.compile(r"\) ENGINE=MRG_MyISAM[^\n]*? INSERT_METHOD=(\w+)", re.I)
_NAME = re.compile(r"`((?:[^`]|``)+)`(?:\.`((?:[^`]|``)+)`)?")


@dataclass(frozen=True, slots=True)
class MergeTable:
    """A MERGE table. ``members``: empty if the user may not see them; ``inserts``: rows can be inserted through it."""

    table: TableId
    members: tuple[TableId, ...]
    inserts: bool

    @property
    def over(self) -> str:
        """``a MERGE table over s.a, s.b``."""
        return f"a MERGE table over {', '.join(map(str, self.members)) or 'tables that this user may not see'}"


def is_merge(engine: str) -> bool:
    """Return True for the engine of a MERGE table, as written or as printed."""
    return engine.lower() in _ENGINES


def merge_findings(
    connection: Any, tables: Iterable[tuple[TableId, str]], wants: Callable[[TableId], bool]
) -> list[Finding]:
    """MERGE tables that are captured, and those through which rows of captured tables change.

    ``tables``: with their engines.
    """
    findings = []
    for table, engine in tables:
        if not is_merge(engine):
            continue
        merge = _read(connection, table)
        captured = [member for member in merge.members if wants(member)]
        if wants(merge.table):
            findings.append(
                Finding(
                    "error",
                    "MERGE table",
                    str(merge.table),
                    f"it is {merge.over}: its log has only the changes that were made under its own name, and its "
                    "rows would be copied twice",
                    f"exclude it (capture.exclude: ['{_pattern(merge.table)}']), capture its members, and write to "
                    "them by their own names",
                )
            )
        elif captured:
            names = ", ".join(map(str, captured))
            verbs = "INSERT, UPDATE and DELETE" if merge.inserts else "UPDATE and DELETE"
            findings.append(
                Finding(
                    "error" if merge.inserts else "warning",
                    "MERGE table",
                    str(merge.table),
                    f"it is {merge.over}, and not captured: {verbs} under its name change rows of {names} that the "
                    "log does not name",
                    f"write to the members by their own names; ALTER TABLE {quoted_table(merge.table)} "
                    "INSERT_METHOD=NO keeps rows out",
                )
            )
    return findings


def refuse_merge(connection: Any, table: TableId) -> None:
    """Raise ConfigError for a MERGE table: its rows are those of its members."""
    if rows_of(connection, f"{_TABLES} AND TABLE_SCHEMA = %s AND TABLE_NAME = %s", (table.schema, table.table)):
        merge = _read(connection, table)
        raise ConfigError(
            f"{table} is {merge.over}: its rows would be copied twice",
            where=str(table),
            hint=f"copy its members, and exclude it from capture (capture.exclude: ['{_pattern(table)}'])",
        )


def _pattern(table: TableId) -> str:
    return f"{re.escape(table.schema)}\\.{re.escape(table.table)}"


def _read(connection: Any, table: TableId) -> MergeTable:
    try:
        sql = create_table_of(connection, table).decode(errors="replace")  # a default may be any bytes
    except pymysql.err.ProgrammingError:  # no right to select from it
        return MergeTable(table, (), inserts=True)
    except pymysql.err.OperationalError as error:
        if error.args and error.args[0] in {1142, 1143, 1168}:  # 1168: its members are not alike, nothing can be read
            return MergeTable(table, (), inserts=True)
        raise
    union, method = _UNION.search(sql), _METHOD.search(sql)
    members = tuple(
        TableId(_plain(second and first) or table.schema, _plain(second or first))
        for first, second in _NAME.findall(union[1] if union else "")
    )
    return MergeTable(table, members, method is not None and method[1].upper() != "NO")


def _plain(quoted_name: str) -> str:
    return quoted_name.replace("``", "`")
