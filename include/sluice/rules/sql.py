"""SQL over Arrow, by DuckDB: one SELECT, in the process, on one thread, without access to files or networks."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.decimals import cast, is_nan
from sluice.model.tables import one_chunk

_local = threading.local()
_free: list[duckdb.DuckDBPyConnection] = []
"""Connections that no thread uses: opening one takes longer than the queries of a small batch."""
MEMORY_LIMIT = "1GB"


def select(text: str, rows: pa.Table, params: Mapping[str, Any], lookups: Mapping[str, pa.Table]) -> pa.Table:
    """Run ``text`` with ``rows`` and the lookups as tables, and ``$name`` from ``params``. Raises duckdb.Error.

    DECIMAL columns of more than 38 digits are text to the query: DuckDB has no such numbers.
    """
    with _connection() as connection:
        named = set(duckdb.extract_statements(text)[0].named_parameters)
        tables = {"rows": rows, **lookups}
        for name, table in tables.items():
            _refuse_nan(text, table)
            connection.register(name, _narrow(table))
        parameters = {n: v for n, v in params.items() if n in named} or None
        try:
            try:
                return connection.sql(text, params=parameters).to_arrow_table()
            except duckdb.InterruptException:
                raise  # a second try would run on without a limit
            except duckdb.Error:
                connection.execute(text, parameters)  # says the line, which a relation's error lacks
                raise
        finally:
            for name in tables:
                connection.unregister(name)


@contextmanager
def interrupted_after(seconds: float) -> Iterator[Callable[[], bool]]:
    """Interrupt a query of this thread when the block takes longer than ``seconds``.

    Yield a function that tells whether that happened.
    """
    over, ended, turn = threading.Event(), threading.Event(), threading.Lock()
    with _connection() as connection:

        def stop() -> None:
            with turn:  # the next user of the connection is not interrupted
                if not ended.is_set():
                    over.set()
                    connection.interrupt()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            yield over.is_set
        finally:
            timer.cancel()
            with turn:
                ended.set()


def matches(rows: pa.Table, condition: str) -> pa.Array:
    """Return a mask of the rows that fulfil an SQL condition (null counts as no). Raises duckdb.Error."""
    if re.search(r";|--", condition):
        raise ValueError("write one SQL condition, without ; or --")
    numbers = select(f"SELECT _row FROM rows WHERE ({condition}\n)", rows, {}, {})["_row"]  # noqa: S608 - the user's own condition
    return pc.is_in(rows["_row"], value_set=numbers.combine_chunks())


@contextmanager
def _connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection that only this thread uses until the outermost block ends.

    Work units of a process may run in several threads, and each batch in new ones.
    """
    held_connection: duckdb.DuckDBPyConnection | None = getattr(_local, "connection", None)
    if held_connection is not None:
        yield held_connection
        return
    try:
        connection = _free.pop()
    except IndexError:
        connection = _opened()
    _local.connection = connection
    try:
        yield connection
    finally:
        _local.connection = None
        _free.append(connection)


def _opened() -> duckdb.DuckDBPyConnection:
    try:
        os.getcwd()
    except FileNotFoundError:  # a Spark worker that is used again after its session: DuckDB would open nothing
        os.chdir(tempfile.gettempdir())
    config: dict[str, Any] = {
        "threads": 1, "memory_limit": MEMORY_LIMIT, "autoinstall_known_extensions": False,
        "autoload_known_extensions": False, "enable_external_access": False,
        "temp_directory": "",  # DuckDB lets a query read and write files there, also without external access
    }  # fmt: skip
    connection = duckdb.connect(config=config)
    connection.execute("SET TimeZone = 'UTC'; SET python_enable_replacements = false; SET lock_configuration = true")
    return connection


def _refuse_nan(text: str, table: pa.Table) -> None:
    """Raise ValueError if a column that the query names has NaN; a column that it does not name passes unchanged."""
    for name in table.column_names:
        if is_nan(one_chunk(table[name])).any() and re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE):
            raise ValueError(f"column {name} has NaN, and DuckDB's DECIMAL has not: a rule of kind row can change it")


def _narrow(table: pa.Table) -> pa.Table:
    if not any(_wide(field.type) for field in table.schema):
        return table
    columns = [
        _narrowed(column.combine_chunks()) if _wide(field.type) else column
        for column, field in zip(table.columns, table.schema, strict=True)
    ]
    return pa.table(columns, names=table.schema.names)


def _wide(kind: pa.DataType) -> bool:
    return pa.types.is_decimal256(kind) or (pa.types.is_struct(kind) and any(_wide(child.type) for child in kind))


def _narrowed(array: pa.Array) -> pa.Array:
    if pa.types.is_decimal256(array.type):
        return cast(array, pa.string())
    if pa.types.is_struct(array.type):
        children = [_narrowed(array.field(i)) for i in range(array.type.num_fields)]
        names = [array.type.field(i).name for i in range(array.type.num_fields)]
        return pa.StructArray.from_arrays(children, names, mask=pc.is_null(array))
    return array
