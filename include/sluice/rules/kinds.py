"""Running one rule over one table of images, by kind. A new kind is one function and one line at the bottom."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.config.engine import OnError, RuleKind
from sluice.config.masking import SHOWN
from sluice.errors import RuleError, SluiceError
from sluice.model.fields import declared_type, key_columns, made_field, true_name
from sluice.model.tables import TableId
from sluice.rules import guard, images, views
from sluice.rules.context import RuleContext, Sent
from sluice.rules.lookups import Lookup
from sluice.rules.script import RETRIED, Rule
from sluice.rules.values import fitted, from_python, inferred, to_python, to_rows

_EVENTS = {"i": "insert", "u": "update", "d": "delete"}

Tables = dict[TableId, pa.Table]
"""IMAGE_ROWS by the table that they go on as."""


@dataclass
class Run:
    """One rule at work on one table.

    Attributes:
        hidden: names of the columns whose values must not be shown.
        failed: merged rows (``_source_row``) on which the rule raised, and why.
        clock: of the call under way. late: one took longer than the rule's timeout, which stops the batch whatever
            ``on_error`` says.
        unknown: merged rows of which only the old image made it raise: such a row did not get to the target, so nothing
            has to leave it.
    """

    rule: Rule
    table: TableId
    lookups: Mapping[str, Lookup] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    failed: dict[int, RuleError] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    clock: guard.Clock = field(default_factory=guard.Clock)
    late: bool = False

    def context(self, rows: pa.Table) -> RuleContext:
        """Return the context of these rows."""
        key = tuple(true_name(rows.schema.field(name)) for name in key_columns(rows.schema))
        return RuleContext(
            rule=self.rule.name,
            schema=self.table.schema,
            table=self.table.table,
            key=key,
            params=self.rule.params(),
            lookups=self.lookups,
        )

    def error(self, error: BaseException, what: str) -> RuleError:
        """Wrap what the user's code raised in a RuleError."""
        return error if isinstance(error, RuleError) else self.rule.error(error, what, withheld=bool(self.hidden))

    def key_text(self, key: Mapping[str, Any]) -> str:
        """Return a key as text for messages, masked where configured."""
        if not key:
            return "(a table without a key)"
        return ", ".join(f"{name}={SHOWN if name in self.hidden else repr(value)}" for name, value in key.items())

    def fail(self, source_row: int, image: int, error: RuleError) -> None:
        """Note a row that failed. Raises the error if the rule says stop, or too many failed."""
        config = self.rule.config
        if config.on_error is OnError.STOP:
            if self.hidden:
                raise error from None
            raise error
        if image == images.SHADOW:
            self.unknown.add(source_row)
            return
        self.failed.setdefault(source_row, error)
        if len(self.failed) > config.max_errors:
            raise RuleError(
                f"{error.message} (and {config.max_errors} rows of {self.table} before it: more than max_errors)",
                where=error.where,
                hint=f"fix the rule; {RETRIED}",
            ) from None


def run(work: Run, rows: pa.Table) -> Tables:
    """Run ``rows`` (user columns and internal ones) through one rule.

    Return the rows by table; the rule's own table is always among them.

    With ``on_error`` other than stop, rows that fail are found, noted in ``work.failed`` and left out with all of their
    images.

    Raises:
        RuleError: names rule, file:line and table.
    """
    kind = _in_time(_KINDS[work.rule.kind])
    work.rule.params()  # what is wrong with the rule itself is no row's fault
    try:
        tables = kind(work, rows)
    except RuleError:
        if work.late or work.rule.config.on_error is OnError.STOP or len(work.failed) > work.rule.config.max_errors:
            raise
        _find_failing(kind, work, rows)
        tables = kind(work, without(rows, work.failed, work.unknown))
    return {table: without(part, work.failed) for table, part in tables.items()} if work.failed else tables


