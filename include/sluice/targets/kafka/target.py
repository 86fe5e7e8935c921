"""Kafka as a target: a batch is one transaction of the one producer of its pipeline and target, and so is its checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pydantic import BaseModel

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError, LoadError, MappingError, TargetUnavailable
from sluice.formats import Statement
from sluice.model.batches import Op
from sluice.model.fields import is_masked
from sluice.model.planned import PlannedTable
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import TableId
from sluice.targets.changes_in_order import in_log_order
from sluice.targets.fencing import require_no_newer
from sluice.targets.kafka.arrow_messages import CONTENT_TYPE, arrow_messages
from sluice.targets.kafka.channel import Channel, Held, KicksOut, Place, slot
from sluice.targets.kafka.checkpoints import KafkaCheckpoints, gone, guarded
from sluice.targets.kafka.comparing import KafkaComparer
from sluice.targets.kafka.documents import EMPTIED, Header, Messages, Writer, merged_piece, removed_piece
from sluice.targets.kafka.held_keys import HeldKeys
from sluice.targets.kafka.key_forms import KeyForms
from sluice.targets.kafka.options import KafkaOptions, Partitioning
from sluice.targets.kafka.partitioning import partition_of, partitions
from sluice.targets.kafka.read_back import arrow_keys, listed_keys
from sluice.targets.kafka.registry import Registry
from sluice.targets.kafka.side_topics import statement_messages, statement_of, transaction_messages
from sluice.targets.kafka.stale_keys import Stale, left, not_copied, stale_keys, why_not_emptied
from sluice.targets.kafka.topics import KafkaSchema, Topics
from sluice.targets.kafka.transactions import Transaction, numbered
from sluice.targets.options import options_of
from sluice.targets.port import (
    BatchInput,
    Capabilities,
    ChangePiece,
    Checkpoint,
    Consistency,
    Feature,
    Fence,
    Guarantee,
    Input,
    Ordering,
    OtherWriter,
    RejectedRows,
    Rejection,
    RowReader,
    SchemaChange,
    StoredRange,
    TableInput,
    WriteResult,
)
from sluice.targets.schema.conversions import effects_on, not_converted
from sluice.targets.schema.policy import stopped

_log = structlog.get_logger()

_K = ChangeKind
_NOT_FOLLOWED = frozenset({_K.TRUNCATE_TABLE, _K.ROWS_REMOVED, _K.ROWS_REPLACED, _K.UNKNOWN})
"""Changes by which rows are removed that no change of the log names."""
FOLLOWED = frozenset(ChangeKind) - _NOT_FOLLOWED
"""The schema changes that are followed. Each document names its columns, so most need nothing; :mod:`sluice.targets.kafka.stale_keys` names the rest.
"""
_ORDER = {
    Partitioning.KEY: Ordering.KEY,
    Partitioning.COLUMNS: Ordering.NONE,
    Partitioning.TABLE: Ordering.TABLE,
    Partitioning.GLOBAL: Ordering.GLOBAL,
}
_ROWS = 20_000
"""Rows that become messages at a time."""
_KEPT_REPLAYS = 100


def _capabilities(changes: Input, ordering: Ordering, *, empties: bool) -> Capabilities:
    """Return the abilities of a Kafka target. ``empties``: the keys that a topic holds can be removed."""
    if changes is Input.CHANGES:
        features = {Feature.DELETE, Feature.KEYLESS, Feature.PARTIAL_ROWS}
    else:
        features = {Feature.DELETE, Feature.ROW_REJECTION, *([Feature.RECOPIES] if empties else ())}
    return Capabilities(
        inputs=frozenset(Input),
        guarantee=Guarantee.TRANSACTIONAL,
        ordering=frozenset({ordering}),
        consistency=frozenset(Consistency),
        schema_changes=FOLLOWED | {_K.TRUNCATE_TABLE, _K.ROWS_REMOVED} if Feature.RECOPIES in features else FOLLOWED,
        features=frozenset(features),
        max_writers=1,
        compares=True,
        compares_in_one_process=True,
        copies_again=True,
    )


class KafkaTarget:
    """See :class:`sluice.targets.port.Target`."""

    Options: ClassVar[type[BaseModel]] = KafkaOptions
    CAPABILITIES: ClassVar[Capabilities] = replace(
        _capabilities(Input.MERGED, Ordering.KEY, empties=True),
        ordering=frozenset({Ordering.KEY, Ordering.TABLE, Ordering.GLOBAL, Ordering.NONE}),
    )

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        self.config = config
        self.options = options_of(config, KafkaOptions)
        if endpoint.kind not in {"kafka", ""}:
            raise ConfigError(
                f"target {config.name!r}: connection {endpoint.connection_id!r} is of type {endpoint.kind}, not kafka"
            )
        self.place = Place(endpoint, self.options, pipeline, config.name)
        if self.input is Input.MERGED and self.options.key_columns:
            raise ConfigError(
                f"target {config.name!r}: options.key_columns is for changes: all; merged rows are told apart by the primary key",
                hint="name other key columns in the mapping: key",
            )

        if self.input is Input.MERGED and self.options.transaction_topic:
            raise ConfigError(
                f"target {config.name!r}: options.transaction_topic is for changes: all; merged rows are of no transaction"
            )

    @property
    def input(self) -> Input:
        """The form in which it gets changes."""
        return Input(self.config.changes)

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the target, as the options say."""
        return _capabilities(self.input, _ORDER[self.options.partitioning], empties=not why_not_emptied(self.options))

    @property
    def checkpoints(self) -> KafkaCheckpoints:
        """The checkpoint store, in a compacted topic."""
        return KafkaCheckpoints(self.place)

    @contextmanager
    def open(self, epoch: int) -> Iterator[KafkaSession]:
        """See :meth:`sluice.targets.port.Target.open`."""
        yield KafkaSession(self, epoch)

    def schema(self) -> KafkaSchema:
        """Return what compares topics."""
        return KafkaSchema(self.place, self.input)

    def reconciler(self) -> KafkaReconciler | None:
        """Return what removes listed keys, for merged rows; else None."""
        return KafkaReconciler(self.options) if self.input is Input.MERGED else None

    def comparer(self) -> KafkaComparer | None:
        """Return what compares the newest message of each key; None for a target with every change, which is not compared."""
        return KafkaComparer(self.place) if self.input is Input.MERGED else None

    def stale(self, change: SchemaChange) -> tuple[Stale, ...]:
        """Return the topics with the newest row of each key that a statement makes wrong."""
        if self.input is Input.CHANGES:
            return ()
        return stale_keys(change, KeyForms(self.options, self.place.pipeline))

    def copied_again(self, change: SchemaChange) -> frozenset[TableId]:
        """See :meth:`sluice.targets.port.CopiesAgain.copied_again`."""
        if why_not_emptied(self.options):
            return frozenset()
        return frozenset(one.table for one in self.stale(change) if one.copied)

    def interrupt(self) -> None:
        """Do nothing: nothing waits for longer than the transaction may last."""


