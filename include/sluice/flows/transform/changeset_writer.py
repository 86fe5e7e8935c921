"""Take merged rows through rules and mapping into the files of a changeset: the end of the merge and of every later
stage.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.config.pipeline import TableMapping
from sluice.config.resolved import ResolvedConnections
from sluice.errors import RuleError
from sluice.flows.transform.dead_letter_files import Written
from sluice.flows.transform.named_files import FileWork
from sluice.flows.transform.repair import Repaired
from sluice.flows.transform.stage_rules import StageRules, rule_totals, tagged_as_made
from sluice.mapping import Mapping as Routes
from sluice.mapping import TableRoute
from sluice.merge.column_presence import is_partial, remapped, unknown_before
from sluice.merge.compact import user_columns
from sluice.model.fields import true_name
from sluice.model.layouts import CHANGESET_ROWS, MERGED_ROWS, without_origin
from sluice.model.packing import memory_of
from sluice.model.row_ops import Dumped
from sluice.model.tables import TableId, member, stored_name
from sluice.model.whole_rows import LOG_WHOLE_ROWS
from sluice.row_files.copy_pool import FileTotals
from sluice.rules import RuleCount
from sluice.segments.changeset import (
    Changeset,
    ChangesetColumn,
    ChangesetFile,
    ChangesetManifest,
    ChangesetTable,
    RuleTotal,
    changeset_file_path,
    changeset_folder,
    changeset_image,
    columns_of,
    write_changeset_file,
    write_manifest_with,
)
from sluice.segments.manifest import ReplaceRecord, SegmentFile, SegmentManifest
from sluice.segments.packed import fitting
from sluice.segments.store import SegmentStore


@dataclass(frozen=True, slots=True)
class ChangesetPart:
    """The result of a part; ``file`` is None if there is none.

    ``image``: the file's contents, if it is not written yet but packed into the manifest's file.
    """

    source: TableId
    route: TableRoute
    columns: tuple[ChangesetColumn, ...]
    file: ChangesetFile | None
    image: bytes = b""


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The result of a unit.

    ``read_back``: number of rows read at the source; ``repaired``: the rows in conflict; ``files``: that rows named.
    """

    parts: tuple[ChangesetPart, ...]
    rules: tuple[RuleCount, ...]
    seconds: float
    dead_letters: tuple[Written, ...] = ()
    read_back: int = 0
    repaired: Repaired = field(default_factory=Repaired)
    files: FileTotals = field(default_factory=FileTotals)

    @property
    def rows(self) -> int:
        """Merged rows."""
        return sum(part.file.rows for part in self.parts if part.file)

    def __add__(self, other: MergeResult) -> MergeResult:
        return MergeResult(
            self.parts + other.parts,
            self.rules + other.rules,
            self.seconds + other.seconds,
            self.dead_letters + other.dead_letters,
            self.read_back + other.read_back,
            self.repaired + other.repaired,
            self.files + other.files,
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """The values that all parts of a unit share: where files go, and the rules.

    ``routes`` None: another stage follows, names stay the source's. ``connections``: with the logins for files that
    rows name.
    """

    store: SegmentStore
    batch: int
    attempt: str
    ruling: StageRules
    routes: Routes | None
    connections: ResolvedConnections


class Part(Protocol):
    """A part of a unit."""

    @property
    def cost(self) -> int:
        """Work that the part is, in rows."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the part's files."""


_P = TypeVar("_P", bound=Part)


@dataclass(frozen=True, slots=True)
class TransformUnit(Generic[_P]):
    """Parts that one worker takes through rules and mapping, one after the other.

    ``mapping`` None: another stage of rules follows. ``small``: numbers of the parts whose files are packed with the
    manifest. ``connections``: with the logins for files that rows name.
    """

    store_uri: str
    pipeline: str
    batch: int
    attempt: str
    number: int
    parts: tuple[_P, ...]
    ruling: StageRules
    mapping: tuple[TableMapping, ...] | None = ()
    small: frozenset[int] = frozenset()
    connections: ResolvedConnections = field(default_factory=lambda: ResolvedConnections({}))

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return sum(part.cost for part in self.parts)

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes of a process: its parts run one after the other."""
        return memory_of(max((part.size_bytes for part in self.parts), default=0))

    def stage(self) -> Stage:
        """Return the values that the parts share. Raises MappingError."""
        routes = Routes.compile(self.mapping) if self.mapping is not None else None
        store = SegmentStore(self.store_uri, self.pipeline)
        return Stage(store, self.batch, self.attempt, self.ruling, routes, self.connections)

    def name(self, number: int) -> str:
        """Return a name that tells the files of part ``number`` from those of all others of the attempt."""
        return f"{self.number:05d}-{number:04d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRows:
    """MERGED_ROWS of a part of ``source``.

    Attributes:
        name: tells the files of an attempt apart.
        buckets: (first, last) key bucket of the rows.
        segments: where the changes are, for the position of a dead letter.
        added: columns that older rows of the batch do not have (see
            :class:`sluice.flows.transform.segment_rows.PartRead`).
        revived: an earlier stage kept deleted rows. dumped: see :data:`sluice.model.row_ops.Dumped`.
        small: the files are packed with the manifest.
    """

    name: str
    source: TableId
    rows: pa.Table
    buckets: tuple[int, int]
    segments: Sequence[SegmentFile]
    added: Sequence[tuple[int, str]] = ()
    revived: bool = False
    dumped: Dumped = ""
    small: bool = False


def write_part(stage: Stage, part: StageRows) -> MergeResult:
    """Apply rules and mapping to MERGED_ROWS of a part, and write files of CHANGESET_ROWS.

    Files that the rows name are copied before. Raises RuleError, MappingError, FileMissing, StorageUnavailable.
    """
    store, ruling, source = stage.store, stage.ruling, part.source
    MERGED_ROWS.require(part.rows.schema, where=str(source))
    if is_partial(part.rows) and ruling.concerning(source):
        raise needs_whole_rows(source)
    hides = ruling.hides(part.rows, source)
    tagged, files = ruling.tagged(part.rows, source), FileTotals()
    ruled = ruling.apply(tagged, source, dumped=part.dumped)
    if stage.routes is not None:
        work = FileWork(stage.connections, store, stage.batch, f"{stage.attempt}-{part.name}")
        ruled, files = work.copy(ruled, tagged, source, stage.routes)
    letters = ruling.keep_rejected(
        store, stage.batch, stage.attempt, part.name, source=source, ruled=ruled, segments=part.segments
    )
    parts = []
    for table, rows in ruled.tables.items():
        route = stage.routes.route(table) if stage.routes is not None else TableRoute(table, table)
        rows = tagged_as_made(rows) if hides else rows
        layout = MERGED_ROWS
        if stage.routes is not None:
            rows, layout = without_origin(rows), CHANGESET_ROWS
        mapped = known_columns(rows, route.apply(rows), route)
        layout.require(mapped.schema, where=str(route.target))
        pieces = [(mapped, part.name, part.revived, part.dumped)]
        revived, cleared = ruled.revived.get(table), ruled.cleared.get(table)
        if cleared is not None and part.dumped == "read":
            stays = pc.invert(cleared)
            pieces = [
                (mapped.filter(stays), part.name, part.revived, part.dumped),
                (mapped.filter(cleared), f"{part.name}-cleared", part.revived, "cleared"),
            ]
            mapped, revived = mapped.filter(stays), revived.filter(stays) if revived is not None else None
        if revived is not None and not part.revived:
            pieces[:1] = [
                (mapped.filter(pc.invert(revived)), part.name, False, part.dumped),
                (mapped.filter(revived), f"{part.name}-kept", True, part.dumped),
            ]
        for piece, stem, marked, dumped in pieces:
            for version, same in enumerate(_by_version(piece, route, part.added if stage.routes is not None else ())):
                file, image = None, b""
                if same.num_rows:
                    own = f"{stem}-v{version}" if version else stem
                    path = changeset_file_path(store, stage.batch, stage.attempt, route.target, own)
                    if part.small:
                        file, image = changeset_image(path, same, part.buckets, revived=marked, dumped=dumped)
                    else:
                        file = write_changeset_file(store, path, same, part.buckets, revived=marked, dumped=dumped)
                parts.append(ChangesetPart(table, route, columns_of(same.schema), file, image))
    return MergeResult(tuple(parts), tuple(ruled.counts), 0.0, tuple(letters), files=files)


def needs_whole_rows(source: TableId) -> RuleError:
    """Return the error of rules on a table whose log lacks columns that did not change."""
    return RuleError(
        f"rules work on whole rows, and the log of {source} contains only the columns that changed",
        where=str(source),
        hint=f"{LOG_WHOLE_ROWS}; for what is in the log already: take the table out of the rules' "
        "match until it is delivered, then copy it through the rules (`sluice dump start`)",
    )


def known_columns(rows: pa.Table, mapped: pa.Table, route: TableRoute) -> pa.Table:
    """Return the mapped rows with ``_present`` for their columns (CHANGESET_ROWS)."""
    if mapped is rows or not is_partial(rows):
        return mapped
    before = user_columns(rows.schema)
    origin = {true_name(rows.schema.field(name)): name for name in before}
    back = {route.target_name(name) or name: stored for name, stored in origin.items()}
    after = [back.get(true_name(mapped.schema.field(name))) for name in user_columns(mapped.schema)]
    index = mapped.schema.get_field_index("_present")
    return mapped.set_column(index, mapped.schema.field(index), remapped(rows, before, after))


def _by_version(rows: pa.Table, route: TableRoute, added: Sequence[tuple[int, str]]) -> list[pa.Table]:
    """Split ``rows`` where a column was added within the batch: rows that never had it get the target's default."""
    borders = sorted({seq for seq, _ in added})
    if not borders or not rows.num_rows:
        return [rows]
    if "_present" in rows.schema.names:  # ``_present`` itself says which columns a row has
        names = {stored_name(name): start for start, old in added if (name := route.target_name(old))}
        return [unknown_before(rows, user_columns(rows.schema), names)]
    pieces = []
    seq = rows["_seq"].to_numpy().astype(np.int64)
    for low, high in pairwise([-1, *borders, 1 << 62]):
        piece = rows.filter(pa.array((seq >= low) & (seq < high)))
        missing = [route.target_name(name) for start, name in added if start >= high]
        pieces.append(_without(piece, {stored_name(name) for name in missing if name}))
    return pieces[::-1]  # the newest definition first: its columns are the table's


def _without(rows: pa.Table, names: set[str]) -> pa.Table:
    present = names & set(rows.schema.names)
    if not present:
        return rows
    before = rows["_before"].combine_chunks()
    kept_fields = [field for field in before.type if field.name not in names]
    children = [member(before, field.name) for field in kept_fields]
    struct = pa.StructArray.from_arrays(children, fields=kept_fields, mask=pc.is_null(before))
    index = rows.schema.get_field_index("_before")
    return rows.set_column(index, pa.field("_before", struct.type), struct).drop_columns(sorted(present))


def write_changeset_manifest(
    store: SegmentStore,
    manifest: SegmentManifest,
    attempt: str,
    results: Sequence[MergeResult],
    earlier: Sequence[RuleTotal] = (),
    letters_before: tuple[Sequence[str], int] = ((), 0),
    *,
    replaces: Sequence[ReplaceRecord] = (),
) -> Changeset:
    """Write what all units of an attempt made; the changeset exists from here on.

    ``earlier``, ``letters_before``: totals of the rules, and files and rows of dead letters, of earlier stages.
    ``replaces``: of a snapshot.
    """
    tables: dict[tuple[TableId, TableId], list[ChangesetPart]] = {}
    for result in results:
        for part in result.parts:
            tables.setdefault((part.source, part.route.target), []).append(part)
    entries = []
    for (source, target), parts in sorted(tables.items()):
        files = tuple(part.file for part in parts if part.file)
        if files:
            columns = {c.name: c for part in parts if part.file for c in part.columns}
            entries.append(
                ChangesetTable(
                    schema_=target.schema,
                    table=target.table,
                    source_schema=source.schema,
                    source_table=source.table,
                    weight=parts[0].route.weight,
                    columns=tuple(columns.values()),
                    files=files,
                )
            )
    every = [file for entry in entries for file in entry.files]
    letters = [letter for result in results for letter in result.dead_letters]
    changeset = ChangesetManifest(
        batch=manifest.batch,
        attempt=attempt,
        last=manifest.last,
        tables=tuple(entries),
        rules=(*earlier, *rule_totals((c for r in results for c in r.rules), letters)),
        dead_letters=(*letters_before[0], *(letter.path for letter in letters)),
        replaces=tuple(replaces),
        counts={
            "changes": manifest.changes,
            "ddl": len(manifest.ddl),
            "replaces": len(manifest.replaces) + len(replaces),
            "rows": sum(f.rows for f in every),
            "inserts": sum(f.inserts for f in every),
            "updates": sum(f.updates for f in every),
            "deletes": sum(f.deletes for f in every),
            "dead_letters": letters_before[1] + sum(letter.rows for letter in letters),
            **file_counts(sum((result.files for result in results), FileTotals())),
        },
        made_ms=time.time_ns() // 1_000_000,
    )
    path = f"{changeset_folder(store, manifest.batch, attempt)}/manifest.json"
    return Changeset(path, write_manifest_with(store, path, changeset, images_of(results)))


def file_counts(files: FileTotals) -> dict[str, int]:
    """Return the counts that a changeset has of the files that its rows name; none if they name none."""
    if not files:
        return {}
    return {
        "files_copied": files.copied,
        "files_unchanged": files.unchanged,
        "files_missing": files.absent + files.refused,
        "file_bytes": files.size_bytes,
        "file_bytes_per_s": files.bytes_per_s,
    }


def images_of(results: Sequence[MergeResult]) -> dict[str, bytes]:
    """Return the contents of the files that are still to be written, by path."""
    return {part.file.path: part.image for result in results for part in result.parts if part.file and part.image}


def small_parts(groups: Sequence[Sequence[Part]]) -> list[frozenset[int]]:
    """Return, for each group, the numbers of the parts that are packed with the manifest: the smallest of all parts."""
    places = [(group, number) for group, parts in enumerate(groups) for number in range(len(parts))]
    small = fitting([groups[group][number].size_bytes for group, number in places])
    small_numbers: list[set[int]] = [set() for _ in groups]
    for index in small:
        group, number = places[index]
        small_numbers[group].add(number)
    return list(map(frozenset, small_numbers))
