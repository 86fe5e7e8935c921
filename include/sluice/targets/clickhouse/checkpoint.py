"""The checkpoint of a target: rows of a table that only grows, of which the newest counts, and the fences of its
tables.

ClickHouse has no compare-and-set, but it drops an insert whose deduplication token it knows. Who changes the
checkpoint inserts the revision after the one that it read, with a token that names this revision: of two that read
the same one, the second insert is dropped, and reading back tells it so.

Rows have a version that begins with the term of their writer: a term begins when an epoch takes the target over, or
when the checkpoint is moved back. A late row of an older term loses against newer ones for ever. Where that is not
enough, because newer rows are gone or every row counts, a constraint of the table refuses rows of older terms
(:func:`shut_out`).
"""

# ruff: noqa: S608 - identifiers and texts are quoted

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from sluice.errors import CheckpointError, Fenced, SluiceError, TargetUnavailable
from sluice.model.offset import Offset
from sluice.targets.clickhouse.client import UNKNOWN_DATABASE, UNKNOWN_TABLE, Client, connected
from sluice.targets.clickhouse.place import Place
from sluice.targets.clickhouse.sql import literal, name, table_name
from sluice.targets.clickhouse.tables import VERSION, WRITER, HeldTable
from sluice.targets.fencing import require_batch, require_no_newer, require_own, require_unedited, seal_of
from sluice.targets.port import Agrees, Checkpoint, Fence, OtherWriter

FORMAT_VERSION = 1
_ATTEMPTS = 20
_BATCH_BITS = 30
_KEPT, _CLEANED_EVERY = 100, 500
"""Revisions that are kept, and after how many older ones are removed."""
_MISSING = (UNKNOWN_TABLE, UNKNOWN_DATABASE)


@dataclass(frozen=True, slots=True)
class Record:
    """What is stored.

    Attributes:
        term: of the writer. delivery: the term in which batches began to be delivered anew. tables: target tables
            that the pipeline wrote.
        at: seconds since 1970 of the last batch. statements: (batch, number) up to which schema changes are done.
    """

    checkpoint: Checkpoint
    term: int = 0
    delivery: int = 0
    tables: frozenset[str] = frozenset()
    at: float = 0.0
    statements: tuple[int, int] = (0, 0)

    @property
    def least(self) -> int:
        """The lowest version of the term."""
        return self.term << (_BATCH_BITS + 1)

    def version(self, batch: int, *, stays: bool) -> int:
        """Return the version of rows that a batch writes: a later term wins, then a later batch, then a row that
        stays under its key.
        """
        return self.least | batch << 1 | stays

    def to_text(self, place: Place) -> str:
        """Return the record as JSON."""
        held = self.checkpoint
        position = held.position.to_json() if held.position else None
        return json.dumps({
            "format": FORMAT_VERSION, "pipeline": place.pipeline, "target": place.target, "epoch": held.epoch,
            "term": self.term, "delivery": self.delivery, "batch": held.batch, "position": position,
            "identity": held.identity, "seal": seal_of([place.owner], held.batch, position),
            "tables": sorted(self.tables), "at": self.at, "statements": list(self.statements),
        }, sort_keys=True)  # fmt: skip


