"""Chunks in key order: conditions cut any set of keys into ranges that meet without overlap; literals are exact;
windows drop what changed.
"""

from __future__ import annotations

import sqlite3
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import ConfigError, UnsupportedType
from sluice.flows.dump.throttle import Throttle
from sluice.merge.group_codes import group_codes
from sluice.merge.window import survivors
from sluice.model.column_types import ColumnKind
from sluice.model.dumps import Chunk, ChunkId, Dump, Mark, TableRequest, Tuning, schema_from_json, schema_to_json
from sluice.model.tables import Column, TableId, TableSchema
from sluice.mysql.key_sql import after, among, both, literals, typed_literal, upto

K = ColumnKind
small = st.integers(-3, 3)


@given(
    rows=st.sets(st.tuples(small, small, small), min_size=1, max_size=40),
    borders=st.lists(st.tuples(small, small, small), max_size=5),
)
def test_borders_cut_every_key_into_exactly_one_chunk(rows, borders) -> None:
    names = ("a", "b`c", "d")
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t (a, `b``c`, d)")
    database.executemany("INSERT INTO t VALUES (?, ?, ?)", sorted(rows))
    cuts: list[tuple[str, ...]] = [(), *(tuple(map(str, b)) for b in sorted(set(borders))), ()]
    found = []
    for low, high in pairwise(cuts):
        where = both(after(names, low), upto(names, high))
        found += database.execute(f"SELECT * FROM t WHERE {where}").fetchall()
    assert sorted(found) == sorted(rows)
    wanted = sorted(rows)[::2]
    where = among(names, [tuple(map(str, row)) for row in wanted])
    assert sorted(database.execute(f"SELECT * FROM t WHERE {where}").fetchall()) == wanted


@pytest.mark.parametrize(
    ("column", "values", "wanted"),
    [
        (Column("c", K.BIGINT, "bigint unsigned", unsigned=True), pa.array([2**64 - 1], pa.uint64()),
            "18446744073709551615"),
        (Column("c", K.DECIMAL, "decimal(30,2)", precision=30, scale=2),
            pa.array([Decimal("-1E+3")], pa.decimal128(30, 2)), "-1000.00"),
        (Column("c", K.FLOAT, "float"), pa.array([0.1], pa.float32()), "0.10000000149011612e0"),
        (Column("c", K.VARCHAR, "varchar(9)", charset="latin1"), pa.array(["é'\\"]), "_utf8mb4 x'c3a9275c'"),
        (Column("c", K.VARBINARY, "varbinary(9)"), pa.array([b""]), "x''"),
        (Column("c", K.ENUM, "enum('z','y')", labels=("z", "y")), pa.array(["y"]), "2"),
        (Column("c", K.SET, "set('p','q','r')", labels=("p", "q", "r")), pa.array(["p,r"]), "5"),
        (Column("c", K.TIME, "time(3)", fsp=3), pa.array([-1_500_000], pa.duration("us")), "'-00:00:01.500000'"),
    ],
)  # fmt: skip
def test_literals_are_exact(column: Column, values: pa.Array, wanted: str) -> None:
    assert literals(column, values) == [wanted]


def test_a_typed_value_is_a_literal_whatever_it_holds() -> None:
    number, text = Column("n", K.BIGINT, "bigint"), Column("t", K.VARCHAR, "varchar(9)")
    assert typed_literal(number, "12345678901234567890") == "12345678901234567890"
    for wrong in ("1 OR 1=1", "abc", "", "1.5"):
        with pytest.raises(ConfigError, match="no value of the key column"):
            typed_literal(number, wrong)
    assert typed_literal(text, "'; DROP") == "_utf8mb4 x'273b2044524f50'"
    with pytest.raises(UnsupportedType):
        literals(Column("j", K.JSON, "json"), pa.array(["1"]))


MOMENTS = [
    (K.DATE, ["2026-02-28", "2024-02-29", "0000-00-00", "2026-00-31", "2026-2-3"],
        ["2026-02-29", "2026-13-01", "yesterday", "20260228", ""]),
    (K.DATETIME, ["2026-02-28", "2026-02-28 23:59:59.123456", "2026-02-28T10:00"],
        ["2026-02-28 24:00:00", "2026-02-28 10:60", "2026-02-28 noon"]),
    (K.TIME, ["-838:59:59", "00:00", "12:30:01.5"], ["839:00:00", "12:61:00", "2026-02-28", "-"]),
    (K.ENUM, ["small", "LARGE"], ["huge", "2"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "right", "wrong"), MOMENTS)
def test_a_typed_value_has_to_be_one_of_its_type(kind: ColumnKind, right: list[str], wrong: list[str]) -> None:
    column = Column("c", kind, kind.value, labels=("small", "large"))
    for text in right:
        assert typed_literal(column, text)
    for text in wrong:
        with pytest.raises(ConfigError, match="is no value of the key column c"):
            typed_literal(column, text)


@given(
    chunk=st.lists(st.tuples(small, st.sampled_from("ab")), unique=True, max_size=20),
    changed=st.lists(st.lists(st.tuples(small, st.sampled_from("ab")), max_size=8), max_size=3),
)
def test_a_key_survives_if_nothing_touched_it(chunk, changed) -> None:
    def table(rows) -> pa.Table:
        return pa.table({
            "x": pa.array([r[0] for r in rows], pa.int32()),
            "y": pa.array([r[1] for r in rows], pa.string()),
        })

    alive = survivors(table(chunk), [table(c) for c in changed], ["x", "y"], group_codes)
    touched = {key for rows in changed for key in rows}
    assert alive.tolist() == [key not in touched for key in chunk]
    assert alive.dtype == np.bool_


def test_what_is_stored_is_read_back() -> None:
    chunk = ChunkId("20260101T000000-abc", 3, 12)
    assert ChunkId.of(chunk.dump, chunk.name) == chunk
    for high in (False, True):
        mark = Mark(chunk, 4, high)
        assert Mark.parse(mark.text) == mark
    for text in ("", "made", "a/b/c/low", "a/0001-00000001/x/low", "a/0001-00000001/1/mid", "a/b-c/1/low"):
        assert Mark.parse(text) is None
    dump = Dump("d", (TableRequest(TableId("s", "t"), where="a = 1", lower=("1",), keyless=True),), targets=("x",))
    assert Dump.from_json(dump.to_json()) == dump
    one = Chunk(chunk, after=("1",), upto=("2", "3"), low="uuid:1-5")
    assert Chunk.from_json(chunk, one.to_json(), -1) == one
    columns = (
        Column("e", K.ENUM, "enum('a')", labels=("a",), charset="latin1"),
        Column("n", K.DECIMAL, "decimal(5,2)", precision=5, scale=2),
    )
    schema = TableSchema(TableId("s", "t"), columns, ("n",))
    again = schema_from_json(schema_to_json(schema))
    assert again == schema
    assert again.version == schema.version


def test_the_rate_leaves_a_worker_its_share_of_the_time() -> None:
    assert Throttle.pause(Tuning(), 50_000, 0.1) == 0
    assert Throttle.pause(Tuning(delay_ms=250), 50_000, 0.1) == 0.25
    shared = Tuning(max_rows_per_second=10_000, parallelism=2)
    assert Throttle.pause(shared, 5_000, 0.25) == pytest.approx(0.75)
    assert Throttle.pause(shared, 5_000, 3.0) <= 0
