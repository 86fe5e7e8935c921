"""The rows of a batch on their way into the open transaction: messages, their partitions, and what is left out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import structlog

from sluice.errors import LoadError
from sluice.model.batches import Op
from sluice.model.fields import is_masked
from sluice.model.tables import TableId
from sluice.targets.changes_in_order import in_log_order
from sluice.targets.kafka.ack_topic import KafkaCheckpoint
from sluice.targets.kafka.held_keys import HeldKeys
from sluice.targets.kafka.options import Partitioning
from sluice.targets.kafka.partitioning import partition_of, partitions
from sluice.targets.kafka.place import Place
from sluice.targets.kafka.registry import Registry
from sluice.targets.kafka.topics import Topics
from sluice.targets.kafka.transactions import Channel
from sluice.targets.messages.arrow_messages import CONTENT_TYPE, arrow_messages
from sluice.targets.messages.batch_rows import BatchRows
from sluice.targets.messages.documents import Header, Messages, MessageWriter
from sluice.targets.messages.pieces import (
    EMPTIED,
    merged_parts,
    merged_piece,
    removed_piece,
    sent_rows,
    without_refused,
)
from sluice.targets.messages.read_back import arrow_keys, listed_keys
from sluice.targets.messages.side_messages import statement_messages, transaction_messages
from sluice.targets.messages.transactions import Transaction, numbered
from sluice.targets.port import (
    ChangePiece,
    Fence,
    RejectedRows,
    Rejection,
    StoredRange,
    TableInput,
    WriteResult,
)

_log = structlog.get_logger()

_ROWS = 20_000
"""Rows that become messages at a time."""
_KEPT_REPLAYS = 100


@dataclass(frozen=True, slots=True)
class Emptied:
    """A table of the target whose topic loses the keys that it holds.

    ``after_rows``: after those of the batch, so that these are not sent.
    """

    table: TableId
    after_rows: bool


@dataclass(frozen=True, slots=True)
class TopicRows(BatchRows):
    """The contents of a batch, with the listed keys that go and the topics that are emptied."""

    removes: tuple[StoredRange, ...] = ()
    empties: tuple[Emptied, ...] = ()


def _said(key: bytes | None, avro: bool) -> str:
    """Format a message's key for display."""
    return "none" if key is None else f"0x{key.hex()[:300]}" if avro else key.decode("utf-8", "replace")[:300]


