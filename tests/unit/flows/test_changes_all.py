"""``changes: all``: every change in log order, through rules and mapping, to a target that takes it.

Without a server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.config.loading import load_pipeline
from sluice.errors import RuleError
from sluice.flows.load.batch_changes import StoredChanges, stored_changes
from sluice.flows.runtime import Runtime
from sluice.model.changes import Change
from sluice.model.tables import TableSchema
from sluice.segments.manifest import SegmentManifest
from sluice.targets.port import Share
from tests.support.tables.batches import Delivery, segment_rows
from tests.support.tables.people import delete, insert, people, update

LOG: list[tuple[str, dict[str, Any], int]] = [
    ("one", insert(1, "a", 1), 0),
    ("two", insert(1, "x", 1), 0),
    ("one", update(insert(1, "a", 1), points=2), 1),
    ("one", update(insert(1, "a", 2), points=3), 1),
    ("two", delete(insert(1, "x", 1)), 1),
    ("one", update(insert(1, "a", 3), id=7), 2),
    ("two", insert(2, "y", 5), 3),
]
"""(table, change, transaction), in the order of the log."""


def written(pipe: Delivery) -> SegmentManifest:
    tables: dict[TableSchema, pa.Table] = {}
    for name in ("one", "two"):
        schema = people("shop", name)
        mine = [(seq, row, txn) for seq, (table, row, txn) in enumerate(LOG) if table == name]
        rows = segment_rows(schema, [row for _, row, _ in mine])
        true = {number: (seq, txn) for number, (seq, _, txn) in enumerate(mine)}
        for column, index in (("_seq", 0), ("_txn", 1), ("_offset", 0)):
            at = rows.schema.get_field_index(column)
            numbers = [true[number][index] for number in rows["_seq"].to_pylist()] if column != "_seq" else None
            if numbers is not None:
                rows = rows.set_column(at, rows.schema.field(at), pa.array(numbers, pa.uint64()))
        at = rows.schema.get_field_index("_seq")
        rows = rows.set_column(
            at, rows.schema.field(at), pa.array([true[n][0] for n in rows["_seq"].to_pylist()], pa.uint64())
        )
        tables[schema] = rows
    return pipe.write(tables)


def reader(tmp_path: Path, rules: str = "", mapping: str = "[]", files: dict[str, str] | None = None) -> StoredChanges:
    folder = tmp_path / "rules"
    folder.mkdir(exist_ok=True)
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    if rules:
        (folder / "engine.yaml").write_text(f"rules: {rules}\n")
    path = tmp_path / "p.yaml"
    path.write_text(
        "version: 1\npipeline: p\nsource: {connection: s}\nmapping: "
        f"{mapping}\n{'rules: engine.yaml' if rules else ''}\ncapture: {{include: ['shop\\..*'], segments: {{uri: "
        f"'{tmp_path.as_uri()}'}}}}\ntargets: [{{name: copy, type: memory, connection: t, changes: all}}]\n"
    )
    pipe = Delivery(tmp_path, None)
    manifest = written(pipe)
    runtime = Runtime.build(load_pipeline(path), resolver=pipe.resolver, runner="local")
    runtime.rules_folder = folder
    names = [name for name, _ in pipe.store.files(manifest.batch) if name.rsplit("/", 1)[-1].startswith("manifest-")]
    return stored_changes(runtime, "copy", manifest, names[0])


def told(changes: list[Change]) -> list[tuple[Any, ...]]:
    return [
        (one.table.table, one.op, one.before and one.before["points"], one.after and one.after["points"], one.txn,
            one.txn_row)
        for one in changes
    ]  # fmt: skip


WHOLE = [
    ("one", "i", None, 1, 0, 0), ("two", "i", None, 1, 0, 1), ("one", "u", 1, 2, 1, 0), ("one", "u", 2, 3, 1, 1),
    ("two", "d", 1, None, 1, 2),
    ("one", "u", 3, 3, 2, 0), ("two", "i", None, 5, 3, 0),
]  # fmt: skip


def test_every_change_in_log_order_with_both_images(tmp_path: Path) -> None:
    changes = list(reader(tmp_path).changes())
    assert told(changes) == WHOLE
    moved = changes[5]
    assert moved.before is not None
    assert moved.after is not None
    assert (moved.before["id"], moved.after["id"], moved.key) == (1, 7, ("id",))
    assert [one.seq for one in changes] == list(range(7))
    assert all(one.file == "binlog.000001" and one.commit_time_us and one.origin == 1 for one in changes)
    assert [one.offset for one in changes] == list(range(7))


def test_shares_are_whole_together_and_keep_their_order(tmp_path: Path) -> None:
    made = reader(tmp_path)
    shares = [list(made.changes(Share(number, 3))) for number in range(3)]
    assert sorted(one.seq for share in shares for one in share) == list(range(7))
    assert all([one.seq for one in share] == sorted(one.seq for one in share) for share in shares)


def test_a_row_rule_sees_each_change(tmp_path: Path) -> None:
    rule = """
