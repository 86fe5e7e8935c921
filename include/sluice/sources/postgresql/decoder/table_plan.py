"""How the rows of a relation are decoded: its definition, and what of it an old row holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.model.tables import TableSchema


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A table's definition as the log sends its rows.

    Attributes:
        schema: its columns are those of the Relation message that are captured, in its order.
        identity: 1 for each column of the replica identity, of all that the log sends.
        captured: where each column of ``schema`` stands among all that the log sends; (): they are the same.
        key: where the primary key's columns stand among all that the log sends, in key order.
        arrow_schema: of its tables, made once.
    """

    schema: TableSchema
    identity: np.ndarray[Any, Any]
    captured: tuple[int, ...] = ()
    key: np.ndarray[Any, Any] = field(init=False, repr=False, compare=False)
    arrow_schema: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        captured = self.captured or tuple(range(len(self.identity)))
        object.__setattr__(self, "captured", captured)
        places = dict(zip((column.name for column in self.schema.columns), captured, strict=True))
        key = np.array([places[name] for name in self.schema.primary_key], np.int64)
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "arrow_schema", self.schema.arrow_schema)
