"""Messages that are no rows: transactions, and DDL statements."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.formats import Statement, connect, debezium, format_of
from sluice.targets.messages.documents import MessageWriter
from sluice.targets.messages.transactions import Transaction
from sluice.targets.port import SchemaChange

Made = list[tuple[bytes | None, bytes]]
"""Keys and values, in order."""


def transaction_messages(writer: MessageWriter, topic: str, transactions: Iterable[Transaction]) -> Made:
    """Return two messages per transaction: where it begins, and where it ends."""
    envelope = writer.envelope(topic, connect.TRANSACTION_KEY, connect.TRANSACTION_VALUE)
    made: Made = []
    for one in transactions:
        key = envelope.key(debezium.transaction_key(one.id))
        for counts in (None, one.counts):
            made.append((key, envelope.value(debezium.transaction_event(one.id, one.commit_time_us, counts))))
    return made


def statement_messages(writer: MessageWriter, topic: str, statements: Iterable[Statement]) -> Made:
    """Return the messages of statements, as the format's program writes them.

    Those of canal and Maxwell have no key.
    """
    if not writer.form.enveloped:
        form = format_of(writer.form.format)
        return [(None, text.encode()) for one in statements for text in form.statement(one, writer.source)]
    envelope = writer.envelope(topic, *connect.schema_change_schemas(writer.source))
    return [
        (envelope.key(debezium.statement_key(one)), envelope.value(text))
        for one in statements
        for text in debezium.statement(one, writer.source)
    ]


def statement_of(change: SchemaChange) -> Statement:
    """Convert a schema change to what the formats take, with the source's names."""
    found = change.statement
    return Statement(
        found.file, found.offset, found.gtid, found.commit_time_us, found.schema, found.text, change.tables
    )
