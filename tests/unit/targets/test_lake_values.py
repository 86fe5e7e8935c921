"""A column that is said to take a type takes all of its values."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sluice.mysql.type_loss import SqlType
from sluice.targets.lake.types import takes
from sluice.targets.lake.values import converted

WHOLE = {
    "tinyint": (-(2**7), 2**7 - 1), "smallint unsigned": (0, 2**16 - 1), "mediumint": (-(2**23), 2**23 - 1),
    "mediumint unsigned": (0, 2**24 - 1),
    "int": (-(2**31), 2**31 - 1), "bigint": (-(2**63), 2**63 - 1), "bigint unsigned": (0, 2**64 - 1), "year": (0, 2155),
    "bit(1)": (0, 1),
    "bit(8)": (0, 255), "bit(64)": (0, 2**64 - 1),
}  # fmt: skip
"""The least and the greatest value of each type."""


@pytest.mark.parametrize("scale", [0, 3, 18])
@pytest.mark.parametrize("declared", WHOLE)
def test_whole_numbers_in_the_narrowest_decimal(declared: str, scale: int) -> None:
    made = SqlType.parse(declared, "").neutral("")
    assert made is not None
    kind = next(kind for digits in range(1, 39 - scale) if takes(made, kind := f"decimal({digits + scale},{scale})"))
    ends = pa.array([*WHOLE[declared], None], made.arrow_type)
    found, _ = converted(ends, made, kind)
    assert [None if one is None else int(one) for one in found.to_pylist()] == ends.to_pylist()
