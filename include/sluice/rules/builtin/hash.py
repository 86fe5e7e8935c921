"""Replaces values by the hexadecimal SHA-256 of their text, so that equal values stay equal and cannot be read.

NULL stays NULL.

    builtin: hash
    params: {columns: [email], salt_env: SLUICE_HASH_SALT, length: 40}

Without a salt, e-mail addresses and phone numbers can be found by trying them all: set one in the environment of the
workers.
"""

import os

import pyarrow as pa

from sluice.rules import sql
from sluice.rules.columns import declared_length, replace, require, text
from sluice.rules.context import RuleContext


class Params:
    """Columns to hash, and the form of the digest."""

    columns: list[str]
    salt_env: str | None = None
    """Environment variable (of the workers) that holds the salt."""
    length: int = 64
    """Hexadecimal digits kept."""


def transform(rows: pa.Table, context: RuleContext) -> pa.Table:
    """Hash the columns of every row, in SQL.

    Raises ValueError for an unset salt variable, for a column too short for ``length`` digits and for one that the
    table lacks.
    """
    p = context.params
    salt = ""
    if p.salt_env is not None:
        salt = os.environ.get(p.salt_env, "")
        if not salt:
            raise ValueError(f"the environment variable {p.salt_env} of this worker is empty or not set")
    for column in p.columns:
        room = declared_length(rows, column)
        if room is not None and room < p.length:
            raise ValueError(f"column {column!r} holds {room} characters: set length to {room} or less")
        name = require(rows, column)
        plain = rows.select([]).append_column("_row", rows["_row"]).append_column("value", text(rows, column))
        query = "SELECT _row, left(sha256($salt || value), $length) AS value FROM rows ORDER BY _row"
        rows = replace(rows, name, sql.select(query, plain, {"salt": salt, "length": p.length}, {})["value"])
    return rows
