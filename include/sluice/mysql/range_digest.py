"""Checksums of key ranges that MySQL and MariaDB compute themselves: COUNT and BIT_XOR of a 64-bit hash of each row.

The text that is hashed tells all values of a type apart: NULL from the empty string, 0 from -0, a space at the end from none. Every value is either
without a comma, or has its length before it, or is a hash itself, so that two rows of other values never have the same text. Long values are hashed
by themselves: CONCAT gives NULL beyond ``max_allowed_packet``. The hash is SHA2, as MySQL 9.6 no longer has MD5.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql.column_types import word_of
from sluice.mysql.key_sql import both

_PLAIN = {
    "tinyint",
    "smallint",
    "mediumint",
    "int",
    "bigint",
    "decimal",
    "date",
    "datetime",
    "timestamp",
    "time",
    "year",
    "uuid",
    "inet6",
    "inet4",
}
_NUMBERED = {"bit", "enum", "set"}
_SHORT = {"char", "varchar", "binary", "varbinary"}
_LONG = {"tinytext", "text", "mediumtext", "longtext", "tinyblob", "blob", "mediumblob", "longblob"}
_WIDTH = re.compile(r"\(\d+\)")


def digest_word(declared: str, charset: str | None) -> str:
    """How a column's values enter the text; equal at both sides: equal values have equal text. "": there is no such text for the type."""
    word, folded = word_of(declared), declared.strip().lower()
    if "zerofill" in folded:
        return ""
    if word in {"tinyint", "smallint", "mediumint", "int", "bigint", "year"}:
        return _WIDTH.sub("", folded)
    if word in {"float", "double"}:
        return word if "(" not in folded else ""
    if word in _NUMBERED:
        return declared.strip()
    if word in {"char", "varchar"}:
        return f"characters {_known(charset)}"
    if word == "binary":
        return folded
    if word in _LONG or word == "varbinary":
        return f"{'bytes' if word == 'varbinary' else 'long'} {_known(charset) if 'text' in word else ''}".strip()
    return folded if word in _PLAIN or word == "json" else ""


def _known(charset: str | None) -> str:
    return {"utf8": "utf8mb3"}.get(charset or "", charset or "")


def digest_sql(table: TableId, columns: Sequence[tuple[str, str]], index: str, *conditions: str) -> str:
    """The select of (rows, checksum). ``columns``: (name, declared type), of which each has a :func:`digest_word`; ``index``: "" for any."""
    texts = ", ".join(_text(quoted(name), word_of(declared)) for name, declared in columns)
    row = f"CAST(CONV(LEFT(SHA2(CONCAT_WS(',', {texts}), 256), 16), 16, 10) AS UNSIGNED)"
    forced = f" FORCE INDEX ({quoted(index)})" if index else ""
    return f"SELECT COUNT(*), BIT_XOR({row}) FROM {quoted_table(table)}{forced} WHERE {both(*conditions)}"  # noqa: S608 - quoted


def _text(column: str, word: str) -> str:
    if word in _NUMBERED:
        return f"IFNULL(CAST({column} AS UNSIGNED), 'N')"
    if word in _SHORT:
        return f"IFNULL(CONCAT(LENGTH({column}), ':', CAST({column} AS BINARY)), 'N')"
    if word in _LONG:
        return f"IFNULL(SHA2({column}, 256), 'N')"
    if word == "json":
        return f"IFNULL(SHA2(CAST({column} AS CHAR), 256), 'N')"
    if word in {"float", "double"}:  # text of a FLOAT has six digits
        return f"IFNULL(CAST({column} AS DOUBLE), 'N')"
    return f"IFNULL({column}, 'N')"
