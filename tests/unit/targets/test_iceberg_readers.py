"""Engines that read Iceberg tables with delete files: `sluice check` warns of those that cannot."""

from __future__ import annotations

import pytest

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError
from sluice.targets.iceberg.target import IcebergTarget

MERGE_ON_READ = {"write_mode": "merge-on-read"}


def risks(**options: object) -> list[str]:
    config = TargetConfig.model_validate({
        "name": "lake", "type": "iceberg", "connection": "lake",
        "options": {"catalog": {"type": "sql", "uri": "sqlite:////lake/c.db", "warehouse": "file:///lake"}, **options},
    })  # fmt: skip
    return [
        f"{risk.why}: {risk.fix}" for risk in IcebergTarget(config, Endpoint("lake", "generic", ""), "shop").risks()
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ""),
        ({"readers": ["databricks"]}, ""),
        (MERGE_ON_READ | {"readers": ["duckdb", "trino"]}, ""),
        (MERGE_ON_READ, "shows deleted rows: name those that read the tables"),
        (MERGE_ON_READ | {"readers": ["spark", "databricks"]}, "databricks cannot read"),
    ],
)
def test_only_an_engine_that_may_not_apply_delete_files_is_warned_of(options: dict[str, object], words: str) -> None:
    assert [words in risk for risk in risks(**options)] == [True] * bool(words)


def test_an_engine_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="'excel' is none of the engines athena"):
        risks(**MERGE_ON_READ, readers=["excel"])
