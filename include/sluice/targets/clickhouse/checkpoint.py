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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

from typing_extensions import override

from sluice.targets.clickhouse.client import UNKNOWN_DATABASE, UNKNOWN_TABLE, Client, connected
from sluice.targets.clickhouse.place import Place
from sluice.targets.clickhouse.sql import literal, name, table_name
from sluice.targets.clickhouse.tables import VERSION, WRITER, HeldTable
from sluice.targets.port import Checkpoint, Fence, OtherWriter
from sluice.targets.port.record import (
    SwappedCheckpoints,
    TermRecord,
    checkpoint_of,
    fields_of,
    reading,
    require_guarded,
)

_BATCH_BITS = 30
_KEPT, _CLEANED_EVERY = 100, 500
"""Revisions that are kept, and after how many older ones are removed."""
_MISSING = (UNKNOWN_TABLE, UNKNOWN_DATABASE)


@dataclass(frozen=True, slots=True)
class Record(TermRecord):
    """The record. ``delivery``: the term in which batches began to be delivered anew."""

    delivery: int = 0

    @override
    def taken_over(self, checkpoint: Checkpoint) -> Self:
        record = super(Record, self).taken_over(checkpoint)
        return replace(record, delivery=record.delivery or record.term)

    @override
    def rewound(self, checkpoint: Checkpoint, *, anew: bool) -> Self:
        rewound = super(Record, self).rewound(checkpoint, anew=anew)
        return replace(rewound, delivery=rewound.term)

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
        more = {
            "pipeline": place.pipeline, "target": place.target, "term": self.term, "delivery": self.delivery,
            "tables": sorted(self.tables), "at": self.at, "statements": list(self.statements),
        }  # fmt: skip
        return json.dumps(fields_of(self.checkpoint, place.owner) | more, sort_keys=True)


class ClickHouseCheckpoints(SwappedCheckpoints[Place, Record]):
    """The checkpoint store, rows of a table. A record that is forgotten is an empty text."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, Record)

    @contextmanager
    def _opened(self) -> Iterator[CheckpointRows]:
        with connected(self._place) as client:
            yield CheckpointRows(client, self._place)

    def others(self) -> tuple[OtherWriter, ...]:
        """Return the other pipelines with a checkpoint at the server."""
        place, now = self._place, time.time()
        table = table_name(place.checkpoint_table)
        newest = f"SELECT owner, argMax(record, revision) FROM {table} GROUP BY owner ORDER BY owner"
        statement = f"{newest} FORMAT JSONCompactEachRow"
        writers = []
        with connected(place) as client:
            for owner, text in client.ask("reading checkpoints", statement, allow=_MISSING).rows:
                if not text or json.loads(text).get("pipeline") == place.pipeline:
                    continue
                held_record = record_of(text, place, owner)
                forget = f"DELETE FROM {table} WHERE owner = {literal(owner)}"
                idle = max(0.0, now - held_record.at)
                writers.append(OtherWriter(json.loads(text)["pipeline"], held_record.tables, idle, forget))
        return tuple(writers)


class CheckpointRows:
    """The two calls, by the deduplication of inserts."""

    def __init__(self, client: Client, place: Place) -> None:
        self._client, self._place = client, place
        self._burnt = 0

    def read(self) -> tuple[Record | None, int | None]:
        """Return the record, and its revision, None if there is no row."""
        newest = _newest(self._client, self._place)
        if newest is None:
            return None, None
        return record_of(newest[2], self._place, self._place.owner) if newest[2] else None, newest[0]

    def swap(self, record: Record | None, token: int | None) -> bool:
        """Insert the next revision, and read back whose record that is."""
        client, place = self._client, self._place
        if token is None and not self._burnt:
            _create_table(client, place)
        revision, nonce = max((token or 0) + 1, self._burnt + 1), secrets.token_hex(8)
        _insert(client, place, revision, nonce, record.to_text(place) if record is not None else "")
        newest = _newest(client, place)
        if newest is not None and newest[:2] == (revision, nonce):
            _clean(client, place, revision)
            return True
        if (newest is None or newest[0] < revision) and not place.options.replicated:
            self._burnt = revision  # nobody can write it: its token is known, and a person removed its row
        return False


def _newest(client: Client, place: Place) -> tuple[int, str, str] | None:
    """Return the newest revision, who wrote it, and the record; None if there is none."""
    statement = (
        f"SELECT revision, nonce, record FROM {table_name(place.checkpoint_table)} "
        f"WHERE owner = {literal(place.owner)} ORDER BY revision DESC, at LIMIT 1 FORMAT JSONCompactEachRow"
    )
    reply = client.ask("reading the checkpoint", statement, allow=_MISSING)
    for revision, nonce, text in reply.rows:
        return int(revision), nonce, text
    return None


def _insert(client: Client, place: Place, revision: int, nonce: str, text: str) -> None:
    row_values = ", ".join([literal(place.owner), str(revision), literal(nonce), literal(text)])
    statement = (
        f"INSERT INTO {table_name(place.checkpoint_table)} (owner, revision, nonce, record) "
        f"SETTINGS async_insert = 0, insert_deduplication_token = {literal(f'{place.owner}/{revision}')} "
        f"VALUES ({row_values})"
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
    return CheckpointRows(client, place).read()[0]


def record_of(text: str, place: Place, owner: str) -> Record:
    """Return the record of an owner from its text. Raises CheckpointError."""
    where = f"rows of {owner} in table {place.checkpoint_table} at {place.receiver.base}"
    with reading(place, owner=owner, where=where):
        data = json.loads(text)
        batch, number = map(int, data["statements"])
        tables, at = frozenset(map(str, data["tables"])), float(data["at"])
        held_checkpoint = checkpoint_of(data, owner)
        return Record(held_checkpoint, tables, at, int(data["term"]), (batch, number), int(data["delivery"]))


def guarded(client: Client, place: Place, fence: Fence) -> Record:
    """Return the record that allows a unit of ``fence`` to write. Raises Fenced, CheckpointError."""
    return require_guarded(read_record(client, place), place, fence)


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
    owner = "".join(char if char.isascii() and char.isalnum() else f"_{ord(char):x}_" for char in place.owner)
    return f"sluice_{owner}_{record.term}"
