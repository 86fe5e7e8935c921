"""Positions as earlier versions stored them, in ZooKeeper, manifests and acknowledgement rows, are read and carried
on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sluice.coordination.memory import MemoryTree
from sluice.coordination.port import Create
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError
from sluice.model.batches import Batch
from sluice.model.offset import Offset
from sluice.segments.manifest import SegmentManifest
from sluice.sources.mysql.position import LastEvent, Position

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
CURSOR = (
    '{"position": {"server_uuid": "%s", "file": "binlog.000042", "offset": 1234, "gtid_set": "%s:1-77", "commit_time_us": 1790000000123456, '
    '"prepared": "", "last_event": {"file": "binlog.000042", "offset": 1203, "size": 31, "checksum": 305419896, "kind": 16, '
    '"time_s": 1790000000, "gtid": "%s:77"}}, "next_batch": 8, "schema": "schema/%s.binlog/0000000042-000000001234-e000003-abcdef.schema"}'
).replace("%s", UUID)
OLDEST = '{"server_uuid": "%s", "file": "binlog.000042", "offset": 1234}'.replace("%s", UUID)
BEFORE = '{"server_uuid": "%s", "file": "binlog.000041", "offset": 4, "gtid_set": "", "commit_time_us": 0}'.replace(
    "%s", UUID
)
STORED = [
    json.dumps(json.loads(CURSOR)["position"]),
    '{"server_uuid": "mariadb:3306", "file": "my.host-bin.000009", "offset": 411, "gtid_set": "0-3306-7", "commit_time_us": 1790000000000001, '
    '"prepared": "X\'61\',X\'\',1@my.host-bin.000008:4", "last_event": null}',
    '{"server_uuid": "another", "file": "binlog.1000000", "offset": 4, "gtid_set": "", "commit_time_us": 0, "prepared": "", "last_event": null}',
]
"""Positions that commit 87e6725 wrote: of MySQL, of MariaDB with a prepared transaction, and without GTIDs."""
PROCESS = '{"batch": 7, "position": %s, "began": 0}'.replace("%s", OLDEST)
BATCH = (
    (
        '{"number": 7, "epoch": 3, "claim": "airflow:one:run_7",  "manifest": "batch=0000000007/manifest-e000003.json", '
        '"first": BEFORE, "last": OLDEST, '
        '"changes": 5, "size_bytes": 999, "state": "drained", "changeset": null}'
    )
    .replace("BEFORE", BEFORE)
    .replace("OLDEST", OLDEST)
)


@pytest.fixture
def state() -> PipelineState:
    """With nodes as they were written."""
    session = MemoryTree().session()
    found = PipelineState(session, "/data/sync", "shop", ["reporting"], lease_wait_s=0)
    nodes = {
        found.layout.cursor: CURSOR,
        found.layout.acknowledgement("reporting"): PROCESS,
        found.layout.batch(7): BATCH,
    }
    for path, content in nodes.items():
        session.ensure(path.rpartition("/")[0])
        session.transact([Create(path, content.encode())])
    return found


def test_the_nodes_of_an_earlier_version_are_read(state: PipelineState) -> None:
    cursor, process, batch = state.cursor(), state.acks.get("reporting"), state.batches.get(7)
    assert cursor is not None
    assert process is not None
    assert batch is not None
    event = LastEvent("binlog.000042", 1203, 31, 305419896, 16, 1790000000, f"{UUID}:77")
    read = Position.of(cursor.position)
    assert read == Position(UUID, "binlog.000042", 1234, f"{UUID}:1-77", 1790000000123456)
    assert read.last_event == event
    assert (cursor.next_batch, cursor.schema.startswith("schema/")) == (8, True)
    assert process.position.order == cursor.position.order == batch.last.order
    assert batch.last.follows(batch.first)
    assert batch.first.log_epoch == cursor.position.log_epoch


def test_they_are_carried_on(state: PipelineState) -> None:
    """What is written for them now is the same to an earlier version: no field is gone, and only the format's version
    is new.
    """
    cursor, batch = state.cursor(), state.batches.get(7)
    assert cursor is not None
    assert batch is not None
    assert json.loads(cursor.encoded()) == {"version": 1, **json.loads(CURSOR)}
    assert Batch.from_json(json.loads(json.dumps(batch.to_json()))) == batch
    with state.replicator() as lease:
        later = Position.of(cursor.position).at(offset=2000).as_offset()
        assert state.advance(lease, cursor, later).position.order == (42, 2000)
    again = state.cursor()
    assert again is not None
    assert (again.position.order, again.next_batch, again.schema) == ((42, 2000), 8, cursor.schema)


@pytest.mark.parametrize("text", [OLDEST, BEFORE, json.dumps(json.loads(CURSOR)["position"])])
def test_a_position_comes_back_whatever_it_lacks(text: str) -> None:
    found = Offset.from_json(json.loads(text))
    assert Offset.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert Offset.from_json({**json.loads(text), "version": 1}) == found


@pytest.mark.parametrize("text", STORED)
def test_a_position_is_written_byte_by_byte_as_it_was(text: str) -> None:
    """Neither a read of the neutral part nor one by the source's codec changes what is stored."""
    found = Offset.from_json(json.loads(text))
    assert json.dumps(found.to_json()) == text
    again = Position.of(found).as_offset()
    assert again == found
    assert json.dumps(again.to_json()) == text


@pytest.mark.parametrize(
    ("data", "why"),
    [({"server_uuid": UUID, "file": "binlog.000042"}, "'offset'"), ({"offset": 4}, "'file'"), ({}, "'file'")],
)
def test_a_position_that_lacks_its_place_is_refused(data: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot be read: KeyError.{why}"):
        Offset.from_json(data)


def test_positions_are_equal_whatever_was_read_last_and_whatever_an_older_version_left_out() -> None:
    data = json.loads(CURSOR)["position"]
    found = Offset.from_json(data)
    assert found == Offset.from_json({**data, "last_event": None})
    assert hash(found) == hash(Offset.from_json({**data, "last_event": None}))
    assert found != Offset.from_json({**data, "gtid_set": f"{UUID}:1-76"})
    assert found != Offset.from_json({**data, "prepared": "X'61',X'',1@b.000001:4"})
    assert Offset.from_json(json.loads(OLDEST)) == Position(UUID, "binlog.000042", 1234).as_offset()


def test_a_format_of_a_newer_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="format 2"):
        Offset.from_json({**json.loads(OLDEST), "version": 2})


def test_a_manifest_of_an_earlier_version_says_its_positions(tmp_path: Path) -> None:
    data: dict[str, Any] = {
        "format_version": 1, "pipeline": "shop", "batch": 7, "epoch": 3, "first": json.loads(BEFORE),
        "last": json.loads(CURSOR)["position"],
        "first_commit_time_us": 0, "last_commit_time_us": 0, "changes": 0, "transactions": 0, "log_bytes": 0,
        "files": [],
    }  # fmt: skip
    manifest = SegmentManifest.model_validate(data)
    assert manifest.first == Offset.from_json(data["first"])
    assert Position.of(manifest.last).last_event == Position.of(Offset.from_json(data["last"])).last_event
    written = json.loads(manifest.model_dump_json())
    assert json.dumps([written["first"], written["last"]]) == json.dumps([data["first"], data["last"]])
