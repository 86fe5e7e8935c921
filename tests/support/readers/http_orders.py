"""Orders that are read by HTTP, and what the source says of them."""

from __future__ import annotations

from typing import Any

from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import write


def write_orders(made: Case) -> list[int]:
    return [
        write(made, "INSERT INTO orders VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, NULL)"),
        write(made, "UPDATE orders SET v = v + 1 WHERE id < 3", "DELETE FROM orders WHERE id = 3"),
        write(made, "UPDATE orders SET id = 9 WHERE id = 1", "INSERT INTO orders VALUES (4, 40, 'é \"\\n')"),
    ]


def truth(made: Case, columns: str = "id, v, note") -> dict[Any, dict[str, Any]]:
    rows = made.source.execute(f"SELECT {columns} FROM {made.schema}.orders")
    return {row[0]: dict(zip(columns.split(", "), row, strict=True)) for row in rows}
