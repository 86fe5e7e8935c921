"""The merge kernel: the nine rules by hand, and equality with the reference on generated histories."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import SegmentError
from sluice.merge.compact import compact, thinned
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from tests.support.tables.changes import KEY, KEYLESS, SCHEMA, change, table
from tests.support.tables.merge_reference import compact_rows


def merged(changes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (r["_op"], r["v"], r["_before"] and r["_before"]["v"]) for r in compact(table(changes), ["a", "b"]).to_pylist()
    ]


K = (1, "x")
INSERT = lambda seq, v: change("i", seq, (*K, v))  # noqa: E731
UPDATE = lambda seq, old, v: change("u", seq, (*K, v), (*K, old))  # noqa: E731
DELETE = lambda seq, v: change("d", seq, (*K, v))  # noqa: E731


@pytest.mark.promise("B14")
@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([INSERT(1, 1), INSERT(2, 2)], ("i", 2, None)),
        ([INSERT(1, 1), UPDATE(2, 1, 2)], ("i", 2, None)),
        ([INSERT(1, 1), DELETE(2, 1)], ("d", 1, None)),
        ([UPDATE(1, 1, 2), INSERT(2, 3)], ("i", 3, 1)),
        ([UPDATE(1, 1, 2), UPDATE(2, 2, 3)], ("u", 3, 1)),
        ([UPDATE(1, 1, 2), DELETE(2, 2)], ("d", 2, 1)),
        ([DELETE(1, 1), INSERT(2, 2)], ("i", 2, 1)),
        ([DELETE(1, 1), UPDATE(2, 1, 2)], ("u", 2, 1)),
        ([DELETE(1, 1), DELETE(2, 2)], ("d", 2, 1)),
        ([DELETE(1, 1), INSERT(2, 2), UPDATE(3, 2, 3)], ("i", 3, 1)),
        ([change("r", 1, (*K, 5))], ("i", 5, None)),
    ],
)
def test_nine_rules(history: list[dict[str, Any]], expected: tuple[Any, ...]) -> None:
    assert merged(history) == [expected]
    assert merged(history[::-1]) == [expected]  # files come in any order; _seq decides


def test_key_change_is_a_delete_and_an_insert() -> None:
    rows = compact(
        table([change("u", 7, (2, "x", 1), (1, "x", 1)), change("k", 7, (1, "x", 1))]), ["a", "b"]
    ).to_pylist()
    assert {(r["a"], r["_op"], r["_before"] is None) for r in rows} == {(2, "i", True), (1, "d", False)}


def test_collation_makes_one_key_of_two_spellings() -> None:
    def fold(field: pa.Field, values: pa.Array) -> pa.Array:
        return pa.compute.utf8_lower(values) if pa.types.is_string(field.type) else values

    rows = compact(
        table([change("u", 7, (1, "X", 2), (1, "x", 1)), change("k", 7, (1, "x", 1))]), ["a", "b"], identity=fold
    ).to_pylist()
    assert [(r["b"], r["_op"], r["_before"]["b"]) for r in rows] == [("X", "u", "x")]


def test_field_metadata_survives() -> None:
    result = compact(table([INSERT(1, 1)]), ["a", "b"])
    assert result.schema.field("a").metadata[b"sluice.key"] == b"1"
    assert result.schema.field("_before").type == SCHEMA.arrow_schema.field("_before").type


def test_empty() -> None:
    assert compact(table([]), ["a", "b"]).num_rows == 0
    assert compact(table([], KEYLESS), []).num_rows == 0


def test_unknown_operation_stops() -> None:
    with pytest.raises(SegmentError, match="unknown operation 'z'"):
        compact(table([change("z", 1, (1, "x", 1))]), ["a", "b"])


def test_missing_key_column_stops() -> None:
    with pytest.raises(SegmentError, match="'id'"):
        compact(table([INSERT(1, 1)]), ["id"])


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What one table's log may hold: a few keys, valid transitions, key changes, dumped rows."""
    key = st.tuples(st.integers(0, 2), st.sampled_from(["x", "y", None]))
    live: dict[tuple[Any, ...], int | None] = dict.fromkeys(draw(st.sets(key, max_size=4)), 0)
    value = st.one_of(st.none(), st.integers(0, 5))
    changes: list[dict[str, Any]] = []
    for seq in range(draw(st.integers(0, 25))):
        k, v = draw(key), draw(value)
        if k not in live:
            live[k] = v
            changes.append(change(draw(st.sampled_from("ir")), seq, (*k, v)))
            continue
        action = draw(st.sampled_from(["u", "d", "move", "r", "again"]))
        old = live[k]
        if action == "u":
            changes.append(change("u", seq, (*k, v), (*k, old)))
            live[k] = v
        elif action == "d":
            changes.append(change("d", seq, (*k, old)))
            del live[k]
        elif action == "move":
            new = draw(key)
            if new in live or None in new or None in k:
                continue
            changes += [change("u", seq, (*new, v), (*k, old)), change("k", seq, (*k, old))]
            del live[k]
            live[new] = v
        else:
            live[k] = v
            changes.append(change("r" if action == "r" else "i", seq, (*k, v)))
    return draw(st.permutations(changes))


