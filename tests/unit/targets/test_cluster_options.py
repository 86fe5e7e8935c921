"""``cluster_by`` is looked at when the pipeline's file is read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sluice.targets.delta.options import DeltaOptions
from sluice.targets.iceberg.options import IcebergOptions


@pytest.mark.parametrize("kind", [DeltaOptions, IcebergOptions])
@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([], "cluster_by: shop.t: name a column"),
        ([""], "an empty name"),
        (["v", "V"], "named twice"),
        (["v", "P"], "p is in partition_by, too"),
        ("v", "valid tuple"),
    ],
)
def test_what_cannot_be_is_refused(kind: Any, columns: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        kind.model_validate({"cluster_by": {"shop.t": columns}, "partition_by": {"shop.t": ["p"]}})
    kind.model_validate({"cluster_by": {"shop.t": ["v", "w"]}, "partition_by": {"shop.t": ["p"], "shop.o": ["v"]}})
