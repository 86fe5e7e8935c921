"""A stage that begins with a rule of type spark: DataFrame in, DataFrame out, then work units like in any other
stage.
"""

from __future__ import annotations

import pickle
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.config import patterns
from sluice.config.masking import Masking
from sluice.errors import RuleError, SluiceError
from sluice.flows.transform.stage_manifest import StageManifest, StageTable
from sluice.model.fields import key_columns, made_field, true_name
from sluice.model.layouts import FRAME_ROWS, told
from sluice.model.tables import TableId
from sluice.rules import RuleContext, RuleCount, images, views
from sluice.rules.lookups import Lookup, LookupSource, resolved
from sluice.rules.ruleset import emitted, matches, sees
from sluice.rules.script import RETRIED, Rule
from sluice.rules.values import fitted
from sluice.segments.buckets import key_bucket
from sluice.segments.changeset import ChangesetFile, changeset_file_path, read_changeset_file, write_changeset_file
from sluice.segments.store import SegmentStore
from sluice.spark.base import UnitRunner

if TYPE_CHECKING:
    from sluice.spark.frames import FrameTable

BATCH_ROWS = 20_000
_KEPT = ("_op", "_seq", "_commit_ts", "_image")
"""The columns that a rule of type spark has to keep."""

_USER_LINE = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True, slots=True)
class Framed:
    """The output of a rule of type spark for the tables that it matches.

    Attributes:
        images: files of FRAME_ROWS by table, to be folded.
        inputs: files of MERGED_ROWS, some rows of which may not match the rule.
        count: rows in and out, seconds.
    """

    images: dict[TableId, tuple[ChangesetFile, ...]]
    inputs: dict[TableId, tuple[ChangesetFile, ...]]
    untouched: tuple[StageTable, ...]
    count: RuleCount


@dataclass(frozen=True)
class _Framing:
    """The way of tables through a rule of type spark.

    Attributes:
        function: the rule's.
        held: its lookups.
    """

    rule: Rule
    function: Any
    held: dict[str, Lookup]

    def table(
        self,
        table: TableId,
        stored: pa.Schema,
        partitions: int,
        read: Callable[[int], Iterator[pa.RecordBatch]],
        write: Callable[[Iterator[pa.RecordBatch]], bytes | None],
        *,
        hidden: bool,
    ) -> FrameTable:
        """Describe one table for the Spark job.

        ``stored``: schema of its MERGED_ROWS; ``hidden``: an error must not show its values.
        """
        from sluice.spark.frames import FrameTable, plain_type

        shown_schema = views.view(images.unfold(stored.empty_table())).schema
        key = tuple(true_name(stored.field(name)) for name in key_columns(stored))
        context = RuleContext(
            rule=self.rule.name,
            schema=table.schema,
            table=table.table,
            key=key,
            params=self.rule.params(),
            lookups=self.held,
        )
        return FrameTable(
            pa.schema([pa.field(field.name, plain_type(field.type)) for field in shown_schema]),
            partitions,
            read,
            partial(_transform, self.rule, self.function, context, hidden),
            write,
            sys.modules.get(self.function.__module__),
        )