class ClickHouseCheckpoints:
    """See :class:`sluice.targets.port.CheckpointStore`."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @property
    def place(self) -> str:
        """The rows, and their server."""
        return self._place.record_place

    def read(self) -> Checkpoint | None:
        """Return the target's checkpoint, None if there is none."""
        with connected(self._place) as client:
            found = read_record(client, self._place)
        return found.checkpoint if found is not None else None

    def take_over(self, epoch: int, first: int = 0, *, identity: str = "", agrees: Agrees | None = None) -> Checkpoint:
        """Take the target over. Raises Fenced, and what ``agrees`` raises."""

        def made(found: Record | None) -> Record:
            if agrees is not None:
                agrees(found.checkpoint if found else None)
            held = found or Record(Checkpoint(0, first))
            require_no_newer(held.checkpoint, epoch, self.place)
            same = found is not None and held.checkpoint.epoch == epoch
            taken = replace(held.checkpoint, epoch=epoch, identity=identity or held.checkpoint.identity)
            term = held.term if same else _next_term(held)
            return replace(held, checkpoint=taken, term=term, delivery=held.delivery or term)

        return self._changed(made)

    def advance(self, to: Checkpoint, tables: Iterable[str] = ()) -> None:
        """Store a later checkpoint. ``tables``: that the batch wrote. Raises Fenced."""

        def made(found: Record | None) -> Record:
            held = require_record(found, self._place, to.epoch)
            if held.checkpoint.batch > to.batch:
                raise Fenced(
                    f"the target holds batch {held.checkpoint.batch} by now, and batch {to.batch} was to be recorded",
                    where=self.place,
                    hint="another run delivered it; this one has nothing left to do",
                )
            moved = replace(to, identity=to.identity or held.checkpoint.identity)
            if moved == held.checkpoint:
                return held
            return replace(held, checkpoint=moved, tables=held.tables.union(tables), at=round(time.time(), 3))

        self._changed(made)

    def rewind(self, to: Checkpoint, *, anew: bool = False) -> None:
        """Store a checkpoint that may be earlier. Raises Fenced."""

        def made(found: Record | None) -> Record:
            held = found or Record(Checkpoint(0, to.batch))
            require_no_newer(held.checkpoint, to.epoch, self.place)
            moved, term = replace(to, identity=to.identity or held.checkpoint.identity), _next_term(held)
            return replace(held, checkpoint=moved, term=term, delivery=term, statements=(0, 0))

        self._changed(made)

    def forget(self) -> None:
        """Store that nothing is known any more; rows stay."""
        with connected(self._place) as client:
            if _newest(client, self._place) is not None:
                change_record(client, self._place, lambda _: None)

    def others(self) -> tuple[OtherWriter, ...]:
        """Return the other pipelines with a checkpoint at the server."""
        place, now = self._place, time.time()
        table = table_name(place.checkpoint_table)
        newest = f"SELECT owner, argMax(record, revision) FROM {table} GROUP BY owner ORDER BY owner"
        statement = f"{newest} FORMAT JSONCompactEachRow"
        found = []
        with connected(place) as client:
            for owner, text in client.ask("reading checkpoints", statement, allow=_MISSING).rows:
                if not text or json.loads(text).get("pipeline") == place.pipeline:
                    continue
                held = _record_of(text, place, owner)
                forget = f"DELETE FROM {table} WHERE owner = {literal(owner)}"
                idle = max(0.0, now - held.at)
                found.append(OtherWriter(json.loads(text)["pipeline"], held.tables, idle, forget))
        return tuple(found)

    def _changed(self, made: Callable[[Record | None], Record]) -> Checkpoint:
        with connected(self._place) as client:
            found = change_record(client, self._place, made)
        assert found is not None
        return found.checkpoint


def _next_term(held: Record) -> int:
    """Return a later term: by the clock, so that a pipeline that begins anew is later than what it was before."""
    return max(held.term + 1, int(time.time()))


def change_record(client: Client, place: Place, made: Callable[[Record | None], Record | None]) -> Record | None:
    """Change the record to what ``made`` returns for it, unless another process changes it meanwhile."""
    burnt = 0
    for attempt in range(_ATTEMPTS):
        newest = _newest(client, place)
        revision, _, text = newest or (0, "", "")
        found = _record_of(text, place, place.owner) if text else None
        new = made(found)
        if new == found:
            return found
        if newest is None and not attempt:
            _create_table(client, place)
        mine, nonce = max(revision + 1, burnt + 1), secrets.token_hex(8)
        _insert(client, place, mine, nonce, new.to_text(place) if new is not None else "")
        there = _newest(client, place)
        if there is not None and there[:2] == (mine, nonce):
            _clean(client, place, mine)
            return new
        if (there is None or there[0] < mine) and not place.options.replicated:
            burnt = mine  # nobody can write it: its token is known, and a person removed its row
    raise TargetUnavailable(
        "other processes changed the checkpoint again and again",
        where=place.record_place,
        hint=f"did a person remove rows of {place.checkpoint_table}? Then drop that table: "
        f"`sluice check {place.pipeline}` says what to do",
    )


def _newest(client: Client, place: Place) -> tuple[int, str, str] | None:
    """Return the newest revision, who wrote it, and the record; None if there is none."""
    statement = (
        f"SELECT revision, nonce, record FROM {table_name(place.checkpoint_table)} "
        f"WHERE owner = {literal(place.owner)} ORDER BY revision DESC, at LIMIT 1 FORMAT JSONCompactEachRow"
    )
    found = client.ask("reading the checkpoint", statement, allow=_MISSING)
    for revision, nonce, text in found.rows:
        return int(revision), nonce, text
    return None


def _insert(client: Client, place: Place, revision: int, nonce: str, text: str) -> None:
    given = ", ".join([literal(place.owner), str(revision), literal(nonce), literal(text)])
    statement = (
        f"INSERT INTO {table_name(place.checkpoint_table)} (owner, revision, nonce, record) "
        f"SETTINGS async_insert = 0, insert_deduplication_token = {literal(f'{place.owner}/{revision}')} "
        f"VALUES ({given})"
    )
    client.ask("changing the checkpoint", statement)


