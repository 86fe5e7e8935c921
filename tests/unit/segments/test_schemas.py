"""The stored schema history: bases and changes, found by position, whole or not at all."""

from __future__ import annotations

import json
import os
import time
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.errors import SegmentError
from sluice.model.definitions import ColumnDefinition, DatabaseDefinition, IndexDefinition, TableDefinition, Unknown
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.mysql.ddl.catalog import SchemaState
from sluice.segments.schemas import MAX_DEPTH, SchemaStore
from sluice.segments.store import SegmentStore


@pytest.fixture
def schemas(tmp_path: Path) -> SchemaStore:
    return SchemaStore(SegmentStore(tmp_path.as_uri(), "p"))


def place(offset: int, file: int = 1) -> Offset:
    return Offset.at("uuid", f"binlog.{file:06d}", offset)


def table(number: int, columns: int = 1) -> TableDefinition:
    return TableDefinition(
        TableId("d", f"t{number}"),
        tuple(ColumnDefinition(f"c{i}", "enum('a','ü')", labels=("a", "ü"), charset="utf8mb4") for i in range(columns)),
        (IndexDefinition("PRIMARY", (("c0", 0),), unique=True),),
    )


def test_a_chain_of_changes_is_the_state(schemas: SchemaStore) -> None:
    state = SchemaState()
    state.put_database(DatabaseDefinition("d", "utf8mb4", "utf8mb4_bin"))
    state.put(table(0))
    path = schemas.save(state, place(4), 1)
    paths = [path]
    for number in range(1, 2 * MAX_DEPTH):
        state.put(table(number % 7, number))
        if number % 5 == 0:
            state.lose(TableId("d", f"t{number % 3}"), Unknown("why", "binlog.000001:9", "ALTER"))
        if number % 6 == 0:
            state.forget(TableId("d", f"t{number % 4}"))
        path = schemas.save(state, place(4 + number), 1, path)
        paths.append(path)
        again = schemas.load(path, SchemaState.from_stored)
        assert (again.tables, again.unknown, again.databases) == (state.tables, state.unknown, state.databases)
    assert {len(schemas.parents(p)) for p in paths} == {0, 1}
    assert [s.order for s in schemas.before(place(20))][:2] == [(1, 20), (1, 19)]
    assert schemas.position(schemas.before(place(20))[0].path) == place(20)


def test_a_chain_of_the_version_before_is_read_and_ends(schemas: SchemaStore) -> None:
    state = SchemaState()
    state.put_database(DatabaseDefinition("d", "utf8mb4", "utf8mb4_bin"))
    state.put(table(0))
    path = schemas.save(state, place(4), 1)
    for number in range(1, 6):
        state.put(table(number))
        data = {
            "format_version": 1, "position": place(4 + number).to_json(), "parent": path, "depth": number,
            "part": state.part(state.touched),
        }  # fmt: skip
        state.touched.clear()
        path = f"schema/uuid.binlog/{1:010d}-{4 + number:012d}-e000001-old{number}.schema"
        text = json.dumps(data).encode()
        sealed = zlib.crc32(text).to_bytes(4, "big") + len(text).to_bytes(8, "big")
        schemas._store.write_bytes(path, sealed + pa.compress(text, codec="zstd", asbytes=True))
    assert len(schemas.parents(path)) == 5
    assert schemas.load(path, SchemaState.from_stored).tables == state.tables
    state.forget(TableId("d", "t2"))
    path = schemas.save(state, place(40), 1, path)
    assert schemas.parents(path) == []
    assert schemas.load(path, SchemaState.from_stored).tables == state.tables


def test_files_sort_by_number_not_by_name(schemas: SchemaStore) -> None:
    state = SchemaState()
    for file in (999999, 1000000):
        schemas.save(state, place(4, file), 1)
    assert [s.order[0] for s in schemas.before(place(10, 1000000))] == [1000000, 999999]


def test_damage_is_found(schemas: SchemaStore, tmp_path: Path) -> None:
    state = SchemaState()
    state.put(table(1, 30))
    path = schemas.save(state, place(4), 1)
    file = tmp_path / "p" / path
    whole = file.read_bytes()
    found = 0
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            assert (
                schemas.load(path, SchemaState.from_stored).tables == state.tables
            )  # a bit of the frame that means nothing
        except SegmentError:
            found += 1
    assert found > len(whole) * 0.9


def test_old_files_go_and_what_is_built_on_stays(schemas: SchemaStore, tmp_path: Path) -> None:
    state = SchemaState()
    path = schemas.save(state, place(4), 1)
    for number in range(1, MAX_DEPTH + 4):
        state.put(table(number))
        path = schemas.save(state, place(4 + number), 1, path)
    orphan = schemas.save(state, place(5), 2)
    for stored in schemas.every(place(4)):
        os.utime(tmp_path / "p" / stored.path, (1, 1))
    gone = schemas.prune(path, place(99), time.time())
    assert orphan in gone
    assert len(gone) > MAX_DEPTH // 2
    assert schemas.load(path, SchemaState.from_stored).tables == state.tables
    assert schemas.prune(path, place(99), time.time()) == []
