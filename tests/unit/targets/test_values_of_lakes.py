"""A column that is said to take a type takes all of its values."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from sluice.model import decimals
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.fields import described
from sluice.mysql.type_loss import SqlType
from sluice.targets.lake.types import LakeColumn, takes
from sluice.targets.lake.values import SentColumn, convert, converted

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


@pytest.mark.parametrize("kind", ["decimal(12,2)", "decimal(38,10)"])
def test_nan_is_refused_or_null(kind: str) -> None:
    """Also in a wider column, where its number would be one of the values."""
    made = ColumnType(ColumnKind.DECIMAL, 12, 2)
    values = decimals.from_python([Decimal("1.5"), Decimal("NaN"), None], made.arrow_type)
    field = described(pa.field("n", made.arrow_type), kind=made.to_text())
    sent = [SentColumn(field, LakeColumn("n", kind, True))]
    for policy, refused in (("refuse", [1]), ("null", [])):
        found, refusals = convert(pa.table({"n": values}), sent, zero_dates=policy)
        assert list(refusals.why) == refused
        assert found["n"].to_pylist() == [Decimal("1.5"), None, None]
