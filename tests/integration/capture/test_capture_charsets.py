"""Every charset the servers list, every character in it: the stored text is what CONVERT says; bytes that are no
character stop.
"""

from __future__ import annotations

import itertools
import os
import random

import pytest

from sluice.errors import DecodeError
from sluice.mysql.charsets import decode_bytes, is_known
from tests.support.capture.capturing import draining

EVERY = 1 if int(os.environ.get("SLUICE_TEST_VALUES", "100")) >= 1000 else 19
"""In a normal run one in so many characters of the large charsets."""
_UNICODE = {
    "ucs2": "utf_16_be",
    "utf16": "utf_16_be",
    "utf16le": "utf_16_le",
    "utf32": "utf_32_be",
    "gb18030": "gb18030",
    "utf8mb3": "utf-8",
    "utf8mb4": "utf-8",
}


def candidates(charset: str, longest: int) -> list[bytes]:
    if charset in _UNICODE:
        r = random.Random(3)
        top = 0xFFFF if charset in {"ucs2", "utf8mb3"} else 0x10FFFF
        points = [
            p
            for p in (*range(1, 0x500), 0xFFFD, top, *(r.randint(1, top) for _ in range(9000 // EVERY)))
            if not 0xD800 <= p < 0xE000
        ]
        return [chr(p).encode(_UNICODE[charset]) for p in dict.fromkeys(points)] + [b"\x81\x35\xf4\x37"] * (
            charset == "gb18030"
        )
    found = [bytes([b]) for b in range(256)]
    if longest > 1:
        pairs = [bytes(p) for p in itertools.product(range(0x80, 0x100), range(0x40, 0x100))]
        found += pairs[::EVERY]
    if longest > 2:
        found += [b"\x8f" + bytes(p) for p in itertools.product(range(0xA1, 0xFF), repeat=2)][::EVERY]
    return found


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_every_character_of_every_charset(kind, request, tmp_path, fresh_schema):
    server = request.getfixturevalue(kind)
    db = fresh_schema(server)
    with (
        server.connect(db) as connection,
        connection.cursor() as cursor,
        draining(server, tmp_path, db, exclude=(rf"{db}\.raw",)) as drain,
    ):
        cursor.execute("SET sql_mode = ''")
        cursor.execute(
            "SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS WHERE CHARACTER_SET_NAME <> "
            "'binary'"
        )
        charsets = {str(name): int(longest) for name, longest in cursor.fetchall()}
        assert len(charsets) > 35
        assert all(map(is_known, charsets))
        wanted = {}
        for charset, longest in charsets.items():
            cursor.execute(
                "CREATE OR REPLACE TABLE raw (id INT PRIMARY KEY, b VARBINARY(8))"
                if kind == "mariadb"
                else "DROP TABLE IF EXISTS raw"
            )
            cursor.execute("CREATE TABLE IF NOT EXISTS raw (id INT PRIMARY KEY, b VARBINARY(8))")
            all_bytes = dict(enumerate(candidates(charset, longest)))
            for some in (
                itertools.batched(all_bytes.items(), 5000) if hasattr(itertools, "batched") else [all_bytes.items()]
            ):
                cursor.execute("INSERT INTO raw VALUES " + ",".join(f"({i}, x'{b.hex()}')" for i, b in some))
            cursor.execute(f"SELECT id, HEX(CONVERT(CONVERT(b USING {charset}) USING utf32)) FROM raw")
            texts = {i: bytes.fromhex(h).decode("utf-32-be") for i, h in cursor.fetchall() if h}
            characters = {
                i: t for i, t in texts.items()
                if len(t) == 1 and (t != "?" or all_bytes[i].strip(b"\0") == b"?") and (t != "\ufffd" or charset in _UNICODE)
            }  # fmt: skip
            for i in all_bytes.keys() - characters.keys():
                with pytest.raises(UnicodeDecodeError):
                    raise_unless_one(decode_bytes(all_bytes[i], charset))
            cursor.execute(
                f"CREATE TABLE `{charset}` (id INT PRIMARY KEY, v VARCHAR(4) CHARACTER SET {charset}, f CHAR(3) "
                f"CHARACTER SET {charset})"
            )
            good = ",".join(map(str, characters))
            cursor.execute(
                f"INSERT INTO `{charset}` SELECT id, CONVERT(b USING {charset}), CONVERT(b USING {charset}) FROM raw "
                f"WHERE id IN ({good})"
            )
            cursor.execute(f"SELECT id, HEX(CONVERT(v USING utf32)), HEX(CONVERT(f USING utf32)) FROM `{charset}`")
            wanted[charset] = {
                i: [bytes.fromhex(h).decode("utf-32-be") for h in (v, f)] for i, v, f in cursor.fetchall()
            }
            assert {i: v for i, (v, _) in wanted[charset].items()} == characters
        manifests = drain.all()
    for charset, rows in wanted.items():
        stored = drain.table(manifests, charset)
        found = dict(
            zip(
                stored["id"].to_pylist(),
                zip(stored["v"].to_pylist(), stored["f"].to_pylist(), strict=True),
                strict=True,
            )
        )
        wrong = [(charset, i, found[i], rows[i]) for i in rows if list(found[i]) != rows[i]]
        assert not wrong, wrong[:5]
        assert len(found) == len(rows) > 90


def raise_unless_one(text: str) -> None:
    """Two characters are what the server says too, where it reads the second byte by itself."""
    if len(text) != 1:
        raise UnicodeDecodeError("x", b"", 0, 0, "more than one character")


def test_bytes_that_are_no_character_stop(mysql_source, tmp_path, fresh_schema):
    db = fresh_schema(mysql_source)
    with (
        mysql_source.connect(db) as connection,
        connection.cursor() as cursor,
        draining(mysql_source, tmp_path, db) as drain,
    ):
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9) CHARACTER SET cp1250)")
        cursor.execute("INSERT INTO t VALUES (1, CONVERT(x'6181' USING cp1250))")
        with pytest.raises(DecodeError, match="no character of cp1250") as caught:
            drain.all()
        assert "column v" in caught.value.message
