"""Every charset a MySQL or MariaDB server has, by its name there: what each character's bytes mean.

The tables are Python's codecs with the differences that the servers' own ``CONVERT`` shows (both servers agree); a test
compares them again. Bytes that are no character for the server have no entry: such text cannot be stored exactly, and
stops the capture.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from sluice.errors import DecodeError, UnsupportedType

UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8"})

_SINGLE = {
    "armscii8": (
        "latin_1",
        "a1=2741 a2=a7 a3=589 a4=29 a5=28 a6=bb a7=ab a8=2014 a9=2e aa=55d ab+1=2c ad=55f ae=2026 af=55c b0=55b "
        "b1=55e b2=531 "
        "b3=561 b4=532 b5=562 b6=533 b7=563 b8=534 b9=564 ba=535 bb=565 bc=536 bd=566 be=537 bf=567 c0=538 c1=568 "
        "c2=539 c3=569 "
        "c4=53a c5=56a c6=53b c7=56b c8=53c c9=56c ca=53d cb=56d cc=53e cd=56e ce=53f cf=56f d0=540 d1=570 d2=541 "
        "d3=571 d4=542 "
        "d5=572 d6=543 d7=573 d8=544 d9=574 da=545 db=575 dc=546 dd=576 de=547 df=577 e0=548 e1=578 e2=549 e3=579 "
        "e4=54a e5=57a "
        "e6=54b e7=57b e8=54c e9=57c ea=54d eb=57d ec=54e ed=57e ee=54f ef=57f f0=550 f1=580 f2=551 f3=581 f4=552 "
        "f5=582 f6=553 f7=583 f8=554 f9=584 fa=555 fb=585 fc=556 fd=586 fe=2019 ff=27"
    ),
    "ascii": ("ascii", ""),
    "cp1250": ("cp1250", ""),
    "cp1251": ("cp1251", ""),
    "cp1256": ("cp1256", "8a= 8f= 98= 9a= 9f= aa= c0= ff="),
    "cp1257": ("cp1257", ""),
    "cp850": ("cp850", ""),
    "cp852": ("cp852", ""),
    "cp866": ("cp866", "fc=207f fd=b2"),
    "dec8": ("latin_1", "a4= a6= a8=a4 ac+3= b4= b8= be= d0= d7=152 dd=178 de= f0= f7=153 fd=ff fe+1="),
    "geostd8": (
        "cp1252",
        "83= 88= 8a= 8c= 8e= 98+2= 9c= 9e+1= c0+6=10d0 c7=10f1 c8+5=10d7 ce=10f2 cf+5=10dd d5=10f3 d6+b=10e3 e2=10f4 "
        "e3+1=10ef e5=10f5 e6+16= fd=2116 fe+1="
    ),
    "greek": ("iso8859_7", "a1=2bd a2=2bc a4+1= aa="),
    "hebrew": ("iso8859_8", "af=203e"),
    "hp8": ("hp_roman8", ""),
    "keybcs2": (
        "cp437",
        "80=10c 83=10f 85=10e 86=164 87=10d 88=11b 89=11a 8a=139 8b=cd 8c=13e 8d=13a 8f=c1 91=17e 92=17d 95=d3 96=16f "
        "97=da 98=fd 9b=160 9c=13d 9d=dd 9e=158 9f=165 a4=148 a5=147 a6=16e a7=d4 a8=161 a9=159 aa=155 ab=154"
    ),
    "koi8r": ("koi8_r", ""),
    "koi8u": ("koi8_u", "95=2022"),
    "latin1": ("cp1252", "81=81 8d=8d 8f+1=8f 9d=9d"),
    "latin2": ("iso8859_2", ""),
    "latin5": ("iso8859_9", ""),
    "latin7": ("iso8859_13", ""),
    "macce": ("mac_latin2", ""),
    "macroman": ("mac_roman", ""),
    "swe7": ("cp852", "40=c9 5b=c4 5c=d6 5d=c5 5e=dc 60=e9 7b=e4 7c=f6 7d=e5 7e=fc 7f+80="),
    "tis620": ("tis_620", ""),
}  # fmt: skip
"""Python's codec, and where the server differs: ``byte[+more]=code point``, hexadecimal; without code point: no
character.
"""

_DOUBLE = {
    "big5": (
        "big5",
        "a15a= a1c3= a1c5= a1fe= a240= a2cc= a2ce= f9d6=7881 f9d7=92b9 f9d8=88cf f9d9=58bb f9da=6052 f9db=7ca7 "
        "f9dc=5afa"
    ),
    "cp932": ("cp932", "80= a0= fd+2="),
    "eucjpms": (
        "euc_jp",
        "a1c1=ff5e a1c2=2225 a1dd=ff0d a1f1+1=ffe0 a2cc=ffe2 ada1+13=2460 adb5+9=2160 adc0=3349 adc1=3314 adc2=3322 "
        "adc3=334d adc4=3318 adc5=3327 adc6=3303 adc7=3336 adc8=3351 adc9=3357 adca=330d adcb=3326 adcc=3323 "
        "adcd=332b adce=334a adcf=333b add0+2=339c add3+1=338e add5=33c4 add6=33a1 addf=337b ade0=301d ade1=301f "
        "ade2=2116 ade3=33cd ade4=2121 "
        "ade5+4=32a4 adea+1=3231 adec=3239 aded=337e adee=337d adef=337c adf0=2252 adf1=2261 adf2=222b adf3=222e "
        "adf4=2211 "
        "adf5=221a adf6=22a5 adf7=2220 adf8=221f adf9=22bf adfa=2235 adfb+1=2229 f5a1+5d=e000 f6a1+5d=e05e "
        "f7a1+5d=e0bc "
        "f8a1+5d=e11a f9a1+5d=e178 faa1+5d=e1d6 fba1+5d=e234 fca1+5d=e292 fda1+5d=e2f0 fea1+5d=e34e 8fa2b7=ff5e "
        "8fa2c3=ffe4 "
        "8ff3f3+9=2170 8ff3fd+1=2160 8ff4a1+7=2162 8ff4a9=ff07 8ff4aa=ff02 8ff4ab=3231 8ff4ac=2116 8ff4ad=2121 "
        "8ff4ae=70bb 8ff4af=4efc 8ff4b0=50f4 8ff4b1=51ec 8ff4b2=5307 8ff4b3=5324 8ff4b4=fa0e 8ff4b5=548a 8ff4b6=5759 "
        "8ff4b7+1=fa0f 8ff4b9=589e 8ff4ba=5bec 8ff4bb=5cf5 8ff4bc=5d53 8ff4bd=fa11 8ff4be=5fb7 8ff4bf=6085 "
        "8ff4c0=6120 8ff4c1=654e 8ff4c2=663b 8ff4c3=6665 8ff4c4=fa12 8ff4c5=f929 8ff4c6=6801 8ff4c7+1=fa13 "
        "8ff4c9=6a6b 8ff4ca=6ae2 8ff4cb=6df8 8ff4cc=6df2 8ff4cd=7028 8ff4ce+1=fa15 8ff4d0=7501 8ff4d1=7682 "
        "8ff4d2=769e 8ff4d3=fa17 8ff4d4=7930 8ff4d5+3=fa18 "
        "8ff4d9=7ae7 8ff4da+1=fa1c 8ff4dc=7da0 8ff4dd=7dd6 8ff4de=fa1e 8ff4df=8362 8ff4e0=fa1f 8ff4e1=85b0 "
        "8ff4e2+1=fa20 8ff4e4=8807 8ff4e5=fa22 8ff4e6=8b7f 8ff4e7=8cf4 8ff4e8=8d76 8ff4e9+2=fa23 8ff4ec=90de "
        "8ff4ed=fa26 8ff4ee=9115 8ff4ef+1=fa27 8ff4f1=9592 8ff4f2=f9dc 8ff4f3=fa29 8ff4f4=973b 8ff4f5=974d "
        "8ff4f6=9751 8ff4f7+2=fa2a 8ff4fa=999e 8ff4fb=9ad9 8ff4fc=9b72 8ff4fd=fa2d 8ff4fe=9ed1 8ff5a1+5d=e3ac "
        "8ff6a1+5d=e40a 8ff7a1+5d=e468 8ff8a1+5d=e4c6 8ff9a1+5d=e524 8ffaa1+5d=e582 8ffba1+5d=e5e0 8ffca1+5d=e63e "
        "8ffda1+5d=e69c 8ffea1+5d=e6fa"
    ),
    "euckr": ("cp949", ""),
    "gb2312": ("gb2312", ""),
    "gbk": ("gbk", ""),
    "sjis": ("shift_jis", "815f=5c"),
    "ujis": (
        "euc_jp",
        "a1c0=5c f5a1+5d=e000 f6a1+5d=e05e f7a1+5d=e0bc f8a1+5d=e11a f9a1+5d=e178 faa1+5d=e1d6 fba1+5d=e234 "
        "fca1+5d=e292 "
        "fda1+5d=e2f0 fea1+5d=e34e 8ff5a1+5d=e3ac 8ff6a1+5d=e40a 8ff7a1+5d=e468 8ff8a1+5d=e4c6 8ff9a1+5d=e524 "
        "8ffaa1+5d=e582 8ffba1+5d=e5e0 8ffca1+5d=e63e 8ffda1+5d=e69c 8ffea1+5d=e6fa"
    ),
}  # fmt: skip
"""The same, for charsets of one, two, or (after 8F) three bytes a character."""

_CODECS = {
    "gb18030": "gb18030",
    "ucs2": "utf_16_be",
    "utf16": "utf_16_be",
    "utf16le": "utf_16_le",
    "utf32": "utf_32_be",
}
_GB18030_SWAPPED = str.maketrans("\u1e3f\ue7c7", "\ue7c7\u1e3f")

MAX_BYTES = {
    "utf8mb4": 4, "utf8mb3": 3, "utf8": 3, "big5": 2, "cp932": 2, "eucjpms": 3, "euckr": 2, "gb18030": 4, "gb2312": 2,
    "gbk": 2, "sjis": 2,
    "ujis": 3, "ucs2": 2, "utf16": 4, "utf16le": 4, "utf32": 4,
}  # fmt: skip
"""Bytes of the longest character; 1 for charsets not listed."""

NO_CHARACTER = -1
LEAD, LEAD_OF_THREE = -2, -3


class Tables(NamedTuple):
    """Code points (int32).

    ``first[byte]``: NO_CHARACTER, or LEAD: look into ``second[byte << 8 | next]``, LEAD_OF_THREE: into ``third``.
    """

    first: np.ndarray[Any, Any]
    second: np.ndarray[Any, Any]
    third: np.ndarray[Any, Any]


@cache
def tables_of(charset: str) -> Tables | None:
    """Return the tables of a charset, None for Unicode's own and gb18030. Raises UnsupportedType for an unknown one."""
    first = np.full(256, NO_CHARACTER, np.int32)
    none = np.empty(0, np.int32)
    if charset in _SINGLE:
        codec, differences = _SINGLE[charset]
        for byte in range(256):
            first[byte] = _code_point(bytes([byte]), codec)
        _differ(differences, Tables(first, none, none))
        return Tables(first, none, none)
    if charset in _DOUBLE:
        codec, differences = _DOUBLE[charset]
        second = np.full(1 << 16, NO_CHARACTER, np.int32)
        third = np.full(1 << 16, NO_CHARACTER, np.int32) if MAX_BYTES[charset] == 3 else none
        for byte in range(256):
            first[byte] = _code_point(bytes([byte]), codec)
        tables = Tables(first, second, third)
        leads = [byte for byte in range(0x80, 256) if first[byte] == NO_CHARACTER]
        for lead in leads:
            for byte in range(0x30, 256):
                second[lead << 8 | byte] = _code_point(bytes([lead, byte]), codec)
        if len(third):
            for lead in range(0xA0, 256):
                for byte in range(0xA0, 256):
                    third[lead << 8 | byte] = _code_point(bytes([0x8F, lead, byte]), codec)
        _differ(differences, tables)
        for lead in leads:
            if (second[lead << 8 : (lead + 1) << 8] != NO_CHARACTER).any():
                first[lead] = LEAD
        if len(third):
            first[0x8F] = LEAD_OF_THREE
        return tables
    if charset in _CODECS or charset in UTF8:
        return None
    raise UnsupportedType(f"charset {charset!r} is not understood by this version")