@dataclass(frozen=True)
class KafkaReconciler:
    """See :class:`sluice.targets.port.Reconciler` and :class:`sluice.targets.port.ListReconciler`.

    A listed key gets a message without a value; with format arrow, whose messages have no keys, a row that says that it is gone.
    """

    options: KafkaOptions

    def refuses(self, table: PlannedTable) -> str:
        """Return why a range is always refused."""
        return "what a topic holds of a range of keys is not known to a load"

    def refuses_listed(self, table: PlannedTable) -> str:
        """Return why listed keys cannot be removed: a delete may need more than the key. "" if they can."""
        if self.options.arrow or self.options.tombstones:
            return ""
        return "options.tombstones is false, and a delete needs the whole row then"

    def others(self) -> tuple[OtherWriter, ...]:
        """Return nothing, as a topic does not say who writes to it."""
        return ()


@dataclass(frozen=True)
class KafkaSession:
    """See :class:`sluice.targets.port.TargetSession`."""

    target: KafkaTarget
    epoch: int

    def begin(self, batch: BatchInput) -> KafkaWriter:
        """Return the writer of a batch. No I/O."""
        return KafkaWriter(self.target, batch, Fence(self.epoch, batch.held, batch.number))


@dataclass(frozen=True)
class KafkaWriter:
    """See :class:`sluice.targets.port.BatchWriter`."""

    target: KafkaTarget
    batch: BatchInput
    fence: Fence

    def prepare(self) -> None:
        """Refuse schema changes that cannot be followed. No I/O.

        Documents name their columns, so most schema changes need nothing, and the others nothing before the rows. Raises LoadError if the policy is
        to stop, or if a topic would keep keys that no row has, or lack rows.
        """
        place, why_not = self.target.place, why_not_emptied(self.target.options)
        for change in self.batch.schema_changes:
            if change.check_only:
                raise stopped(change, (), (kind.value for kind in sorted(change.wanted)))
            for one in self.target.stale(change):
                if why_not:
                    raise left(change, one, place.pipeline, why_not)
                if one.copied and one.table not in change.copies:
                    raise not_copied(change, one)
            for table in change.tables:
                for effect in effects_on(change, table.table):
                    raise not_converted(
                        change, effect, change.target(table.table), "messages that were sent stay as they are"
                    )

    def plan(self, parallelism: int) -> list[list[KafkaUnit]]:
        """Return one unit: rows and checkpoint are one transaction, and a transaction has one producer. Raises MappingError."""
        batch, place = self.batch, self.target.place
        told = tuple(map(statement_of, batch.schema_changes)) if place.options.schema_topic else ()
        empties = self._emptied()
        if not batch.tables and not batch.changes and not told and not batch.reconcile and not empties:
            return []
        if batch.tables or batch.reconcile:
            topics = Topics.look(place)
            targets = [*(one.plan.target for one in batch.reconcile), *(table.target for table in batch.tables)]
            if place.options.keys_are_alike:
                topics.require_own(targets)
            topics.require(targets)
            for table in batch.tables:
                self._require_key(table)
        lighter_first = tuple(sorted(batch.tables, key=lambda table: table.weight))
        unit = KafkaUnit(place, self.fence, batch.reader, lighter_first, batch.position, batch.changes, batch.replay)
        return [[replace(unit, statements=told, removes=tuple(batch.reconcile), empties=empties)]]

    def _emptied(self) -> tuple[Emptied, ...]:
        """Return the tables whose topics hold keys that are to be removed. Raises LoadError for a topic that may have rows of another table."""
        found: dict[TableId, Emptied] = {}
        for change in self.batch.schema_changes if self.target.input is Input.MERGED else ():
            sources = {one.table for one in self.target.stale(change) if one.emptied}
            for table in sorted(sources | (change.copies - change.not_captured)):
                self._require_alone(change, table)
                target = change.target(table)
                after = not change.before_rows or (target in found and found[target].after_rows)
                found[target] = Emptied(target, after_rows=after)
        return tuple(found.values())

    def _require_alone(self, change: SchemaChange, table: TableId) -> None:
        place, target = self.target.place, change.target(table)
        if place.options.of_one_table or not place.options.keys_are_alike:
            return
        topic = place.options.topic_of(target, place.pipeline, place.target)
        for other in sorted(self.batch.facts.captured_tables().values()):
            if other != target and place.options.topic_of(other, place.pipeline, place.target) == topic:
                why = f"topic {topic} has rows of {other}, too, so that it cannot be emptied"
                raise left(change, Stale(table, f"the keys of {table} stay in its topic"), place.pipeline, why)

    def _require_key(self, table: TableInput) -> None:
        """Raise MappingError if a row's messages may be in several partitions: a compacted topic would keep old ones."""
        columns = self.target.options.partition_columns.get(str(table.target), ())
        others = [name for name in columns if name not in table.plan.key]
        if others:
            raise MappingError(
                f"rows of {table.target} are spread by {others[0]}, which is not in the key: with changes: latest a row could be in two partitions",
                where=f"{table.target}.{others[0]}",
                hint="options.partition_columns: key columns only, or changes: all",
            )

    def commit(self, results: Sequence[WriteResult]) -> None:
        """Move the checkpoint if no unit has done so; a unit commits the batch with its rows. Raises Fenced."""
        batch, fence = self.batch, self.fence
        if batch.replay or any(one.message == (fence.epoch, batch.number) for one in results):
            return
        self.target.checkpoints.advance(Checkpoint(fence.epoch, batch.number, batch.position))

    def abort(self) -> None:
        """Do nothing: a unit aborts its own transaction."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """A table of the target whose topic loses the keys that it holds. ``after_rows``: after those of the batch, so that these are not sent."""

    table: TableId
    after_rows: bool


@dataclass(frozen=True)
class KafkaUnit:
    """See :class:`sluice.targets.port.WriteUnit`: the whole batch."""

    place: Place
    fence: Fence
    reader: RowReader
    tables: tuple[TableInput, ...]
    position: Any
    changes: int = 0
    replay: str = ""
    statements: tuple[Statement, ...] = ()
    removes: tuple[StoredRange, ...] = ()
    empties: tuple[Emptied, ...] = ()

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return max(sum(table.rows for table in self.tables), self.changes)

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes: for merged rows those that are read at a time, for changes all."""
        files = [file for table in self.tables for file in table.files]
        return self.reader.memory_of(sum(file.arrow_bytes for file in files), len(files)) if files else 0

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Write all rows and the checkpoint in one transaction. Raises Fenced if the target holds the batch, or a newer process writes."""
        started = time.monotonic()
        try:
            with slot(self.place) as mine, ExitStack() as files:
                channel, held = self._channel(mine)
                if self.replay and self.replay in held.replayed:
                    return WriteResult()
                sending = _Sending(self, channel, held, rejected)
                sending.read_held_keys(files)  # before the transaction begins, which has a time limit
                channel.commit(sending.held, sending.send)
        except KicksOut as error:
            raise self._why(error) from None
        message = None if self.replay else (self.fence.epoch, self.fence.batch)
        return replace(sending.result, seconds=time.monotonic() - started, message=message)

    def _channel(self, mine: Any) -> tuple[Channel, Held]:
        """Return a channel that may write, and what the target holds."""
        channel: Channel | None = mine.channel
        known = channel.held if channel is not None else None
        if (
            channel is not None
            and known is not None
            and (known.checkpoint.epoch, known.checkpoint.batch) == (self.fence.epoch, self.fence.held)
            and channel.knows()
        ):
            return channel, known  # if another producer began since, the commit is refused
        # a process that is out of date must not disturb a newer one
        require_no_newer(_known(self.place), self.fence.epoch, self.place.record_place)
        channel = mine.channel = Channel(self.place)
        return channel, guarded(self.place, self.fence, channel.held)

    def _why(self, error: KicksOut) -> TargetUnavailable:
        guarded(self.place, self.fence, self.place.read())
        return TargetUnavailable(
            f"another producer began transactions as {self.place.transactional_id} while batch {self.fence.batch} was written: {error}",
            where=self.place.owner,
        )


def _known(place: Place) -> Checkpoint:
    found = place.read(0)
    if found is None:
        raise gone(place)
    return found.checkpoint


def _said(key: bytes | None, avro: bool) -> str:
    """Format a message's key for display."""
    return "none" if key is None else f"0x{key.hex()[:300]}" if avro else key.decode("utf-8", "replace")[:300]


