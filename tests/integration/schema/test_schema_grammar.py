"""Any statement that a server accepts is followed as its information_schema says, or the table is unknown, loudly.

Random statements from the servers' grammar (:mod:`tests.support.grammar.ddl_grammar`) against real servers.
``SLUICE_DDL_STATEMENTS`` sets how many run on each server, ``SLUICE_DDL_SEED`` the seed; both are printed with a
failure.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from typing import Any

import pymysql
import pytest

from sluice.config.connections import parse_connection
from sluice.model.definitions import TableDefinition
from sluice.model.tables import TableId, quoted_table
from sluice.sources.mysql.catalog.history_tracker import SchemaTracker
from sluice.sources.mysql.catalog.information_schema import flavour_of, read_state, read_tables
from sluice.sources.mysql.reader.statement_scan import statements_between
from sluice.sources.mysql.server.connection import collations, open_connection, server_info
from tests.support.grammar.ddl_grammar import Grammar
from tests.support.grammar.definitions import comparable, differing

STATEMENTS = int(os.environ.get("SLUICE_DDL_STATEMENTS", "120"))
SEEDS = {"mysql_source": 3, "mariadb": 5}
SESSION = 12
"""Statements of one session, then another with other settings."""
ROUND = 600
"""Statements before the log is folded and compared."""

_TABLES = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_TYPE = 'BASE TABLE'"


class Walk:
    """A server, a schema in it, and what was run there."""

    def __init__(self, server: Any, schema: str, choose: random.Random) -> None:
        self.server, self.schema, self.choose = server, schema, choose
        self.endpoint = parse_connection("source", server.connection_json())
        self.exits = contextlib.ExitStack()
        self.probe = self.exits.enter_context(open_connection(self.endpoint))
        info = server_info(self.probe)
        self.start = info.head
        self.state = read_state(self.probe, info)
        self.flavour = flavour_of(self.probe, info)
        self.grammar = Grammar(choose, schema, self.flavour.mariadb)
        self.after: list[tuple[str, tuple[str, int], dict[TableId, TableDefinition | None]]] = []
        self.refused: Counter[str] = Counter()
        self.accepted = 0
        self.unknown: Counter[str] = Counter()

    def run(self, count: int) -> None:
        """Run statements and note what the server says after each."""
        for begun in range(0, count, SESSION):
            with (
                contextlib.closing(self.grammar.open_session(self.server)) as connection,
                connection.cursor() as cursor,
            ):
                for _ in range(min(SESSION, count - begun)):
                    sql = self.grammar.statement()
                    try:
                        cursor.execute(sql)
                    except (pymysql.err.MySQLError, UnicodeEncodeError) as error:
                        self.refused[str(error)[:60]] += 1
                        if os.environ.get("SLUICE_DDL_SHOW"):
                            print("REFUSED", str(error)[:150], "|", repr(sql)[:300])
                        continue
                    self.accepted += 1
                    self._note(sql)

    def _note(self, sql: str) -> None:
        with self.probe.cursor() as cursor:
            cursor.execute(_TABLES, (self.schema,))
            names = [TableId(self.schema, str(row[0])) for row in cursor.fetchall()]
            cursor.execute("SHOW MASTER STATUS" if self.flavour.mariadb else "SHOW BINARY LOG STATUS")
            file, offset = cursor.fetchone()[:2]
        broken: dict[TableId, str] = {}
        definitions: dict[TableId, TableDefinition | None]
        definitions = {d.table: d for d in read_tables(self.probe, self.flavour, names, broken=broken)}
        self.grammar.tables = {t.table: d for t, d in definitions.items() if d is not None}
        for table in broken:  # the server itself cannot say what it is
            definitions[table] = None
            self.server.execute("SET foreign_key_checks = 0", f"DROP TABLE {quoted_table(table)}")
        self.after.append((sql, self.start.at(file=str(file), offset=int(offset)).order, definitions))

    def differences(self) -> list[tuple[Any, ...]]:
        """Fold the log; where what is folded is neither the truth nor unknown."""
        info = server_info(self.probe)
        names = collations(self.probe)
        tracker = SchemaTracker(lambda: self.state, lambda: names)
        pending, found = list(self.after), []

        def fold(statement: Any) -> None:
            while pending and pending[0][1] < statement.position.order:
                found.extend(self._compare(*pending.pop(0)))
            tracker.statement(statement)

        statements_between(self.endpoint, server_id=4_000_000_124, start=self.start, stop=info.head, statement=fold)
        for note in pending:
            found += self._compare(*note)
        self.start = info.head
        self.after.clear()
        return found

    def _compare(self, sql: str, _: Any, definitions: dict[TableId, TableDefinition | None]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        mine = {t for t in (*self.state.tables, *self.state.unknown) if t.schema == self.schema}
        for table in sorted(mine | set(definitions)):
            folded, truth, why = self.state.find(table), definitions.get(table), self.state.why_unknown(table)
            if table in definitions and truth is None:
                continue
            if why is not None:
                self.unknown[why.reason] += 1
                if os.environ.get("SLUICE_DDL_SHOW"):
                    print("UNKNOWN", why.reason, "|", repr(sql)[:300])
            elif (said := comparable(folded) if folded else None) != (is_ := comparable(truth) if truth else None):
                found.append((sql, table.table, *differing(said, is_)))
            else:
                continue
            if truth is not None:  # so that one mistake is told once
                self.state.put(truth)
            else:
                self.state.forget(table)
        return found


@pytest.mark.timeout(120 + STATEMENTS)
@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_statements_of_the_grammar(kind: str, request: pytest.FixtureRequest, fresh_schema: Any) -> None:
    server = request.getfixturevalue(kind)
    seed = int(os.environ.get("SLUICE_DDL_SEED", SEEDS[kind]))
    walk = Walk(server, fresh_schema(server, options="COLLATE utf8mb4_unicode_ci"), random.Random(seed))
    found: list[tuple[Any, ...]] = []
    for begun in range(0, STATEMENTS, ROUND):
        walk.run(min(ROUND, STATEMENTS - begun))
        found += walk.differences()
    print(f"seed {seed}: {walk.accepted} accepted, {walk.refused.total()} refused, unknown: {dict(walk.unknown)}")
    if os.environ.get("SLUICE_DDL_SHOW"):
        print(walk.refused.most_common(20))
    told = "\n".join(f"{sql!r}\n    {rest}" for sql, *rest in found[:40])
    assert not found, f"seed {seed}: {len(found)} differences\n{told}"
    assert walk.accepted > STATEMENTS // 3
    assert walk.unknown.total() < STATEMENTS // 10
