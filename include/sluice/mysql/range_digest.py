"""Checksums of key ranges that MySQL and MariaDB compute alike: COUNT and BIT_XOR of a 64-bit hash of each row.

The text that is hashed tells all values of a type apart: NULL from the empty string, 0 from -0, a space at the end from
none.

- Whole numbers, the lengths of strings and a bit for each NULL are packed into 64-bit words. To write a number as text
  costs more than to shift it.
- Then the words and the values that hold no comma (decimals, dates, hashes of long values), with a comma after each,
  then strings with nothing between them. CONCAT_WS leaves out NULL values, and a NULL string is empty; the words say
  which are NULL, and where each string but the last ends. So two rows of other values never have the same text.
- One argument is cast to BINARY, and so the whole text is binary: the server converts no string from its charset.
- Long values are hashed by themselves: CONCAT gives NULL beyond ``max_allowed_packet``.

The hash. CRC32 alone is too little: 32 bits, and it is linear. Two rows that swap a value of the same length leave the
BIT_XOR of their CRC32 as it was. A salt changes nothing: crc(salt, x) ^ crc(salt, y) depends on x ^ y alone, so two
texts of one CRC32 have one under any salt.

It is the first 64 bits of SHA2 (MySQL 9.6 has no MD5 and no SHA1 any more). MySQL has a BIT_XOR of binary strings,
which costs less than CONV of each row; MariaDB has none.

Measured with MySQL 9.7, 200 bytes a row, us of a core a row: to read it 0.13, the text 0.17, SHA2 0.20; in all 0.50,
less than the CRC32 of pt-table-checksum (0.57). CONCAT_WS over numbers and strings builds the same text in 0.30.
CRC32(text) * CRC32(REVERSE(text)) would cost two thirds more than SHA2: the text is built twice. With MariaDB 10.11,
on a busy machine: the text 6.4, CRC32(text) * CRC32(SHA1(text)) 13.5, SHA2 and CONV 12.4.

Rows that differ have the same checksum by chance in one of 2^64 ranges that differ. With a billion of such ranges that
is one in 18 billion verifications.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sluice.model.column_types import ColumnKind
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql.column_types import Literal, MysqlType, find_type, type_named
from sluice.mysql.key_sql import both

_WIDTH = re.compile(r"\(\d+\)")


KIND = "mysql"
"""The first word of a list of words: checksums of other kinds of servers are others."""


def digest_word(declared: str, charset: str | None, *, mariadb: bool = False) -> str:
    """Describe how a column's values enter the text; "" if there is no such text for the type.

    If both sides have the same description, equal values have equal text. MariaDB and MySQL print a FLOAT each in its
    own way.
    """
    row, folded = find_type(declared), declared.strip().lower()
    if row is None or "zerofill" in folded or row.shape is not None or not row.equals:
        return ""
    if row.bits or row.kind is ColumnKind.YEAR:
        return _WIDTH.sub("", folded)
    if row.literal is Literal.FLOAT:
        return f"{row.word} {'of MariaDB' if mariadb else 'of MySQL'}" if "(" not in folded else ""
    if _is_numbered(row):
        return declared.strip()
    if row.most_bytes:
        return f"long {_known(charset)}" if row.charset else "long"
    if row.literal is Literal.TEXT and row.charset:
        return f"characters {_known(charset)}"
    return "bytes" if row.kind is ColumnKind.VARBINARY else folded


def _is_numbered(row: MysqlType) -> bool:
    """Return True if the value is taken as a number."""
    return row.literal in {Literal.LABEL, Literal.LABELS} or row.kind is ColumnKind.BIT


def _known(charset: str | None) -> str:
    return {"utf8": "utf8mb3"}.get(charset or "", charset or "")


@dataclass(frozen=True, slots=True)
class DigestColumn:
    """A column that enters a checksum; it has a :func:`digest_word`. ``nullable``: at this side."""

    name: str
    declared: str
    nullable: bool = True


def digest_sql(
    table: TableId, columns: Sequence[DigestColumn], index: str, *conditions: str, mariadb: bool = False
) -> str:
    """Return the select of (rows, checksum). ``index``: "" for any."""
    checksum = checksum_of(row_text(columns), mariadb=mariadb)
    forced = f" FORCE INDEX ({quoted(index)})" if index else ""
    return f"SELECT COUNT(*), {checksum} FROM {quoted_table(table)}{forced} WHERE {both(*conditions)}"  # noqa: S608 - quoted


def hashes_sql(table: TableId, columns: Sequence[DigestColumn], condition: str) -> str:
    """Return the select of the hash of each row that meets a condition."""
    return f"SELECT {_number_of(_hash(row_text(columns)))} FROM {quoted_table(table)} WHERE {condition}"  # noqa: S608 - quoted


def checksum_of(text: str, *, mariadb: bool) -> str:
    """Return the BIT_XOR of the hash of a text in each row: the first 64 bits of its SHA-256."""
    if mariadb:
        return f"BIT_XOR({_number_of(_hash(text))})"
    return _number_of(f"HEX(BIT_XOR(UNHEX({_hash(text)})))")


def _hash(text: str) -> str:
    return f"LEFT(SHA2({text}, 256), 16)"


def _number_of(digits: str) -> str:
    return f"CAST(CONV({digits}, 16, 10) AS UNSIGNED)"


def row_text(columns: Sequence[DigestColumn]) -> str:
    """Return the SQL of a row's text.

    Columns of equal descriptions in the same order give equal rows the same text at both sides.
    """
    bits: list[tuple[str, int]] = []
    texts, strings, lengths = [], [], []
    for column in columns:
        row, name = type_named(column.declared, column.name), quoted(column.name)
        bits.append((f"({name} IS NULL)" if column.nullable else "", 1))
        number = _number(name, row)
        if number:
            bits.append((f"IFNULL({number[0]}, 0)" if column.nullable else number[0], number[1]))
        elif row.most_bytes:
            texts.append(f"SHA2({name}, 256)")
        elif row.kind is ColumnKind.JSON:
            texts.append(f"SHA2(CAST({name} AS CHAR), 256)")
        elif row.literal is Literal.BYTES or (row.literal is Literal.TEXT and row.charset):
            strings.append(f"IFNULL({name}, '')" if column.nullable else name)
            lengths.append((f"IFNULL(LENGTH({name}), 0)" if column.nullable else f"LENGTH({name})", 16))
        elif row.literal is Literal.FLOAT:  # text of a FLOAT has six digits
            texts.append(f"CAST({name} AS DOUBLE)")
        else:
            texts.append(name)
    first, *more = _packed([*bits, *lengths[:-1]])
    parts = [f"CAST({first} AS BINARY)", *more]
    if texts:
        parts.append(f"CONCAT_WS(',', {', '.join(texts)})")
    text = ", ',', ".join([*parts, ", ".join(strings)] if strings else parts)
    return f"CONCAT({text})"


def _number(name: str, row: MysqlType) -> tuple[str, int] | None:
    """Return a whole number as an unsigned one, and its bits; None if it is none."""
    bits = number_bits(row)
    if bits and row.bits:
        return f"({name} & {2**row.bits - 1})", bits
    return (f"CAST({name} AS UNSIGNED)", bits) if bits else None


def number_bits(row: MysqlType) -> int:
    """Return the bits that a value takes as an unsigned whole number; 0 if it is not taken as one."""
    if row.kind is ColumnKind.YEAR or row.literal is Literal.LABEL:
        return 16
    return 64 if _is_numbered(row) else row.bits


def _packed(bits: Sequence[tuple[str, int]]) -> list[str]:
    """Pack numbers into 64-bit words, each into the first word that has room. An empty expression is 0."""
    words: list[list[str]] = []
    for (expression, _), (word, shift) in zip(bits, word_places([width for _, width in bits]), strict=True):
        if word == len(words):
            words.append([])
        if expression:
            words[word].append(f"{expression} << {shift}" if shift else expression)
    return [" | ".join(parts) or "0" for parts in words]


def word_places(widths: Sequence[int]) -> list[tuple[int, int]]:
    """Return (word, shift) of each number of so many bits: the first 64-bit word that has room."""
    used: list[int] = []
    places = []
    for width in widths:
        word = next((i for i, bits in enumerate(used) if bits + width <= 64), len(used))
        if word == len(used):
            used.append(0)
        places.append((word, used[word]))
        used[word] += width
    return places


def exact_text(column: str, row: MysqlType) -> str:
    """Return the text of a value, which tells all values of the type apart and holds no comma that is not counted."""
    if _is_numbered(row):
        return f"IFNULL(CAST({column} AS UNSIGNED), 'N')"
    if row.most_bytes:
        return f"IFNULL(SHA2({column}, 256), 'N')"
    if row.kind is ColumnKind.JSON:
        return f"IFNULL(SHA2(CAST({column} AS CHAR), 256), 'N')"
    if row.literal is Literal.BYTES or (row.literal is Literal.TEXT and row.charset):
        return f"IFNULL(CONCAT(LENGTH({column}), ':', CAST({column} AS BINARY)), 'N')"
    if row.literal is Literal.FLOAT:  # text of a FLOAT has six digits
        return f"IFNULL(CAST({column} AS DOUBLE), 'N')"
    return f"IFNULL({column}, 'N')"
