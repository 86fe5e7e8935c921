"""Rows with a part of their columns: what merge makes of them, laid over the table as it was, gives the table as it
is.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sluice.merge.column_presence import masks
from sluice.merge.compact import compact
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from tests.support.tables.merge_reference import compact_rows

SCHEMA = TableSchema(
    TableId("s", "t"),
    (
        Column("k", ColumnKind.INT, "int"),
        Column("a", ColumnKind.INT, "int"),
        Column("b", ColumnKind.VARCHAR, "varchar(9)"),
    ),
    ("k",),
)
NAMES = ("k", "a", "b")
KEYS = st.integers(1, 4)
VALUES = st.one_of(st.none(), st.integers(0, 9))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), KEYS, VALUES, VALUES),
        st.tuples(st.just("update"), KEYS, st.sampled_from(["a", "b", "ab"]), VALUES),
        st.tuples(st.just("move"), KEYS, KEYS, st.sampled_from(["", "a"]), VALUES),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("whole"), KEYS, VALUES),
    ),
    max_size=14,
)


def bits(names: set[str]) -> int:
    return sum(1 << i for i, name in enumerate(NAMES) if name in names)


def change(seq: int, op: str, known: dict[str, Any], before: dict[str, Any] | None = None) -> dict[str, Any]:
    after = bits(set(known))
    old = bits(set(before)) if before is not None else 7
    return {
        **{n: known.get(n) for n in NAMES}, "_op": op, "_seq": seq, "_file": "f", "_offset": seq, "_row": 0,
        "_commit_ts": 0, "_txn": 0, "_origin": 1,
        "_bucket": 0, "_before": None if before is None else {n: before.get(n) for n in NAMES},
        "_present": None if after == old == 7 else bytes([after, old]),
    }  # fmt: skip


def logged(table: dict[int, dict[str, Any]], steps: list[Any]) -> list[dict[str, Any]]:
    """Do the steps to ``table`` and return what a log with binlog_row_image=MINIMAL says of them."""
    changes: list[dict[str, Any]] = []
    for seq, step in enumerate(steps):
        what, key = step[0], step[1]
        if what == "insert" and key not in table:
            table[key] = {"k": key, "a": step[2], "b": None if step[3] is None else str(step[3])}
            changes.append(change(seq, "i", dict(table[key])))
        elif what == "update" and key in table:
            new = {name: (str(step[3]) if name == "b" and step[3] is not None else step[3]) for name in step[2]}
            table[key] |= new
            changes.append(change(seq, "u", {"k": key, **new}, {"k": key}))
        elif what == "whole" and key in table:
            before = dict(table[key])
            table[key] |= {"a": step[2]}
            changes.append(change(seq, "u", dict(table[key]), before))
        elif what == "move" and key in table and step[2] not in table:
            row = table.pop(key)
            new = {"a": step[4]} if step[3] else {}
            table[step[2]] = {**row, "k": step[2], **new}
            changes += [change(seq, "u", {"k": step[2], **new}, {"k": key}), change(seq, "k", {"k": key})]
        elif what == "delete" and key in table:
            del table[key]
            changes.append(change(seq, "d", {"k": key}))
    return changes


def applied(table: dict[int, dict[str, Any]], merged: pa.Table) -> dict[int, dict[str, Any]]:
    """What a target does with merged rows: read what moves, delete, write whole rows, update the known columns of the
    others.
    """
    known = masks(merged["_present"], len(NAMES))[0] if "_present" in merged.schema.names else None
    rows = merged.to_pylist()
    carried = {}
    for number, row in enumerate(rows):
        missing = [n for i, n in enumerate(NAMES) if known is not None and not known[number, i]]
        if row["_op"] == "i" and missing:
            carried[number] = table[row["_before"]["k"]]
    result = {key: dict(row) for key, row in table.items()}
    for row in rows:
        if row["_op"] == "d":
            result.pop(row["k"], None)
    for number in carried:
        result.pop(rows[number]["_before"]["k"], None)
    for number, row in enumerate(rows):
        if row["_op"] == "d":
            continue
        have = {n: row[n] for i, n in enumerate(NAMES) if known is None or known[number, i]}
        if row["_op"] == "u":
            assert row["k"] in table
            result[row["k"]] = {**table[row["k"]], **have}
        else:
            result[row["k"]] = {**carried.get(number, {}), **have}
    return result


@given(st.dictionaries(KEYS, st.tuples(VALUES, VALUES), max_size=4), STEPS)
def test_merged_rows_end_in_the_same_table(begin: dict[int, Any], steps: list[Any]) -> None:
    start = {k: {"k": k, "a": a, "b": None if b is None else str(b)} for k, (a, b) in begin.items()}
    end = {k: dict(row) for k, row in start.items()}
    changes = logged(end, steps)
    if changes:
        merged = compact(pa.Table.from_pylist(changes, schema=SCHEMA.arrow_schema), ["k"])
        assert len(set(merged["k"].to_pylist())) == merged.num_rows
        assert applied(start, merged) == end


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What a log may say of a few rows, each change with the columns that the server chose to write: a session may
    change its row image at any time. Rows come from before the batch, are inserted, dumped, moved (also back, and onto
    keys that were left), and come in any order."""
    live: set[int] = draw(st.sets(KEYS))
    changes: list[dict[str, Any]] = []
    some = st.sets(st.sampled_from(["a", "b"]))
    for seq in range(draw(st.integers(1, 16))):
        key, image = draw(KEYS), {"a": draw(VALUES), "b": draw(st.one_of(st.none(), st.sampled_from("xyz")))}

        def part(key: int, image: dict[str, Any] = image) -> dict[str, Any]:
            return {"k": key} | {name: image[name] for name in draw(some)}

        if (
            key not in live or draw(st.integers(0, 9)) == 0
        ):  # a replayed insert, or a dumped row that the log knows already
            live.add(key)
            changes.append(change(seq, draw(st.sampled_from("iir")), {"k": key, **image}))
            continue
        what, to = draw(st.sampled_from(["update", "update", "move", "delete"])), draw(KEYS)
        if what == "update":
            changes.append(change(seq, "u", part(key), part(key)))
        elif what == "delete":
            live.discard(key)
            changes.append(change(seq, "d", part(key)))
        elif to not in live:
            live ^= {key, to}
            old = part(key)
            changes += [change(seq, "u", part(to), old), change(seq, "k", old)]
    return draw(st.permutations(changes))


@given(histories())
def test_kernel_equals_reference(changes: list[dict[str, Any]]) -> None:
    if not changes:
        return
    segment = pa.Table.from_pylist(changes, schema=SCHEMA.arrow_schema)
    merged = compact(segment, ["k"])
    found = merged.to_pylist()
    if "_present" in merged.schema.names:
        for row, known in zip(found, masks(merged["_present"], len(NAMES))[0], strict=True):
            row["_known"] = {name for name, is_ in zip(NAMES, known, strict=True) if is_}
    wanted = compact_rows(segment.to_pylist(), NAMES, ["k"])
    fields = (*NAMES, "_op", "_seq", "_before", *(["_known"] if any(c["_present"] for c in changes) else []))

    def comparable(rows: list[dict[str, Any]]) -> list[str]:
        return sorted(repr([sorted(row[f]) if f == "_known" else row[f] for f in fields]) for row in rows)

    assert comparable(found) == comparable(wanted)
