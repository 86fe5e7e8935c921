"""A batch on the driver, and the one unit that sends it: one writer, so that the order of the log is kept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.formats.columns import joined
from sluice.model.fields import is_masked
from sluice.model.tables import TableId
from sluice.targets.changes_in_order import in_log_order
from sluice.targets.messages.batch_rows import BatchRows
from sluice.targets.messages.definitions import require_said
from sluice.targets.messages.documents import Headers, MessageWriter
from sluice.targets.messages.key_forms import KeyForms
from sluice.targets.messages.pieces import merged_parts, merged_piece, sent_rows, without_refused
from sluice.targets.messages.side_messages import statement_messages, statement_of, transaction_messages
from sluice.targets.messages.stale_keys import StaleWords
from sluice.targets.messages.transactions import Transaction, numbered
from sluice.targets.port import (
    BatchInput,
    ChangePiece,
    Checkpoint,
    Fence,
    Input,
    RejectedRows,
    Rejection,
    TableInput,
    WriteResult,
)
from sluice.targets.rabbitmq.checkpoint import StreamCheckpoints
from sluice.targets.rabbitmq.client import Outgoing
from sluice.targets.rabbitmq.place import Place
from sluice.targets.rabbitmq.sender import Channel, encoded, name_of, opened

_ROWS = 10_000
"""Rows that become messages at a time."""
_BESIDE = 1 << 16
"""More bytes than a message of a stream has beside its document."""
_JSON = b"application/json"
_AT_READERS = StaleWords("at the readers", "at the readers under the old name", "of which the readers have no row")


@dataclass(frozen=True)
class RabbitMQWriter:
    """See :class:`sluice.targets.port.BatchWriter`."""

    place: Place
    input: Input
    batch: BatchInput
    fence: Fence

    def prepare(self) -> None:
        """Refuse schema changes that documents cannot say. No I/O. Raises LoadError."""
        forms = KeyForms(self.place.options.form, self.place.pipeline) if self.input is Input.MERGED else None
        require_said(self.batch.schema_changes, forms, _AT_READERS, "tell the readers")

    def plan(self, parallelism: int) -> list[list[RabbitMQUnit]]:
        """Return one unit: the order of the log is kept within it."""
        batch = self.batch
        statements = tuple(map(statement_of, batch.schema_changes)) if self.place.options.statements else ()
        if not batch.tables and not batch.changes and not statements:
            return []
        rows = BatchRows.of(batch, self.place.pipeline, self.place.options.form, statements)
        return [[RabbitMQUnit(self.place, self.fence, rows)]]

    def commit(self, results: Sequence[WriteResult]) -> None:
        """Move the checkpoint past a batch that streams have; for queues the pipeline keeps it. Raises Fenced."""
        if self.place.options.streams and not self.batch.replay:
            to = Checkpoint(self.fence.epoch, self.batch.number, self.batch.position)
            StreamCheckpoints(self.place).advance(to, {route for result in results for route in result.message or ()})

    def abort(self) -> None:
        """Do nothing: what was sent was sent; streams know it, and queues get it again."""


@dataclass(frozen=True)
class RabbitMQUnit:
    """See :class:`sluice.targets.port.WriteUnit`: the whole batch."""

    place: Place
    fence: Fence
    rows: BatchRows

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return self.rows.cost

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes."""
        return self.rows.memory_bytes

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Send everything, and wait until the server has it.

        Raises Fenced, TargetUnavailable, MappingError, and LoadError for a refused row.
        """
        started, rows = time.monotonic(), self.rows
        pieces: Sequence[ChangePiece] = rows.reader.change_pieces() if rows.changes else ()
        transactions: list[Transaction] = []
        if pieces and self.place.options.transactions:
            pieces, transactions = numbered(list(pieces))
        tables = [*dict.fromkeys([*(table.target for table in rows.tables), *(piece.table for piece in pieces)])]
        contents = name_of(self._described(pieces))
        with opened(self.place, self.fence, tables, contents, rows.replay) as channel:
            sender = BatchSender(self.place, self.fence, rows, channel, contents, rejected)
            sender.send_side(transactions)
            sender.send_changes(pieces)
            for table in rows.tables:
                sender.send_table(table)
            channel.finish()
        return replace(sender.result, seconds=time.monotonic() - started, message=tuple(channel.routes))

    def _described(self, pieces: Sequence[ChangePiece]) -> list[str]:
        """Return what tells these contents from others that a batch of this number may have had."""
        rows, position = self.rows, self.rows.position
        contents = [
            self.place.options.format,
            rows.replay,
            f"{self.fence.batch} {position.server} {position.place}",
        ]
        contents += [f"{statement.file}:{statement.offset}" for statement in rows.statements]
        for piece in pieces:
            seen_name = name_of([piece.rows["_seq"].to_numpy().tobytes().hex(), piece.part.to_numpy().tobytes().hex()])
            contents.append(f"{piece.table} {piece.rows.num_rows} {seen_name}")
        contents += [
            f"{table.target} {file.path} {file.rows} {file.size_bytes}" for table in rows.tables for file in table.files
        ]
        return contents


@dataclass
class BatchSender:
    """Makes messages of rows, numbers them, and sends them in order."""

    place: Place
    fence: Fence
    rows: BatchRows
    channel: Channel
    contents: str
    rejected: RejectedRows | None
    result: WriteResult = field(default_factory=WriteResult)
    _number: int = 0
    _limits: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        at = None if self.rows.changes else self.rows.position
        form, defaults = self.place.options.form, self.rows.defaults
        self._writer = MessageWriter(form, self.rows.source, self.fence.batch, at, defaults=defaults)

    def send_side(self, transactions: Sequence[Transaction]) -> None:
        """Send what is not a row: where transactions begin and end, and statements. Raises LoadError."""
        routes, exchange = self.place.side_routes(), "" if self.place.options.streams else self.place.exchange_of(None)
        for option, route in routes.items():
            if option == "statements":
                messages = statement_messages(self._writer, route, self.rows.statements)
            else:
                messages = transaction_messages(self._writer, route, transactions)
            keys, values = (pa.array([message[part] for message in messages], pa.large_binary()) for part in (0, 1))
            headers = {"sluice.batch": _same(str(self.fence.batch), len(messages)), "key": keys}
            self._require_taken(self._outgoing([0] * len(messages), exchange, route, headers, values))

    def send_changes(self, pieces: Sequence[ChangePiece]) -> None:
        """Send every change. A refused one stops the batch: what follows it in the log is not sent before it.

        Raises LoadError.
        """
        options = self.place.options
        together = options.in_one or not options.streams
        for part in in_log_order(pieces, _ROWS, together=together):
            messages: list[Outgoing] = []
            for piece in part:
                part_messages, refused = self._messages(piece)
                for why in refused.values():
                    raise self._stopped(piece.table, why)
                messages += part_messages
            self._require_taken(messages)
            self.result += WriteResult(appended=sum(piece.rows.num_rows for piece in part))

    def send_table(self, table: TableInput) -> None:
        """Send merged rows; those that are refused become dead letters if they may. Raises LoadError."""
        letters: list[Rejection] = []
        for rows in merged_parts(self.rows.reader, table.files, _ROWS):
            piece = merged_piece(table.target, table.plan.key, rows)
            if self.rejected is not None:
                piece, odd = without_refused(piece)
                rows, letters = piece.rows, letters + odd
                self.result += WriteResult(rejected=len(odd))
            messages, refused = self._messages(piece)
            words = dict.fromkeys(refused, "message too large")
            if self.rejected is None:
                for why in refused.values():
                    raise self._stopped(table.target, why)
            for message, why in self.channel.send(messages):
                refused.setdefault(
                    message.row,
                    f"no queue got it: {why}, exchange {message.exchange or '(default)'}, routing key {message.route}",
                )
                words.setdefault(message.row, "unroutable")
            if self.rejected is None:
                for why in refused.values():
                    raise self._stopped(table.target, why)
            self.result += sent_rows(rows, refused)
            letters += [Rejection(rows.slice(row, 1), why, words[row]) for row, why in sorted(refused.items())]
        if self.rejected is not None:
            self.channel.finish()
            self.rejected(f"rabbitmq-{table.plan.source}", table.target, letters)

    def _require_taken(self, messages: Sequence[Outgoing]) -> None:
        for message, why in self.channel.send(messages):
            raise LoadError(
                f"batch {self.fence.batch}: no queue got message {message.id}: {why}",
                where=f"{self.place.owner}, exchange {message.exchange or '(default)'}, routing key {message.route}",
                hint="bind a queue to the exchange, or name an alternate exchange (its policy); options.unroutable: "
                "discard lets the server drop such messages",
            )

    def _messages(self, piece: ChangePiece) -> tuple[list[Outgoing], dict[int, str]]:
        """Return the messages of a piece, in its order, and the rows of which one is too large, with the reason.

        They have numbers, too.
        """
        written = self._writer.messages(piece)
        assert written.headers is not None  # the form has headers
        streams = self.place.options.streams
        exchange, route = "" if streams else self.place.exchange_of(piece.table), self.place.route_of(piece.table)
        rows, values = written.rows.tolist(), written.values.fill_null(b"")
        headers = {**written.headers.columns, "sluice.table": _same(str(piece.table), len(rows)), "key": written.keys}
        messages = self._outgoing(rows, exchange, route, headers, values)
        limit, refused = self._limit(route), dict[int, str]()
        masked = any(map(is_masked, piece.rows.schema))
        sizes = pc.binary_length(values).to_numpy()
        for number in np.flatnonzero(sizes + (_BESIDE if streams else 0) > limit).tolist():
            size = len(messages[number].value)
            if size > limit:
                key = written.keys[number].as_py()
                key_text = "(masked)" if masked else (key or b"none").decode()[:300]
                refused[rows[number]] = (
                    f"a message of {size:,} bytes is larger than {limit:,} (options.max_message_bytes, or the "
                    f"server's frame), key {key_text}"
                )
        return ([message for message in messages if message.row not in refused] if refused else messages), refused

    def _limit(self, route: str) -> int:
        if route not in self._limits:
            own = self.channel.largest(route)
            self._limits[route] = (
                min(own, self.place.options.max_message_bytes) if own else self.place.options.max_message_bytes
            )
        return self._limits[route]

    def _outgoing(
        self, rows: Sequence[int], exchange: str, route: str, headers: dict[str, pa.Array], values: pa.Array
    ) -> list[Outgoing]:
        """Return messages with the next numbers. The same contents give the same numbers and ids in each attempt."""
        if not rows:
            return []
        numbers = range(self._number, self._number + len(rows))
        self._number += len(rows)
        head, tail = f"{self.place.owner}/{self.rows.replay or self.fence.batch}/", f"/{self.contents}"
        types = headers.pop("content-type", pa.nulls(len(rows), values.type)).fill_null(_JSON)
        if self.place.options.streams:
            ids = joined(head, pa.array(numbers, pa.int64()), tail).cast(values.type)
            data = encoded(ids, types, headers, values).to_pylist()
            no_headers: dict[str, str] = {}
            return [
                Outgoing(row, "", route, n, "", no_headers, "", message)
                for row, n, message in zip(rows, numbers, data, strict=True)
            ]
        texts = ({name: value.decode("utf-8", "replace") for name, value in pairs} for pairs in Headers(headers))
        each = zip(rows, numbers, texts, types.to_pylist(), values.to_pylist(), strict=True)
        return [
            Outgoing(row, exchange, route, number, f"{head}{number}{tail}", named, kind.decode(), value)
            for row, number, named, kind, value in each
        ]

    def _stopped(self, table: TableId, why: str) -> LoadError:
        more = "" if self.rows.changes else "; on_error: dead_letter leaves such rows out"
        return LoadError(
            f"batch {self.fence.batch}: a row of {table} is refused: {why}",
            where=f"{table}, {self.place.route_of(table)}",
            hint=f"raise the limit, bind a queue, or leave the column out: mapping.columns.exclude{more}",
        )


def _same(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text.encode(), pa.large_binary()), count)


__all__ = ["RabbitMQUnit", "RabbitMQWriter"]