def transform(row, context):
    if row["points"] == 2:
        return None
    row["points"] = row["points"] * 10
    return [row, context.to("shop.audit", dict(row, email=context.op))] if context.op == "insert" else row
"""
    rules = "[{name: tenfold, path: tenfold.py, type: row, emits: {shop.audit: [id]}}]"
    changes = list(reader(tmp_path, rules, files={"tenfold.py": rule}).changes())
    plain = [one for one in told(changes) if one[0] != "audit"]
    assert plain == [
        ("one", "i", None, 10, 0, 0), ("two", "i", None, 10, 0, 1), ("one", "d", 10, None, 1, 0),
        ("one", "i", None, 30, 1, 1),
        ("two", "d", 10, None, 1, 2), ("one", "u", 30, 30, 2, 0), ("two", "i", None, 50, 3, 0),
    ]  # fmt: skip
    assert [one.seq for one in changes] == sorted(one.seq for one in changes)
    audit = [one.after for one in changes if one.table.table == "audit" and one.after is not None]
    assert {row["email"] for row in audit} == {"insert"}


def test_the_mapping_names_tables_and_columns(tmp_path: Path) -> None:
    mapping = "[{from: shop.one, to: lake.first, columns: {rename: {points: score}, exclude: [email]}}]"
    changes = [one for one in reader(tmp_path, mapping=mapping).changes() if one.table.schema == "lake"]
    assert [one.after for one in changes] == [
        {"id": 1, "score": 1}, {"id": 1, "score": 2}, {"id": 1, "score": 3}, {"id": 7, "score": 3},
    ]  # fmt: skip
    assert changes[3].before == {"id": 1, "score": 3}


def test_a_rule_that_rejects_a_change_keeps_it_with_its_place(tmp_path: Path) -> None:
    rule = (
        "def transform(row, context):\n    if row['points'] == 3:\n        raise ValueError('no three')\n    "
        "return row\n"
    )
    rules = "[{name: picky, path: picky.py, type: row, on_error: dead_letter}]"
    made = reader(tmp_path, rules, files={"picky.py": rule})
    for _ in range(2):
        seen = told(list(made.changes()))
    assert [one for one in seen if 3 in one[2:4]] == []
    from sluice.segments.store import SegmentStore

    store = SegmentStore(made.store_uri, "p")
    [letters] = store.list_files("dead-letters/_rules/batch=0000000001")
    import io

    import pyarrow.parquet as pq

    rows = pq.read_table(io.BytesIO(store.read_bytes(letters))).to_pylist()
    assert sorted((row["_seq"], row["_dl_offset"]) for row in rows) == [(3, 3), (5, 5)]


def test_a_rule_on_spark_frames_is_refused(tmp_path: Path) -> None:
    rule = "def transform(frame, context):\n    return frame\n"
    with pytest.raises(RuleError, match="does not see single changes"):
        reader(tmp_path, "[{name: f, path: f.py, type: spark}]", files={"f.py": rule})
