"""The rows of a stored batch as readers get them: through the pipeline's rules and mapping, without what is not to be
seen.

Decision: rows are made of the segments when they are read, with the rules, the mapping and ``masked`` as their files
are then. A changeset has them as they were when it was made: a column that was excluded or masked since would still be
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

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
from sluice.serve.ahead import ahead
from sluice.serve.in_order import Runs
from sluice.serve.row_shapes import with_users

Wants = Callable[[TableId], bool]
Shaped = Callable[[TableId, pa.Table], pa.Table]
"""Rows of a table as they are sent."""


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

    def __post_init__(self) -> None:
        """Load the rules and the mapping. Raises ConfigError, RuleError, MappingError."""
        self.store = self.runtime.store
        self.ruling = change_rules(
            self.runtime, "the subscription service reads", "read the tables from a target that has them"
        )
        self.routes = Routes.compile(self.runtime.pipeline.mapping)

    def goes_to(self, source: TableId) -> TableId | None:
        """Return the name under which rows of ``source`` are read; None where rules may decide."""
        return None if self.ruling.concerning(source) else self.routes.route(source).target

    def may_give(self, source: TableId, wants: Wants) -> bool:
        """Return False if no row of ``source`` can belong to a wanted table."""
        target = self.goes_to(source)
        return target is None or wants(target)

    def rows(self, manifest: SegmentManifest, wants: Wants, shaped: Shaped) -> Iterator[tuple[TableId, pa.Table]]:
        """Yield rows by source table; the changes of each in log order.

        Raises SegmentError, RuleError, MappingError.
        """
        return (
            self._changes(manifest, wants, shaped) if self.form == "changes" else self._merged(manifest, wants, shaped)
        )

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

    def _changes(self, manifest: SegmentManifest, wants: Wants, shaped: Shaped) -> Iterator[tuple[TableId, pa.Table]]:
        reader = self._reader(manifest.batch)
        for source, files in sorted(by_table(manifest).items()):
            if not self.may_give(source, wants):
                continue
            with ExitStack() as opened_runs:
                found: dict[TableId, Runs] = {}
                for pieces, following in self._read(reader, source, files):
                    for table, rows in pieces:
                        if not wants(table):
                            continue
                        if table not in found:
                            found[table] = Runs()
                            opened_runs.callback(found[table].close)
                        found[table].add(shaped(table, self.without_hidden(rows, source)))
                    for table, runs in sorted(found.items()):
                        for rows in runs.before(following):
                            yield table, rows

    def _read(
        self, reader: StoredChanges, source: TableId, files: list[SegmentFile]
    ) -> Iterator[tuple[list[tuple[TableId, pa.Table]], int | None]]:
        """Yield what each file has, and the ``_seq`` before which no later file has any (None: there is no later file).

        The next file is read meanwhile, unless rules see its rows: they may be the user's code. What rules made stays
        together, table by table.
        """
        if self.ruling.concerning(source):
            for number, file in enumerate(files):
                pieces = reader.file_pieces(self.store, number, file)
                yield [(piece.table, piece.rows) for piece in pieces], None if number == len(files) - 1 else 0
            return
        begins = [first_seq(self.store, file) for file in files] if len(files) > 1 else [0]
        ordered = [files[number] for number in np.argsort(begins, kind="stable")]
        reads = (reader.plain(self.store, file, self.needed) for file in ordered)
        with closing(ahead(reads, 1) if len(files) > 1 else reads) as made:
            for piece, following in zip(made, [*sorted(begins)[1:], None], strict=True):
                yield [piece], following

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
        kept = [
            name
            for name in users
            if not is_masked(rows.schema.field(name))
            and names[name] not in hidden
            and back.get(names[name]) not in hidden
        ]
        return rows if len(kept) == len(users) else with_users(rows, [rows.schema.field(name) for name in kept])
