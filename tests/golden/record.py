"""Records a small log from each server flavour, with the rows it must give: ``python tests/golden/record.py``.

``{flavour}.binlog`` is the server's own file; ``{flavour}.json`` holds the collations it names and, for each change,
the operation, the table and the row as the server's SELECT printed it when the log was made.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE.parents[1] / "include"), str(_HERE.parents[1])]

from devstack.mariadb import MariaDBServer, fetched_mariadb  # noqa: E402
from devstack.mysql import Distribution, MySQLServer  # noqa: E402
from devstack.packages import MARIADB  # noqa: E402
from sluice.config.connections import parse_connection  # noqa: E402
from sluice.sources.mysql.catalog.information_schema import read_state  # noqa: E402
from sluice.sources.mysql.server.connection import collations, open_connection, server_info  # noqa: E402

TABLE = """CREATE TABLE g.t (id INT PRIMARY KEY, n BIGINT UNSIGNED, d DECIMAL(40,10), s VARCHAR(50) CHARACTER SET utf8mb4,
  l VARCHAR(20) CHARACTER SET latin1, b BINARY(6), o BLOB, dt DATETIME(4), ts TIMESTAMP(3) NULL, ti TIME(6), da DATE, y YEAR,
  e ENUM('a','b'), st SET('p','q','r'), bi BIT(12), f FLOAT, x DOUBLE)"""
COLUMNS = {
    "id": "id", "n": "CAST(n AS CHAR)", "d": "CAST(d AS CHAR)", "s": "s", "l": "CONVERT(l USING utf8mb4)",
    "b": "HEX(b)", "o": "HEX(o)",
    "dt": "CAST(dt AS CHAR)", "ts": "CAST(ts AS CHAR)", "ti": "CAST(ti AS CHAR)", "da": "CAST(da AS CHAR)",
    "y": "LPAD(y, 4, '0')",
    "e": "CAST(e AS CHAR)", "st": "CAST(st AS CHAR)", "bi": "bi + 0", "f": "f * 1e0", "x": "x",
}  # fmt: skip
STEPS: tuple[str | tuple[str, ...], ...] = (
    "INSERT INTO t VALUES (1, 18446744073709551615, -12345678901234567890.0123456789,"
    " 'héllo 😀', 'ß€', x'610000', x'00ff', '2024-02-29 12:34:56.7891',"
    " '2038-01-19 03:14:07.999', '-838:59:58.999999', '0000-00-00', 0, 'b', 'p,r', 2049, 1.5, 1e300)",
    "INSERT INTO t (id) VALUES (2), (3)",
    "UPDATE t SET s = REPEAT('x', id), ti = '-00:00:00.000001', st = '', y = 2155 WHERE id > 1",
    "UPDATE t SET id = 30 WHERE id = 3",
    "DELETE FROM t WHERE id = 1",
)

"""Each runs by itself; several in one tuple on a connection of their own, which then goes away."""
XA_STEPS: tuple[str | tuple[str, ...], ...] = (
    (
        "XA START 'a','b',7",
        "INSERT INTO t (id, s) VALUES (1, 'one'), (2, 'two')",
        "XA END 'a','b',7",
        "XA PREPARE 'a','b',7",
    ),
    "INSERT INTO t (id, s) VALUES (3, 'between')",
    ("XA START 'no'", "UPDATE t SET s = 'never' WHERE id = 3", "XA END 'no'", "XA PREPARE 'no'"),
    "XA COMMIT 'a','b',7",
    "XA ROLLBACK 'no'",
    ("XA START 'c'", "UPDATE t SET s = CONCAT(s, '!')", "XA END 'c'", "XA COMMIT 'c' ONE PHASE"),
    "DELETE FROM t WHERE id = 1",
)
JSON_TABLE = "CREATE TABLE g.t (id INT PRIMARY KEY, j JSON, k JSON)"
JSON_COLUMNS = {"id": "id", "j": "CAST(j AS CHAR)", "k": "CAST(k AS CHAR)"}
JSON_STEPS: tuple[str | tuple[str, ...], ...] = (
    """INSERT INTO t VALUES (1, '{"b": [1, 2.5e-20, -3], "a": {"é": "😀", "n": null}, "pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}', 'true'),
     (2, JSON_ARRAY(CAST('2024-05-06 01:02:03.5' AS DATETIME(6)), CAST(1.50 AS DECIMAL(9,3)), CAST(x'00ff' AS BINARY)), NULL)""",
    "UPDATE t SET j = JSON_SET(j, '$.b[1]', 'new', '$.c', CAST('[1, {}]' AS JSON)) WHERE id = 1",
    "UPDATE t SET j = JSON_REMOVE(j, '$.a.n'), k = JSON_SET(k, '$', 5) WHERE id = 1",
    "UPDATE t SET j = JSON_REPLACE(j, '$[1]', 'was a number') WHERE id = 2",
)
MINIMAL_STEPS: tuple[str | tuple[str, ...], ...] = (
    "INSERT INTO t VALUES (1, 7, 1.5, 'one', 'ß', x'61', x'00', '2024-01-02 03:04:05', NULL, '01:02:03', "
    "'2024-02-29', 2024, 'b', 'p', 1, 1.5, 2.5), (2, 8, NULL, 'two', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, "
    "'a', 'q', 2, NULL, NULL)",
    "UPDATE t SET s = CONCAT(s, '!') WHERE id = 1",
    "UPDATE t SET n = NULL, bi = 5, st = 'p,r' WHERE id = 2",
    "DELETE FROM t WHERE id = 1",
)
"""With ``binlog_row_image=MINIMAL``: the key, and what changed; no key changes, so that a row is known by its first
column.
"""


BARE_STEPS: tuple[str | tuple[str, ...], ...] = (
    STEPS[0],
    "ALTER TABLE t ADD COLUMN front SET('x','y') FIRST, MODIFY COLUMN l VARCHAR(300) CHARACTER SET latin1 AFTER x,"
    " ADD COLUMN more INT UNSIGNED AFTER n",
    "INSERT INTO t (id, l, n, more, front) VALUES (2, REPEAT('ü', 290), 18446744073709551615, 4294967295, 'y'), (3, "
    "'', 0, 0, '')",
    *STEPS[2:4],
    "ALTER TABLE t DROP COLUMN front, CHANGE COLUMN more extra VARCHAR(20)",
    ("RENAME TABLE t TO moved", "RENAME TABLE moved TO t"),
    "DELETE FROM t WHERE id = 1",
)
"""With ``binlog_row_metadata=MINIMAL``: names, signs and charsets come from a definition and the statements in the
log.
"""


def minimal(change: list[Any]) -> list[Any]:
    """What a log with minimal row images holds of a change."""
    op, before, after = change
    if op == "u":
        return [
            op,
            [before[0], *[None] * (len(before) - 1)],
            [after[0], *(a if a != b else None for a, b in zip(after[1:], before[1:], strict=True))],
        ]
    return [op, [before[0], *[None] * (len(before) - 1)], None] if op == "d" else change


def record(
    server: Any,
    flavour: str,
    table: str = TABLE,
    columns: dict[str, str] = COLUMNS,
    steps: tuple[str | tuple[str, ...], ...] = STEPS,
    keep: Callable[[list[Any]], list[Any]] = list,
    bare: bool = False,
) -> None:
    """``bare``: the log does not name columns; the definitions as of its beginning are written beside the rows."""
    rows: list[Any] = []
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00', NAMES utf8mb4")
        cursor.execute("CREATE DATABASE g")
        cursor.execute(table)
        cursor.execute("USE g")
        cursor.execute("FLUSH BINARY LOGS")
        file = server.execute("SHOW BINARY LOGS")[-1][0]
        known_before = definitions(server) if bare else None

        def state() -> dict[int, list[Any]]:
            cursor.execute(f"SELECT {', '.join(columns.values())} FROM t ORDER BY id")
            return {row[0]: [None if v is None else str(v) for v in row] for row in cursor.fetchall()}

        before = state()
        for step in steps:
            if isinstance(step, tuple):
                server.execute(*step, database="g")
            else:
                cursor.execute(step)
            after = state()
            if step == "UPDATE t SET id = 30 WHERE id = 3":
                rows.append(["u", before[3], after[30]])
            else:
                rows += [["i", None, after[i]] for i in after if i not in before]
                rows += [["u", before[i], after[i]] for i in after if i in before and after[i] != before[i]]
                rows += [["d", before[i], None] for i in before if i not in after]
            before = after
        known = collations(connection)
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SELECT @@datadir")
        data = Path(str(cursor.fetchone()[0]))
        cursor.execute("SELECT @@log_bin_basename")
        data = Path(str(cursor.fetchone()[0])).parent
    (_HERE / f"{flavour}.binlog").write_bytes((data / file).read_bytes())
    used = {number: names for number, names in known.items() if names[1] in {"utf8mb4", "latin1", "binary"}}
    changing = [
        step for step in steps if isinstance(step, tuple) or not step.startswith(("ALTER", "RENAME", "XA ROLLBACK"))
    ]
    transactions = sum(not isinstance(step, tuple) or step[-1].endswith("PHASE") for step in changing)
    document = {
        "transactions": transactions,
        "file": file,
        "columns": list(columns),
        "collations": used,
        "rows": [keep(row) for row in rows],
    }
    if known_before is not None:
        document["definitions"] = known_before
    (_HERE / f"{flavour}.json").write_text(json.dumps(document, ensure_ascii=False, indent=0), encoding="utf-8")


def definitions(server: Any) -> dict[str, Any]:
    """All there is, with the charsets that these logs use."""
    with open_connection(parse_connection("source", server.connection_json())) as connection:
        state = read_state(connection, server_info(connection)).to_json()
    names = state["flavour"]["collations"]
    used = {"utf8mb4", "latin1", "binary"}
    names["charset_of"] = {name: charset for name, charset in names["charset_of"].items() if charset in used}
    for part in ("default_of", "bytes_of"):
        names[part] = {charset: value for charset, value in names[part].items() if charset in used}
    return state


def unpacked(root: Path, version: str) -> Distribution:
    """A MySQL as its makers pack it (``bin``, ``lib``, ``share``), unpacked by hand; SLUICE_MYSQL_80 names the folder
    of an 8.0.
    """
    share = root / "share"
    options = (f"--basedir={root}", f"--lc-messages-dir={share}", f"--character-sets-dir={share / 'charsets'}")
    return Distribution("MySQL", version, (str(root / "bin/mysqld"), "--no-defaults"), options, str(root), share)


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp())
    with MySQLServer(folder / "mysql", server_id=1) as mysql:
        record(mysql, "mysql-9.7")
    with MySQLServer(folder / "old", server_id=1, options={"binlog_transaction_compression": "ON"}) as mysql:
        record(mysql, "mysql-9.7-compressed")
    with MySQLServer(folder / "xa", server_id=1) as mysql:
        record(mysql, "mysql-9.7-xa", steps=XA_STEPS)
    with MySQLServer(folder / "json", server_id=1, options={"binlog_row_value_options": "PARTIAL_JSON"}) as mysql:
        record(mysql, "mysql-9.7-json", JSON_TABLE, JSON_COLUMNS, JSON_STEPS)
    with MySQLServer(folder / "minimal", server_id=1, options={"binlog_row_image": "MINIMAL"}) as mysql:
        record(mysql, "mysql-9.7-minimal", steps=MINIMAL_STEPS, keep=minimal)
    with MySQLServer(folder / "bare", server_id=1, options={"binlog_row_metadata": "MINIMAL"}) as mysql:
        record(mysql, "mysql-9.7-bare", steps=BARE_STEPS, bare=True)
    with MariaDBServer(folder / "mariadb-bare", server_id=1, options={"binlog_row_metadata": "NO_LOG"}) as mariadb:
        record(mariadb, "mariadb-10.11-bare", steps=BARE_STEPS, bare=True)
    newer = fetched_mariadb(replace(MARIADB, folder=str(folder / "fetched"), suite="trixie"))
    with MariaDBServer(folder / "mariadb-11", server_id=1, distribution=newer) as mariadb:
        record(mariadb, "mariadb-11.8")
    without_names = {"binlog_row_metadata": "NO_LOG"}
    with MariaDBServer(folder / "mariadb-11-bare", server_id=1, distribution=newer, options=without_names) as mariadb:
        record(mariadb, "mariadb-11.8-bare", steps=BARE_STEPS, bare=True)
    if "SLUICE_MYSQL_80" in os.environ:
        older = unpacked(Path(os.environ["SLUICE_MYSQL_80"]), "8.0.33")
        with MySQLServer(folder / "mysql-8", server_id=1, distribution=older) as mysql:
            record(mysql, "mysql-8.0")
        options = {"binlog_row_metadata": "MINIMAL"}
        with MySQLServer(folder / "mysql-8-bare", server_id=1, distribution=older, options=options) as mysql:
            record(mysql, "mysql-8.0-bare", steps=BARE_STEPS, bare=True)
    with MariaDBServer(folder / "mariadb", server_id=1) as mariadb:
        record(mariadb, "mariadb-10.11")
    packed = {"log_bin_compress": "ON", "log_bin_compress_min_len": 10}
    with MariaDBServer(folder / "mariadb-xa", server_id=1, options=packed) as mariadb:
        record(mariadb, "mariadb-10.11-xa-compressed", steps=XA_STEPS)
