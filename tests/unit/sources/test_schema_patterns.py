"""The schemas that patterns of tables may name: one too many costs time, one too few loses tables."""

from __future__ import annotations

import pytest

from sluice.config.pipeline import CaptureConfig
from sluice.sources.table_filter import Selection


@pytest.mark.parametrize(
    ("pattern", "wanted", "not_wanted"),
    [
        (r"shop\..*", ["shop"], ["crm", "shop2"]),
        (r"shop\.(orders|items)", ["shop"], ["crm"]),
        (r"(shop|crm)\.orders", ["shop", "crm"], ["sales"]),
        (r"shop_\d+\.orders", ["shop_1"], ["shop_a"]),
        (r"(?i)shop\.orders", ["shop", "SHOP"], ["crm"]),
        (r"shop\.[a|b]", ["shop"], ["crm"]),
        (r"shop\.orders|crm\.people", ["shop", "crm"], []),
        (r"(shop\.orders|crm\.people)", ["shop", "crm"], []),
        (r"sho\.?p\.orders", ["shop"], []),
        (r"shop.orders", ["shop"], []),
        (r".*", ["shop", "crm"], ["mysql", "sys"]),
    ],
)
def test_a_schema_is_wanted_if_a_table_of_it_may_be(pattern: str, wanted: list[str], not_wanted: list[str]) -> None:
    selection = Selection.compile(CaptureConfig(include=[pattern]))
    assert [name for name in (*wanted, *not_wanted) if selection.wants_schema(name)] == wanted
