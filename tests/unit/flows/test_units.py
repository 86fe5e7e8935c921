"""How a batch is cut into units: bounded in number, balanced, and in phases that keep deletes before upserts."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.config.connections import Endpoint
from sluice.config.pipeline import PipelineConfig, SparkConfig
from sluice.config.resolved import ResolvedConnections
from sluice.errors import ConfigError, RuleError, SegmentError
from sluice.flows.load.units import batch_input
from sluice.flows.transform.merge_units import plan_merge, plan_pieces
from sluice.flows.transform.segment_rows import read_changes, shares
from sluice.model.offset import Offset
from sluice.model.packing import EXPANSION, MAX_UNIT_ROWS, UNIT_ROWS, work_bytes
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.segments.changeset import (
    Changeset,
    ChangesetFile,
    ChangesetManifest,
    ChangesetTable,
    read_changeset,
    read_changeset_file,
)
from sluice.segments.footers import measured
from sluice.segments.manifest import SegmentFile, SegmentManifest
from sluice.segments.store import SegmentStore
from sluice.segments.writer import SegmentWriter
from sluice.spark.base import LARGE_BYTES
from sluice.spark.local import LocalRunner
from sluice.targets.port import Fence, NoFacts, WriteResult
from sluice.targets.sql.foreign_keys import ordered
from sluice.targets.sql.loader import compared_again
from sluice.targets.sql.tables import Reference, TargetTable
from sluice.targets.sql.writer import SqlSession, known_tables
from tests.support.running.stage_processes import pss_mb
from tests.support.tables.small_segments import rows, schema_of

POSITION = Offset.at("u", "binlog.000001", 4)


def pipeline(**target: Any) -> PipelineConfig:
    return PipelineConfig.model_validate({
        "pipeline": "p", "source": {"connection": "s"}, "targets": [{"name": "t", "type": "mysql", "connection": "c",
            **target}],
    })  # fmt: skip


def segment(table: str, rows: int, *, key: tuple[str, ...] = ("id",), part: int = 0) -> SegmentFile:
    return SegmentFile(
        path=f"batch=0000000001/s.{table}/v-{part}.parquet", schema_="s", table=table, schema_version="v",
        primary_key=key, rows=rows,
        inserts=rows, size_bytes=rows * 40, crc32="00000000", bucket_min=0, bucket_max=63 if key else 0,
    )  # fmt: skip


def manifest(*files: SegmentFile) -> SegmentManifest:
    return SegmentManifest(
        pipeline="p",
        batch=1,
        epoch=1,
        first=POSITION,
        last=POSITION,
        changes=1,
        transactions=1,
        log_bytes=1,
        files=files,
    )


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return SegmentStore(tmp_path.as_uri(), "p")


def test_many_small_tables_are_few_units_and_each_table_is_there_once(store: SegmentStore) -> None:
    units = plan_merge(store, manifest(*(segment(f"t{i}", 5) for i in range(1000))), pipeline(), None, "a")
    assert len(units) <= 16
    tables = [part.source.table for unit in units for part in unit.parts]
    assert sorted(tables) == sorted(f"t{i}" for i in range(1000))
    costs = [unit.cost for unit in units]
    assert max(costs) < 2 * min(costs)
    assert pickle.loads(pickle.dumps(units)) == units


def wide(rows: int, row_bytes: int, **more: Any) -> SegmentFile:
    """Rows that compress 20:1."""
    size = rows * row_bytes
    return segment("t", rows).model_copy(update={"size_bytes": size // 20, "arrow_bytes": size, **more})


@pytest.mark.parametrize(("rows", "row_bytes"), [(5_000_000, 2_000), (40_000_000, 50), (100_000, 100_000)])
@pytest.mark.parametrize("memory", [2**29, 2**30, 2**32])
def test_units_fit_the_memory_four_at_a_time(store: SegmentStore, rows: int, row_bytes: int, memory: int) -> None:
    pipe = pipeline().model_copy(update={"spark": SparkConfig(memory=memory)})
    units = plan_merge(store, manifest(wide(rows, row_bytes)), pipe, None, "a")
    bucket = rows * row_bytes // 64  # the smallest that there is
    for unit in units:
        assert sum(part.size_bytes for part in unit.parts) <= max(work_bytes(memory) // EXPANSION // 4, bucket) + 256
        assert unit.memory_bytes <= max(work_bytes(memory) // 4, bucket * EXPANSION) + 1024
    ranges = sorted(part.buckets for unit in units for part in unit.parts)
    assert [low for low, _ in ranges] == [0, *(high for _, high in ranges[:-1])]


def test_the_shares_of_a_part_have_each_change_once_and_a_key_in_one_share(store: SegmentStore) -> None:
    schema = schema_of()
    writer = SegmentWriter(store, 1, 1)
    for start in (0, 300):  # each key twice
        writer.add(schema, rows(schema, list(range(300)), start))
    made = writer.finish(POSITION, POSITION, transactions=1)
    [part] = plan_pieces(store, made, pipeline())
    cut = list(shares(part, part.size_bytes // 2))
    assert [one.share for one in cut] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    read = [read_changes(store, one).changes for one in cut]
    keys = [set(some["id"].to_pylist()) for some in read]
    assert sorted(key for some in keys for key in some) == list(range(300))
    assert sum(some.num_rows for some in read) == 600
    assert min(map(len, keys)) > 40
    assert all(one.size_bytes <= part.size_bytes // 4 for one in cut)


@dataclass(frozen=True)
class _Copying:
    """A unit that copies 20 MB of rows several times."""

    memory_bytes: int = LARGE_BYTES


def _copy(unit: _Copying) -> int:
    rows = pa.table({"v": ["x" * 2_000] * 10_000})
    for _ in range(8):
        rows = pa.concat_tables([rows, rows.take(pa.array(range(10_000)))]).combine_chunks().slice(0, 10_000)
    return rows.num_rows


def test_memory_that_large_units_freed_goes_back_to_the_system() -> None:
    """Arrow's pool and the C library keep 600 MB of these eight units otherwise."""
    _copy(_Copying())
    pa.default_memory_pool().release_unused()
    before = pss_mb(os.getpid())
    assert LocalRunner(2**30).run(_copy, [_Copying()] * 8) == [10_000] * 8
    assert pss_mb(os.getpid()) < before + 150


