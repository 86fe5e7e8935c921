"""Batches grow with a backlog."""

from __future__ import annotations

from sluice.flows.capture.drain import patience_s
from sluice.model.dialects import MYSQL
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.server.connection import ServerInfo

UUID = "2b6c1f0e-0000-0000-0000-000000000001"


def test_near_the_head_a_batch_closes_as_the_pipeline_says() -> None:
    assert patience_s(0.5, 0) == 0.5
    assert patience_s(0.5, 10_000_000) == 0.5


def test_the_further_behind_the_longer_it_stays_open_but_never_for_ever() -> None:
    assert patience_s(0.5, 100_000_000) == 2.5
    assert patience_s(0.5, 10**12) == 10.0
    assert patience_s(60.0, 10**12) == 60.0


def test_the_bytes_behind_are_counted_over_the_files_between() -> None:
    logs = (("b.000001", 1000), ("b.000002", 500), ("b.000003", 300))
    info = ServerInfo(
        dialect=MYSQL,
        version="9",
        numbers=(9, 0, 0),
        server_uuid=UUID,
        server_id=1,
        head=Position(UUID, "b.000003", 300),
        binary_logs=logs,
    )
    assert info.bytes_behind(Position(UUID, "b.000003", 100)) == 200
    assert info.bytes_behind(Position(UUID, "b.000001", 400)) == 600 + 500 + 300
    assert info.bytes_behind(Position(UUID, "b.000003", 999)) == 0
    assert info.bytes_behind(Position(UUID, "b.000000", 4)) is None
