"""Orders that are read by Arrow Flight, and what the source says of them."""

from __future__ import annotations

import json
from typing import Any

from pyarrow import flight

from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import write


def write_orders(made: Case) -> list[int]:
    """Batches of changes of every kind."""
    return [
        write(made, "INSERT INTO orders VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, NULL)"),
        write(made, "UPDATE orders SET v = v + 1 WHERE id < 3", "UPDATE orders SET note = 'c' WHERE id = 2"),
        write(made, "UPDATE orders SET id = 9 WHERE id = 1", "DELETE FROM orders WHERE id = 3",
            "INSERT INTO orders VALUES (4, 40, 'd')"),
    ]  # fmt: skip


def truth(made: Case, table: str = "orders", columns: str = "id, v, note") -> dict[Any, dict[str, Any]]:
    names = columns.split(", ")
    rows = made.source.execute(f"SELECT {columns} FROM {made.schema}.{table}")
    return {row[0]: dict(zip(names, row, strict=True)) for row in rows}


def refused(error: flight.FlightError) -> dict[str, Any]:
    """Return the part of the error that is for programs."""
    return json.loads(error.extra_info)  # type: ignore[no-any-return]
