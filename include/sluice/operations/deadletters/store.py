"""Read the dead-letter store: the open letters, and what became of the others."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.config.masking import SHOWN, Masking
from sluice.errors import ConfigError, SegmentError
from sluice.flows.runtime import Runtime
from sluice.flows.transform.dead_letter_files import FOLDER, METADATA, RULES, SETTLED, Origin, letter_id
from sluice.flows.transform.segment_rows import merged_tables
from sluice.mapping import Mapping as Routes
from sluice.model.fields import is_masked, key_fields, true_name
from sluice.model.stored_fields import known_fields
from sluice.model.tables import META_COLUMNS, TableId
from sluice.rules.values import to_python
from sluice.segments.changeset import read_changeset
from sluice.segments.manifest import SegmentFile, SegmentManifest
from sluice.segments.packed import copy_path
from sluice.segments.reader import verify_file
from sluice.segments.store import SegmentStore, quoted

_WORDS = {"i": "insert", "u": "update", "d": "delete"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A row, or a whole skipped batch, that some target lacks.

    Attributes:
        id: twelve hex digits.
        stage: ``rule``, ``load`` or ``skip``; by: the rule, the target, or who skipped the batch.
        targets: those that lack it. settled: what became of it, by target (replayed, superseded, discarded).
        key: values of the key columns, masked where configured; reason, where: what was said.
        file, offset, gtid: the row event in the source's log; seq: number of the change in the batch.
        path, number: where it is stored, and the row there.
    """

    id: str
    stage: str
    by: str
    targets: tuple[str, ...]
    batch: int
    table: str
    op: str
    key: dict[str, Any]
    reason: str
    where: str
    file: str | None
    offset: int | None
    gtid: str | None
    seq: int
    commit_time: str
    at: str
    path: str
    number: int
    rows: int = 1
    settled: dict[str, str] = field(default_factory=dict)
    stage_number: int = 0

    @property
    def waiting(self) -> tuple[str, ...]:
        """The targets that still lack it."""
        return tuple(target for target in self.targets if target not in self.settled)

    def to_json(self) -> dict[str, Any]:
        """Return the dead letter as commands print it, with its state."""
        return {
            "id": self.id,
            "state": "waiting" if self.waiting else ", ".join(sorted(set(self.settled.values()))),
            "stage": self.stage,
            "by": self.by,
            "targets": list(self.targets),
            "settled": self.settled,
            "batch": self.batch,
            "table": self.table,
            "op": self.op,
            "key": self.key,
            "rows": self.rows,
            "reason": self.reason,
            "where": self.where,
            "position": {
                "file": self.file,
                "offset": self.offset,
                "gtid": self.gtid,
                "batch": self.batch,
                "seq": self.seq,
            },
            "commit_time": self.commit_time,
            "at": self.at,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DeadLetter:
        """Return the letter of which ``data`` is the JSON. Where it is stored is not known of it."""
        position = data["position"]
        return cls(**{
            **known_fields(cls, data),
            "targets": tuple(data["targets"]),
            "file": position["file"],
            "offset": position["offset"],
            "gtid": position["gtid"],
            "seq": position["seq"],
            "path": "",
            "number": 0,
        })


def letters(runtime: Runtime, *, everything: bool = False) -> list[DeadLetter]:
    """Return all open dead letters, oldest first; with ``everything`` the settled ones too."""
    store = runtime.store
    settled = _settlements(store)
    masking = Masking(runtime.pipeline.masked)
    targets = tuple(t.name for t in runtime.pipeline.targets)
    letters: dict[tuple[str, str], DeadLetter] = {}
    paths = _files(store)
    skips = [path for path in paths if path.endswith("/skipped.json")]
    segments = {file for path in skips for file in _skipped_files(store, path)}
    for path in skips:
        letter = _read_skipped(store, path, settled)
        letters[letter.stage, letter.id] = letter
    for path in paths:
        if path.endswith(".parquet") and path not in segments and not _is_orphan(runtime, path):
            for letter in _read_rows(store, path, targets, settled, masking):
                letters[letter.stage, letter.id] = letter
    ordered = sorted(letters.values(), key=lambda letter: (letter.batch, letter.seq, letter.id))
    return [letter for letter in ordered if everything or letter.waiting]


def letter(runtime: Runtime, prefix: str) -> DeadLetter:
    """Return the dead letter whose id is or begins with ``prefix``.

    Raises ConfigError if there is none or more than one.
    """
    return _named(runtime.name, prefix, letters(runtime, everything=True))


def chosen(runtime: Runtime, ids: Sequence[str]) -> list[DeadLetter]:
    """Return the letters with these ids or beginnings of ids, settled ones too; without ids all open ones.

    Oldest first. Raises ConfigError.
    """
    if not ids:
        return letters(runtime)
    every = letters(runtime, everything=True)
    named = [_named(runtime.name, prefix, every) for prefix in ids]
    return [letter for letter in every if any(letter is named_letter for named_letter in named)]


def _named(name: str, prefix: str, every: Sequence[DeadLetter]) -> DeadLetter:
    letters = [letter for letter in every if letter.id.startswith(prefix)]
    if len(letters) != 1:
        raise ConfigError(
            f"there is no dead letter {prefix!r}"
            if not letters
            else f"{len(letters)} dead letters begin with {prefix!r}",
            hint=f"`sluice dead-letters list {name} --all` lists them",
        )
    return letters[0]


def contents(runtime: Runtime, letter: DeadLetter) -> dict[str, Any]:
    """Return the row of a letter as it is and as it was (``before``), values by column; masked values are hidden."""
    table = read_row(runtime.store, letter)
    hidden = _hidden(table, letter.table, Masking(runtime.pipeline.masked))
    struct = table["_before"].combine_chunks()
    before = None
    if struct.is_valid()[0].as_py():
        before = {true_name(f): _shown(struct.field(i), 0, true_name(f) in hidden) for i, f in enumerate(struct.type)}
    users = [f for f in table.schema if f.name not in META_COLUMNS and not f.name.startswith("_dl_")]
    return {"row": {true_name(f): _shown(table[f.name], 0, true_name(f) in hidden) for f in users}, "before": before}


def read_row(store: SegmentStore, letter: DeadLetter) -> pa.Table:
    """Return the stored row of a letter as a table with one row."""
    return _read(store, letter.path)[0].slice(letter.number, 1)


def skipped_manifest(store: SegmentStore, letter: DeadLetter) -> SegmentManifest:
    """Return the manifest of a skipped batch as it was when the batch was skipped."""
    return _manifest(store, letter.path)


def _manifest(store: SegmentStore, path: str) -> SegmentManifest:
    note = json.loads(store.read_bytes(path))
    return SegmentManifest.from_json(json.dumps(note["manifest"]).encode(), where=path)


def skipped_tables(store: SegmentStore, letter: DeadLetter, routes: Routes) -> Iterator[tuple[TableId, pa.Table]]:
    """Yield the merged rows of a skipped batch by table, large tables in pieces; ``routes`` know the keys of tables
    without a primary key.

    Raises SegmentError, before the first rows, if a file is damaged.
    """
    folder = letter.path.rsplit("/", 1)[0]
    manifest = skipped_manifest(store, letter)
    moved = [f.model_copy(update={"path": f"{folder}/{copy_of(f)}"}) for f in manifest.files]
    for file in moved:
        verify_file(store, file)
    yield from merged_tables(store, manifest.model_copy(update={"files": tuple(moved)}), routes)


def copy_of(file: SegmentFile) -> str:
    """Return where a file of a skipped batch is kept, below the batch's folder."""
    return copy_path(file.path, f"{quoted(file.schema_)}.{quoted(file.table)}")


def settle(store: SegmentStore, outcomes: Iterable[tuple[DeadLetter, str, str]], *, by: str, reason: str = "") -> None:
    """Record what became of letters: (letter, target, replayed | superseded | discarded)."""
    entries = [
        {"id": letter.id, "stage": letter.stage, "target": target, "outcome": outcome}
        for letter, target, outcome in outcomes
    ]
    if entries:
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        data = {"at": now, "by": by, "reason": reason, "letters": entries}
        path = f"{FOLDER}/{SETTLED}/{now}-{uuid.uuid4().hex[:8]}.json"
        store.write_bytes(path, json.dumps(data, ensure_ascii=False, indent=1).encode())


def prune_letters(runtime: Runtime, *, older_than_s: float, dry_run: bool = False) -> int:
    """Remove files of which every row is settled and that are older; waiting letters are never removed.

    Returns their number.
    """
    every = letters(runtime, everything=True)
    waiting = {letter.path for letter in every if letter.waiting}
    limit = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - older_than_s))
    paths = sorted({letter.path for letter in every if letter.path not in waiting and letter.at < limit})
    if not dry_run:
        for path in paths:
            for file in _skipped_files(runtime.store, path) if path.endswith("/skipped.json") else ():
                runtime.store.delete(file)
            runtime.store.delete(path)  # last: it names the others
    return len(paths)


