"""The value that the source itself has for a column's default."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class DefaultValue:
    """The value of a default, as rows of a segment have it.

    Attributes:
        value: of the column's Arrow type, NULL included. None: it is not known.
        why: why it is not known, after "the value is not known: ".
    """

    value: pa.Scalar | None
    why: str = ""