def run_frames(
    runner: UnitRunner,
    store: SegmentStore,
    manifest: StageManifest,
    attempt: str,
    rule: Rule,
    *,
    masking: Masking,
    lookups: LookupSource | None,
) -> Framed:
    """Run one Spark job for all tables that ``rule`` matches. Raises RuleError, SparkUnavailable, SegmentError."""
    started = time.perf_counter()
    concerned = [table for table in manifest.tables if matches(rule, table.table_id)]
    framing = _Framing(rule, rule.function(), resolved(rule.config.lookups, lookups))
    tables = []
    for table in concerned:
        with store.open_input(table.files[0].path) as source:
            stored = pq.read_schema(source)
        read = partial(_read, store.uri, store.pipeline, table.files, rule)
        write = partial(
            _write, store.uri, store.pipeline, manifest.batch, attempt, table.table_id, stored=stored, rule=rule
        )
        hidden = masking.hidden(table.schema_, table.table, map(true_name, stored))
        tables.append(framing.table(table.table_id, stored, len(table.files), read, write, hidden=bool(hidden)))
    try:
        reports = (
            runner.frames(tables, description=f"{store.pipeline}: rule {rule.name} on batch {manifest.batch}")
            if tables
            else []
        )
    except SluiceError:
        raise
    except Exception as error:  # Spark's error about the rule's own plan or functions
        names = ", ".join(str(t.table_id) for t in concerned[:3]) + (" …" if len(concerned) > 3 else "")
        raise _failed(rule, error, names, withheld=bool(masking)) from None
    files: dict[TableId, list[ChangesetFile]] = {}
    rows_out = 0
    for report in reports:
        for place, file, visible in pickle.loads(report):  # noqa: S301 - written by our own workers just before
            files.setdefault(place, []).append(file)
            rows_out += visible
    rows_in = sum(file.rows for table in concerned for file in table.files)
    inputs = {table.table_id: table.files for table in concerned} if _may_pass(rule) else {}
    untouched = tuple(table for table in manifest.tables if table not in concerned)
    count = RuleCount(rule.name, rows_in, rows_out, time.perf_counter() - started, changed=None)
    return Framed({place: tuple(files) for place, files in files.items()}, inputs, untouched, count)


def _may_pass(rule: Rule) -> bool:
    """Return True if rows of a matching table may not match the rule."""
    match = rule.config.match
    seen_events = {event for event in match.events if patterns.fullmatch(match.operation, event)}
    return bool(match.columns) or not {"insert", "update", "delete"} <= seen_events


def _read(
    uri: str, pipeline: str, files: tuple[ChangesetFile, ...], rule: Rule, number: int
) -> Iterator[pa.RecordBatch]:
    yield from _shown(rule, read_changeset_file(SegmentStore(uri, pipeline), files[number]), number)


def _transform(rule: Rule, function: Any, context: RuleContext, hidden: bool, frame: Any) -> Any:
    where = f"{context.schema}.{context.table}"
    result = frame
    try:
        result = function(frame, context)
        columns = list(result.columns)
    except SluiceError:
        raise
    except AttributeError as error:
        if not hasattr(result, "columns"):
            raise RuleError(
                f"rule {rule.name!r} returned no DataFrame for {where}", where=rule.home, hint="return a DataFrame"
            ) from None
        raise rule.error(error, f"failed on {where}", withheld=hidden) from None
    except (Exception, SystemExit) as error:
        raise rule.error(error, f"failed on {where}", withheld=hidden) from None
    lost = [name for name in _KEPT if name not in columns]
    if lost:
        raise RuleError(
            f"rule {rule.name!r} lost the column {lost[0]} of {where}",
            where=rule.home,
            hint="keep every column that begins with _",
        )
    return result


def _images_of(rows: pa.Table, table: TableId, stored: pa.Schema, rule: Rule) -> dict[TableId, pa.Table]:
    """Return the rows of the resulting DataFrame as FRAME_ROWS, by table.

    ``stored``: schema of the merged rows that went in.
    """
    columns, fields = [], []
    for name in images.user_columns(rows.schema):
        if name == "_row":
            continue
        stored_field = stored.field(name) if name in stored.names else None
        try:
            column = fitted(rows[name], stored_field.type if stored_field is not None else None)
        except (pa.ArrowException, ValueError):
            raise RuleError(
                f"rule {rule.name!r} returned a value for column {name!r} of {table} that does not fit", where=rule.home
            ) from None
        columns.append(column)
        new_field = made_field(name, column.type)
        fields.append(stored_field if stored_field is not None else new_field)
    shadow, deleted = pc.equal(rows["_image"], "before"), pc.equal(rows["_op"], "d")
    kinds = [pa.scalar(kind, pa.int8()) for kind in (images.SHADOW, images.DELETED, images.AFTER)]
    for name in ("_op", "_seq", "_commit_ts", *(name for name in told(stored) if name in rows.schema.names)):
        columns.append(rows[name].cast(stored.field(name).type))
        fields.append(stored.field(name))
    columns.append(pc.if_else(shadow, kinds[0], pc.if_else(deleted, kinds[1], kinds[2])))
    fields.append(pa.field("_image", pa.int8()))
    frame = pa.table(columns, schema=pa.schema(fields))
    places = views.by_table(frame, rows["_table"], table) if "_table" in rows.schema.names else {table: frame}
    key = key_columns(stored)
    return {place: emitted(rule, part, place, table, key) for place, part in places.items() if part.num_rows}


