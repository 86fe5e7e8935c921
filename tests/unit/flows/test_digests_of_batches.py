"""Which pipelines keep digests from the log, and what a batch does to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.config.connections import Endpoint, parse_connection
from sluice.config.loading import load_pipeline
from sluice.config.pipeline import CaptureConfig
from sluice.flows.load.batch_rows import StoredRows
from sluice.flows.log_digests import batch_digests, keeps_digests, source_refuses, target_refuses
from sluice.flows.runtime import Runtime
from sluice.model.batches import Batch, BatchNumber, Epoch
from sluice.model.load_marks import MarkRules
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.segments.manifest import DdlRecord, DigestRecord, SegmentFile, SegmentManifest
from sluice.sources.table_filter import Selection
from sluice.targets.port import BatchInput, LogDelta

AT = Offset.at("server", "binlog.000001", 4)
PIPELINE = """
version: 1
pipeline: case
source: {{connection: a}}
capture: {{include: ["shop[.].*"]{capture}}}
verify: {{digest: {digest}}}
targets: [{{name: copy, type: {kind}, connection: {target}}}]
"""


def connection(connection_id: str) -> Endpoint:
    kind = "redis" if connection_id == "c" else "mysql"
    return parse_connection(connection_id, f'{{"conn_type": "{kind}", "host": "127.0.0.1"}}')


def runtime(folder: Path, *, capture: str = "", digest: str = "log", kind: str = "mysql", target: str = "b") -> Runtime:
    path = folder / "case.yaml"
    path.write_text(PIPELINE.format(capture=capture, digest=digest, kind=kind, target=target), encoding="utf-8")
    return Runtime.build(load_pipeline(path), resolver=connection, runner="local")


@pytest.mark.parametrize(
    ("capture", "why"),
    [
        ("", ""),
        (", events: [insert, update]", "every delete"),
        (", unlogged_cascades: ignore", "unlogged_cascades"),
    ],
)
def test_a_pipeline_whose_log_is_not_all_that_happens_keeps_none(tmp_path: Path, capture: str, why: str) -> None:
    made = runtime(tmp_path, capture=capture)
    assert why in source_refuses(made)
    assert bool(why) == bool(source_refuses(made))
    assert keeps_digests(made) is not bool(why)


def test_rows_that_are_left_out_by_their_marks_are_no_part_of_the_log(tmp_path: Path) -> None:
    made = replace(runtime(tmp_path), loads=MarkRules(keys=()))
    assert "ignore_marks" in source_refuses(made)


def test_none_are_kept_unless_they_are_asked_for(tmp_path: Path) -> None:
    assert not keeps_digests(runtime(tmp_path, digest="none"))


def test_a_kind_of_target_that_keeps_none_is_named(tmp_path: Path) -> None:
    made = runtime(tmp_path, kind="redis", target="c")
    assert "type redis keeps no digests" in target_refuses(made.pipeline.targets[0], made.open_target("copy"))
    mysql = runtime(tmp_path)
    assert target_refuses(mysql.pipeline.targets[0], mysql.open_target("copy")) == ""


def file(table: str, **counts: int) -> SegmentFile:
    return SegmentFile(
        path=f"{table}.parquet", schema_="shop", table=table, schema_version="0", rows=sum(counts.values()),
        size_bytes=1, crc32="00000000", bucket_min=0, bucket_max=0, **counts,
    )  # fmt: skip


def manifest(*files: SegmentFile, ddl: tuple[DdlRecord, ...] = (), **digests: DigestRecord) -> SegmentManifest:
    return SegmentManifest(
        pipeline="case", batch=7, epoch=1, first=AT, last=AT, changes=1, transactions=1, log_bytes=1, files=files,
        ddl=ddl, stretch=9, digests={f"shop.{table}": digest for table, digest in digests.items()},
    )  # fmt: skip


RECORD = Batch(BatchNumber(7), Epoch(1), "me", "manifest.json", AT, AT, 1, 1)
GIVEN = BatchInput(7, AT, 6, StoredRows("file:///tmp", "case"))


def test_a_batch_does_what_its_manifest_says() -> None:
    made = manifest(file("orders", inserts=2), orders=DigestRecord(rows=2, checksum="00000000000000ff"))
    found = batch_digests(made, RECORD, GIVEN, empty=False)
    assert (found.batch, found.held, found.stretch) == (7, 6, 9)
    assert found.deltas == {"shop.orders": LogDelta(2, 255)}
    assert (found.unknown, found.all_unknown, found.source_unknown) == ({}, "", "")


def test_rows_of_a_dump_change_the_target_and_not_the_source() -> None:
    found = batch_digests(manifest(file("orders", reads=2)), RECORD, GIVEN, empty=False)
    assert found.deltas == {}
    assert "a dump" in found.unknown["shop.orders"]


@pytest.mark.parametrize("table", ["shop.orders", None])
def test_a_definition_that_changed_leaves_a_gap(table: str | None) -> None:
    ddl = DdlRecord(file="binlog.000001", offset=4, schema_="shop", table=table, sql="ALTER", seq=1)
    found = batch_digests(manifest(ddl=(ddl,)), RECORD, GIVEN, empty=False)
    if table:
        assert found.deltas[table].gap
        assert found.all_unknown == ""
    else:
        assert found.all_unknown == found.source_unknown != ""


@pytest.mark.parametrize("lost", ["manifest", "digests", "dropped"])
def test_a_batch_of_which_nothing_is_known_makes_every_digest_unknown(lost: str) -> None:
    made: SegmentManifest | None = manifest(file("orders", inserts=2))
    if lost != "dropped":
        made = None if lost == "manifest" else manifest().model_copy(update={"digests": None})
    found = batch_digests(made, replace(RECORD, dropped=lost == "dropped"), GIVEN, empty=True)
    assert found.all_unknown == found.source_unknown != ""


def test_a_manifest_without_digests_is_one_that_older_versions_read() -> None:
    made = manifest().model_copy(update={"digests": None, "stretch": 9})
    assert '"digests"' not in made.to_json()
    assert '"stretch"' not in made.to_json()
    assert SegmentManifest.from_json(manifest().to_json()) == manifest()


def test_the_table_of_digests_is_captured_by_nobody() -> None:
    assert not Selection.compile(CaptureConfig(include=(".*",))).wants(TableId("shop", "_sluice_digests"))
