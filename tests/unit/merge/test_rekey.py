"""A unique key in the place of a primary key: as if capture had known it, and as the reference merges."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import MappingError
from sluice.merge.compact import compact
from sluice.merge.key_override import rekeyed
from tests.support.tables.changes import KEYLESS, change, table
from tests.support.tables.merge_reference import compact_rows


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Legal histories of a few rows whose key (a, b) may move; the table itself has no key, so capture writes no ``k``
    rows.
    """
    live: dict[tuple[int, str], int] = {}
    changes: list[dict[str, Any]] = []
    for seq in range(draw(st.integers(1, 25))):
        key = (draw(st.integers(0, 3)), draw(st.sampled_from("xy")))
        value = draw(st.integers(0, 99))
        if key not in live:
            live[key] = value
            changes.append(change("i", seq, (*key, value)))
        elif draw(st.booleans()):
            to = (draw(st.integers(0, 3)), draw(st.sampled_from("xy")))
            to = key if to in live else to
            old = live.pop(key)
            live[to] = value
            changes.append(change("u", seq, (*to, value), (*key, old)))
        else:
            changes.append(change("d", seq, (*key, live.pop(key))))
    return changes


def with_departures(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What capture writes where it knows the key."""
    rows = []
    for one in changes:
        rows.append(one)
        before = one["_before"]
        if one["_op"] == "u" and any(before[n] != one[n] for n in ("a", "b")):
            rows.append({**one, **before, "_op": "k", "_before": None})
    return rows


@given(histories())
def test_it_merges_as_with_a_primary_key(changes: list[dict[str, Any]]) -> None:
    keyed = rekeyed(table(changes, KEYLESS), KEYLESS.table, ("a", "b"))
    found = compact(keyed, ["a", "b"]).to_pylist()
    wanted = compact_rows(with_departures(changes), ["a", "b", "v"], ["a", "b"])

    def plain(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return sorted(
            (r["a"], r["b"], r["_op"], int(r["v"]), str(r["_before"] and int(r["_before"]["v"]))) for r in rows
        )

    assert plain(found) == plain(wanted)


def test_key_columns_are_marked() -> None:
    keyed = rekeyed(table([change("i", 1, (1, "x", 2))], KEYLESS), KEYLESS.table, ("b", "a"))
    assert {f.name: f.metadata.get(b"sluice.key") for f in keyed.schema if f.name in {"a", "b", "v"}} == {
        "a": b"2",
        "b": b"1",
        "v": None,
    }


@pytest.mark.parametrize(("key", "said"), [(("nope",), "does not have"), (("b",), "NULL in some rows")])
def test_what_is_no_key_is_refused(key: tuple[str, ...], said: str) -> None:
    rows: pa.Table = table([change("i", 1, (1, None, 2))], KEYLESS)
    with pytest.raises(MappingError, match=said):
        rekeyed(rows, KEYLESS.table, key)
