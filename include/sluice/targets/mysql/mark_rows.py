"""The marker table of a MySQL target: created, and written around the rows of a load.

Why this is correct: :mod:`sluice.model.load_marks`.
"""

# ruff: noqa: S608 - identifiers are quoted, values are parameters

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pymysql

from sluice.model.load_marks import COLUMN, TABLE, LoadMark, marked_statement
from sluice.model.tables import quoted
from sluice.targets.mysql.ack_table import NOT_THERE
from sluice.targets.mysql.connection import code_of

_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class MarkRows:
    """The origin marker rows of one pipeline in ``schema`` of a target.

    Cursors are passed in; transactions are the caller's.
    """

    schema: str
    mark: LoadMark

    @property
    def name(self) -> str:
        """The table, quoted."""
        return f"{quoted(self.schema)}.{quoted(TABLE)}"

    def create(self, cursor: Any) -> None:
        """Make the schema and the table where they are missing. Nothing is written to the log where they are there."""
        try:
            cursor.execute(f"SELECT token FROM {self.name} LIMIT 0")
        except pymysql.err.MySQLError as error:
            if code_of(error) not in NOT_THERE:
                raise
            self._create(cursor)

    def _create(self, cursor: Any) -> None:
        cursor.execute("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (self.schema,))
        if cursor.fetchone() is None:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {quoted(self.schema)}")
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({COLUMN}) ENGINE=InnoDB COMMENT='marks of loads by Sluice; "
            "always empty'"
        )

    @contextmanager
    def around(self, cursor: Any, loaded: int = 0) -> Iterator[None]:
        """Mark what is written inside the context, which is in a transaction after which the target holds batch
        ``loaded``.
        """
        token = self._token(loaded)
        cursor.execute(f"INSERT INTO {self.name} (token) VALUES (%s)", (token,))
        yield
        cursor.execute(f"DELETE FROM {self.name} WHERE token = %s", (token,))

    def statement(self, sql: str) -> str:
        """Return a DDL statement with its origin marker."""
        return marked_statement(sql, self._token())

    def _token(self, loaded: int = 0) -> str:
        return self.mark.token(secrets.token_hex(_NONCE_BYTES), loaded)