def _in_time(kind: Callable[[Run, pa.Table], Tables]) -> Callable[[Run, pa.Table], Tables]:
    """Limit the time of ``kind``, and turn what is raised other than Exception into an error that names the rule."""

    def limited(work: Run, rows: pa.Table) -> Tables:
        rule = work.rule
        if rule.config.builtin is not None and rule.config.builtin not in _QUERIES:
            return kind(work, rows)
        timing = _limited_sql if rule.kind is RuleKind.SQL or rule.config.builtin else _limited_python
        try:
            return timing(kind, work, rows)
        except guard.Overrun as error:
            work.late = True
            raise rule.error(error, f"stopped on {work.table}") from None
        except guard.Escaped as escaped:
            raise _failed(work, escaped.error) from None

    return limited


_QUERIES = frozenset({"filter", "hash"})
"""Built-in rules that run SQL of DuckDB."""


def _limited_python(kind: Callable[[Run, pa.Table], Tables], work: Run, rows: pa.Table) -> Tables:
    return guard.call(
        lambda: kind(work, rows),
        label=work.rule.name,
        seconds=work.rule.limit_s,
        clock=work.clock,
        withheld=bool(work.hidden),
    )


def _limited_sql(kind: Callable[[Run, pa.Table], Tables], work: Run, rows: pa.Table) -> Tables:
    """Run the query in this thread, which keeps its DuckDB connection, and interrupt it if it takes too long."""
    from sluice.rules import sql

    with sql.interrupted_after(work.rule.limit_s) as over:
        try:
            return kind(work, rows)
        except SluiceError:
            if over():
                raise guard.Overrun(work.rule.limit_s, traceback.StackSummary()) from None
            raise


def _find_failing(kind: Callable[[Run, pa.Table], Tables], work: Run, rows: pa.Table) -> None:
    """Note every row that fails alone. Failing rows are found by halving the rows."""
    try:
        kind(work, rows)
    except RuleError as error:
        if work.late or len(work.failed) > work.rule.config.max_errors:
            raise
        if rows.num_rows == 1:
            work.fail(rows["_source_row"][0].as_py(), rows["_image"][0].as_py(), error)
            return
        half = rows.num_rows // 2
        _find_failing(kind, work, rows.slice(0, half))
        _find_failing(kind, work, rows.slice(half))


def without(rows: pa.Table, failed: Mapping[int, Any], unknown: Collection[int] = ()) -> pa.Table:
    """Return the rows of which no image failed, without the old images of ``unknown``."""
    if not failed and not unknown:
        return rows
    numbers = rows["_source_row"].to_numpy()
    is_removed = np.isin(numbers, np.fromiter(failed, np.int64))
    is_removed |= np.isin(numbers, np.fromiter(unknown, np.int64)) & (rows["_image"].to_numpy() == images.SHADOW)
    return rows.filter(pa.array(~is_removed)) if is_removed.any() else rows


def _row(work: Run, rows: pa.Table) -> Tables:
    """Call the rule per row: dict -> dict, None or a list of dicts. Rows made by ``context.to`` go to another table."""
    rule, table = work.rule, work.table
    function = rule.function()
    fields = {true_name(f): f for f in rows.schema if f.name not in images.INTERNAL}
    dicts = to_rows(list(fields), [rows[f.name] for f in fields.values()])
    struct = views.before_images(rows)
    befores = to_rows([true_name(f) for f in struct.type], struct.flatten())
    existed = struct.is_valid().to_pylist()
    ops, commits = rows["_op"].to_pylist(), to_python(rows["_commit_ts"])
    kinds, origins = rows["_image"].to_pylist(), rows["_source_row"].to_pylist()
    made_at = views.with_origin(rows)["_origin"].to_pylist()
    context = work.context(rows)
    results: dict[TableId, tuple[list[dict[str, Any]], list[int]]] = {table: ([], [])}
    for index, row in enumerate(dicts):
        if origins[index] in work.failed or (kinds[index] == images.SHADOW and origins[index] in work.unknown):
            continue
        context.op = _EVENTS[ops[index]]  # type: ignore[assignment]
        context.image = "before" if kinds[index] == images.SHADOW else "after"
        context.before = befores[index] if existed[index] else None
        context.commit_time = commits[index]
        context.origin = made_at[index]
        key = {name: row.get(name) for name in context.key}
        work.clock.restart()
        try:
            result = function(row, context)
        except guard.Stopped:
            raise
        except BaseException as error:
            work.fail(
                origins[index],
                kinds[index],
                work.error(error, f"failed on {context.op} of {table} {work.key_text(key)}"),
            )
            continue
        if result is None:
            continue
        for item in result if isinstance(result, list | tuple) else (result,):
            if not isinstance(item, dict):
                wrong = RuleError(
                    f"rule {rule.name!r} returned {type(item).__name__} for {table} {work.key_text(key)}",
                    where=f"{rule.path}:{function.__code__.co_firstlineno if hasattr(function, '__code__') else 1}",
                    hint="return the row (a dict), None to leave it out, or a list of rows",
                )
                work.fail(origins[index], kinds[index], wrong)
                break
            place = views.table_id(item.table, table) if isinstance(item, Sent) else table
            items, origin = results.setdefault(place, ([], []))
            items.append(item)
            origin.append(index)
    return {place: _columns(work, rows, place, fields, items, origin) for place, (items, origin) in results.items()}


