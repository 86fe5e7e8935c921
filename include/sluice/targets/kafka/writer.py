"""A batch on the driver, and the one unit that writes it: rows and checkpoint are one transaction."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from sluice.errors import MappingError, TargetUnavailable
from sluice.model.tables import TableId
from sluice.targets.kafka.ack_topic import AckTopic, KafkaCheckpoint
from sluice.targets.kafka.checkpoint import KafkaCheckpoints
from sluice.targets.kafka.client import KicksOut
from sluice.targets.kafka.place import Place
from sluice.targets.kafka.sender import BatchSender, Emptied, TopicRows
from sluice.targets.kafka.stale_keys import left, not_copied, why_not_emptied
from sluice.targets.kafka.topics import Topics
from sluice.targets.kafka.transactions import Channel, slot
from sluice.targets.messages.definitions import require_not_converted, require_not_stopped
from sluice.targets.messages.key_forms import KeyForms
from sluice.targets.messages.side_messages import statement_of
from sluice.targets.messages.stale_keys import Stale, stale_keys
from sluice.targets.port import (
    BatchInput,
    Checkpoint,
    Fence,
    Input,
    RejectedRows,
    SchemaChange,
    TableInput,
    WriteResult,
)
from sluice.targets.port.record import require_guarded, require_no_newer, require_present


def stale_topics(place: Place, changes: Input, change: SchemaChange) -> tuple[Stale, ...]:
    """Return the topics with the newest row of each key that a statement makes wrong."""
    if changes is Input.CHANGES:
        return ()
    return stale_keys(change, KeyForms(place.options.form, place.pipeline))


@dataclass(frozen=True)
class KafkaWriter:
    """See :class:`sluice.targets.port.BatchWriter`."""

    place: Place
    input: Input
    batch: BatchInput
    fence: Fence

    def prepare(self) -> None:
        """Refuse schema changes that cannot be followed. No I/O.

        Documents name their columns, so most schema changes need nothing, and the others nothing before the rows.
        Raises LoadError if the policy is to stop, or if a topic would keep keys that no row has, or lack rows.
        """
        why_not = why_not_emptied(self.place.options)
        for change in self.batch.schema_changes:
            require_not_stopped(change)
            for stale in self._stale(change):
                if why_not:
                    raise left(change, stale, self.place.pipeline, why_not)
                if stale.copied and stale.table not in change.copies:
                    raise not_copied(change, stale)
            require_not_converted(change)

    def plan(self, parallelism: int) -> list[list[KafkaUnit]]:
        """Return one unit: rows and checkpoint are one transaction, and a transaction has one producer.

        Raises MappingError.
        """
        batch, place = self.batch, self.place
        statements = tuple(map(statement_of, batch.schema_changes)) if place.options.schema_topic else ()
        empties = self._emptied()
        if not batch.tables and not batch.changes and not statements and not batch.reconcile and not empties:
            return []
        if batch.tables or batch.reconcile:
            targets = [*(removal.plan.target for removal in batch.reconcile), *(table.target for table in batch.tables)]
            if place.options.form.keys_are_alike:
                Topics(place, {}).require_own(targets)
            for table in batch.tables:
                self._require_key(table)
        rows = TopicRows.of(batch, place.pipeline, place.options.form, statements)
        rows = replace(rows, removes=tuple(batch.reconcile), empties=empties)
        return [[KafkaUnit(place, self.fence, rows)]]

    def _stale(self, change: SchemaChange) -> tuple[Stale, ...]:
        return stale_topics(self.place, self.input, change)

    def _emptied(self) -> tuple[Emptied, ...]:
        """Return the tables whose topics hold keys that are to be removed.

        Raises LoadError for a topic that may have rows of another table.
        """
        emptied: dict[TableId, Emptied] = {}
        for change in self.batch.schema_changes if self.input is Input.MERGED else ():
            sources = {stale.table for stale in self._stale(change) if stale.emptied}
            for table in sorted(sources | (change.copies - change.not_captured)):
                self._require_alone(change, table)
                target = change.target(table)
                after = not change.before_rows or (target in emptied and emptied[target].after_rows)
                emptied[target] = Emptied(target, after_rows=after)
        return tuple(emptied.values())

    def _require_alone(self, change: SchemaChange, table: TableId) -> None:
        place, target = self.place, change.target(table)
        if place.options.of_one_table or not place.options.form.keys_are_alike:
            return
        topic = place.options.topic_of(target, place.pipeline, place.target)
        for other_table in sorted(self.batch.facts.captured_tables().values()):
            if other_table != target and place.options.topic_of(other_table, place.pipeline, place.target) == topic:
                why = f"topic {topic} has rows of {other_table}, too, so that it cannot be emptied"
                raise left(change, Stale(table, f"the keys of {table} stay in its topic"), place.pipeline, why)

    def _require_key(self, table: TableInput) -> None:
        """Raise MappingError if a row's messages may be in several partitions: a compacted topic would keep old
        ones.
        """
        columns = self.place.options.partition_columns.get(str(table.target), ())
        others = [name for name in columns if name not in table.plan.key]
        if others:
            raise MappingError(
                f"rows of {table.target} are spread by {others[0]}, which is not in the key: with changes: latest a "
                "row could be in two partitions",
                where=f"{table.target}.{others[0]}",
                hint="options.partition_columns: key columns only, or changes: all",
            )

    def commit(self, results: Sequence[WriteResult]) -> None:
        """Move the checkpoint if no unit has done so; a unit commits the batch with its rows. Raises Fenced."""
        batch, fence = self.batch, self.fence
        if batch.replay or any(result.message == (fence.epoch, batch.number) for result in results):
            return
        KafkaCheckpoints(self.place).advance(Checkpoint(fence.epoch, batch.number, batch.position))

    def abort(self) -> None:
        """Do nothing: a unit aborts its own transaction."""


@dataclass(frozen=True)
class KafkaUnit:
    """See :class:`sluice.targets.port.WriteUnit`: the whole batch."""

    place: Place
    fence: Fence
    rows: TopicRows

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return self.rows.cost

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes."""
        return self.rows.memory_bytes

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Write all rows and the checkpoint in one transaction.

        Raises Fenced if the target holds the batch, or a newer process writes.
        """
        started, replay = time.monotonic(), self.rows.replay
        try:
            with slot(self.place) as own_slot, ExitStack() as files:
                channel, held_checkpoint = self._channel(own_slot)
                if replay and replay in held_checkpoint.replayed:
                    return WriteResult()
                sender = BatchSender(self.place, self.fence, self.rows, channel, held_checkpoint, rejected)
                sender.read_held_keys(files)  # before the transaction begins, which has a time limit
                channel.commit(sender.held, sender.send)
        except KicksOut as error:
            raise self._why(error) from None
        message = None if replay else (self.fence.epoch, self.fence.batch)
        return replace(sender.result, seconds=time.monotonic() - started, message=message)

    def _channel(self, process_state: Any) -> tuple[Channel, KafkaCheckpoint]:
        """Return a channel that may write, and what the target holds."""
        channel: Channel | None = process_state.channel
        known_checkpoint = channel.held if channel is not None else None
        if (
            channel is not None
            and known_checkpoint is not None
            and (known_checkpoint.checkpoint.epoch, known_checkpoint.checkpoint.batch)
            == (self.fence.epoch, self.fence.held)
            and channel.knows()
        ):
            return channel, known_checkpoint  # if another producer began since, the commit is refused
        # a process that is out of date must not disturb a newer one
        before = require_present(AckTopic(self.place).read(0), self.place)
        require_no_newer(before.checkpoint, self.fence.epoch, self.place.record_place)
        channel = process_state.channel = Channel(self.place)
        return channel, require_guarded(channel.held, self.place, self.fence)

    def _why(self, error: KicksOut) -> TargetUnavailable:
        require_guarded(AckTopic(self.place).read(), self.place, self.fence)
        return TargetUnavailable(
            f"another producer began transactions as {self.place.transactional_id} while batch {self.fence.batch} was "
            f"written: {error}",
            where=self.place.owner,
        )