def comparable(rows: list[dict[str, Any]], *names: str) -> list[str]:
    return sorted(repr([row[name] for name in names]) for row in rows)


@given(histories())
def test_kernel_equals_reference(changes: list[dict[str, Any]]) -> None:
    names = ("a", "b", "v", "_op", "_seq", "_before")
    changes = table(changes).to_pylist()
    got = compact(table(changes), ["a", "b"]).to_pylist()
    assert comparable(got, *names) == comparable(compact_rows(changes, ["a", "b", "v"], ["a", "b"]), *names)


@given(histories(), st.integers(0, 40), st.integers(0, 40))
def test_thinned_changes_merge_to_the_same(changes: list[dict[str, Any]], one: int, other: int) -> None:
    """Also when only a part in the middle is thinned, and when what is left is thinned again."""
    low, high = sorted((one, other))
    rows = table(changes)
    piece = thinned(rows.slice(low, high - low), KEY)
    mixed = pa.concat_tables([rows.slice(0, low), piece, rows.slice(high)])
    expected = compact(rows, KEY).to_pylist()
    assert compact(mixed, KEY).to_pylist() == expected
    assert compact(thinned(mixed, KEY), KEY).to_pylist() == expected


def test_a_hot_key_is_thinned_to_three_rows() -> None:
    history = [change("i", 1, (1, "a", 0)), *(change("u", n, (1, "a", n), (1, "a", n - 1)) for n in range(2, 900))]
    assert thinned(table(history), KEY)["_seq"].to_pylist() == [1, 899]


@given(histories())
def test_keyless_kernel_equals_reference(changes: list[dict[str, Any]]) -> None:
    names = ("a", "b", "v", "_op", "_before")
    changes = [c for c in table(changes, KEYLESS).to_pylist() if c["_op"] != "k"]
    got = compact(table(changes, KEYLESS), []).to_pylist()
    assert comparable(got, *names) == comparable(compact_rows(changes, ["a", "b", "v"], []), *names)


@given(histories())
def test_generated_columns_tell_no_rows_without_a_key_apart(changes: list[dict[str, Any]]) -> None:
    """MariaDB 11.8 logs images before without them, so that the insert and the delete of one row differ there."""
    computed = replace(KEYLESS, columns=(*KEYLESS.columns[:2], replace(KEYLESS.columns[2], generated=True)))
    changes = [c for c in table(changes, KEYLESS).to_pylist() if c["_op"] != "k"]
    for one in changes:
        one["v"] = None if one["_op"] == "d" else Decimal(one["a"])
        if one["_before"] is not None:
            one["_before"]["v"] = None
    rows = compact(table(changes, computed), []).to_pylist()
    expected = compact_rows(changes, ["a", "b"], [])
    assert comparable(rows, "a", "b", "_op") == comparable(expected, "a", "b", "_op")
    assert all(row["v"] == row["a"] for row in rows if row["_op"] == "i")


DEFERRABLE = replace(SCHEMA, deferrable=True)


