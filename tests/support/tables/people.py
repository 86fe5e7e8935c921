"""The table ``people`` (id, a unique email, points) and changes of its rows, for tests of targets."""

from __future__ import annotations

from typing import Any

from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema


def people(schema: str, table: str = "people") -> TableSchema:
    return TableSchema(
        TableId(schema, table),
        (
            Column("id", ColumnKind.INT, "int", nullable=False),
            Column("email", ColumnKind.VARCHAR, "varchar(80)", charset="utf8mb4"),
            Column("points", ColumnKind.INT, "int"),
        ),
        ("id",),
    )


DDL = "CREATE TABLE {}.{} (id INT PRIMARY KEY, email VARCHAR(80) UNIQUE, points INT)"


def rows(server: Any, db: str, table: str = "people") -> list[tuple[Any, ...]]:
    return sorted(server.execute(f"SELECT * FROM {db}.{table}"))


def insert(id: int, email: str | None = None, points: int | None = None) -> dict[str, Any]:
    return {"_op": "i", "id": id, "email": email, "points": points}


def update(before: dict[str, Any], **after: Any) -> dict[str, Any]:
    old = {k: v for k, v in before.items() if not k.startswith("_")}
    return {**old, **after, "_op": "u", "_before": old}


def delete(row: dict[str, Any]) -> dict[str, Any]:
    return {**{k: v for k, v in row.items() if k != "_before"}, "_op": "d"}
