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
    transaction_messages: Made = []
    for transaction in transactions:
        key = envelope.key(debezium.transaction_key(transaction.id))
        for counts in (None, transaction.counts):
            transaction_messages.append((
                key,
                envelope.value(debezium.transaction_event(transaction.id, transaction.commit_time_us, counts)),
            ))
    return transaction_messages


def statement_messages(writer: MessageWriter, topic: str, statements: Iterable[Statement]) -> Made:
    """Return the messages of statements, as the format's program writes them.

    Those of canal and Maxwell have no key.
    """
    if not writer.form.enveloped:
        form = format_of(writer.form.format)
        return [(None, text.encode()) for statement in statements for text in form.statement(statement, writer.source)]
    envelope = writer.envelope(topic, *connect.schema_change_schemas(writer.source))
    return [
        (envelope.key(debezium.statement_key(statement)), envelope.value(text))
        for statement in statements
        for text in debezium.statement(statement, writer.source)
    ]


def statement_of(change: SchemaChange) -> Statement:
    """Convert a schema change to what the formats take, with the source's names."""
    statement = change.statement
    return Statement(
        statement.file,
        statement.offset,
        statement.gtid,
        statement.commit_time_us,
        statement.schema,
        statement.text,
        change.tables,
    )