class BatchSender:
    """Sends the rows of a batch into the open transaction.

    Attributes:
        held: the record that is committed with them.
        result: the rows that were sent.
    """

    def __init__(
        self,
        place: Place,
        fence: Fence,
        rows: TopicRows,
        channel: Channel,
        held: KafkaCheckpoint,
        rejected: RejectedRows | None,
    ) -> None:
        self._place, self._fence, self._rows, self._channel, self._rejected = place, fence, rows, channel, rejected
        self._options = place.options
        self._topics = Topics.look(place, channel.producer)
        self._merged = not rows.changes
        self._transactions: list[Transaction] = []
        at = rows.position if self._merged else None
        numbers = Registry(place) if self._options.form.registered else None
        self._writer = MessageWriter(self._options.form, rows.source, fence.batch, at, numbers, rows.defaults)
        tables = [*(remove.plan.target for remove in rows.removes), *(table.target for table in rows.tables)]
        tables = tables or [piece.table for piece in self._pieces]
        topics = self._topics.require(tables, held.topics, channel.admin)
        if rows.replay:
            self.held = replace(held, topics=topics, replayed=(*held.replayed[-_KEPT_REPLAYS:], rows.replay))
        else:
            checkpoint = replace(held.checkpoint, batch=fence.batch, position=rows.position)
            self.held = replace(held, checkpoint=checkpoint, topics=topics)
        self.result = WriteResult()
        self._stale: list[HeldKeys] = []
        self._removed = 0

    def read_held_keys(self, files: ExitStack) -> None:
        """Read what the topics hold that are emptied; a topic that is not there holds nothing."""
        for emptied in self._rows.empties:
            topic = self._topics.topic_of(emptied.table)
            if topic not in self._topics.counts:
                continue
            held_keys = files.enter_context(
                closing(HeldKeys(self._place, emptied.table, topic, self._topics.counts[topic]))
            )
            held_keys.read()
            self._stale.append(held_keys)

    @cached_property
    def _pieces(self) -> Sequence[ChangePiece]:
        if not self._rows.changes:
            return ()
        pieces = self._rows.reader.change_pieces()
        if not self._options.transaction_topic:
            return pieces
        counted, self._transactions = numbered(list(pieces))
        return counted

    def _side(self) -> None:
        """Send what is not a row."""
        names = self._topics.side
        if "schema_topic" in names:
            messages = statement_messages(self._writer, names["schema_topic"], self._rows.statements)
            self._send_side(names["schema_topic"], messages)
        if "transaction_topic" in names:
            messages = transaction_messages(self._writer, names["transaction_topic"], self._transactions)
            self._send_side(names["transaction_topic"], messages)

    def _send_side(self, topic: str, messages: Sequence[tuple[bytes | None, bytes]]) -> None:
        header = [("sluice.batch", str(self._fence.batch).encode())] if self._options.headers else []
        keys, values = [key for key, _ in messages], [value for _, value in messages]
        self._channel.produce_each(topic, keys, values, [0] * len(messages), [header] * len(messages))

    def send(self) -> None:
        """Send everything but the checkpoint."""
        self._side()
        if self._merged:
            for held_keys in self._stale:
                self._empty(held_keys)
            for stored in self._rows.removes:
                self._remove(stored)
            emptied_later = {emptied.table for emptied in self._rows.empties if emptied.after_rows}
            for table in self._rows.tables:
                if table.target not in emptied_later:
                    self._table(table)
            return
        together = self._options.partitioning is Partitioning.GLOBAL
        for pieces in in_log_order(self._pieces, _ROWS, together=together):
            for piece in pieces:
                if self._options.form.arrow:
                    self._record_batches(piece)
                else:
                    self._send(piece, self._writer.messages(piece))
                self.result += WriteResult(appended=piece.rows.num_rows)

    def _empty(self, held_keys: HeldKeys) -> None:
        """Send a message without a value for each key, to the partition that holds it."""
        batch, first = self._fence.batch, self._removed
        of_batch = ("sluice.batch", str(batch).encode())
        for piece in held_keys.pieces():
            places, keys = [place for place, _ in piece], [key for _, key in piece]
            numbers = range(self._removed, self._removed + len(piece))
            headers: list[list[Header]] = [
                [of_batch, ("sluice.change", f"{n}.{Op.DELETE}.{EMPTIED}.0".encode())] if self._options.headers else []
                for n in numbers
            ]
            self._channel.produce_each(held_keys.topic, keys, [None] * len(piece), places, headers)
            self._removed += len(piece)
        count = self._removed - first
        _log.info("topic_emptied", target=self._place.owner, topic=held_keys.topic, keys=count, batch=batch)
        self.result += WriteResult(deleted=count)

    def _remove(self, stored: StoredRange) -> None:
        """Remove listed keys that the source does not have."""
        item = self._rows.reader.key_range(stored)
        assert item.kept is not None  # a range with keys
        assert item.listed is not None  # others are refused
        keys = listed_keys(stored.plan, item.listed, item.kept.schema)
        stay = set(arrow_keys(item.kept.select(keys.schema.names)))
        keys = keys.filter(pa.array([key not in stay for key in arrow_keys(keys)], pa.bool_()))
        for start in range(0, keys.num_rows, _ROWS):
            piece = removed_piece(stored.plan, keys.slice(start, _ROWS), self._removed)
            self._removed += piece.rows.num_rows
            if self._options.form.arrow:
                self._record_batches(piece, only_keys=True)
            else:
                self._send(piece, self._writer.tombstones(piece))
        self.result += WriteResult(deleted=keys.num_rows)

    def _table(self, table: TableInput) -> None:
        refused: list[Rejection] = []
        for rows in merged_parts(self._rows.reader, table.files, _ROWS):
            refused += self._merged_rows(table, rows)
        if self._rejected is not None:
            self._rejected(f"kafka-{table.plan.source}", table.target, refused)

    def _record_batches(self, piece: ChangePiece, *, only_keys: bool = False) -> dict[int, str]:
        """Send rows in Arrow's form; what is left out and why, as :meth:`_too_large` says it.

        A row of ``only_keys`` is not left out.
        """
        options, topic, batch = self._options, self._topics.topic_of(piece.table), self._fence.batch
        [place] = self._places(piece.table, 1, None, self._topics.counts[topic])
        at, refused = self._rows.position if self._merged else None, {}
        for value, first, rows in arrow_messages(piece, batch, options.max_message_bytes, at):
            if len(value) > options.max_message_bytes and not only_keys:  # one row
                refused[first] = self._refusal(piece, len(value), "none")
                continue
            about = {
                "content-type": CONTENT_TYPE,
                "sluice.batch": batch,
                "sluice.table": piece.table,
                "sluice.rows": rows,
            }
            header = (
                [(name, str(header_value).encode()) for name, header_value in about.items()] if options.headers else []
            )
            self._channel.produce_each(topic, [None], [value], [place], [header])
        return refused

    def _merged_rows(self, table: TableInput, rows: pa.Table) -> list[Rejection]:
        piece, letters = merged_piece(table.target, table.plan.key, rows), list[Rejection]()
        if self._rejected is not None:
            piece, letters = without_refused(piece)
            self.result += WriteResult(rejected=len(letters))
        rows = piece.rows
        refused = self._record_batches(piece) if self._options.form.arrow else self._sent_but(piece)
        self.result += sent_rows(rows, refused)
        return [*letters, *(Rejection(rows.slice(at, 1), why, "message too large") for at, why in refused.items())]

    def _sent_but(self, piece: ChangePiece) -> dict[int, str]:
        """Send merged rows; those that are left out, and why."""
        messages = self._writer.messages(piece)
        refused = self._too_large(piece, messages)
        if refused:
            rows = np.setdiff1d(np.arange(piece.rows.num_rows), list(refused))
            piece = merged_piece(piece.table, piece.key, piece.rows.take(pa.array(rows)))
            messages = self._writer.messages(piece)
        self._send(piece, messages)
        return refused

    def _too_large(self, piece: ChangePiece, messages: Messages) -> dict[int, str]:
        """Return the rows with a message that is not to be sent, and why.

        Raises LoadError for the first if no row may be left out.
        """
        refusals = {}
        for number, size in messages.too_large(self._options.max_message_bytes):
            key = _said(messages.keys[number].as_py(), self._options.form.registered)
            refusals[int(messages.rows[number])] = self._refusal(piece, size, key)
        return refusals

    def _refusal(self, piece: ChangePiece, size: int, key: str) -> str:
        """Return why a row is left out. Raises LoadError if none may be."""
        hidden = any(map(is_masked, piece.rows.schema))
        why = (
            f"a message of {size:,} bytes is larger than options.max_message_bytes, {self._options.max_message_bytes:,}"
        )
        if self._rejected is None or not self._merged:
            raise LoadError(
                f"{why}: a row of {piece.table}, key {'(masked)' if hidden else key}",
                where=f"{piece.table}, topic {self._topics.topic_of(piece.table)}",
                hint="raise it and the topic's max.message.bytes, or leave the column out: mapping.columns.exclude"
                + ("; on_error: dead_letter leaves such rows out" if self._merged else ""),
            )
        return why

    def _send(self, piece: ChangePiece, messages: Messages) -> None:
        if not len(messages):
            return
        if not self._merged:
            self._too_large(piece, messages)
        topic = self._topics.topic_of(piece.table)
        if any(map(is_masked, piece.rows.schema)):
            self._channel.hidden.add(topic)
        places = self._places(piece.table, len(messages), messages.routes, self._topics.counts[topic])
        keys, values, headers = messages.keys.to_pylist(), messages.values.to_pylist(), messages.headers
        if headers is None:
            records = [
                {"key": key, "value": value, "partition": place}
                for key, value, place in zip(keys, values, places, strict=True)
            ]
            self._channel.produce_all(topic, records, int(messages.keys.nbytes + messages.values.nbytes))
            return
        self._channel.produce_each(topic, keys, values, places, headers)

    def _places(self, table: TableId, messages: int, routes: pa.Array | None, count: int) -> list[int]:
        """Return the partition of each message. ``routes``: None if they are not needed."""
        how = self._options.partitioning
        if how is Partitioning.GLOBAL or count == 1:
            return [0] * messages
        if how is Partitioning.TABLE:
            return [partition_of(str(table).encode(), count)] * messages
        places: list[int] = partitions(routes, count).tolist()
        return places
