"""The demonstration's second target: a pipeline file that is valid, and names that are not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from devstack.development import Settings, Stack
from devstack.kinds import KINDS, Kind, kind_of, pipelines_with
from devstack.mysql import Distribution
from sluice.config.loading import find_pipeline
from sluice.errors import ConfigError
from sluice.targets import registry


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_the_pipeline_has_both_targets(tmp_path: Path, kind: Kind) -> None:
    pipeline = find_pipeline("shop_to_reporting", pipelines_with(kind, tmp_path))
    assert [target.name for target in pipeline.targets] == ["reporting", kind.name]


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_process_builds_the_same_server(tmp_path: Path, kind: Kind) -> None:
    """The command that starts it, the supervisor and a task's environment know it by the settings alone."""
    made = Stack(Settings.choose(tmp_path, Distribution("MySQL", "9", (), (), ""), kind))
    made.save()
    again = Stack.load(tmp_path)
    assert again is not None
    assert again.other is not None
    place = str(getattr(made.other, "port", made.other))
    assert str(getattr(again.other, "port", again.other)) == place != "0"
    assert (kind.name in again.servers) == bool(kind.ports)
    assert place in again.environment()[f"AIRFLOW_CONN_REPORTING_{kind.name.upper()}"]


def test_the_demo_has_every_other_kind_of_target() -> None:
    """The first target of the demo is a MySQL server; there is no server of Oracle's to start."""
    assert set(KINDS) == set(registry.KINDS) - {"memory", "mysql", "oracle"}


def test_unknown_kinds_are_named() -> None:
    with pytest.raises(
        ConfigError, match=r"the demo has no target 'oracle'.*kafka, postgresql, rabbitmq, redis, http, delta, iceberg"
    ):
        kind_of("oracle")