def _skipped_files(store: SegmentStore, path: str) -> list[str]:
    """Return the segment files that belong to the note of a skipped batch."""
    folder = path.rsplit("/", 1)[0]
    return [f"{folder}/{copy_of(file)}" for file in _manifest(store, path).files]


def _files(store: SegmentStore) -> list[str]:
    return [path for path in store.list_files(FOLDER) if f"/{SETTLED}/" not in path]


def _settlements(store: SegmentStore) -> dict[tuple[str, str], dict[str, str]]:
    settlements: dict[tuple[str, str], dict[str, str]] = {}
    for path in sorted(store.list_files(f"{FOLDER}/{SETTLED}")):
        for entry in json.loads(store.read_bytes(path))["letters"]:
            settlements.setdefault((entry["stage"], entry["id"]), {})[entry["target"]] = entry["outcome"]
    return settlements


def _is_orphan(runtime: Runtime, path: str) -> bool:
    """Return True for files of a skip that did not end, and of a merge attempt that was never recorded.

    Letters of a target lie in folders, too, where version 0.2 named a part by the path of a file.
    """
    match = re.match(rf"{FOLDER}/([^/]+)/batch=(\d+)/(.+)$", path)
    if match is None:
        return True
    if match[1] != RULES:
        return "/" in match[3] and METADATA not in (_read_schema(runtime.store, path).metadata or {})
    with runtime.state() as state:
        record = state.batches.get(int(match[2]))
    if record is None or not record.changeset:
        return record is not None  # not merged yet: no target lacks these rows
    try:
        return path not in read_changeset(runtime.store, record.changeset).manifest.dead_letters
    except SegmentError:
        return False