def _columns(
    work: Run,
    rows: pa.Table,
    table: TableId,
    fields: dict[str, pa.Field],
    results: list[dict[str, Any]],
    origin: list[int],
) -> pa.Table:
    """Convert dicts back to Arrow. A column is gone if all rows lack it; it is an error if only some rows lack it."""
    rule = work.rule
    source_rows = rows.take(pa.array(origin, pa.int64()))
    if not results:
        return source_rows
    names = dict.fromkeys(name for row in results for name in row)
    ordered = [name for name in fields if name in names] + [name for name in names if name not in fields]
    columns: list[Any] = []
    schema: list[pa.Field] = []
    for name in ordered:
        try:
            values = [row[name] for row in results]
        except KeyError:
            lacking = next(i for i, row in enumerate(results) if name not in row)
            key = work.key_text({
                k: results[lacking].get(k) for k in fields if fields[k].name in key_columns(rows.schema)
            })
            raise RuleError(
                f"rule {rule.name!r} returned a row without column {name!r} for {table} {key}, and others with it",
                where=rule.home,
                hint=f"set row[{name!r}] = None to send NULL, or take the column out of every row",
            ) from None
        try:
            if name in fields:
                array, column_field = from_python(values, fields[name]), fields[name]
            else:
                array = inferred(values)
                column_field = made_field(str(name), array.type)
        except ValueError as error:
            reason = "(the value is withheld: the table has masked columns)" if work.hidden else str(error)
            raise RuleError(
                f"rule {rule.name!r} returned a value for column {name!r} of {table} that does not fit: {reason}",
                where=rule.home,
            ) from None
        columns.append(array)
        schema.append(column_field)
    for index, internal in enumerate(source_rows.schema):
        if internal.name in images.INTERNAL:
            columns.append(source_rows.column(index))
            schema.append(internal)
    return pa.table(columns, schema=pa.schema(schema))


def _arrow(work: Run, rows: pa.Table) -> Tables:
    """Call the rule: pa.Table -> pa.Table. The result must have ``_row``."""
    function = work.rule.function()
    try:
        result = function(views.view(rows), work.context(rows))
    except guard.Stopped:
        raise
    except BaseException as error:
        raise _failed(work, error) from (None if work.hidden else error)
    if not isinstance(result, pa.Table):
        raise _not_a(work, result, "a pyarrow.Table")
    return _restored(work, rows, result)


