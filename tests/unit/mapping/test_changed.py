"""Of an update the changed columns go, and the groups that they belong to."""

from __future__ import annotations

import pyarrow as pa

from sluice.mapping.changed import only_changed

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