def _clean(client: Client, place: Place, revision: int) -> None:
    if revision % _CLEANED_EVERY == 0:
        older = f"owner = {literal(place.owner)} AND revision < {revision - _KEPT}"
        client.ask("removing old revisions", f"DELETE FROM {table_name(place.checkpoint_table)} WHERE {older}")


def _create_table(client: Client, place: Place) -> None:
    table, replicated = place.checkpoint_table, place.options.replicated
    settings = f"{'' if replicated else 'non_'}replicated_deduplication_window = 10000"
    settings += "" if replicated else ", fsync_after_insert = 1, fsync_part_directory = 1"
    client.ask("making a database", f"CREATE DATABASE IF NOT EXISTS {name(table.schema)}")
    statement = (
        f"CREATE TABLE IF NOT EXISTS {table_name(table)} (owner String, revision UInt64, nonce String, record String, "
        f"at DateTime64(6, 'UTC') DEFAULT now64(6)) ENGINE = {'Replicated' if replicated else ''}MergeTree "
        f"ORDER BY (owner, revision) SETTINGS {settings}"
    )
    client.ask("making the table of checkpoints", statement)


def read_record(client: Client, place: Place) -> Record | None:
    """Return the record, None if there is none. Raises CheckpointError if it cannot be read."""
    found = _newest(client, place)
    return _record_of(found[2], place, place.owner) if found is not None and found[2] else None


def _record_of(text: str, place: Place, owner: str) -> Record:
    try:
        data: Any = json.loads(text)
        if data["format"] != FORMAT_VERSION:
            raise ValueError(f"format {data['format']}")
        position = Offset.from_json(data["position"]) if data["position"] is not None else None
        edited = data["seal"] != seal_of([owner], data["batch"], data["position"])
        held = Checkpoint(int(data["epoch"]), int(data["batch"]), position, str(data["identity"]), edited)
        batch, number = map(int, data["statements"])
        tables = frozenset(map(str, data["tables"]))
        return Record(held, int(data["term"]), int(data["delivery"]), tables, float(data["at"]), (batch, number))
    except (ValueError, KeyError, TypeError, SluiceError) as error:
        raise CheckpointError(
            f"the checkpoint of {owner} cannot be read: {error!r}",
            where=f"rows of {owner} in table {place.checkpoint_table} at {place.receiver.base}",
            hint=f"was it written by a newer version, or by hand? `sluice check {place.pipeline}` says what to do",
        ) from error


def require_record(found: Record | None, place: Place, epoch: int) -> Record:
    """Return the record of a target that ``epoch`` took over. Raises Fenced."""
    if found is None:
        raise Fenced(
            "the target's checkpoint is gone",
            where=place.record_place,
            hint=f"was the table removed? `sluice check {place.pipeline}` says what to do",
        )
    require_own(found.checkpoint, epoch, place.record_place)
    return found


def guarded(client: Client, place: Place, fence: Fence) -> Record:
    """Return the record, if it is what a unit of ``fence`` was told. Raises Fenced, CheckpointError."""
    found = require_record(read_record(client, place), place, fence.epoch)
    require_unedited(found.checkpoint, place.pipeline, place.record_place)
    require_batch(found.checkpoint.batch, fence, place.record_place)
    return found


def shut_out(client: Client, place: Place, record: Record, tables: Iterable[HeldTable]) -> None:
    """Let tables refuse rows of this writer's older terms.

    Each term has a constraint of its own, and all of them count: a process that stood still before it added one
    cannot weaken that of a newer term.
    """
    for table in tables:
        if table.fence_of(place.owner) >= record.least:
            continue
        older = [
            label for label, (owner, version) in table.fences.items() if owner == place.owner and version < record.least
        ]
        condition = f"({WRITER} != {literal(place.owner)}) OR ({VERSION} >= {record.least})"
        parts = [f"ADD CONSTRAINT IF NOT EXISTS {name(_label(place, record))} CHECK {condition}"]
        parts += [f"DROP CONSTRAINT IF EXISTS {name(label)}" for label in older]
        client.ask(
            f"shutting out older writers of {table.table}", f"ALTER TABLE {table_name(table.table)} {', '.join(parts)}"
        )


def _label(place: Place, record: Record) -> str:
    """Return the name of a constraint, which has letters, digits and underscores alone."""
    owner = "".join(one if one.isascii() and one.isalnum() else f"_{ord(one):x}_" for one in place.owner)
    return f"sluice_{owner}_{record.term}"


__all__ = ["ClickHouseCheckpoints", "Record", "change_record", "guarded", "read_record", "require_record", "shut_out"]
