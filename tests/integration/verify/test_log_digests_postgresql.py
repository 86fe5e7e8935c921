"""Digests that are kept from the log between two databases of PostgreSQL; the truth is what each server says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.model.digests import RangeDigest
from sluice.model.dumps import Chunk, ChunkId, Marking, TableRequest
from sluice.model.tables import TableId, stored_name
from sluice.operations.verify.digests import DigestReport, SweepSpec, read_digests, sweep
from sluice.postgresql.range_digest import DigestColumn
from sluice.postgresql.row_digest import hashes_of, not_covered
from sluice.postgresql.shared_digest import MASK, shared_digest_sql
from sluice.segments.reader import read_file
from tests.support.pipelines.dumping import delivering
from tests.support.pipelines.pg_source import COPY, PgCase, pg_case
from tests.support.values import postgresql_types as types

UTC = "-c timezone=UTC -c bytea_output=hex"


def test_the_log_and_the_server_have_one_digest_of_every_type(
    tmp_path: Path, postgresql_source: Any, zookeeper: Any
) -> None:
    kinds = {**types.BOTH, **types.BEYOND}
    columns = ", ".join(f'"{name}" {kind}' for name, (kind, _) in kinds.items())
    tables = [*types.USERS, f"CREATE TABLE t (id int PRIMARY KEY, {columns})"]
    with pg_case(tmp_path, postgresql_source, zookeeper, schema="every_digest", tables=tables) as made:
        made.prepare()
        made.run_until_head()
        types.insert(made.source, made.schema, "t", kinds)
        made.run_until_head()
        runtime, table = made.runtime(), TableId(made.schema, "t")
        with runtime.state() as state:
            paths = [state.batches.require(number).manifest for number in runtime.store.batches()]
        files = [file for path in paths for file in runtime.store.read_manifest(path).files]
        odd, hashed = [], 0
        with runtime.source.open_chunks(Marking.SNAPSHOT, "test") as reader:
            schema = reader.schema(table)
            for column in schema.columns:
                if not_covered(column):
                    continue
                found = RangeDigest()
                for file in files:
                    mine = RangeDigest.of(hashes_of([read_file(runtime.store, file)[stored_name(column.name)]]))
                    found = found.plus(mine.rows, mine.checksum)
                hashed += 1
                if found != reader.shared_digest(TableRequest(table), Chunk(ChunkId("t", 0, 1)), [column.name]):
                    odd.append((column.name, column.sql_type))
        assert odd == []
        assert hashed > len(kinds) - 15


def test_times_that_the_calendar_lacks_have_digests_of_their_own(postgresql_source: Any) -> None:
    """to_char has NULL for an infinite time, and one text for the years 44 and 44 BC."""
    texts = ("NULL", "'infinity'", "'-infinity'", "'0044-03-15 12:00:00 BC'", "'0044-03-15 12:00:00'", "'12044-03-15'")
    for kind in ("timestamp", "timestamptz"):
        column = [DigestColumn("v", f"{kind} {'with' if kind == 'timestamptz' else 'without'} time zone")]
        with postgresql_source.connect(options=UTC) as connection:
            found = {
                connection.execute(shared_digest_sql(f"(SELECT {text}::{kind} AS v) AS t", column, "TRUE", "t"))
                .fetchall()[0]
                for text in texts
            }  # fmt: skip
        assert len(found) == len(texts)


ORDERS = """CREATE TABLE orders (id bigint PRIMARY KEY, state text, total numeric(12,2), any_ numeric, doc jsonb,
  raw bytea, at_ timestamptz, day date, list int[], padded character(9), ok boolean)"""
WORDS = "CREATE TABLE words (w text, n int, v timestamp, PRIMARY KEY (w, n))"


@pytest.fixture
def kept(tmp_path: Path, postgresql_source: Any, zookeeper: Any, request: pytest.FixtureRequest) -> Iterator[PgCase]:
    """A pipeline that keeps digests of two tables."""
    schema = f"kept_{len(request.node.name)}"
    tables = [*(ORDERS, WORDS), *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("orders", "words"))]
    with pg_case(
        tmp_path, postgresql_source, zookeeper, schema=schema, tables=tables, extra="verify: {digest: log}", start="dump"
    ) as made:  # fmt: skip
        made.prepare()
        made.run_until_head()
        made.write(*(f"INSERT INTO orders VALUES ({order(random.Random(n), n)})" for n in range(30)))
        made.run_until_head()
        with delivering(made):
            assert states(sweep(made.runtime(), SweepSpec())) == {"orders": "equal", "words": "equal"}
        yield made


def order(dice: random.Random, number: int) -> str:
    return ", ".join([
        str(number),
        dice.choice(["NULL", "''", "'caf\u00e9 '", f"'s{dice.random()}'", "repeat('long ä', 900)"]),
        dice.choice(["NULL", f"{dice.uniform(-9e5, 9e5):.2f}", "'NaN'", "0"]),
        dice.choice(["NULL", f"{dice.random()}", "'Infinity'", "1.10"]),
        dice.choice(["NULL", f'\'{{"b": {dice.randint(0, 9)}, "a": [1, 2.50]}}\'']),
        dice.choice(["NULL", "''", f"'\\x{dice.getrandbits(40):010x}'"]),
        dice.choice(["NULL", "'infinity'", "'0044-03-15 12:00:00.5 BC'", "'2024-02-29 23:59:59.999+02'"]),
        dice.choice(["NULL", "'-infinity'", "'0044-03-15 BC'", "'2024-02-29'"]),
        dice.choice(["NULL", "'{}'", "'{1,NULL,-3}'"]),
        dice.choice(["NULL", "''", "'p '"]),
        dice.choice(["NULL", "true", "false"]),
    ])


def change(dice: random.Random) -> str:
    some, word = f"id % {dice.randint(2, 9)} = {dice.randint(0, 3)}", f"'{dice.choice(['abc', 'ABC', 'x', 'X '])}'"
    number = dice.randint(1, 60)
    return dice.choice([
        f"DELETE FROM orders WHERE id = {number}",
        f"INSERT INTO orders VALUES ({order(dice, number)}) ON CONFLICT (id) DO UPDATE SET total = 7, doc = NULL",
        f"UPDATE orders SET state = 'u{dice.random()}', total = NULL WHERE {some}",
        f"UPDATE orders SET id = id + 1000 WHERE id = {number} AND NOT EXISTS (SELECT 1 FROM orders WHERE id = {number} + 1000)",
        f"INSERT INTO words VALUES ({word}, {dice.randint(0, 3)}, '2020-01-01 00:00:00.1') ON CONFLICT DO NOTHING",
        f"UPDATE words SET v = NULL, n = (SELECT max(n) + 10 FROM words) WHERE w = {word} AND n = {dice.randint(0, 3)}",
        f"DELETE FROM words WHERE w = {word} AND n > 9",
    ])  # fmt: skip


def states(report: DigestReport) -> dict[str, str]:
    return {one.table.split(".")[1]: one.state for one in report.tables}


def server_digest(made: PgCase, table: str, database: str | None) -> RangeDigest:
    with made.source.connect(database or "postgres", options=UTC) as connection:
        columns = [
            DigestColumn(*one)
            for one in connection.execute(
                "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = "
                f"'{table}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
            ).fetchall()
        ]
        [(rows, checksum)] = connection.execute(shared_digest_sql(f"{table} AS t", columns, "TRUE", "t")).fetchall()
    return RangeDigest(rows, checksum & MASK)


def told(made: PgCase) -> DigestReport:
    """The kept digests, compared with what both servers say of the tables themselves."""
    report = read_digests(made.runtime())
    for one in report.tables:
        if one.state != "unknown":
            assert one.source == server_digest(made, one.table, None)
            assert one.at_target == server_digest(made, one.table, COPY)
    return report


def test_the_digests_of_log_and_target_are_those_of_the_servers_after_any_changes(kept: PgCase) -> None:
    dice = random.Random(6)
    for _ in range(8):
        kept.write(*(change(dice) for _ in range(dice.randint(1, 12))))
        kept.run_until_head()
        assert states(told(kept)) == {"orders": "equal", "words": "equal"}
    kept.source.execute(f"UPDATE {kept.schema}.orders SET any_ = 3 WHERE id = 25", database=COPY)
    kept.source.execute(f"INSERT INTO {kept.schema}.words VALUES ('planted', 1, NULL)", database=COPY)
    with delivering(kept):
        report = sweep(kept.runtime(), SweepSpec())
    assert states(report) == {"orders": "different", "words": "different"}
    assert all("something else changed the table" in one.found[0] for one in report.tables)
    assert states(told(kept)) == {"orders": "different", "words": "different"}


def test_a_log_that_lacks_columns_makes_a_digest_unknown_until_the_table_is_read(kept: PgCase) -> None:
    kept.write("ALTER TABLE orders REPLICA IDENTITY DEFAULT", "UPDATE orders SET any_ = 5 WHERE id = 7")
    kept.run_until_head()
    report = read_digests(kept.runtime())
    assert states(report) == {"orders": "unknown", "words": "equal"}
    assert "REPLICA IDENTITY" in next(one.why for one in report.tables if one.state == "unknown")
    kept.write("ALTER TABLE orders REPLICA IDENTITY FULL")
    with delivering(kept):
        assert states(sweep(kept.runtime(), SweepSpec())) == {"orders": "equal", "words": "equal"}
    kept.write("UPDATE orders SET any_ = 6 WHERE id = 7")
    kept.run_until_head()
    assert states(told(kept)) == {"orders": "equal", "words": "equal"}
