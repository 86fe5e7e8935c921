"""The demonstration's channel: its files are valid, its ends meet, and every process builds the same stack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from devstack import commands
from devstack.demo import two_way
from devstack.development import Settings, Stack
from devstack.mysql import Distribution
from sluice.config.channel import Channels, find_channel
from sluice.config.connections import parse_connection
from sluice.errors import ConfigError
from sluice.operations.channel import ends_of, members, ring


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    Stack(Settings.choose(tmp_path, Distribution("MySQL", "9", (), (), ""), channel=True)).save()
    found = Stack.load(tmp_path)
    assert found is not None
    return found


def test_the_ends_meet_at_the_stacks_servers(stack: Stack) -> None:
    env = stack.environment()
    channels, pipelines = Path(env["SLUICE_CHANNELS"]), Path(env["SLUICE_PIPELINES"])

    def resolver(name: str):
        return parse_connection(name, env[f"AIRFLOW_CONN_{name.upper()}"])

    _, channel = find_channel(two_way.CHANNEL, channels)
    ends = ends_of(channel, *members(channel, pipelines), resolver)
    assert [end.target for end in ends] == ["b", "a"]
    assert channel.pipelines == two_way.PIPELINES
    assert ring("a_to_b", channels=Channels(channels), pipelines_folder=pipelines, resolver=resolver) == []
    given = {name: json.loads(env[f"AIRFLOW_CONN_{name.upper()}"])["port"] for name in ("a_mysql", "b_mysql")}
    assert given == {"a_mysql": stack.source.port, "b_mysql": stack.target.port}


def test_the_sites_number_new_rows_differently(stack: Stack) -> None:
    assert [server.options["auto_increment_offset"] for server in (stack.source, stack.target)] == [1, 2]
    assert {server.options["auto_increment_increment"] for server in (stack.source, stack.target)} == {2}


def test_a_channel_has_no_second_target() -> None:
    with pytest.raises(ConfigError, match="no second target"):
        commands.demo(target="kafka", channel=True)
