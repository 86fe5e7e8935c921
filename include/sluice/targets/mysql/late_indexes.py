"""Secondary indexes that are dropped before an empty table is filled, and built from its rows afterwards.

Definitions are the lines of SHOW CREATE TABLE, so that the table ends as it was. Each statement is one ALTER TABLE,
which the server makes whole or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pymysql
import structlog

from sluice.errors import ConfigError, DecodeError, LoadError, UnsupportedType
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql.ddl.ast import CreateTable
from sluice.mysql.ddl.lexer import Dialect
from sluice.mysql.ddl.parser import parse_statement
from sluice.targets.mysql.ack_table import NOT_THERE
from sluice.targets.mysql.connection import code_of, errors
from sluice.targets.mysql.ddl_runner import DdlTarget, run_alone
from sluice.targets.mysql.session import Session
from sluice.targets.mysql.tables import definitions_of, has_rows, index_names
from sluice.targets.port import Fence
from sluice.targets.sql.ack_rows import MOST_NAMES
from sluice.targets.sql.loader import Contention

_log = structlog.get_logger()

_KEY = re.compile(r"^  KEY (`(?:[^`]|``)+`) \(")
_OTHER_KEY = re.compile(r"^  (?:FULLTEXT|SPATIAL|VECTOR) ")
_EXPRESSION = re.compile(r"^  KEY `(?:[^`]|``)+` .*\(\(")
_COUNTER = re.compile(r"^  (`(?:[^`]|``)+`) .* AUTO_INCREMENT\b")
_FOREIGN_KEY = re.compile(r"^  CONSTRAINT .* FOREIGN KEY ")
_ENGINE = re.compile(r"^\) ENGINE=InnoDB\b", re.M)


class IndexTarget(DdlTarget, Protocol):
    """What this needs of the target besides."""

    def transaction(self, session: Session, work: Callable[[], None], doing: str) -> tuple[None, int]:
        """Run ``work`` in a transaction."""


def droppable(definition: str) -> dict[str, str]:
    """Return the secondary indexes of a SHOW CREATE TABLE, by name, as it writes them; none if one of them has to stay.

    The server lists the others in the order in which they were made, so that all of them are left out, or none.
    """
    lines = definition.split("\n")
    if not _ENGINE.search(definition) or any(
        pattern.match(line) for line in lines for pattern in (_OTHER_KEY, _EXPRESSION, _FOREIGN_KEY)
    ):
        return {}
    counters = {match[1] for line in lines if (match := _COUNTER.match(line))}
    keys = {match[1]: line.strip().rstrip(",") for line in lines if (match := _KEY.match(line))}
    if any(line.startswith(f"KEY {name} ({counter}") for name, line in keys.items() for counter in counters):
        return {}
    return {name[1:-1].replace("``", "`"): line for name, line in keys.items()}


@dataclass(frozen=True, slots=True)
class LateIndexes:
    """The indexes of one target's tables, under the fence of one batch."""

    target: IndexTarget
    fence: Fence

    def leave_out(self, tables: Sequence[TableId]) -> tuple[TableId, ...]:
        """See :meth:`sluice.targets.port.indexes.LeavesOutIndexes.leave_out_indexes`."""
        doing = "leaving indexes out"
        with self.target.session(doing) as session, self.target.session(doing) as holder:
            noted = self.target.acks.left_out(session.cursor)
            made_tables = self.target.acks.made_tables(session.cursor)
            return tuple(
                table
                for table in tables
                if table in noted or (table in made_tables and self._left_out(session, holder, table))
            )

    def _left_out(self, session: Session, holder: Session, table: TableId) -> bool:
        [definition] = definitions_of(session.cursor, [table])
        keys = droppable(definition)
        if not keys or len(str(keys)) > MOST_NAMES // 2 or _is_referred_to(session.cursor, table):
            return False
        if has_rows(session.cursor, table):
            return False
        self._note(session, table, keys)
        drops = ", ".join(f"DROP INDEX {quoted(name)}" for name in keys)
        try:
            self._alter(holder, table, drops, session=session)
        except (LoadError, ConfigError, Contention) as error:  # refused: nothing is dropped, and all can be loaded
            _log.info("indexes_kept", target=self.target.name, table=str(table), reason=error.message)
            self._note(session, table, {})
            return False
        return True

    def build(self, tables: Sequence[TableId]) -> None:
        """See :meth:`sluice.targets.port.indexes.LeavesOutIndexes.build_indexes`."""
        doing = "building indexes"
        with self.target.session(doing) as session, self.target.session(doing) as holder:
            noted = self.target.acks.left_out(session.cursor)
            for table in tables:
                [definition] = definitions_of(session.cursor, [table])
                existing_names = index_names(session.cursor, table)
                missing = [line for name, line in noted.get(table, {}).items() if name.lower() not in existing_names]
                if definition and missing:
                    self._alter(holder, table, ", ".join(f"ADD {line}" for line in missing), session=session)
                self._note(session, table, {})

    def _note(self, session: Session, table: TableId, keys: Mapping[str, str]) -> None:
        """Note what is left out of the table, in a transaction of its own."""

        def work() -> None:
            self.target.acks.guard(session.cursor, self.fence)
            self.target.acks.note_left_out(session.cursor, self.fence, table, keys)

        self.target.transaction(session, work, "noting which indexes are left out")

    def _alter(self, holder: Session, table: TableId, clauses: str, *, session: Session) -> None:
        statement = f"ALTER TABLE {quoted_table(table)} {clauses}"
        doing = f"running {statement[:200]}"
        try:
            with errors(self.target.endpoint, doing, where=str(table)):
                run_alone(self.target, self.fence, session, holder, statement, doing)
        except LoadError as error:
            error.hint = error.hint or (
                "build the index by hand in another form, under the same name: the load goes on once the table has it"
            )
            raise


def made_with_indexes(session: Session, statement: str) -> TableId | None:
    """Return the table that a statement has made, if it has indexes that can be left out."""
    try:
        parsed_statement = parse_statement(statement, "", Dialect(session.mariadb))
    except (DecodeError, UnsupportedType):
        return None
    if not isinstance(parsed_statement, CreateTable) or not parsed_statement.table.schema:
        return None
    [definition] = definitions_of(session.cursor, [parsed_statement.table])
    return parsed_statement.table if droppable(definition) else None


def left_out(acks: Any, cursor: Any) -> Mapping[TableId, tuple[str, ...]]:
    """Return what is noted as left out; nothing if there is no table of acknowledgements yet."""
    try:
        return {table: tuple(lines.values()) for table, lines in acks.left_out(cursor).items()}
    except pymysql.err.MySQLError as error:
        if code_of(error) in NOT_THERE:
            return {}
        raise


def _is_referred_to(cursor: Any, table: TableId) -> bool:
    """Return True if a foreign key of another table needs an index of this one."""
    cursor.execute(
        "SELECT COUNT(*) FROM information_schema.referential_constraints "
        "WHERE unique_constraint_schema = %s AND referenced_table_name = %s",
        (table.schema, table.table),
    )
    return bool(cursor.fetchone()[0])
