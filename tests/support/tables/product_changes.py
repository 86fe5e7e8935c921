"""Changes of a table of products, as Debezium's documentation has them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sluice.model.changes import Change
from sluice.model.tables import TableId

GTID = "24bc7850-2c16-11e6-a073-0242ac110002:7"
US = 1_589_373_560_798_123


def field(name: str, sql_type: str, arrow: pa.DataType, *, key: int = 0, required: bool = False) -> pa.Field:
    metadata = {"sluice.type": sql_type, "sluice.name": name}
    if key:
        metadata["sluice.key"] = str(key)
    if required:
        metadata["sluice.required"] = "1"
    return pa.field(name, arrow, metadata=metadata)


PRODUCTS = (
    field("id", "int", pa.int32(), key=1, required=True),
    field("name", "varchar(255)", pa.string(), required=True),
    field("description", "varchar(512)", pa.string()),
    field("weight", "float", pa.float32()),
)
ROW = {"id": 111, "name": "scooter", "description": "Big 2-wheel scooter", "weight": 5.179999828338623}
OLD = {**ROW, "weight": 5.150000095367432}


def change(
    op: str, before: dict[str, Any] | None, after: dict[str, Any] | None, fields=PRODUCTS, key=("id",), **values: Any
) -> Change:
    given = {
        "table": TableId("inventory", "products"), "op": op, "seq": 9, "file": "mysql-bin.000003", "offset": 484,
        "row": 0,
        "commit_time_us": US, "gtid": GTID, "txn": 3, "origin": 223344, "last_in_txn": True, "txn_row": 2,
    }  # fmt: skip
    return Change(before=before, after=after, fields=fields, key=key, **(given | values))


MOVED = {**ROW, "id": 112}
