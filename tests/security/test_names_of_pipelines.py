"""A name that is more than a name as the attacker."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.config.loading import load_pipeline
from sluice.errors import ConfigError
from tests.dags.conftest import PIPELINE


@pytest.mark.parametrize(
    "name",
    [
        "../etc",
        "a/b",
        "..",
        "",
        "a b",
        "\\u202egnp",
        "\\u2066a\\u2069",
        "a\\u0000",
        "a\\x1b[2J",
        "a%2e%2e",
        "a'b",
        "a<b>",
    ],
)
def test_a_name_is_a_name(tmp_path: Path, name: str) -> None:
    """A pipeline's and a target's name become DAG ids, folders, znodes and addresses."""
    path = tmp_path / "shop.yaml"
    for place in ("pipeline: shop", "name: reporting"):
        text = PIPELINE.format(name="shop", schedule="continuous", mode="connect")
        assert place in text
        path.write_text(text.replace(place, f'{place.split(":")[0]}: "{name}"', 1))
        with pytest.raises(ConfigError, match=r"shop\.yaml"):
            load_pipeline(path)