def is_known(charset: str) -> bool:
    """Return True if text of this charset can be read."""
    return charset in UTF8 or charset in _SINGLE or charset in _DOUBLE or charset in _CODECS


def decode_bytes(value: bytes, charset: str) -> str:
    """Decode one value.

    Raises UnicodeDecodeError for bytes that are no character, UnsupportedType for an unknown charset.
    """
    if charset in UTF8 or charset == "binary":
        return value.decode("utf-8")
    tables = tables_of(charset)
    if tables is None:
        text = value.decode(_CODECS[charset])
        return text.translate(_GB18030_SWAPPED) if charset == "gb18030" else text
    out = []
    at = 0
    while at < len(value):
        point, size = int(tables.first[value[at]]), 1
        if point == LEAD:
            size = 2
            point = int(tables.second[value[at] << 8 | value[at + 1]]) if at + 2 <= len(value) else NO_CHARACTER
        elif point == LEAD_OF_THREE:
            size = 3
            point = int(tables.third[value[at + 1] << 8 | value[at + 2]]) if at + 3 <= len(value) else NO_CHARACTER
        if point < 0:
            raise UnicodeDecodeError(charset, value, at, min(at + size, len(value)), "no character of this charset")
        out.append(chr(point))
        at += size
    return "".join(out)