@pytest.mark.promise("E11")
@pytest.mark.parametrize(("wanted", "at_once"), [(2**30, 1), (700, 1), (500, 2), (0, 4)])
def test_units_that_take_turns_run_in_one_thread(wanted: int, at_once: int) -> None:
    """The allocators keep what each thread freed."""
    seen = LocalRunner(1_000).run(lambda unit: threading.get_ident(), [_Copying(wanted)] * 40, parallelism=4)
    assert len(set(seen)) <= at_once


def test_what_is_no_larger_than_it_may_be_or_has_no_key_or_is_very_large_has_no_shares(store: SegmentStore) -> None:
    [part] = plan_pieces(store, manifest(wide(1_000, 100)), pipeline())
    [keyless] = plan_pieces(store, manifest(wide(1_000, 100, primary_key=(), bucket_max=0)), pipeline())
    assert list(shares(part, part.size_bytes)) == [part]
    assert list(shares(keyless, keyless.size_bytes // 2)) == [keyless]
    assert list(shares(part, part.size_bytes // 10)) == [part]


def test_a_column_that_no_row_of_a_share_has_is_not_said_to_be_there_from_the_first_row(store: SegmentStore) -> None:
    """A column was added in the middle of the batch: the target's default is for all rows of the share."""
    new = schema_of()
    old = type(new)(new.table, new.columns[:1], new.primary_key)
    writer = SegmentWriter(store, 1, 1)
    whole = rows(new, [1, 2, 3, 4])
    before = whole["_before"].combine_chunks()
    struct = pa.StructArray.from_arrays([before.field(0)], fields=[before.type[0]], mask=before.is_null())
    index = whole.schema.get_field_index("_before")
    writer.add(old, whole.set_column(index, "_before", struct).select(old.arrow_schema.names).cast(old.arrow_schema))
    writer.add(new, rows(new, [5], 4))
    made = writer.finish(POSITION, POSITION, transactions=1)
    [part] = plan_pieces(store, made, pipeline())
    read = [read_changes(store, replace(part, share=(number, 2))) for number in range(2)]
    [without] = [one for one in read if 5 not in one.changes["id"].to_pylist()]
    assert without.changes.num_rows
    [(first, name)] = without.added
    assert (first > max(without.changes["_seq"].to_pylist()), name) == (True, "v")


def test_a_key_that_has_most_of_the_rows_is_cut_off(store: SegmentStore) -> None:
    sizes = [1_000_000] * 64
    sizes[17] = 400_000_000
    file = wide(500_000, sum(sizes) // 500_000, bucket_bytes=tuple(sizes))
    pieces = plan_pieces(store, manifest(file), pipeline())
    assert [piece.buckets for piece in pieces if piece.size_bytes > 64_000_000] == [(17, 18)]


def test_a_segment_of_an_older_version_is_measured_by_its_footer(store: SegmentStore) -> None:
    path = store.full_path("old.parquet")
    store.write_bytes("old.parquet", b"")
    pq.write_table(pa.table({"v": ["x" * 2_000] * 300_000}), path, use_dictionary=False, compression="zstd")
    old = segment("t", 300_000).model_copy(update={"path": "old.parquet", "size_bytes": 2**20})
    [measured_] = measured(store, [old])
    assert 600_000_000 < measured_.arrow_bytes < 640_000_000


def test_a_large_table_is_cut_by_bucket_without_gap_or_overlap(store: SegmentStore) -> None:
    units = plan_merge(store, manifest(segment("t", 2_000_000), segment("t", 100, part=1)), pipeline(), None, "a")
    ranges = sorted(part.buckets for unit in units for part in unit.parts)
    assert [b for lo, hi in ranges for b in range(lo, hi)] == list(range(64))
    assert len(ranges) >= 2_000_000 // MAX_UNIT_ROWS
    assert all(len(part.files) == 2 for unit in units for part in unit.parts)


def test_a_table_without_a_key_is_never_cut(store: SegmentStore) -> None:
    units = plan_merge(store, manifest(segment("t", 2_000_000, key=())), pipeline(), None, "a")
    assert [part.buckets for unit in units for part in unit.parts] == [(0, 64)]


def test_an_empty_batch_has_no_units(store: SegmentStore) -> None:
    assert plan_merge(store, manifest(), pipeline(), None, "a") == []


def test_a_broken_rule_is_found_while_planning(store: SegmentStore, tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text("def transform(row, context:\n")
    (tmp_path / "engine.yaml").write_text("rules: [{name: mine, path: r.py}]\n")
    with pytest.raises(RuleError, match="'mine'"):
        plan_merge(store, manifest(segment("t", 5)), pipeline(), tmp_path / "engine.yaml", "a")


# load
# ------------------------------------------------------------------------------------------------------------------


class FakeTarget:
    """``children``: (child, parent) of tables in schema s, where the target checks foreign keys."""

    def __init__(self, config: Any, unique: bool = False, children: Sequence[tuple[str, str]] = ()) -> None:
        self.config = config
        self.unique = unique
        self.children = children
        self.compared: list[list[PlannedTable]] = []

    def check(self, plans: Any, again: Any = None) -> dict[TableId, TargetTable]:
        uniques = (("email",),) if self.unique else ()
        found = {p.target: TargetTable(p.target, ("id", "email"), ("id",), uniques) for p in plans}
        keys = [Reference("k", TableId("s", c), ("email",), TableId("s", p), ("id",)) for c, p in self.children]
        found = ordered(found, keys) if keys else found
        self.compared.append([*plans, *compared_again(plans, found, again)])
        return found

    def finished_units(self, fence: Fence, plan: str) -> dict[int, WriteResult]:
        return {}

    def note_tables(self, fence: Fence, tables: Sequence[TableId]) -> None:
        """Keep no note."""

    def note_loading(self, fence: Fence) -> None:
        """Keep no note."""


def changed(
    table: str, files: int, rows: int, *, deletes: int = 0, updates: int = 0, weight: int = 0
) -> ChangesetTable:
    made = tuple(
        ChangesetFile(
            path=f"{table}/{i}.parquet", rows=rows, inserts=rows - deletes - updates, updates=updates, deletes=deletes,
            size_bytes=rows * 20,
            crc32="00000000", bucket_min=i, bucket_max=i,
        )
        for i in range(files)
    )  # fmt: skip
    return ChangesetTable(
        schema_="s", table=table, source_schema="s", source_table=table, weight=weight, columns=(), files=made
    )


def phases(
    store: SegmentStore,
    *tables: ChangesetTable,
    unique: bool = False,
    children: Sequence[tuple[str, str]] = (),
    **target: Any,
) -> list[list[Any]]:
    changeset = Changeset("x", ChangesetManifest(batch=7, attempt="a", last=POSITION, tables=tables))
    target_config = pipeline(**target).targets[0]
    session = SqlSession(FakeTarget(target_config, unique, children), 3)  # type: ignore[arg-type]
    return session.begin(batch_input(store, changeset)).plan(target_config.parallelism)


def test_small_tables_are_one_phase_and_one_transaction(store: SegmentStore) -> None:
    [[unit]] = phases(store, *(changed(f"t{i}", 1, 10, deletes=2) for i in range(20)))
    assert len(unit.parts) == 20
    assert unit.one_transaction
    assert (unit.fence.epoch, unit.fence.held, unit.fence.batch) == (3, 6, 7)


def test_a_large_table_deletes_everywhere_before_it_upserts_anywhere(store: SegmentStore) -> None:
    first, second = phases(store, changed("t", 8, UNIT_ROWS, deletes=5))
    assert {(p.deletes, p.upserts) for unit in first for p in unit.parts} == {(True, False)}
    assert {(p.deletes, p.upserts) for unit in second for p in unit.parts} == {(False, True)}
    assert sum(len(unit.parts) for unit in second) == 8


def test_a_phase_of_deletes_is_left_out_where_nothing_can_be_in_the_way(store: SegmentStore) -> None:
    assert len(phases(store, changed("t", 8, UNIT_ROWS, updates=5))) == 1
    assert len(phases(store, changed("t", 8, UNIT_ROWS, updates=5), unique=True)) == 2


@pytest.mark.promise("B19")
def test_lighter_tables_first(store: SegmentStore) -> None:
    tables = changed("heavy", 1, 10, weight=9), changed("light", 1, UNIT_ROWS), changed("middle", 1, 10, weight=5)
    made = phases(store, *tables)
    assert [unit.parts[0].table.table.table for [unit] in made] == ["light", "middle", "heavy"]


def test_a_small_batch_is_one_unit_and_one_transaction_with_its_acknowledgement(store: SegmentStore) -> None:
    """A job and a commit, however many weights there are."""
    tables = changed("heavy", 1, 10, weight=9), changed("light", 1, 10), changed("middle", 1, 10, weight=5)
    [[unit]] = phases(store, *tables)
    assert [part.table.table.table for part in unit.parts] == ["light", "middle", "heavy"]
    assert (unit.one_transaction, unit.acknowledge) == (True, POSITION)
    assert len(phases(store, *tables, changed("large", 1, UNIT_ROWS))) == 4


def test_a_table_is_one_transaction(store: SegmentStore) -> None:
    [units] = phases(store, changed("t", 8, UNIT_ROWS, deletes=5), consistency="table")
    assert [len(unit.parts) for unit in units] == [1]
    assert len(units[0].parts[0].files) == 8


def test_a_batch_is_one_transaction_with_its_acknowledgement(store: SegmentStore) -> None:
    [[unit]] = phases(store, changed("b", 8, UNIT_ROWS, weight=2), changed("a", 1, 5), consistency="batch")
    assert [part.table.table.table for part in unit.parts] == ["a", "b"]
    assert unit.acknowledge == POSITION


@pytest.mark.parametrize("unique", [True, False])
def test_the_keys_of_the_source_are_compared_by_one_look_at_the_target(store: SegmentStore, unique: bool) -> None:
    class Keys(NoFacts):
        def unique_keys(self, plan: PlannedTable) -> tuple[PlannedTable, frozenset[str]]:
            return replace(plan, unique=()), frozenset()

    changeset = Changeset("x", ChangesetManifest(batch=7, attempt="a", last=POSITION, tables=(changed("t", 1, 10),)))
    tables = batch_input(store, changeset).tables
    target = FakeTarget(pipeline().targets[0], unique)
    known_tables(target, tables, Keys())  # type: ignore[arg-type]
    [compared] = target.compared
    assert [plan.unique for plan in compared] == ([None, ()] if unique else [None])


FAMILY = (("child", "parent"), ("grandchild", "child"), ("staff", "staff"))


def halves(units: Sequence[Any]) -> list[tuple[str, str]]:
    words = {(True, False): "leaves", (False, True): "comes", (True, True): "both", (False, False): "verify"}
    return [(part.table.table.table, words[part.deletes, part.upserts]) for unit in units for part in unit.parts]


def test_a_small_family_is_one_transaction_in_order_and_looked_at_behind(store: SegmentStore) -> None:
    tables = [changed(name, 1, 10, deletes=2) for name in ("staff", "grandchild", "parent", "child")]
    [[unit]] = phases(store, *tables, children=FAMILY)
    assert unit.one_transaction
    assert [one for one in halves([unit]) if one[0] != "staff"] == [
        ("grandchild", "leaves"), ("child", "leaves"), ("parent", "leaves"), ("parent", "comes"), ("child", "comes"),
        ("grandchild", "comes"),
        ("parent", "verify"), ("child", "verify"),
    ]  # fmt: skip
    assert halves([unit])[-3:].count(("staff", "verify")) == 1


def test_a_large_family_is_written_level_by_level(store: SegmentStore) -> None:
    tables = [changed(name, 4, UNIT_ROWS, deletes=2) for name in ("child", "parent", "staff")]
    made = [set(halves(units)) for units in phases(store, *tables, children=FAMILY)]
    assert made == [
        {("child", "leaves")}, {("parent", "leaves"), ("staff", "leaves")}, {("parent", "comes"), ("staff", "comes")},
        {("child", "comes")},
        {("parent", "verify"), ("staff", "verify"), ("child", "verify")},
    ]  # fmt: skip


def test_a_batch_of_a_family_is_looked_at_before_it_is_acknowledged(store: SegmentStore) -> None:
    tables = [changed("child", 1, 10), changed("parent", 1, 10, deletes=2)]
    [[unit]] = phases(store, *tables, children=FAMILY[:1], consistency="batch")
    assert halves([unit]) == [
        ("child", "leaves"), ("parent", "leaves"), ("parent", "comes"), ("child", "comes"), ("parent", "verify"),
    ]  # fmt: skip


def test_an_empty_changeset_has_no_phases(store: SegmentStore) -> None:
    assert phases(store) == []


def test_endpoints_travel_and_are_not_shown() -> None:
    endpoints = ResolvedConnections.of(lambda name: Endpoint(name, "mysql", "h", password="secret"), ["c"])
    assert pickle.loads(pickle.dumps(endpoints))("c").password == "secret"
    assert "secret" not in repr(endpoints) + repr(endpoints("c"))
    with pytest.raises(ConfigError, match="'other'"):
        endpoints("other")


def test_a_changeset_manifest_reads_back_and_a_damaged_one_is_said(store: SegmentStore) -> None:
    written = ChangesetManifest(batch=7, attempt="a", last=POSITION, tables=(changed("t", 2, 5),), counts={"rows": 10})
    store.write_bytes("m.json", written.model_dump_json(by_alias=True).encode())
    assert read_changeset(store, "m.json") == Changeset("m.json", written)
    store.write_bytes("m.json", b'{"format_version": 2}')
    with pytest.raises(SegmentError, match="changeset manifest cannot be read"):
        read_changeset(store, "m.json")


def test_rows_that_never_had_a_column_do_not_bring_it(store: SegmentStore) -> None:
    """A column added in the middle of a batch: older rows are in a file of their own, without it."""
    from sluice.flows.transform.merge_units import run_merge_unit
    from sluice.segments.writer import SegmentWriter
    from tests.support.tables.batches import segment_rows
    from tests.support.tables.changes import SCHEMA

    old = type(SCHEMA)(SCHEMA.table, SCHEMA.columns[:2], SCHEMA.primary_key)
    writer = SegmentWriter(store, 1, 1)
    first = segment_rows(old, [{"_op": "i", "a": n, "b": "x"} for n in (1, 2)])
    later = segment_rows(
        SCHEMA,
        [
            {"_op": "u", "a": 2, "b": "x", "v": 5, "_before": {"a": 2, "b": "x", "v": 4}},
            {"_op": "i", "a": 3, "b": "x", "v": 7},
        ],
    )
    index = later.schema.get_field_index("_seq")
    later = later.set_column(index, later.schema.field(index), pa.array([10, 11], pa.uint64()))
    writer.add(old, first)
    writer.add(SCHEMA, later)
    position = POSITION
    made = writer.finish(first=position, last=position, changes=4, transactions=1, log_bytes=1)
    [unit] = plan_merge(store, made, pipeline(), None, "a")
    found = {}
    for part in run_merge_unit(replace(unit, small=frozenset())).parts:
        rows = read_changeset_file(store, part.file).to_pylist()
        found |= {row["a"]: row.get("v", "none") for row in rows}
    assert {a: v if v == "none" else int(v) for a, v in found.items()} == {1: "none", 2: 5, 3: 7}
