"""Of an update the changed columns go, and the groups that they belong to."""

from __future__ import annotations

import pyarrow as pa

from sluice.mapping.changed import each_changed, only_changed
from sluice.merge.compact import compact

KEY = {"sluice.key": "1"}


def test_what_is_sent() -> None:
    columns = [pa.field("id", pa.int32(), metadata=KEY), *(pa.field(name, pa.string()) for name in "abc")]
    before = pa.struct(columns)
    schema = pa.schema([*columns, pa.field("_op", pa.string()), pa.field("_before", before)])
    old = {"id": 1, "a": "x", "b": None, "c": "z"}
    rows = pa.Table.from_pylist(
        [
            {**old, "a": "y", "_op": "u", "_before": old},
            {**old, "b": "", "_op": "u", "_before": old},
            {**old, "c": None, "_op": "u", "_before": old},
            {**old, "_op": "u", "_before": old},
            {**old, "_op": "i", "_before": None},
            {**old, "_op": "i", "_before": old},
            {**old, "_op": "d", "_before": old},
        ],
        schema=schema,
    )

    def sent(*groups: list[str]) -> list[str]:
        bits = [value[0] if value else 15 for value in only_changed(rows, groups)["_present"].to_pylist()]
        return ["".join(name for i, name in enumerate("_abc") if bit >> i & 1) for bit in bits]

    assert sent() == ["_a", "_b", "_c", "_", "_abc", "_abc", "_abc"]
    assert sent(["a", "b"]) == ["_ab", "_ab", "_c", "_", "_abc", "_abc", "_abc"]
    assert sent(["a", "b"], ["b", "c"]) == ["_abc", "_abc", "_bc", "_", "_abc", "_abc", "_abc"]


def test_each_change_says_what_it_changed() -> None:
    """So the merge knows a column that is in the end as it was. A row that comes to another key is whole there."""
    columns = [pa.field("id", pa.int32(), metadata=KEY), *(pa.field(name, pa.string()) for name in "ab")]
    before = pa.struct(columns)
    meta = [("_op", pa.string()), ("_seq", pa.uint64()), ("_commit_ts", pa.timestamp("us")), ("_before", before)]
    first, moved = {"id": 1, "a": "x", "b": "y"}, {"id": 2, "a": "x", "b": "y"}
    rows = [
        {**first, "a": "z", "_op": "u", "_before": first},
        {**first, "_op": "u", "_before": {**first, "a": "z"}},
        {**moved, "_op": "u", "_before": {**moved, "id": 9}},
        {**moved, "id": 3, "_op": "i", "_before": None},
    ]
    schema = pa.schema([*columns, *(pa.field(*one) for one in meta)])
    changes = pa.Table.from_pylist([{**row, "_seq": at, "_commit_ts": 0} for at, row in enumerate(rows)], schema=schema)
    assert each_changed(changes, [])["_present"].to_pylist() == [b"\x03", b"\x03", None, None]
    assert each_changed(changes, [["a", "b"]])["_present"].to_pylist() == [b"\x07", b"\x07", None, None]
    merged = compact(each_changed(changes, []), ["id"]).select(["id", "a", "b", "_op", "_present"]).to_pylist()
    assert [tuple(row.values()) for row in merged] == [
        (1, "x", None, "u", b"\x03"),
        (2, "x", "y", "i", None),
        (3, "x", "y", "i", None),
    ]
