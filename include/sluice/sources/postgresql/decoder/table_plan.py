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
        schema: its columns are those of the Relation message, in its order.
        identity: 1 for each column of the replica identity.
        key: ordinals of the primary key's columns, in key order.
        arrow_schema: of its tables, made once.
    """

    schema: TableSchema
    identity: np.ndarray[Any, Any]
    key: np.ndarray[Any, Any] = field(init=False, repr=False, compare=False)
    arrow_schema: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = [column.name for column in self.schema.columns]
        key = np.array([names.index(name) for name in self.schema.primary_key], np.int64)
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "arrow_schema", self.schema.arrow_schema)