@st.composite
def deferred_histories(draw: st.DrawFn) -> tuple[dict[Any, Any], list[dict[str, Any]], dict[Any, Any]]:
    """The rows of a table with a deferrable key, transactions that end with unique keys, and the rows after them.

    Within a transaction two rows may have one key; a dump may read a row between two of them.
    """
    key = st.tuples(st.integers(0, 2), st.sampled_from("xy"))
    start = {k: 90 + n for n, k in enumerate(sorted(draw(st.sets(key, max_size=4))))}
    rows = [(*k, v) for k, v in start.items()]
    changes: list[dict[str, Any]] = []
    seq = 0
    for _ in range(draw(st.integers(0, 5))):
        if rows and draw(st.booleans()):
            changes.append(change("r", seq + 1, draw(st.sampled_from(rows))))
        now, added, wanted = list(rows), [], draw(st.integers(1, 8))
        while wanted > 0 or len({row[:2] for row in now}) < len(now):
            wanted -= 1
            seq += 1
            action = draw(st.sampled_from("iudm")) if wanted > 0 else "d"
            if action == "i" or not now:
                now.append((*draw(key), draw(st.integers(0, 5))))
                added.append(change("i", seq, now[-1]))
                continue
            old = now.pop(draw(st.integers(0, len(now) - 1)))
            if action == "d":
                added.append(change("d", seq, old))
                continue
            new = (*(draw(key) if action == "m" else old[:2]), draw(st.integers(0, 5)))
            now.append(new)
            added += [change("u", seq, new, old), *([change("k", seq, old)] if new[:2] != old[:2] else [])]
        rows = now
        changes += added
    return start, draw(st.permutations(changes)), {row[:2]: row[2] for row in rows}


@given(deferred_histories())
def test_rows_that_share_a_deferrable_key_for_a_while_end_as_at_the_source(
    drawn: tuple[dict[Any, Any], list[dict[str, Any]], dict[Any, Any]],
) -> None:
    start, changes, end = drawn
    rows = table(changes, DEFERRABLE)
    merged = compact(thinned(rows, KEY), KEY).to_pylist()
    reference = compact_rows(rows.to_pylist(), ["a", "b", "v"], KEY, deferrable=True)
    for found in (merged, reference):
        target: dict[Any, Any] = dict(start)
        for row in found:
            place = (row["a"], row["b"])
            target.pop(place, None)
            if row["_op"] != "d":
                target[place] = int(row["v"])
        assert target == end
    names = ("a", "b", "v", "_op", "_before")
    assert comparable(merged, *names) == comparable(reference, *names)
    assert merged == sorted(merged, key=lambda row: (row["a"], row["b"]))


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([INSERT(1, 11), DELETE(2, 10)], [("i", 11, 10)]),
        ([INSERT(1, 11), UPDATE(2, 10, 12), DELETE(3, 12)], [("i", 11, 10)]),
        ([INSERT(1, 11), DELETE(2, 11)], []),
        ([UPDATE(1, 10, 10)], [("u", 10, 10)]),
        ([change("r", 1, (*K, 5)), INSERT(1, 6), DELETE(2, 5)], [("i", 6, 5)]),
        ([change("r", 1, (*K, 5))], [("i", 5, None)]),
    ],
)
def test_the_image_that_stays_at_a_deferrable_key(history: list[dict[str, Any]], expected: list[Any]) -> None:
    found = compact(table(history, DEFERRABLE), KEY).to_pylist()
    assert [(r["_op"], r["v"], r["_before"] and r["_before"]["v"]) for r in found] == expected


def test_wide_composite_keys_do_not_overflow() -> None:
    n = 300
    columns = {f"c{i}": pa.array(np.arange(n)) for i in range(9)}
    schema = TableSchema(
        TableId("s", "t"), tuple(Column(name, ColumnKind.BIGINT, "bigint") for name in columns), tuple(columns)
    ).arrow_schema
    meta = [
        pa.array([change("i", s, (0, "", 0))[f.name] for s in range(n)], f.type)
        for f in schema
        if f.name.startswith("_") and f.name != "_before"
    ]
    wide = pa.table([*columns.values(), *meta, pa.nulls(n, schema.field("_before").type)], schema=schema)
    assert compact(pa.concat_tables([wide, wide]), list(columns)).num_rows == n
