"""Text from bytes: every charset a MySQL or MariaDB server has, by its name there.

UTF-8 kinds are copied, single-byte ones go through a table of 256 code points, the others through Python's codecs. A charset that is not
listed stops the drain.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8", "ascii"})

_SINGLE = {
    "latin1": "cp1252", "latin2": "iso8859_2", "latin5": "iso8859_9", "latin7": "iso8859_13", "greek": "iso8859_7", "hebrew": "iso8859_8",
    "cp1250": "cp1250", "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257", "cp850": "cp850", "cp852": "cp852", "cp866": "cp866",
    "koi8r": "koi8_r", "koi8u": "koi8_u", "macroman": "mac_roman", "macce": "mac_latin2", "tis620": "tis_620",
}  # fmt: skip

_MULTI = {
    "big5": "big5hkscs", "cp932": "cp932", "eucjpms": "euc_jp", "euckr": "cp949", "gb18030": "gb18030", "gb2312": "gb2312", "gbk": "gbk",
    "sjis": "shift_jis", "ujis": "euc_jp", "ucs2": "utf_16_be", "utf16": "utf_16_be", "utf16le": "utf_16_le", "utf32": "utf_32_be",
}  # fmt: skip

MAX_BYTES = {
    "utf8mb4": 4, "utf8mb3": 3, "utf8": 3, "big5": 2, "cp932": 2, "eucjpms": 3, "euckr": 2, "gb18030": 4, "gb2312": 2, "gbk": 2, "sjis": 2,
    "ujis": 3, "ucs2": 2, "utf16": 4, "utf16le": 4, "utf32": 4,
}  # fmt: skip
"""Bytes of the longest character; 1 for charsets not listed."""


@cache
def single_byte_table(charset: str) -> np.ndarray[Any, Any] | None:
    """Code point (int32) of each byte, None for other charsets. A byte the codec does not define keeps its own number, as in MySQL's latin1."""
    codec = _SINGLE.get(charset)
    if codec is None:
        return None
    table = np.empty(256, np.int32)
    for byte in range(256):
        try:
            table[byte] = ord(bytes([byte]).decode(codec))
        except UnicodeDecodeError:
            table[byte] = byte
    return table


def codec_of(charset: str) -> str | None:
    """Python's codec for a multi-byte charset, None for others."""
    return _MULTI.get(charset)


def is_known(charset: str) -> bool:
    """True if text of this charset can be read."""
    return (
        charset in UTF8
        or charset in _SINGLE
        or charset in _MULTI
        or charset in {"armscii8", "geostd8", "dec8", "hp8", "keybcs2", "swe7"}
    )


def decode_bytes(value: bytes, charset: str) -> str:
    """One value as text. Raises UnicodeDecodeError, LookupError for a charset that is not known."""
    if charset in UTF8 or charset == "binary":
        return value.decode("utf-8")
    table = single_byte_table(charset)
    if table is not None:
        return "".join(chr(table[byte]) for byte in value)
    codec = _MULTI.get(charset)
    if codec is None:
        raise LookupError(charset)
    return value.decode(codec)
