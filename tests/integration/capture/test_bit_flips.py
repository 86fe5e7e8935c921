"""A log of some megabytes, as a server wrote it, with bits flipped anywhere: every damage is noticed, and nothing else
happens.
"""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import numpy as np
import pytest

from sluice.config.connections import parse_connection
from sluice.errors import CaptureError
from sluice.sources.mysql.decoder.row_layout import plan_table
from sluice.sources.mysql.decoder.scanner import Scanner
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.server.connection import collations, open_connection

FLIPS = int(os.environ.get("SLUICE_BIT_FLIPS", "120"))
_PACKET = 0xFFFFFF
_FORMAT = 15

TABLE = """CREATE TABLE t (id INT PRIMARY KEY, n BIGINT UNSIGNED, d DECIMAL(30,6), s VARCHAR(200), l VARCHAR(90) CHARACTER SET latin1, b LONGBLOB,
  j JSON,
  dt DATETIME(3), ts TIMESTAMP(6) NULL, e ENUM('a','b','c'), f DOUBLE, bi BIT(20), p POINT)"""
ROWS = """INSERT INTO t SELECT {0} + n, n * 7919, n / 7, REPEAT('é', n MOD 90), LEFT(SHA2(n, 256), 60), REPEAT(UNHEX(SHA2(n, 256)), 9),
  JSON_OBJECT('n', n, 'list', JSON_ARRAY(n, 'x', NULL)), NOW(3), NOW(6), ELT(1 + n MOD 3, 'a', 'b', 'c'), n / 3, n MOD 1000, POINT(n, -n)
  FROM (WITH RECURSIVE s AS (SELECT 1 n UNION ALL SELECT n + 1 FROM s WHERE n < 900) SELECT n FROM s) numbers"""


class Log:
    """One log file of a server."""

    def __init__(self, server, data: bytes) -> None:
        self.data = data
        self.mariadb = "maria" in server.name
        with open_connection(parse_connection("source", server.connection_json())) as connection:
            self.collations = dict(collations(connection))
        self.events = []
        at = 4
        while at < len(data):
            size = struct.unpack_from("<I", data, at + 9)[0]
            self.events.append((at, size))
            at += size

    def scan(self, data: bytes) -> int:
        """Row changes found. Raises what the scanner raises."""
        scanner = Scanner(
            Position("mariadb:1" if self.mariadb else "uuid", "b.000001", 4),
            tables=lambda table_map, where: plan_table(table_map, self.collations.__getitem__, where=where),
            statement=lambda _: False,
            seal=lambda _: None,
            mariadb=self.mariadb,
        )
        wire = b"".join(_packets(data[at : at + size]) for at, size in self.events)
        buffer = np.zeros(len(wire) + 16, np.uint8)
        buffer[: len(wire)] = np.frombuffer(wire, np.uint8)
        used, _ = scanner.feed(buffer, len(wire), 0)
        assert used == len(wire)
        return scanner.changes


def _packets(event: bytes) -> bytes:
    payload = b"\0" + event
    pieces = [payload[i : i + _PACKET] for i in range(0, len(payload), _PACKET)]
    if len(pieces[-1]) == _PACKET:
        pieces.append(b"")
    return b"".join(struct.pack("<I", len(p))[:3] + bytes([n & 255]) + p for n, p in enumerate(pieces))


def written(server, db: str, *extra: str) -> Log:
    """The file in which a mixed load stands: bulk and single rows, XA, savepoints, DDL, compressed transactions where
    there are such.
    """
    server.execute(TABLE, "FLUSH BINARY LOGS", database=db)
    name = server.execute("SHOW BINARY LOGS")[-1][0]
    with server.connect(db) as connection, connection.cursor() as cursor:
        for number in range(3):
            cursor.execute(ROWS.format(number * 1000))
        for number in range(200):
            cursor.execute("START TRANSACTION")
            cursor.execute(f"UPDATE t SET n = n + 1, s = '{number}' WHERE id = {number + 1}")
            cursor.execute("SAVEPOINT here")
            cursor.execute(f"DELETE FROM t WHERE id = {1000 + number}")
            cursor.execute("ROLLBACK TO here" if number % 9 == 0 else "RELEASE SAVEPOINT here")
            cursor.execute("COMMIT")
        cursor.execute("ALTER TABLE t ADD COLUMN more INT FIRST")
        cursor.execute(f"XA START '{db}'")
        cursor.execute("UPDATE t SET more = id WHERE id MOD 5 = 0")
        for verb in ("END", "PREPARE", "COMMIT"):
            cursor.execute(f"XA {verb} '{db}'")
        if server.name == "mysql":
            cursor.execute("SET SESSION binlog_transaction_compression = ON")
        cursor.execute("UPDATE t SET f = f * 2")
        for statement in extra:
            cursor.execute(statement)
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SELECT @@log_bin_basename")
        folder = Path(str(cursor.fetchone()[0])).parent
    return Log(server, (folder / name).read_bytes())


def damaged(log: Log, dice: random.Random) -> bytes:
    """One bit, or up to 32 that lie together, somewhere in an event; every other time in its header or checksum."""
    at, size = dice.choice(log.events) if dice.random() < 0.5 else log.events[-1]
    place = (
        dice.randrange(4, len(log.data))
        if dice.random() < 0.5
        else at + dice.choice([*range(19), *range(size - 4, size)])
    )
    start, size = next((a, n) for a, n in log.events if a <= place < a + n)
    if log.data[start + 4] == _FORMAT and place < start + 18:
        place = start + 18  # behind the in-use flag, which the checksum leaves out
    mask = 1 << dice.randrange(8) if dice.random() < 0.5 else dice.randrange(1, 2**32)
    data = bytearray(log.data)
    for i, byte in enumerate(mask.to_bytes(4, "little")):
        if place + i < start + size:
            data[place + i] ^= byte
    return bytes(data)


def assert_noticed(log: Log, flips: int) -> None:
    whole = log.scan(log.data)
    dice = random.Random(len(log.data))
    while flips:
        data = damaged(log, dice)
        if data != log.data:
            flips -= 1
            with pytest.raises(CaptureError):
                log.scan(data)
    assert log.scan(log.data) == whole


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_every_damage_is_noticed(kind, request, fresh_schema):
    server = request.getfixturevalue(kind)
    log = written(server, fresh_schema(server))
    assert log.scan(log.data) > 2 * 2700 + 300
    assert_noticed(log, FLIPS)


def test_damage_in_an_event_of_several_packets_is_noticed(mysql_source, fresh_schema):
    extra = (
        "SET SESSION binlog_transaction_compression = OFF",
        "INSERT INTO t (id, b) VALUES (99999, REPEAT('x', 20000000))",
    )
    log = written(mysql_source, fresh_schema(mysql_source), *extra)
    assert max(size for _, size in log.events) > _PACKET
    assert_noticed(log, FLIPS // 10)
