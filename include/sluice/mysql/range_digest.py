"""Checksums of key ranges that MySQL and MariaDB compute themselves: COUNT and BIT_XOR of a 64-bit hash of each row.

The text that is hashed tells all values of a type apart: NULL from the empty string, 0 from -0, a space at the end from none. Every value is either
without a comma, or has its length before it, or is a hash itself, so that two rows of other values never have the same text. Long values are hashed
by themselves: CONCAT gives NULL beyond ``max_allowed_packet``. The hash is SHA2, as MySQL 9.6 no longer has MD5.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sluice.model.column_types import ColumnKind
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql.column_types import Literal, MysqlType, find_type, type_named
from sluice.mysql.key_sql import both

_WIDTH = re.compile(r"\(\d+\)")


def digest_word(declared: str, charset: str | None) -> str:
    """How a column's values enter the text; equal at both sides: equal values have equal text. "": there is no such text for the type."""
    row, folded = find_type(declared), declared.strip().lower()
    if row is None or "zerofill" in folded or row.shape is not None or not row.equals:
        return ""
    if row.bits or row.kind is ColumnKind.YEAR:
        return _WIDTH.sub("", folded)
    if row.literal is Literal.FLOAT:
        return row.word if "(" not in folded else ""
    if _is_numbered(row):
        return declared.strip()
    if row.most_bytes:
        return f"long {_known(charset)}" if row.charset else "long"
    if row.literal is Literal.TEXT and row.charset:
        return f"characters {_known(charset)}"
    return "bytes" if row.kind is ColumnKind.VARBINARY else folded


def _is_numbered(row: MysqlType) -> bool:
    """True if the value is taken as a number."""
    return row.literal in {Literal.LABEL, Literal.LABELS} or row.kind is ColumnKind.BIT


def _known(charset: str | None) -> str:
    return {"utf8": "utf8mb3"}.get(charset or "", charset or "")


def digest_sql(table: TableId, columns: Sequence[tuple[str, str]], index: str, *conditions: str) -> str:
    """The select of (rows, checksum). ``columns``: (name, declared type), of which each has a :func:`digest_word`; ``index``: "" for any."""
    texts = ", ".join(exact_text(quoted(name), type_named(declared, name)) for name, declared in columns)
    row = f"CAST(CONV(LEFT(SHA2(CONCAT_WS(',', {texts}), 256), 16), 16, 10) AS UNSIGNED)"
    forced = f" FORCE INDEX ({quoted(index)})" if index else ""
    return f"SELECT COUNT(*), BIT_XOR({row}) FROM {quoted_table(table)}{forced} WHERE {both(*conditions)}"  # noqa: S608 - quoted


def exact_text(column: str, row: MysqlType) -> str:
    """The text of a value, which tells all values of the type apart and holds no comma that is not counted."""
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