def _pandas(work: Run, rows: pa.Table) -> Tables:
    """Call the rule: DataFrame (Arrow-backed columns) -> DataFrame. The result must have ``_row``."""
    import pandas as pd

    function = work.rule.function()
    frame = views.view(rows).to_pandas(types_mapper=pd.ArrowDtype)
    try:
        result = function(frame, work.context(rows))
    except guard.Stopped:
        raise
    except BaseException as error:
        raise _failed(work, error) from (None if work.hidden else error)
    if not isinstance(result, pd.DataFrame):
        raise _not_a(work, result, "a DataFrame")
    internal = [name for name in result.columns if name in images.INTERNAL and name not in {"_row", "_table"}]
    try:
        back = pa.Table.from_pandas(result.drop(columns=internal), preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise _failed(work, error) from (None if work.hidden else error)
    return _restored(work, rows, back)


def _sql(work: Run, rows: pa.Table) -> Tables:
    """Run one SELECT over the table ``rows``. The result must have ``_row``."""
    from sluice.rules import sql  # DuckDB is loaded by those who need it

    params = work.rule.params()
    try:
        result = sql.select(
            work.rule.text, views.view(rows), params, {n: lookup.table for n, lookup in work.lookups.items()}
        )
    except Exception as error:
        raise _failed(work, error) from (None if work.hidden else error)
    return _restored(work, rows, result)


def _restored(work: Run, rows: pa.Table, result: pa.Table) -> Tables:
    """Add the metadata columns to the rule's result again, and divide it by table."""
    rule = work.rule
    if "_row" not in result.schema.names:
        raise RuleError(
            f"rule {rule.name!r} lost the column _row of {work.table}, which says what row each result came from",
            where=rule.home,
            hint="keep it as it is: SELECT *, or SELECT _row, …" if rule.kind is RuleKind.SQL else "keep it as it is",
        )
    origin = result["_row"].combine_chunks()
    try:
        source_rows = rows.take(origin)
    except (pa.ArrowException, IndexError) as error:
        raise RuleError(
            f"rule {rule.name!r} changed the values of column _row of {work.table}",
            where=rule.home,
            hint="keep it as it is",
        ) from error
    columns, schema = [], []
    for name in images.user_columns(result.schema):
        if name == "_row":
            continue
        declared_field = _declared(result.schema.field(name), rows.schema)
        try:
            column = fitted(result[name], declared_field.type if declared_field is not None else None)
        except (pa.ArrowException, ValueError) as error:
            reason = "(the value is withheld: the table has masked columns)" if work.hidden else str(error)
            raise RuleError(
                f"rule {rule.name!r} returned a value for column {name!r} of {work.table} that does not fit: {reason}",
                where=rule.home,
            ) from None
        columns.append(column)
        schema.append(declared_field if declared_field is not None else made_field(name, column.type))
    revived = _revived(source_rows, result)
    for index, internal in enumerate(source_rows.schema):
        if internal.name in images.INTERNAL:
            columns.append(revived.get(internal.name, source_rows.column(index)))
            schema.append(internal)
    restored = pa.table(columns, schema=pa.schema(schema))
    if "_table" not in result.schema.names:
        return {work.table: restored}
    return views.by_table(restored, result["_table"], work.table)


def _declared(field: pa.Field, schema: pa.Schema) -> pa.Field | None:
    """Return the field of a result column: the source's, unless the rule gave it another name or type.

    A rule does so by ``sluice.*`` metadata.
    """
    before = schema.field(field.name) if field.name in schema.names else None
    if before is not None and declared_type(field) in {"", declared_type(before)}:
        return before
    return field if any(key.startswith(b"sluice.") for key in field.metadata or {}) else None


def _revived(source_rows: pa.Table, result: pa.Table) -> dict[str, pa.Array]:
    """Find deletes that the rule returned with ``_op`` u: from here on the row stays.

    ``_image`` says which of its images a row is.
    """
    if "_op" not in result.schema.names or "_image" not in result.schema.names:
        return {}
    stays = pc.and_(pc.equal(source_rows["_image"], images.DELETED), pc.equal(result["_op"], "u")).combine_chunks()
    if not pc.any(stays).as_py():
        return {}
    kind = pc.if_else(
        pc.equal(result["_image"], "before"), pa.scalar(images.SHADOW, pa.int8()), pa.scalar(images.AFTER, pa.int8())
    )
    return {"_image": pc.if_else(stays, kind, source_rows["_image"]), "_op": pc.if_else(stays, "u", source_rows["_op"])}


def _failed(work: Run, error: BaseException) -> SluiceError:
    return error if isinstance(error, SluiceError) else work.error(error, f"failed on {work.table}")


def _not_a(work: Run, result: Any, what: str) -> RuleError:
    return RuleError(
        f"rule {work.rule.name!r} returned {type(result).__name__} for {work.table}",
        where=work.rule.home,
        hint=f"return {what}",
    )


_KINDS: dict[RuleKind, Callable[[Run, pa.Table], Tables]] = {
    RuleKind.ROW: _row,
    RuleKind.ARROW: _arrow,
    RuleKind.PANDAS: _pandas,
    RuleKind.SQL: _sql,
}
