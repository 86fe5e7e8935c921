"""Running one rule over one table of images, by kind. A new kind is one function and one line at the bottom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from sluice.errors import RuleError
from sluice.model.tables import TableId, stored_name
from sluice.rules import images
from sluice.rules.context import RuleContext
from sluice.rules.engine import RuleKind
from sluice.rules.script import Rule
from sluice.rules.values import from_python, inferred, to_python, to_rows, true_name

_EVENTS = {"i": "insert", "u": "update", "d": "delete"}


def run(rule: Rule, rows: pa.Table, table: TableId) -> pa.Table:
    """``rows`` (user columns and ``images.INTERNAL``) through one rule. Raises RuleError."""
    return _KINDS[rule.config.type](rule, rows, table)


def _context(rule: Rule, rows: pa.Table, table: TableId) -> RuleContext:
    schema = rows.schema
    key = tuple(true_name(schema.field(name)) for name in images.key_columns(schema))
    return RuleContext(rule.name, table.schema, table.table, key, rule.config.params)


def _row(rule: Rule, rows: pa.Table, table: TableId) -> pa.Table:
    """dict -> dict, None or a list of dicts."""
    function = rule.function()
    fields = {true_name(f): f for f in rows.schema if f.name not in images.INTERNAL}
    dicts = to_rows(list(fields), [rows[f.name] for f in fields.values()])
    before_type = rows.schema.field("_before").type
    struct = rows["_before"].combine_chunks()
    befores = to_rows([true_name(f) for f in before_type], struct.flatten())
    existed = struct.is_valid().to_pylist()
    ops, commits = rows["_op"].to_pylist(), to_python(rows["_commit_ts"])
    kinds = rows["_image"].to_pylist()
    context = _context(rule, rows, table)
    results: list[dict[str, Any]] = []
    origin: list[int] = []
    for index, row in enumerate(dicts):
        context.op = _EVENTS[ops[index]]  # type: ignore[assignment]
        context.image = "before" if kinds[index] == images.SHADOW else "after"
        context.before = befores[index] if existed[index] and context.image == "after" else None
        context.commit_time = commits[index]
        key = {name: row.get(name) for name in context.key}
        try:
            result = function(row, context)
        except Exception as error:
            raise _failed(rule, error, f"failed on {context.op} of {table} {_key_text(key)}") from error
        if result is None:
            continue
        for item in result if isinstance(result, list | tuple) else (result,):
            if not isinstance(item, dict):
                raise RuleError(
                    f"rule {rule.name!r} returned {type(item).__name__} for {table} {_key_text(key)}",
                    where=f"{rule.path}:{function.__code__.co_firstlineno if hasattr(function, '__code__') else 1}",
                    hint="return the row (a dict), None to leave it out, or a list of rows",
                )
            results.append(item)
            origin.append(index)
    return _columns(rule, rows, table, fields, results, origin)


def _columns(
    rule: Rule,
    rows: pa.Table,
    table: TableId,
    fields: dict[str, pa.Field],
    results: list[dict[str, Any]],
    origin: list[int],
) -> pa.Table:
    """Dicts back to Arrow. A column is gone if all rows lack it; some rows lacking it is an error."""
    taken = rows.take(pa.array(origin, pa.int64()))
    if not results:
        return taken
    names = dict.fromkeys(name for row in results for name in row)
    ordered = [name for name in fields if name in names] + [name for name in names if name not in fields]
    columns: list[Any] = []
    schema: list[pa.Field] = []
    for name in ordered:
        try:
            values = [row[name] for row in results]
        except KeyError:
            lacking = next(i for i, row in enumerate(results) if name not in row)
            raise RuleError(
                f"rule {rule.name!r} returned a row of {table} without column {name!r}, which other rows have "
                f"({_key_text(_key_of(taken, lacking))})",
                where=f"{rule.path}:1",
                hint=f"set row[{name!r}] = None to send NULL, or take the column out of every row",
            ) from None
        try:
            if name in fields:
                array, field = from_python(values, fields[name]), fields[name]
            else:
                array = inferred(values)
                field = pa.field(stored_name(str(name)), array.type, metadata={"sluice.name": str(name)})
        except ValueError as error:
            raise RuleError(
                f"rule {rule.name!r} returned a value for column {name!r} of {table} that does not fit: {error}",
                where=f"{rule.path}:1",
            ) from error
        columns.append(array)
        schema.append(field)
    for name in images.INTERNAL:
        columns.append(taken[name])
        schema.append(taken.schema.field(name))
    return pa.table(columns, schema=pa.schema(schema))


def _arrow(rule: Rule, rows: pa.Table, table: TableId) -> pa.Table:
    """pa.Table -> pa.Table. ``_op``, ``_seq``, ``_commit_ts``, ``_before`` and ``_image`` have to stay."""
    function = rule.function()
    try:
        result = function(rows, _context(rule, rows, table))
    except Exception as error:
        raise _failed(rule, error, f"failed on {table}") from error
    return _checked_table(rule, rows, result, table)


def _pandas(rule: Rule, rows: pa.Table, table: TableId) -> pa.Table:
    """DataFrame (Arrow-backed columns) -> DataFrame."""
    import pandas as pd

    function = rule.function()
    hidden = rows.select(["_before"])
    frame = rows.drop_columns(["_before"]).to_pandas(types_mapper=pd.ArrowDtype)
    try:
        result = function(frame, _context(rule, rows, table))
    except Exception as error:
        raise _failed(rule, error, f"failed on {table}") from error
    if not isinstance(result, pd.DataFrame):
        raise RuleError(
            f"rule {rule.name!r} returned {type(result).__name__} for {table}",
            where=f"{rule.path}:1",
            hint="return a DataFrame that keeps the index of the rows",
        )
    back = pa.Table.from_pandas(result, preserve_index=False)
    back = back.append_column(rows.schema.field("_before"), hidden["_before"].take(pa.array(result.index.to_numpy())))
    return _checked_table(rule, rows, back, table)


def _checked_table(rule: Rule, rows: pa.Table, result: Any, table: TableId) -> pa.Table:
    if not isinstance(result, pa.Table):
        raise RuleError(
            f"rule {rule.name!r} returned {type(result).__name__} for {table}",
            where=f"{rule.path}:1",
            hint="return a pyarrow.Table",
        )
    missing = [name for name in images.INTERNAL if name not in result.schema.names]
    if missing:
        raise RuleError(
            f"rule {rule.name!r} lost the column {missing[0]} of {table}",
            where=f"{rule.path}:1",
            hint="keep it as it is",
        )
    columns, schema = [], []
    for name in [n for n in result.schema.names if n not in images.INTERNAL] + list(images.INTERNAL):
        known = rows.schema.field(name) if name in rows.schema.names else None
        field = known or pa.field(name, result.schema.field(name).type, metadata={"sluice.name": name})
        try:
            columns.append(result[name].cast(field.type) if result[name].type != field.type else result[name])
        except pa.ArrowException as error:
            raise RuleError(
                f"rule {rule.name!r} returned a value for column {name!r} of {table} that does not fit: {error}",
                where=f"{rule.path}:1",
            ) from error
        schema.append(field)
    return pa.table(columns, schema=pa.schema(schema))


def _failed(rule: Rule, error: Exception, what: str) -> RuleError:
    return error if isinstance(error, RuleError) else rule.error(error, what)


def _key_of(rows: pa.Table, index: int) -> dict[str, Any]:
    schema = rows.schema
    return {true_name(schema.field(name)): rows[name][index].as_py() for name in images.key_columns(schema)}


def _key_text(key: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in key.items()) or "(a table without a key)"


_KINDS: dict[RuleKind, Callable[[Rule, pa.Table, TableId], pa.Table]] = {
    RuleKind.ROW: _row,
    RuleKind.ARROW: _arrow,
    RuleKind.PANDAS: _pandas,
}