def _write(
    uri: str,
    pipeline: str,
    batch: int,
    attempt: str,
    table: TableId,
    batches: Iterator[pa.RecordBatch],
    *,
    stored: pa.Schema,
    rule: Rule,
) -> bytes | None:
    """Write the images of one partition to files.

    Names are unique: a task that Spark runs twice leaves an orphaned file.
    """
    frame = _whole(batches)
    if frame is None:
        return None
    store = SegmentStore(uri, pipeline)
    report = []
    for place, part in _images_of(frame, table, stored, rule).items():
        FRAME_ROWS.require(part.schema, where=str(place))
        path = changeset_file_path(store, batch, attempt, place, f"images-{uuid.uuid4().hex[:16]}")
        report.append((place, write_changeset_file(store, path, part, (0, 63)), images.visible(part)))
    return pickle.dumps(report)


def framed_rows(
    runner: UnitRunner,
    pipeline: str,
    rule: Rule,
    table: TableId,
    rows: pa.Table,
    *,
    masking: Masking,
    lookups: LookupSource | None,
) -> dict[TableId, pa.Table]:
    """Run a rule of type spark on MERGED_ROWS of one table, in memory, in one job. Return MERGED_ROWS by table.

    Raises RuleError, SparkUnavailable.
    """
    if not rows.num_rows or not matches(rule, table):
        return {table: rows}
    hidden = bool(masking.hidden(table.schema, table.table, map(true_name, rows.schema)))
    framing = _Framing(rule, rule.function(), resolved(rule.config.lookups, lookups))
    read, write = partial(_shown, rule, rows), partial(_reported, 0, table, rows.schema, rule)
    frame = framing.table(table, rows.schema, 1, read, write, hidden=hidden)
    try:
        reports = runner.frames([frame], description=f"{pipeline}: rule {rule.name} on rows of {table}")
    except SluiceError:
        raise
    except Exception as error:
        raise _failed(rule, error, str(table), withheld=hidden) from None
    parts_by_table: dict[TableId, list[pa.Table]] = {}
    for report in reports:
        _, places = pickle.loads(report)  # noqa: S301 - written by our own workers just before
        for place, part in places.items():
            parts_by_table.setdefault(place, []).append(part)
    passed = _passing(rule, rows) if _may_pass(rule) else None
    if passed is not None and passed.num_rows:
        parts_by_table.setdefault(table, []).append(passed)
    return {
        place: _folded(pa.concat_tables(parts, promote_options="permissive")) for place, parts in parts_by_table.items()
    }


def _shown(rule: Rule, rows: pa.Table, _: int) -> Iterator[pa.RecordBatch]:
    """Yield what ``rule`` sees of MERGED_ROWS, in Spark's types."""
    from sluice.spark.frames import plain

    unfolded = images.unfold(rows)
    seen_view = views.view(unfolded.filter(pa.array(sees(rule, unfolded))))
    yield from pa.table([plain(column) for column in seen_view.columns], names=seen_view.schema.names).to_batches(
        BATCH_ROWS
    )


def _reported(
    number: int, table: TableId, stored: pa.Schema, rule: Rule, batches: Iterator[pa.RecordBatch]
) -> bytes | None:
    """Return the images of one partition, pickled, with the number of the input."""
    frame = _whole(batches)
    return None if frame is None else pickle.dumps((number, _images_of(frame, table, stored, rule)))


def _whole(batches: Iterator[pa.RecordBatch]) -> pa.Table | None:
    """Join the batches; return None if there are no rows."""
    parts = list(batches)
    return pa.Table.from_batches(parts) if any(part.num_rows for part in parts) else None


