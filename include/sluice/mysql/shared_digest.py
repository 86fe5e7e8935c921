"""Checksums of key ranges that MySQL, MariaDB and other kinds of servers compute alike: a row is hashed as a text that
each of them can write.

The text of a row is that of its values, with a comma in between: ``N`` for NULL, else the length of the value's text in
bytes of UTF-8, a colon, and the text. In place of a text of more than 1,000 bytes stands its SHA-256 in hexadecimal
digits. So two rows of other values never have the same text. Whole numbers and decimals are their digits, dates and
times (in UTC, with six digits of a second) as ISO 8601 writes them with a blank, bytes are hexadecimal digits. Types of
which two kinds of servers print other texts (FLOAT, DOUBLE, JSON, TIME, BIT) have none: their tables are compared by
rows.

The checksum is the BIT_XOR of the first 64 bits of SHA-256, as an unsigned number.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.model.column_types import ColumnKind
from sluice.model.digests import SHARED_LONG_BYTES
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql.column_types import Literal, find_type
from sluice.mysql.key_sql import both
from sluice.mysql.range_digest import DigestColumn, checksum_of
from sluice.mysql.type_loss import SqlType

_BYTES = frozenset({ColumnKind.BINARY, ColumnKind.VARBINARY, ColumnKind.BLOB})


def shared_word(declared: str) -> str:
    """Describe how a column's values enter the text of a row; "" if there is no such text for the type.

    If both sides have the same description, equal values have equal text.
    """
    row, folded = find_type(declared), declared.strip().lower()
    if row is None or "zerofill" in folded or row.shape is not None:
        return ""
    if row.bits:
        return "decimal 0"
    if row.kind is ColumnKind.DECIMAL:
        return f"decimal {SqlType.parse(declared).numbers[1]}"
    if row.kind is ColumnKind.DATE:
        return "date"
    if row.kind in {ColumnKind.DATETIME, ColumnKind.TIMESTAMP}:
        return "datetime"
    if row.kind in _BYTES:
        return "bytes"
    text = row.literal is Literal.TEXT and row.charset
    return "text" if text or row.kind in {ColumnKind.ENUM, ColumnKind.UUID} else ""


def shared_digest_sql(table: TableId, columns: Sequence[DigestColumn], *conditions: str, mariadb: bool = False) -> str:
    """Return the select of (rows, checksum).

    The columns have a :func:`shared_word`; the session is in UTC.
    """
    text = f"CONCAT_WS(',', {', '.join(map(_piece, columns))})"
    return f"SELECT COUNT(*), {checksum_of(text, mariadb=mariadb)} FROM {quoted_table(table)} WHERE {both(*conditions)}"  # noqa: S608 - quoted


def _piece(column: DigestColumn) -> str:
    text = f"CAST({_text(quoted(column.name), shared_word(column.declared))} AS BINARY)"
    short = f"IF(LENGTH({text}) > {SHARED_LONG_BYTES}, CAST(SHA2({text}, 256) AS BINARY), {text})"
    return f"IFNULL(CONCAT(LENGTH({text}), ':', {short}), 'N')"


def _text(name: str, word: str) -> str:
    if word == "datetime":
        return f"CONCAT(LEFT(CAST({name} AS CHAR), 19), '.', LPAD(MICROSECOND({name}), 6, '0'))"
    if word == "bytes":
        return f"LOWER(HEX({name}))"
    return f"CONVERT({name} USING utf8mb4)" if word == "text" else f"CAST({name} AS CHAR)"
