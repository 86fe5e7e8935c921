"""Files that rows name (``files:`` of the mapping), copied after the rules by the work units that write the changeset.

A batch is loaded into no target before its changeset is recorded, and the changeset is recorded when every unit is
done. A retry copies nothing again: receipts say what is there. Nothing is rolled back either: a file may be at its
place before the row that names it, and stays if the row is deleted.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from sluice.config.connections import ConnectionResolver
from sluice.config.masking import SHOWN
from sluice.config.pipeline import RowFiles, TableMapping
from sluice.config.resolved import ResolvedConnections
from sluice.errors import FileMissing, MappingError, StorageUnavailable, first_line
from sluice.flows.transform.file_progress import FileProgress
from sluice.mapping import Mapping as Routes
from sluice.mapping.changed import differs
from sluice.merge.column_presence import is_partial, masks
from sluice.merge.compact import user_columns
from sluice.model.fields import is_masked, key_fields, true_name
from sluice.model.tables import TableId
from sluice.model.whole_rows import LOG_WHOLE_ROWS
from sluice.row_files.copier import Copier, CopyOutcome, CopyState, Layout, NamedFile
from sluice.row_files.copy_pool import FileTotals, copy_files
from sluice.row_files.file_name import OWN_FOLDER, file_name
from sluice.row_files.location import open_source, open_store
from sluice.row_files.port import Deadline, FileRefused, FileSource, FileStore
from sluice.row_files.receipts import mark_of
from sluice.rules import Rejected, Ruled
from sluice.segments.store import SegmentStore

_log = structlog.get_logger()

FILES = "row-files"
"""Stands for a rule's name where a row was rejected because of its file; no rule can have it."""

_Mask = npt.NDArray[np.bool_]


def connections_for_files(
    mapping: Sequence[TableMapping] | None, resolver: ConnectionResolver | None
) -> ResolvedConnections:
    """Return the connections that files of the mapping need, resolved, for work units."""
    names = {name for line in mapping or () for files in line.files for name in files.connections}
    return ResolvedConnections.of(resolver, names) if resolver is not None and names else ResolvedConnections({})


@dataclass(frozen=True, slots=True)
class FileWork:
    """What a work unit copies files with.

    Attributes:
        connections: with the logins. store, batch: for progress. unit: tells progress of units apart.
        rejects: False where a row without its file must fail instead of becoming a dead letter (it is one already).
    """

    connections: ResolvedConnections
    store: SegmentStore
    batch: int
    unit: str
    rejects: bool = True

    def copy(self, ruled: Ruled, merged: pa.Table, source: TableId, routes: Routes) -> tuple[Ruled, FileTotals]:
        """Copy the files that rows name, and return the rows that go on, with those that do not in ``rejected``.

        Args:
            ruled: what the rules made of ``merged``, rows of ``source``.

        Raises:
            FileMissing: a file does not exist, or is not taken, and ``on_missing`` is stop.
            MappingError: the table has no such column.
            ConfigError: a login is wrong. StorageUnavailable: a location does not answer.
        """
        totals, tables = FileTotals(), dict(ruled.tables)
        revived, cleared = dict(ruled.revived), dict(ruled.cleared)
        rejected: dict[int, tuple[str, str]] = {}
        for table, rows in ruled.tables.items():
            for files in routes.route(table).files:
                copied = _TableFiles(self, table, rows, files).copy()
                totals += copied.totals
                rejected |= {seq: rejected.get(seq, why) for seq, why in copied.rejected.items()}
        if not rejected:
            return ruled, totals
        seqs = pa.array(sorted(rejected), pa.uint64())
        for table, rows in ruled.tables.items():
            if routes.route(table).files:
                keep_mask = pc.invert(_rejectable(rows, seqs))
                tables[table] = rows.filter(keep_mask)
                for masks in (revived, cleared):
                    if table in masks:
                        masks[table] = masks[table].filter(keep_mask)
        letters = merged.filter(_rejectable(merged, seqs))
        reasons, places = zip(*(rejected[seq] for seq in letters["_seq"].to_pylist()), strict=True)
        lost = Rejected(FILES, letters, reasons, places)
        outcome = replace(ruled, tables=tables, revived=revived, cleared=cleared, rejected=[*ruled.rejected, lost])
        return outcome, replace(totals, rejected=letters.num_rows)


def _rejectable(rows: pa.Table, seqs: pa.Array) -> Any:
    """Return a mask of the rows with these numbers; a delete is delivered whatever became of the file."""
    return pc.and_(pc.is_in(rows["_seq"], value_set=seqs), pc.not_equal(rows["_op"], "d"))