def try_frames(
    rule: Rule, table: TableId, rows: pa.Table, lookups: LookupSource | None
) -> list[dict[TableId, pa.Table]]:
    """Run each merged row alone through a rule of type spark, in one job of a session in this process.

    Return the result of each.
    """
    from sluice.spark.frames import local_session, run_frames

    framing = _Framing(rule, rule.function(), resolved(rule.config.lookups, lookups))
    tables = []
    for number in range(rows.num_rows):
        read = partial(_shown, rule, rows.slice(number, 1))
        write = partial(_reported, number, table, rows.schema, rule)
        tables.append(framing.table(table, rows.schema, 1, read, write, hidden=False))
    try:
        reports = run_frames(local_session(), tables)
    except SluiceError:
        raise
    except Exception as error:
        raise _failed(rule, error, str(table), withheld=False) from None
    frames: list[dict[TableId, pa.Table]] = [{} for _ in range(rows.num_rows)]
    for report in reports:
        number, parts = pickle.loads(report)  # noqa: S301 - written by our own workers just before
        frames[number] = {place: _folded(part) for place, part in parts.items()}
    for number in range(rows.num_rows):
        unfolded = images.unfold(rows.slice(number, 1))
        if not sees(rule, unfolded).any():
            frames[number] = {table: rows.slice(number, 1)}
    return frames


def _folded(rows: pa.Table) -> pa.Table:
    """Convert FRAME_ROWS to MERGED_ROWS."""
    append_column = rows.append_column("_before", pa.nulls(rows.num_rows, pa.struct([])))
    append_column = append_column.append_column("_source_row", pa.array(np.zeros(rows.num_rows, np.int64)))
    return images.fold(append_column, key_columns(append_column.schema))


def fold_files(
    store: SegmentStore,
    files: tuple[ChangesetFile, ...],
    inputs: tuple[ChangesetFile, ...],
    rule: Rule,
    share: tuple[int, int],
) -> tuple[pa.Table, int]:
    """Return MERGED_ROWS of one table for a share ``(number, of)`` of its keys, and how many of them did not match the
    rule.
    """
    parts = [read_changeset_file(store, file) for file in files]
    passed = 0
    for file in inputs:
        parts.append(_share(_passing(rule, read_changeset_file(store, file)), share))
        passed += images.visible(parts[-1])
    parts = [_share(part, share) for part in parts]
    concat_tables = pa.concat_tables([p for p in parts if p.num_rows] or parts[:1], promote_options="permissive")
    return _folded(concat_tables), passed


def _passing(rule: Rule, rows: pa.Table) -> pa.Table:
    """Return the rows of MERGED_ROWS that do not match ``rule``, as FRAME_ROWS."""
    unfolded = images.unfold(rows)
    return unfolded.filter(pa.array(~sees(rule, unfolded))).drop_columns(["_before", "_source_row"])


def _share(rows: pa.Table, share: tuple[int, int]) -> pa.Table:
    number, of = share
    key = key_columns(rows.schema)
    if of == 1 or not key or not rows.num_rows:
        return rows
    buckets = key_bucket("", "", [rows[name].combine_chunks() for name in key], rows.num_rows)
    return rows.filter(pa.array(np.asarray(buckets) % of == number))


def _failed(rule: Rule, error: Exception, where: str, *, withheld: bool) -> RuleError:
    """Return a RuleError with Spark's message reduced to the user's line and the innermost exception."""
    lines = [int(line) for path, line in _USER_LINE.findall(str(error)) if path == rule.path]
    text = str(error).strip().splitlines()
    message = next(
        (t for t in reversed(text) if re.match(r"\w*(Error|Exception)\b", t.strip())), text[0] if text else ""
    )
    return RuleError(
        f"rule {rule.name!r} failed on {where}: {type(error).__name__}"
        + ("" if withheld else f": {message.strip()[:500]}"),
        where=f"{rule.path}:{lines[-1] if lines else 1}",
        hint=f"fix the rule; {RETRIED}",
    )
