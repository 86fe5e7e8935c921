"""Options of targets that name tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError
from sluice.operations.check import check
from sluice.targets.options import tables_named
from sluice.targets.registry import KINDS, kind_of
from tests.support.pipelines.case import case
from tests.support.readers.lakes import Lake


def test_check_names_a_table_to_which_nothing_goes(
    tmp_path: Path, twin_source: Any, twin_zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(twin_source)
    twin_source.execute(f"CREATE TABLE `{schema}`.orders (id INT PRIMARY KEY, v INT)")
    options = f"{{partition_by: {{{schema}.order: [v]}}, cluster_by: {{{schema}.orders: [v], gone.away: [v]}}}}"
    extra = f"    options: {options}"
    with case(
        tmp_path, twin_source, Lake(tmp_path / "lake"), twin_zookeeper, schema, kind="delta", target_extra=extra
    ) as made:
        found = [one for one in check(made.runtime()).findings if one.setting.startswith("options.")]
        assert [(one.severity, one.setting, one.value) for one in found] == [
            ("warning", "options.partition_by", f"{schema}.order"),
            ("warning", "options.cluster_by", "gone.away"),
        ]
        assert f"did you mean '{schema}.orders'?" in found[0].why


@pytest.mark.parametrize("kind", [name for name in KINDS if name != "memory"])
def test_options_whose_keys_are_tables_say_so(kind: str) -> None:
    """Each option whose words are about ``schema.table`` has keys that are found."""
    model: Any = kind_of(kind).load().Options
    named = {name for name, field in model.model_fields.items() if "schema.table" in (field.description or "")}
    values = {name: {"s.t.c": "x"} for name in named}
    assert {option for option, _ in tables_named(model.model_construct(**values))} == named


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_column_partitions_a_table_once(kind: str) -> None:
    options = {"partition_by": {"shop.orders": ["g", "G"]}}
    config = TargetConfig.model_validate({"name": "lake", "type": kind, "connection": "c", "options": options})
    with pytest.raises(ConfigError, match=r"partition_by: shop\.orders: a column is named twice"):
        kind_of(kind).load()(config, Endpoint("c", "fs", ""), "p")
