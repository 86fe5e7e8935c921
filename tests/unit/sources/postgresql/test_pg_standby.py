"""What is said of a standby before its log is read."""

from __future__ import annotations

import psycopg
import pytest

from sluice.config.connections import parse_connection
from sluice.errors import ConfigError, LostPosition, SourceUnavailable
from sluice.sources.postgresql.preflight import position_findings
from sluice.sources.postgresql.server.connection import source_errors
from sluice.sources.postgresql.server.info import ServerInfo
from sluice.sources.postgresql.server.slot import Slot, creation
from sluice.sources.postgresql.server.standby import lag_findings, standby_findings

GOOD = {"wal_level": "logical", "hot_standby_feedback": "on", "primary_slot_name": "follower"}
HEAD = 5_000


def info(number: int = 180_000, *, in_recovery: bool = True, **settings: str) -> ServerInfo:
    return ServerInfo(
        "1", in_recovery, HEAD, 1, number, f"{number // 10_000}", "d", "u", superuser=False, replicates=True,
        settings={**GOOD, **settings},
    )  # fmt: skip


def test_a_standby_of_version_15_is_refused() -> None:
    [refused] = standby_findings(info(150_000), copies_elsewhere=False)
    assert (refused.severity, refused.kind) == ("error", ConfigError)
    assert "version 16 is the first" in refused.why
    assert standby_findings(info(160_000), copies_elsewhere=False) == []


def test_a_standby_that_its_primary_may_fail_is_warned_of() -> None:
    odd = info(hot_standby_feedback="off", primary_slot_name="")
    assert [(one.severity, one.setting) for one in standby_findings(odd, copies_elsewhere=False)] == [
        ("warning", "hot_standby_feedback"),
        ("warning", "primary_slot_name"),
    ]
    [refused] = standby_findings(info(), copies_elsewhere=True)
    assert (refused.severity, refused.setting) == ("error", "dump.connection")


@pytest.mark.parametrize(
    ("lag_s", "value"), [(None, []), (1.0, []), (90.0, ["90 s"]), (float("inf"), ["no connection"])]
)
def test_a_standby_that_is_behind_is_warned_of(lag_s: float | None, value: list[str]) -> None:
    assert [one.value for one in lag_findings(lag_s)] == value


def test_a_standby_that_was_started_is_waited_for() -> None:
    """It answers before it has replayed again what it had; a primary whose log ends there has lost something."""
    slot = Slot("s", "pgoutput", "logical", "d", None, 0, HEAD, "reserved", None)
    at = info().position.at(HEAD + 1)
    [late] = position_findings(info(), slot, "s", at)
    assert late.kind is SourceUnavailable
    [lost] = position_findings(info(in_recovery=False), slot, "s", at)
    assert lost.kind is LostPosition


def test_a_server_without_a_free_slot_is_told_what_to_raise() -> None:
    endpoint = parse_connection("c", '{"conn_type": "postgres", "host": "h"}')
    with pytest.raises(SourceUnavailable) as refused, source_errors(endpoint, "making the slot"):
        raise psycopg.errors.ConfigurationLimitExceeded("all replication slots are in use")
    assert "max_replication_slots" in str(refused.value.hint)


def test_the_slot_of_a_standby_goes_along_to_no_other() -> None:
    assert "failover" in creation("s", 180_000)
    assert "failover" not in creation("s", 180_000, at_standby=True)