class _Sending:
    """Sends the rows of a batch into the open transaction."""

    def __init__(self, unit: KafkaUnit, channel: Channel, held: Held, rejected: RejectedRows | None) -> None:
        self._unit, self._channel, self._rejected = unit, channel, rejected
        self._options = unit.place.options
        self._topics = Topics.look(unit.place, channel.producer)
        self._merged = not unit.changes
        self._transactions: list[Transaction] = []
        at = unit.position if self._merged else None
        numbers = Registry(unit.place) if self._options.registered else None
        self._writer = Writer(self._options, unit.place.pipeline, unit.fence.batch, at, numbers)
        tables = [*(one.plan.target for one in unit.removes), *(table.target for table in unit.tables)]
        tables = tables or [piece.table for piece in self._pieces]
        self._topics.require(tables)
        counts = self._topics.require_same(held.partitions, tables)
        if unit.replay:
            self.held = replace(held, partitions=counts, replayed=(*held.replayed[-_KEPT_REPLAYS:], unit.replay))
        else:
            checkpoint = replace(held.checkpoint, batch=unit.fence.batch, position=unit.position)
            self.held = replace(held, checkpoint=checkpoint, partitions=counts)
        self.result = WriteResult()
        self._stale: list[HeldKeys] = []
        self._removed = 0

    def read_held_keys(self, files: ExitStack) -> None:
        """Read what the topics hold that are emptied; a topic that is not there holds nothing."""
        for one in self._unit.empties:
            topic = self._topics.topic_of(one.table)
            if topic not in self._topics.counts:
                continue
            held = files.enter_context(
                closing(HeldKeys(self._unit.place, one.table, topic, self._topics.counts[topic]))
            )
            held.read()
            self._stale.append(held)

    @cached_property
    def _pieces(self) -> Sequence[ChangePiece]:
        if not self._unit.changes:
            return ()
        pieces = self._unit.reader.change_pieces()
        if not self._options.transaction_topic:
            return pieces
        counted, self._transactions = numbered(list(pieces))
        return counted

    def _side(self) -> None:
        """Send what is not a row."""
        names = self._topics.side
        if "schema_topic" in names:
            made = statement_messages(self._writer, names["schema_topic"], self._unit.statements)
            self._send_side(names["schema_topic"], made)
        if "transaction_topic" in names:
            made = transaction_messages(self._writer, names["transaction_topic"], self._transactions)
            self._send_side(names["transaction_topic"], made)

    def _send_side(self, topic: str, made: Sequence[tuple[bytes | None, bytes]]) -> None:
        header = [("sluice.batch", str(self._unit.fence.batch).encode())] if self._options.headers else []
        keys, values = [key for key, _ in made], [value for _, value in made]
        self._channel.produce_each(topic, keys, values, [0] * len(made), [header] * len(made))

    def send(self, channel: Channel) -> None:
        """Send everything but the checkpoint."""
        self._side()
        if self._merged:
            for held in self._stale:
                self._empty(held)
            for stored in self._unit.removes:
                self._remove(stored)
            emptied_later = {one.table for one in self._unit.empties if one.after_rows}
            for table in self._unit.tables:
                if table.target not in emptied_later:
                    self._table(table)
            return
        together = self._options.partitioning is Partitioning.GLOBAL
        for pieces in in_log_order(self._pieces, _ROWS, together=together):
            for piece in pieces:
                if self._options.arrow:
                    self._record_batches(piece)
                else:
                    self._send(piece, self._writer.messages(piece))
                self.result += WriteResult(appended=piece.rows.num_rows)

    def _empty(self, held: HeldKeys) -> None:
        """Send a message without a value for each key, to the partition that holds it."""
        batch, first = self._unit.fence.batch, self._removed
        of_batch = ("sluice.batch", str(batch).encode())
        for piece in held.pieces():
            places, keys = [place for place, _ in piece], [key for _, key in piece]
            numbers = range(self._removed, self._removed + len(piece))
            headers: list[list[Header]] = [
                [of_batch, ("sluice.change", f"{n}.{Op.DELETE}.{EMPTIED}.0".encode())] if self._options.headers else []
                for n in numbers
            ]
            self._channel.produce_each(held.topic, keys, [None] * len(piece), places, headers)
            self._removed += len(piece)
        count = self._removed - first
        _log.info("topic_emptied", target=self._unit.place.owner, topic=held.topic, keys=count, batch=batch)
        self.result += WriteResult(deleted=count)

    def _remove(self, stored: StoredRange) -> None:
        """Remove listed keys that the source does not have."""
        item = self._unit.reader.key_range(stored)
        assert item.kept is not None  # a range with keys
        keys = listed_keys(stored.plan, item.listed or (), item.kept.schema)
        stay = set(arrow_keys(item.kept.select(keys.schema.names)))
        keys = keys.filter(pa.array([key not in stay for key in arrow_keys(keys)], pa.bool_()))
        for start in range(0, keys.num_rows, _ROWS):
            piece = removed_piece(stored.plan, keys.slice(start, _ROWS), self._removed)
            self._removed += piece.rows.num_rows
            if self._options.arrow:
                self._record_batches(piece, only_keys=True)
            else:
                self._send(piece, self._writer.tombstones(piece))
        self.result += WriteResult(deleted=keys.num_rows)

    def _table(self, table: TableInput) -> None:
        refused: list[Rejection] = []
        for rows in self._unit.reader.pieces(table.files):
            for start in range(0, rows.num_rows, _ROWS):
                part = rows.slice(start, _ROWS)
                refused += self._merged_rows(table, part)
        if self._rejected is not None:
            self._rejected(f"kafka-{table.target}", table.target, refused)

    def _record_batches(self, piece: ChangePiece, *, only_keys: bool = False) -> dict[int, str]:
        """Send rows in Arrow's form; what is left out and why, as :meth:`_too_large` says it. A row of ``only_keys`` is not left out."""
        options, topic, batch = self._options, self._topics.topic_of(piece.table), self._unit.fence.batch
        [place] = self._places(piece.table, 1, None, self._topics.counts[topic])
        at, refused = self._unit.position if self._merged else None, {}
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
            header = [(name, str(said).encode()) for name, said in about.items()] if options.headers else []
            self._channel.produce_each(topic, [None], [value], [place], [header])
        return refused

    def _merged_rows(self, table: TableInput, rows: pa.Table) -> list[Rejection]:
        piece = merged_piece(table.target, table.plan.key, rows)
        refused = self._record_batches(piece) if self._options.arrow else self._sent_but(piece)
        kept = np.ones(rows.num_rows, bool)
        kept[list(refused)] = False
        gone = pc.equal(rows["_op"], Op.DELETE.value).to_numpy(zero_copy_only=False)
        deletes = int((gone & kept).sum())
        self.result += WriteResult(int(kept.sum()) - deletes, deletes, rejected=len(refused))
        return [Rejection(rows.slice(number, 1), why, "message too large") for number, why in refused.items()]

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
        """Return the rows with a message that is not to be sent, and why. Raises LoadError for the first if no row may be left out."""
        found = {}
        for number, size in messages.too_large(self._options.max_message_bytes):
            key = _said(messages.keys[number].as_py(), self._options.registered)
            found[int(messages.rows[number])] = self._refusal(piece, size, key)
        return found

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
            given = [
                {"key": key, "value": value, "partition": place}
                for key, value, place in zip(keys, values, places, strict=True)
            ]
            self._channel.produce_all(topic, given, int(messages.keys.nbytes + messages.values.nbytes))
            return
        self._channel.produce_each(topic, keys, values, places, headers)

    def _places(self, table: TableId, messages: int, routes: pa.Array | None, count: int) -> list[int]:
        """Return the partition of each message. ``routes``: None if they are not needed."""
        how = self._options.partitioning
        if how is Partitioning.GLOBAL or count == 1:
            return [0] * messages
        if how is Partitioning.TABLE:
            return [partition_of(str(table).encode(), count)] * messages
        found: list[int] = partitions(routes, count).tolist()
        return found
