"""Statements that one kind of server accepts arrive at the other with the same rows, or the load stops by a named error.

Random statements from the grammar (:mod:`tests.support.grammar.ddl_grammar`), MySQL to MariaDB and back, each delivered
before the next one is drawn. ``SLUICE_DDL_EPISODES`` sets how many pipelines run in each direction,
``SLUICE_DDL_SEED`` the seed; ``SLUICE_DDL_SHOW`` prints each stop.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pymysql
import pytest

from sluice.config.connections import parse_connection
from sluice.errors import SluiceError
from sluice.model.definitions import TableDefinition
from sluice.model.tables import TableId
from sluice.sources.mysql.catalog.information_schema import flavour_of, read_tables
from sluice.sources.mysql.server.connection import open_connection, server_info
from tests.support.grammar.ddl_grammar import Grammar
from tests.support.pipelines.case import Case, case

EPISODES = int(os.environ.get("SLUICE_DDL_EPISODES", "12"))
SEEDS = {"mysql_source": 7, "mariadb": 8}
STATEMENTS = 10
"""Statements of an episode, which a stop ends earlier."""
ACKS = "_sluice_ack"
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bit", "geometry", "point", "vector",
    "linestring", "polygon", "geometrycollection", "geomcollection", "multipoint")  # fmt: skip


class Episode:
    """One pipeline from a server to another of the other kind, and the statements that it delivers."""

    def __init__(self, pipeline: Case, probe: Any, choose: random.Random) -> None:
        self.pipeline, self.probe = pipeline, probe
        self.flavour = flavour_of(probe, server_info(probe))
        self.grammar = Grammar(choose, pipeline.schema, self.flavour.mariadb)
        self.statements: list[str] = []
        self.stop: SluiceError | None = None

    def run(self) -> list[str]:
        """Deliver statements and rows; return what differs after the first that is not delivered as it is."""
        self.pipeline.run_until_head()
        with contextlib.closing(self.grammar.open_session(self.pipeline.source)) as session:
            while len(self.statements) < STATEMENTS:
                statement = self.grammar.statement()
                with session.cursor() as cursor:
                    try:
                        cursor.execute(statement)
                    except (pymysql.err.MySQLError, UnicodeEncodeError):
                        continue
                self.statements.append(statement)
                tables = self._tables()
                self.grammar.tables = {table.table.table: table for table in tables}
                for table in tables:
                    self._insert(table)
                try:
                    self.pipeline.run_until_head()
                except SluiceError as error:
                    self.stop = error
                    return []
                if differences := self._differences(tables):
                    return differences
        return []

    def _tables(self) -> list[TableDefinition]:
        with self.probe.cursor() as cursor:
            cursor.execute(
                "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_TYPE = 'BASE TABLE'",
                (self.pipeline.schema,),
            )
            names = [TableId(self.pipeline.schema, str(row[0])) for row in cursor.fetchall()]
        return list(read_tables(self.probe, self.flavour, names, broken={}))

    def _insert(self, table: TableDefinition) -> None:
        """Insert a row of defaults with a key of its own, if the table takes one."""
        key = [name for name in table.row_key or () if not table.column(name).generated]
        names, values = ", ".join(_quoted(name) for name in key), ", ".join([str(len(self.statements))] * len(key))
        with (
            contextlib.closing(self.pipeline.source.connect(self.pipeline.schema)) as session,
            session.cursor() as cursor,
            contextlib.suppress(pymysql.err.MySQLError),
        ):
            cursor.execute("SET SESSION sql_mode = '', foreign_key_checks = 0")
            cursor.execute(f"INSERT IGNORE INTO {_quoted(table.table.table)} ({names}) VALUES ({values})")
            session.commit()

    def _differences(self, tables: list[TableDefinition]) -> list[str]:
        show = "SHOW FULL TABLES WHERE Table_type = 'BASE TABLE'"
        here, there = ({row[0] for row in self._of(side, show) if row[0] != ACKS} for side in self._sides())
        if here != there:
            return [f"tables: {sorted(here ^ there)}"]
        differences = []
        for table in tables:
            columns = ", ".join(_shown(column.name, column.family) for column in table.columns)
            statement = f"SELECT {columns} FROM {_quoted(table.table.table)}"
            ours, theirs = (sorted(map(repr, map(_plain, self._of(side, statement)))) for side in self._sides())
            if ours != theirs:
                differences.append(f"{table.table.table}: {ours} at the source, {theirs} at the target")
        return differences

    def _sides(self) -> tuple[Any, Any]:
        return self.pipeline.source, self.pipeline.target

    def _of(self, server: Any, statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(server.connect(self.pipeline.schema)) as session, session.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _shown(name: str, family: str) -> str:
    if family in {"float", "double"}:
        return _quoted(name)
    return f"HEX({_quoted(name)})" if family in _BYTES else f"CAST({_quoted(name)} AS CHAR CHARACTER SET utf8mb4)"


def _plain(row: tuple[Any, ...]) -> list[Any]:
    """Return a row without the spaces of its documents: a MySQL stores them parsed."""
    values = []
    for value in row:
        if isinstance(value, str) and value[:1] in {"{", "["}:
            with contextlib.suppress(ValueError):
                value = json.loads(value)
        values.append(value)
    return values


@pytest.mark.parametrize(("kind", "other"), [("mysql_source", "mariadb"), ("mariadb", "mysql_source")])
def test_statements_of_the_grammar_at_the_other_kind_of_server(
    kind: str, other: str, request: pytest.FixtureRequest, tmp_path: Path, zookeeper: Any, fresh_schema: Any
) -> None:
    source, target = request.getfixturevalue(kind), request.getfixturevalue(other)
    seed = int(os.environ.get("SLUICE_DDL_SEED", SEEDS[kind]))
    delivered, stops, wrong = 0, Counter[str](), []
    for number in range(EPISODES):
        schema = fresh_schema(source, target)
        (folder := tmp_path / str(number)).mkdir()
        with (
            case(folder, source, target, zookeeper, schema) as pipeline,
            open_connection(parse_connection("source", source.connection_json())) as probe,
        ):
            episode = Episode(pipeline, probe, random.Random(f"{seed} {number}"))
            differences = episode.run()
        delivered += len(episode.statements)
        if episode.stop is not None:
            stops[type(episode.stop).__name__] += 1
            if os.environ.get("SLUICE_DDL_SHOW"):
                print("STOP", repr(episode.statements[-1]), "|", episode.stop)
        if differences:
            statements = "\n    ".join(map(repr, episode.statements))
            wrong.append("\n  ".join((f"episode {number}:", statements, *differences)))
    print(f"seed {seed}: {delivered} delivered, stops: {dict(stops)}")
    assert not wrong, f"seed {seed}: {len(wrong)} of {EPISODES}\n" + "\n".join(wrong)
    assert delivered > EPISODES * STATEMENTS // 3
    assert set(stops) <= {"LoadError", "MappingError", "UnsupportedSchemaChange"}, stops