def _read_schema(store: SegmentStore, path: str) -> pa.Schema:
    try:
        return pq.read_schema(pa.BufferReader(store.read_bytes(path)))
    except (pa.ArrowException, OSError) as error:
        raise SegmentError("a file of the dead-letter store is damaged", where=path) from error


def _read(store: SegmentStore, path: str) -> tuple[pa.Table, Origin]:
    try:
        table = pq.ParquetFile(pa.BufferReader(store.read_bytes(path)), page_checksum_verification=True).read()
        return table, Origin(**json.loads(table.schema.metadata[METADATA]))
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise SegmentError("a file of the dead-letter store is damaged", where=path) from error


def _read_rows(
    store: SegmentStore,
    path: str,
    targets: tuple[str, ...],
    settled: dict[tuple[str, str], dict[str, str]],
    masking: Masking,
) -> Iterator[DeadLetter]:
    table, origin = _read(store, path)
    hidden = _hidden(table, f"{origin.schema}.{origin.table}", masking)
    keyed = key_fields(table.schema)
    plain = table.select([
        "_dl_id",
        "_dl_reason",
        "_dl_where",
        "_dl_file",
        "_dl_offset",
        "_dl_gtid",
        "_op",
        "_seq",
        "_commit_ts",
    ]).to_pylist()
    for number, row in enumerate(plain):
        key = {true_name(f): _shown(table[f.name], number, true_name(f) in hidden) for f in keyed}
        yield DeadLetter(
            id=row["_dl_id"],
            stage=origin.stage,
            by=origin.by,
            targets=targets if origin.stage == "rule" else (origin.by,),
            batch=origin.batch,
            table=str(origin.table_id),
            op=_WORDS.get(row["_op"], row["_op"]),
            key=key,
            reason=row["_dl_reason"],
            where=row["_dl_where"],
            file=row["_dl_file"],
            offset=row["_dl_offset"],
            gtid=row["_dl_gtid"],
            seq=row["_seq"],
            commit_time=row["_commit_ts"].isoformat(),
            at=origin.at,
            path=path,
            number=number,
            rows=1,
            settled=settled.get((origin.stage, row["_dl_id"]), {}),
            stage_number=origin.stage_number,
        )


def _read_skipped(store: SegmentStore, path: str, settled: dict[tuple[str, str], dict[str, str]]) -> DeadLetter:
    note = json.loads(store.read_bytes(path))
    manifest = note["manifest"]
    batch, target = note["batch"], note["target"]
    own_id = letter_id(store.pipeline, target, batch, TableId("", ""), 0, "skip")
    tables = sorted({f"{f['schema']}.{f['table']}" for f in manifest["files"]})
    last = manifest["last"]
    return DeadLetter(
        id=own_id,
        stage="skip",
        by=note["by"],
        targets=(target,),
        batch=batch,
        table=", ".join(tables[:3]) + (" …" if len(tables) > 3 else ""),
        op="batch",
        key={},
        reason=f"skipped by {note['by']}" + (f": {note['reason']}" if note["reason"] else ""),
        where=target,
        file=last.get("file"),
        offset=last.get("offset"),
        gtid=last.get("gtid"),
        seq=0,
        commit_time="",
        at=note.get("at", ""),
        path=path,
        number=0,
        rows=manifest["changes"],
        settled=settled.get(("skip", own_id), {}),
    )


def _hidden(table: pa.Table, name: str, masking: Masking) -> frozenset[str]:
    schema, _, bare = name.partition(".")
    names = [true_name(f) for f in table.schema]
    marked = {true_name(f) for f in filter(is_masked, table.schema)}
    return masking.hidden(schema, bare, names) | marked


def _shown(column: pa.ChunkedArray | pa.Array, number: int, hidden: bool) -> Any:
    value = to_python(column.slice(number, 1))[0]
    return SHOWN if hidden and value is not None else value