@dataclass(slots=True)
class _Done:
    """What became of the files of one table: ``rejected``: ``_seq`` -> (reason, place)."""

    totals: FileTotals = field(default_factory=FileTotals)
    rejected: dict[int, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _TableFiles:
    """The files that one column of a table names in the rows of a part."""

    work: FileWork
    table: TableId
    rows: pa.Table
    files: RowFiles

    def copy(self) -> _Done:
        """Copy them, and treat rows whose files are missing as ``on_missing`` says."""
        path, version = self._column(self.files.path), self._column(self.files.version)
        assert path is not None
        has_file = np.asarray(pc.and_(pc.not_equal(self.rows["_op"], "d"), pc.is_valid(self.rows[path])))
        changed = self._changed(path, version) & has_file
        copied = _Done()
        if not (has_file if self._tries_again else changed).any():
            return copied
        with ExitStack() as opened:
            copier = self._copier(opened)
            receipts = copier.receipts
            missing = receipts.missing() if self._tries_again else ()
            rows_to_copy = changed if not missing else has_file
            files, rows_of, refused = self._named(path, version, rows_to_copy)
            if missing:
                again = {name for name in files if mark_of(name) in missing}
                again |= {name for name, numbers in rows_of.items() if any(changed[number] for number in numbers)}
                files = {name: file for name, file in files.items() if name in again}
            if files:
                copier.remove_orphans()
            progress = FileProgress(self.work.store, self.work.batch, self.work.unit, len(files))
            outcomes, totals = copy_files(copier, list(files.values()), self.files.parallel, progress)
            for name, outcome in zip(files, outcomes, strict=True):
                if outcome.state in {CopyState.COPIED, CopyState.UNCHANGED} and mark_of(name) in missing:
                    receipts.clear_missing(name)
        refused = {number: why for number, why in refused.items() if changed[number]}
        copied.totals = replace(totals, refused=totals.refused + len(refused))
        self._judge(copied, list(_without_file(files, outcomes, rows_of, refused)), path)
        return copied

    @property
    def _tries_again(self) -> bool:
        """True if rows may be delivered without their files, so that their next change looks for them again."""
        return self.files.on_missing != "stop"

    def _copier(self, opened: ExitStack) -> Copier:
        """Open both locations."""
        files, connections = self.files, self.work.connections
        source = opened.enter_context(closing(_source(files, connections)))
        store = opened.enter_context(closing(_store(files, connections)))
        return Copier(
            source,
            store,
            where=str(self.table),
            max_bytes=files.max_size,
            timeout=files.timeout,
            layout=Layout(files.layout),
            notes_missing=self._tries_again,
        )

    def _column(self, name: str | None) -> str | None:
        """Return the Arrow name of a column. Raises MappingError if the table has none."""
        if name is None:
            return None
        for column in user_columns(self.rows.schema):
            if true_name(self.rows.schema.field(column)) == name:
                return str(column)
        raise MappingError(
            f"the mapping's files name column {name!r}, and rows of {self.table} have none as they leave the rules",
            where=str(self.table),
            hint="correct path or version in the pipeline file, or give the table a line of its own. The batch is "
            "kept, and nothing of it went over",
        )

    def _changed(self, path: str, version: str | None) -> _Mask:
        """Return the rows that are new to the targets, or whose path or version changed. Raises MappingError."""
        before = self.rows["_before"].combine_chunks()
        changed = np.array(pc.is_null(before).to_numpy(zero_copy_only=False))
        users = user_columns(self.rows.schema)
        known_mask = masks(self.rows["_present"], len(users))[0] if is_partial(self.rows) else None
        for column in (path, version) if version is not None else (path,):
            differing = differs(self.rows[column].combine_chunks(), before, column)
            if known_mask is not None:
                differing = differing & known_mask[:, users.index(column)]
            changed |= differing
        if known_mask is not None and (changed & ~known_mask[:, users.index(path)]).any():
            raise MappingError(
                f"the log of {self.table} contains only the columns that changed, and not the path of a file whose "
                "version changed",
                where=str(self.table),
                hint=f"{LOG_WHOLE_ROWS}; then copy the table (`sluice dump start`)",
            )
        return changed

    def _named(
        self, path: str, version: str | None, wanted_mask: _Mask
    ) -> tuple[dict[str, NamedFile], dict[str, list[int]], dict[int, str]]:
        """Return the files by name, the rows that name each, and the rows whose names are refused.

        A file that several rows name has the version of the newest of them.
        """
        numbers = np.flatnonzero(wanted_mask)
        some = self.rows.take(pa.array(numbers))
        versions = some[version].to_pylist() if version is not None else [None] * len(numbers)
        hidden = is_masked(self.rows.schema.field(path))
        newest: dict[str, int] = {}
        files: dict[str, NamedFile] = {}
        rows_of: dict[str, list[int]] = {}
        refused: dict[int, str] = {}
        for number, value, file_version, seq in zip(
            numbers.tolist(), some[path].to_pylist(), versions, some["_seq"].to_pylist(), strict=True
        ):
            if value in {"", b""}:
                continue
            try:
                name = file_name(value)
            except FileRefused as error:
                refused[number] = str(error)
                continue
            rows_of.setdefault(name, []).append(number)
            if seq >= newest.get(name, -1):
                newest[name] = seq
                files[name] = NamedFile(
                    name, None if version is None else _text(file_version), SHOWN if hidden else name
                )
        return files, rows_of, refused

    def _judge(self, copied: _Done, lost: Sequence[tuple[int, str, str]], path: str) -> None:
        """Apply ``on_missing`` to rows without their files: (number, name as it is shown or "", why)."""
        if not lost:
            return
        number, name, why = lost[0]
        file = f"the file {name!r}" if name else "a file"
        if self.files.on_missing == "row_without":
            _log.warning(
                "files_missing", pipeline=self.work.store.pipeline, batch=self.work.batch, table=str(self.table),
                rows=len(lost), key=self._key(number), reason=f"{file}: {why}",
            )  # fmt: skip
            return
        if self.files.on_missing == "stop" or not self.work.rejects:
            more = f", and {len(lost) - 1} more rows lack theirs" if len(lost) > 1 else ""
            raise FileMissing(
                f"a row of {self.table} ({self._key(number)}) names {file} in column {self.files.path}: {why}{more}",
                where=self.files.places[0],
                hint="put the file there, or say what such rows do (on_missing: dead_letter or row_without); the "
                "batch is tried again",
            )
        seqs = self.rows["_seq"].to_pylist()
        for number, name, why in lost:
            file = f"the file {name!r}" if name else "the file"
            copied.rejected[seqs[number]] = (f"{file} in column {self.files.path}: {why}", self.files.places[0])

    def _key(self, number: int) -> str:
        """Return the key of a row for messages, without masked values."""
        row = self.rows.slice(number, 1)
        parts = [
            f"{true_name(field)}={SHOWN if is_masked(field) else row[field.name][0].as_py()!r}"
            for field in key_fields(self.rows.schema)
        ]
        return ", ".join(parts) or "it has no key"


def _source(files: RowFiles, connections: ConnectionResolver) -> FileSource:
    login = connections(files.from_connection) if files.from_connection else None
    return open_source(files.from_, login, connections=files.parallel, timeout=files.timeout)


def _store(files: RowFiles, connections: ConnectionResolver) -> FileStore:
    login = connections(files.to_connection) if files.to_connection else None
    return open_store(files.to, login, timeout=files.timeout)


def require_reachable(files: RowFiles, connections: ConnectionResolver, seconds: float) -> str:
    """Read where files come from, and write a small file where they go. Return what the former said.

    Raises StorageUnavailable, ConfigError.
    """
    name, (address, goal), verb = f"{OWN_FOLDER}/check-{uuid.uuid4().hex}", files.places, "read"
    try:
        with closing(_source(files, connections)) as source:
            answer = source.require_readable(Deadline(seconds))
        address, verb = goal, "written"
        with closing(_store(files, connections)) as store:
            store.write(name, b"sluice check")
            store.delete(name)
    except (FileRefused, OSError) as error:
        why = first_line(error)
        raise StorageUnavailable(f"{address} cannot be {verb}: {why[:300]}", hint="docs/row-files.md") from None
    return answer


def _without_file(
    files: Mapping[str, NamedFile],
    outcomes: Sequence[CopyOutcome],
    rows_of: Mapping[str, Sequence[int]],
    refused: Mapping[int, str],
) -> Iterator[tuple[int, str, str]]:
    """Yield (row, name as it is shown, why) of each row whose file was not copied."""
    for (name, file), outcome in zip(files.items(), outcomes, strict=True):
        if outcome.state in {CopyState.ABSENT, CopyState.REFUSED}:
            yield from ((number, file.shown, outcome.why) for number in rows_of[name])
    yield from ((number, "", why) for number, why in refused.items())


def _text(value: object) -> str:
    """Return the value of a version column as text; NULL is a version, too."""
    return value.hex() if isinstance(value, bytes) else "" if value is None else str(value)


__all__ = ["FILES", "FileWork", "connections_for_files", "require_reachable"]
