"""Compare rows with the newest message of their key: the messages that a load would send are made, and their rows
compared with the topic's.

A topic is read once, and later only what was added to it. The newest message of each key is kept in a file on disk, so
that a large topic takes no memory. Only rows are compared, not what a message says about its batch.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from sluice.errors import LoadError, MappingError, TargetUnavailable
from sluice.model.offset import Offset
from sluice.model.planned import PlannedTable
from sluice.targets.kafka.client import KicksOut
from sluice.targets.kafka.place import Place
from sluice.targets.kafka.registry import Registry
from sluice.targets.kafka.topic_reader import MESSAGES, TopicReader
from sluice.targets.kafka.topics import Topics, configs_of
from sluice.targets.messages.arrow_messages import arrow_messages
from sluice.targets.messages.documents import MessageWriter
from sluice.targets.messages.pieces import merged_piece, removed_piece
from sluice.targets.messages.read_back import ReadBack, arrow_entries, arrow_keys, listed_keys
from sluice.targets.port import (
    SHOWN_CHARACTERS,
    ComparesRowsOnly,
    KeyRange,
    RangeDifferences,
    RowDifference,
    keys_where,
)

Entries = Callable[[bytes | None, bytes | None], Iterable[tuple[bytes, bytes | None]]]
_NO_PLACE = Offset.at("", "binlog.000001", 4)
"""A placeholder: what messages say about their batch is not compared."""


@dataclass
class KafkaComparer(ComparesRowsOnly):
    """See :class:`sluice.targets.port.Comparer` and :class:`sluice.targets.port.KeyLister`.

    It has no ranges and no checksums.
    """

    place: Place
    _read: dict[str, _Topic] = field(default_factory=dict)
    _back: ReadBack = field(init=False)
    _writer: MessageWriter = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._back = ReadBack(self.place.options.form, self.place.pipeline, Registry(self.place))
        self._writer = MessageWriter(self.place.options.form, self.place.pipeline, 0, _NO_PLACE, self._back.own)

    def compare(
        self, plan: PlannedTable, rows: pa.Table, item: KeyRange | None, *, values: bool = False
    ) -> RangeDifferences:
        """See :meth:`sluice.targets.port.Comparer.compare`.

        Raises MappingError for a table without a key or a topic.
        """
        if not plan.key:
            raise MappingError(
                f"messages of {plan.target} have no key: which is a row's newest one is not known",
                where=str(plan.target),
                hint="give it a primary key",
            )
        with self._lock:
            topic = self._read_on(plan)
            differences = self._compared(plan, rows, topic, values=values)
            return differences if item is None else replace(differences, extra=self._beyond(plan, rows, topic, item))

    def not_listed(self, plan: PlannedTable) -> str:
        """See :meth:`sluice.targets.port.KeyLister.not_listed`."""
        if not self.place.options.of_one_table:
            return f"the topic of {plan.target} may have rows of other tables, too"
        return self._back.not_listed(plan)

    def keys(self, plan: PlannedTable) -> Iterator[pa.Table]:
        """See :meth:`sluice.targets.port.KeyLister.keys`."""
        with self._lock:
            topic = self._read_on(plan)
        after = b""
        while True:
            with self._lock:
                messages = topic.after(after, MESSAGES)
            if not messages:
                return
            after = messages[-1][0]
            rows = [row for _, value in messages if (row := self._back.theirs(value, topic.name)) is not None]
            yield self._back.keys(plan, rows)

    def _read_on(self, plan: PlannedTable) -> _Topic:
        """Read the topic up to its current end."""
        topic = self._topic(plan)
        try:
            topic.read_on()
        except KicksOut as error:  # raised for producers only
            raise TargetUnavailable(f"reading topic {topic.name}: {error}") from None
        return topic

    def _beyond(self, plan: PlannedTable, rows: pa.Table, topic: _Topic, item: KeyRange) -> pa.Table | None:
        """Return the listed keys that only the topic has."""
        listed = item.listed
        if listed is None or not listed.num_rows:
            return None
        keys = listed_keys(plan, listed, rows.schema)
        sent = {key for key, _, _ in self._made(plan, rows)} if rows.num_rows else set()
        only_there = [
            own not in sent and self._back.theirs(topic.newest(own), topic.name) is not None
            for own in self._told_apart(plan, keys)
        ]
        return keys_where(listed, only_there)

    def _told_apart(self, plan: PlannedTable, keys: pa.Table) -> list[bytes]:
        """Return, for each key, what tells its row apart in a topic."""
        if self.place.options.form.arrow:
            return arrow_keys(keys)
        return [self._back.key(key) for key in self._writer.tombstones(removed_piece(plan, keys)).keys.to_pylist()]

    def _made(self, plan: PlannedTable, rows: pa.Table) -> Iterator[tuple[bytes, int, bytes | None]]:
        """Yield (what tells the row apart, its number, value) of each message that a load of the rows would send."""
        piece = merged_piece(plan.target, plan.key, rows)
        if self.place.options.form.arrow:
            for message, first, _ in arrow_messages(piece, 0, self.place.options.max_message_bytes, _NO_PLACE):
                for number, (key, value) in enumerate(arrow_entries(message), first):
                    yield key, number, value
            return
        messages = self._writer.messages(piece)
        for number, key, value in zip(
            messages.rows.tolist(), messages.keys.to_pylist(), messages.values.to_pylist(), strict=True
        ):
            yield self._back.key(key), number, value

    def _topic(self, plan: PlannedTable) -> _Topic:
        topics = Topics.look(self.place)
        name = topics.topic_of(plan.target)
        if name not in topics.counts:
            raise MappingError(
                f"the topic {name} for {plan.target} is not there",
                where=str(plan.target),
                hint=f"`sluice check {self.place.pipeline} --apply` makes it",
            )
        if name not in self._read:
            self._read[name] = _Topic(self.place, name, self._back.entries)
        self._read[name].partitions = topics.counts[name]
        return self._read[name]

    def _compared(self, plan: PlannedTable, rows: pa.Table, topic: _Topic, *, values: bool) -> RangeDifferences:
        back = self._back
        missing, different = [], []
        for key, number, value in self._made(plan, rows) if rows.num_rows else ():
            expected, stored = back.mine(value), back.theirs(topic.newest(key), topic.name)
            assert expected is not None  # rows of the source are there
            if stored is None:
                missing.append(number)
                continue
            odd = tuple(
                name
                for name, value_here in expected.items()
                if name not in stored or _told(value_here) != _told(stored[name])
            )
            if odd:
                pairs = tuple((_shown(expected[name]), _shown(stored.get(name))) for name in odd) if values else ()
                different.append(RowDifference(number, odd, pairs))
        return RangeDifferences(tuple(missing), tuple(different))


class _Topic:
    """The newest message of each key of a topic, as of the last look."""

    def __init__(self, place: Place, name: str, entries: Entries) -> None:
        """Open a store for the topic's newest messages.

        ``entries``: what tells each row of a message apart, and its value, from the message's key and value.
        """
        self.place, self.name, self.partitions, self._entries = place, name, 0, entries
        self._reader = TopicReader(place, name, "verify", self._require_whole)
        self._file = tempfile.NamedTemporaryFile(prefix="sluice-verify-", suffix=".db")  # noqa: SIM115
        self._known = sqlite3.connect(self._file.name, check_same_thread=False)
        self._known.execute("PRAGMA journal_mode = OFF")
        self._known.execute("PRAGMA synchronous = OFF")
        self._known.execute(
            "CREATE TABLE newest (key BLOB PRIMARY KEY, partition INTEGER, at INTEGER, value BLOB) WITHOUT ROWID"
        )

    def newest(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is no message, or the newest one says that the row was deleted."""
        row = self._known.execute("SELECT value FROM newest WHERE key = ?", (key,)).fetchone()
        return row[0] if row is not None else None

    def after(self, key: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return existing rows whose keys follow ``key`` in an arbitrary but stable order."""
        cursor = self._known.execute(
            "SELECT key, value FROM newest WHERE key > ? AND value IS NOT NULL ORDER BY key LIMIT ?", (key, count)
        )
        return cursor.fetchall()

    def read_on(self) -> None:
        """Read up to the end of every partition. Raises LoadError if old messages were removed, TargetUnavailable."""
        self._reader.read_on(self.partitions, self._take)

    def _require_whole(self, number: int, low: int) -> None:
        """Raise LoadError for a partition whose first messages were removed, unless newer ones of their keys are
        there.
        """
        policy = configs_of(self.place, [self.name]).get(self.name, {}).get("cleanup.policy", "") if low else ""
        if low and policy != "compact":
            raise LoadError(
                f"topic {self.name} begins at offset {low} of partition {number}: its older messages were removed, so "
                "that the newest one of each key is not known",
                where=self.name,
                hint="a topic that keeps each key's newest message has cleanup.policy: compact",
            )

    def _take(self, messages: Sequence[Any]) -> None:
        """Keep the newest message of each key.

        In a partition the later message is the newer one, whatever the producer's clock said. Clocks only decide for
        keys that went to another partition.
        """
        entries = [
            (key, message.partition(), message.timestamp()[1], value)
            for message in messages
            for key, value in self._entries(message.key(), message.value())
        ]
        self._known.executemany(
            "INSERT INTO newest VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET partition = excluded.partition, "
            "at = excluded.at, value = excluded.value WHERE excluded.partition = partition OR excluded.at >= at",
            entries,
        )
        self._known.commit()


def _told(value: Any) -> Any:
    """Tag a value with its type, so that ``1``, ``True`` and ``1.0`` compare as different."""
    return type(value), value


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return f"0x{value.hex()}"[:SHOWN_CHARACTERS]
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))[:SHOWN_CHARACTERS]


__all__ = ["KafkaComparer"]
