"""The rows of a stored batch as readers get them: through the pipeline's rules and mapping, without what is not to be
seen.

Decision: rows are made of the segments when they are read, with the rules, the mapping and ``masked`` as their files
are then. A changeset has them as they were when it was made: a column that was excluded or masked since would still be
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

from sluice.errors import SluiceError
from sluice.flows.load.batch_changes import StoredChanges, change_rules
from sluice.flows.runtime import Runtime
from sluice.flows.transform.changeset_writer import known_columns, needs_whole_rows
from sluice.flows.transform.segment_rows import by_table, merged_tables
from sluice.flows.transform.stage_rules import StageRules, tagged_as_made
from sluice.mapping import Mapping as Routes
from sluice.merge.column_presence import is_partial
from sluice.merge.compact import user_columns
from sluice.model.fields import is_masked, true_name
from sluice.model.tables import TableId, user_schema
from sluice.segments.footers import opened
from sluice.segments.manifest import SegmentFile, SegmentManifest
from sluice.segments.reader import first_seq
from sluice.segments.store import SegmentStore
from sluice.serve.in_order import Runs
from sluice.serve.row_shapes import with_users

_Made = TypeVar("_Made")

WORTH_BYTES = 2**18
"""Size of a file from which on a thread of its own is worth its start."""


class FileAhead(Generic[_Made]):
    """Reads files, one of them ahead of the caller, so that one is decoded while rows of the last one are sent.

    One thread calls it.

    Args:
        load: what is read of a file; a thread of its own calls it, too.
    """

    def __init__(self, load: Callable[[SegmentFile], _Made]) -> None:
        self._load = load
        self._thread: ThreadPoolExecutor | None = None
        self._begun: tuple[SegmentFile, Future[_Made]] | None = None

    @staticmethod
    def is_worth(file: SegmentFile) -> bool:
        """Return True if a file is large enough to be read while another one is sent, or another one meanwhile."""
        return file.size_bytes >= WORTH_BYTES

    def read(self, file: SegmentFile, after: SegmentFile | None) -> _Made:
        """Return what ``load`` makes of a file, and begin to read the one that will be asked for ``after`` it.

        Raises what ``load`` raises for ``file``.
        """
        begun, self._begun = self._begun, None
        result = begun[1].result() if begun is not None and begun[0] == file else self._load(file)
        del begun
        if after is not None and self.is_worth(after):
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="file-ahead")
            self._begun = after, self._thread.submit(self._load, after)
        return result

    def close(self) -> None:
        """Drop the file that was begun, once it is read."""
        self._begun = None
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None


Wants = Callable[[TableId], bool]
Shaped = Callable[[TableId, pa.Table], pa.Table]
"""Rows of a table as they are sent."""

Following = Callable[[], SegmentManifest | None]
"""Returns the batch that is read next, if it is stored."""


def _close(runs_by_table: dict[TableId, Runs]) -> None:
    for runs in runs_by_table.values():
        runs.close()


def nothing_follows() -> None:
    """Say that no batch is read after this one, or that it is not known."""


@dataclass(frozen=True)
class _Step:
    """One file of a batch. ``before``: no later file of its table has a row before this ``_seq``; None: there is none.

    ``is_ruled``: rules see its rows.
    """

    source: TableId
    file: SegmentFile
    number: int
    before: int | None
    is_ruled: bool


@dataclass
class BatchRows:
    """Reads batches of one pipeline.

    Attributes:
        form: changes or merged.
        needed: names of the user's columns that are; others may be null in ``changes``. None: all.
    """

    runtime: Runtime
    form: str
    needed: frozenset[str] | None = None
    store: SegmentStore = field(init=False)
    ruling: StageRules = field(init=False)
    routes: Routes = field(init=False)
    _ahead: FileAhead[tuple[TableId, pa.Table]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Load the rules and the mapping. Raises ConfigError, RuleError, MappingError."""
        self.store = self.runtime.store
        self.ruling = change_rules(
            self.runtime, "the subscription service reads", "read the tables from a target that has them"
        )
        self.routes = Routes.of(self.runtime.pipeline)
        reader = self._reader(0)
        self._ahead = FileAhead(lambda file: reader.plain(self.store, file, self.needed))

    def close(self) -> None:
        """Drop the file that is read ahead. The next batch may be read all the same."""
        self._ahead.close()

    def goes_to(self, source: TableId) -> TableId | None:
        """Return the name under which rows of ``source`` are read; None where rules may decide."""
        return None if self.ruling.concerning(source) else self.routes.route(source).target

    def may_give(self, source: TableId, wants: Wants) -> bool:
        """Return False if no row of ``source`` can belong to a wanted table."""
        target = self.goes_to(source)
        return target is None or wants(target)

    def rows(
        self, manifest: SegmentManifest, wants: Wants, shaped: Shaped, following: Following = nothing_follows
    ) -> Iterator[tuple[TableId, pa.Table]]:
        """Yield rows by source table; the changes of each in log order.

        The next file is read meanwhile, after the last one the first of the batch ``following``. Raises SegmentError,
        RuleError, MappingError.
        """
        if self.form == "changes":
            return self._changes(manifest, wants, shaped, following)
        return self._merged(manifest, wants, shaped)

    def columns(self, manifest: SegmentManifest, wants: Wants) -> Iterator[tuple[TableId, pa.Schema]]:
        """Yield the user's columns of what :meth:`rows` yields, before it does.

        Where rules may change them, this reads the rows.
        """
        for source, files in sorted(by_table(manifest).items()):
            if self.may_give(source, wants):
                for file in files:
                    yield from ((table, schema) for table, schema in self.columns_of(file).items() if wants(table))

    def columns_of(self, file: SegmentFile) -> dict[TableId, pa.Schema]:
        """Return the :meth:`columns` of one file."""
        source = file.table_id
        if self.ruling.concerning(source):
            pieces = self._reader(0).file_pieces(self.store, 0, file)
            return {piece.table: user_schema(self.without_hidden(piece.rows, source).schema) for piece in pieces}
        with self.store.open_input(file.path) as stored:
            schema = opened(stored, file.footer_crc32).schema_arrow
        route = self.routes.whole_route(source)
        empty = route.apply(self.ruling.tagged(schema.empty_table(), source))
        return {route.target: user_schema(self.without_hidden(empty, source).schema)}

    def _reader(self, batch: int) -> StoredChanges:
        mapping = self.runtime.pipeline.mapping
        return StoredChanges(
            self.store.uri, self.store.pipeline, "", batch, "", self.ruling, mapping, keeps_rejected=False
        )

    def _changes(
        self, manifest: SegmentManifest, wants: Wants, shaped: Shaped, following: Following
    ) -> Iterator[tuple[TableId, pa.Table]]:
        reader = self._reader(manifest.batch)
        runs_by_table: dict[TableId, Runs] = {}
        with ExitStack() as opened_runs:
            opened_runs.callback(_close, runs_by_table)
            unread = opened_runs.enter_context(ExitStack())  # of a read that ends before its batch does
            unread.callback(self._ahead.close)
            for step, then in pairwise(chain(self._steps(manifest, wants), [None])):
                assert step is not None
                after = then.file if then is not None and not then.is_ruled else None
                if then is None and self._ahead.is_worth(step.file):
                    after = self._first_of(following, wants)
                for table, rows in self._read(reader, step, after):
                    if wants(table):
                        runs_by_table.setdefault(table, Runs()).add(
                            shaped(table, self.without_hidden(rows, step.source))
                        )
                for table, runs in sorted(runs_by_table.items()):
                    for rows in runs.before(step.before):
                        yield table, rows
                if step.before is None:
                    _close(runs_by_table)
                    runs_by_table.clear()
            unread.pop_all()

    def _steps(self, manifest: SegmentManifest, wants: Wants) -> Iterator[_Step]:
        """Yield the files of a batch in the order in which they are read."""
        for source, files in sorted(by_table(manifest).items()):
            if not self.may_give(source, wants):
                continue
            last = len(files) - 1
            if self.ruling.concerning(source):  # what rules made stays together, table by table
                for number, file in enumerate(files):
                    yield _Step(source, file, number, None if number == last else 0, True)
                continue
            begins = [first_seq(self.store, file) for file in files] if last else [0]
            ends = [*sorted(begins)[1:], None]
            for number, before in zip(np.argsort(begins, kind="stable"), ends, strict=True):
                yield _Step(source, files[number], int(number), before, False)

    def _first_of(self, following: Following, wants: Wants) -> SegmentFile | None:
        """Return the file with which the next batch begins, if no rule sees its rows: they may be the user's code.

        What is wrong with that batch is raised in its turn.
        """
        with suppress(SluiceError):
            manifest = following()
            step = next(self._steps(manifest, wants), None) if manifest is not None else None
            return step.file if step is not None and not step.is_ruled else None
        return None

    def _read(
        self, reader: StoredChanges, step: _Step, after: SegmentFile | None
    ) -> Iterator[tuple[TableId, pa.Table]]:
        """Yield what a file has, by table."""
        if step.is_ruled:
            for piece in reader.file_pieces(self.store, step.number, step.file):
                yield piece.table, piece.rows
        else:
            yield self._ahead.read(step.file, after)

    def _merged(self, manifest: SegmentManifest, wants: Wants, shaped: Shaped) -> Iterator[tuple[TableId, pa.Table]]:
        may_give: Wants = lambda source: self.may_give(source, wants)  # noqa: E731
        for source, merged in merged_tables(self.store, manifest, self.routes, wants=may_give):
            if is_partial(merged) and self.ruling.concerning(source):
                raise needs_whole_rows(source)
            ruled = self.ruling.apply(self.ruling.tagged(merged, source), source)
            for table, rows in ruled.tables.items():
                route = self.routes.whole_route(table)
                if rows.num_rows and wants(route.target):
                    rows = tagged_as_made(rows) if self.ruling.hides(merged, source) else rows
                    mapped = known_columns(rows, route.apply(rows), route)
                    yield route.target, shaped(route.target, self.without_hidden(mapped, source))

    def without_hidden(self, rows: pa.Table, source: TableId) -> pa.Table:
        """Drop the columns whose values must not be shown: those with the mark, and those named like masked ones.

        The mark stays with a column on its way through rules and mapping. The names of masked columns of ``source`` are
        checked as well, in case a rule created the column anew.
        """
        back = {target: name for name, target in self.routes.route(source).rename}
        users = user_columns(rows.schema)
        names = {name: true_name(rows.schema.field(name)) for name in users}
        masking = self.ruling.masking
        hidden = masking.hidden(source.schema, source.table, [*names.values(), *back.values()])
        kept_names = [
            name
            for name in users
            if not is_masked(rows.schema.field(name))
            and names[name] not in hidden
            and back.get(names[name]) not in hidden
        ]
        return (
            rows
            if len(kept_names) == len(users)
            else with_users(rows, [rows.schema.field(name) for name in kept_names])
        )