def decoded(data: bytes, charset: str) -> str:
    """Decode the bytes of a statement's literal. Raises DecodeError."""
    try:
        return decode_bytes(data, charset)
    except (UnicodeDecodeError, UnsupportedType) as error:
        raise DecodeError(f"{data!r} is not understood as text in {charset}") from error


@cache
def _characters(charset: str) -> frozenset[int] | None:
    tables = tables_of(charset)
    return None if tables is None else frozenset(int(p) for table in tables for p in table[table >= 0])


def has_character(charset: str, character: str) -> bool:
    """Return True if the charset has this character. Raises UnsupportedType for an unknown charset."""
    if charset in {"utf8mb3", "utf8", "ucs2"}:
        return ord(character) < 0x10000
    characters = None if charset == "binary" else _characters(charset)
    return characters is None or ord(character) in characters


def _code_point(data: bytes, codec: str) -> int:
    try:
        text = data.decode(codec)
    except UnicodeDecodeError:
        return NO_CHARACTER
    return ord(text) if len(text) == 1 else NO_CHARACTER


def _differ(text: str, tables: Tables) -> None:
    for part in text.split():
        places, _, point = part.partition("=")
        place, _, more = places.partition("+")
        table = tables[len(place) // 2 - 1]
        for i in range(int(more or "0", 16) + 1):
            at = (int(place, 16) & 0xFFFF) + i
            table[at] = int(point, 16) + i if point else NO_CHARACTER
