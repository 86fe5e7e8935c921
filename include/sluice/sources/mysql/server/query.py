"""The rows of a person's query, for a rule's lookup."""

from __future__ import annotations

from typing import Any

import pymysql

from sluice.config.connections import Endpoint
from sluice.errors import RuleError, SourceUnavailable
from sluice.sources.mysql.server.connection import connected


def query_rows(
    endpoint: Endpoint, query: str, max_rows: int, *, doing: str, where: str
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return column names, and at most ``max_rows`` rows. ``doing``, ``where``: for errors.

    Raises SourceUnavailable, ConfigError for a refused login, RuleError if the server does not accept the query.
    """
    try:
        with connected(endpoint) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION READ ONLY")
            cursor.execute(query)
            names = [column[0] for column in cursor.description or ()]
            return names, list(cursor.fetchmany(max_rows))
    except pymysql.err.OperationalError as error:
        raise SourceUnavailable(
            f"{doing}: its query failed: {error.args[-1]}", where=f"{where}, {endpoint.address}"
        ) from error
    except pymysql.err.Error as error:
        raise RuleError(f"{doing}: its query failed: {error.args[-1]}", where=where) from error
