"""Documents: refused ones, versions of others, removed rows, parts of rows, definitions, what `sluice check` says.

The twin in memory takes what MongoDB takes; FerretDB is a server, and takes less.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from bson import Decimal128, Int64
from bson.datetime_ms import DatetimeMS

from devstack.mongodb import FerretDBServer
from sluice.errors import Fenced, LoadError, MappingError, TargetUnavailable
from sluice.model.column_types import ColumnKind
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.mongodb.client import Client
from sluice.targets.port import Checkpoint, NoFacts
from sluice.targets.rows_in_memory import RowsInMemory, planned_table
from sluice.testing.targets import Pipe, _definition, _schema_change, changed, gone, new, people
from tests.support.benches.by_key import (
    a_pipeline_that_begins_anew_is_newer,
    listed_keys_and_whole_tables_are_removed,
    prepared,
    way_to_forget_another_pipeline,
)
from tests.support.benches.mongodb_bench import FERRETDB, MongoBench
from tests.support.twins.mongo_twin import MongoTwin


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> MongoTwin:
    """A MongoDB in memory, to which every client of this test is connected."""
    found = MongoTwin()
    monkeypatch.setattr("pymongo.MongoClient", found.client)
    return found


@pytest.fixture(params=["twin", "ferretdb"])
def bench(request: pytest.FixtureRequest) -> MongoBench:
    """A bench on either."""
    found = request.getfixturevalue(request.param)
    return MongoBench("twin", 27017) if request.param == "twin" else MongoBench(found.host, found.port, FERRETDB)


def in_part(pipe: Pipe, table: TableSchema, row: tuple[Any, ...], known: int, **more: Any) -> Any:
    """A batch with an updated row of which the log has the columns of a bit mask."""
    batch = pipe.given([(table, [changed(row, row)])], **more)
    [one] = batch.tables
    [file] = one.files
    assert isinstance(file, RowsInMemory)
    present = pa.array([bytes([known, 0b001])], pa.binary())
    return replace(
        batch, tables=(replace(one, files=(RowsInMemory(file.table, file.data.append_column("_present", present)),)),)
    )


@pytest.mark.full  # the twin has no indexes
def test_rows_that_an_index_refuses_are_left_out_one_by_one(ferretdb: FerretDBServer) -> None:
    """A unique index of the users' own answers with the code of a duplicate key, too: only the document tells the two
    apart.
    """
    bench = MongoBench(ferretdb.host, ferretdb.port, FERRETDB)
    table, pipe = prepared(bench, on_error="dead_letter")
    index = {"key": {"email": 1}, "name": "own", "unique": True}
    bench.command(bench.schema, {"createIndexes": "people", "indexes": [index]})
    pipe.deliver((table, [new(1, "a", 1)]))
    kept: list[Any] = []
    batch = pipe.given([(table, [new(2, "a", 2), new(3, "c", 3)])])
    pipe.write(batch, rejected=lambda part, name, rejected: kept.extend(rejected))
    assert [(one.row["id"].to_pylist(), one.where) for one in kept] == [([2], "11000")]
    assert pipe.state(table) == Counter([(1, "a", 1), (3, "c", 3)])


@pytest.mark.parametrize("stops", [False, True], ids=["goes on", "stops"])
@pytest.mark.parametrize("on_error", ["stop", "dead_letter"])
def test_rows_exchange_values_of_a_unique_index(twin: MongoTwin, on_error: str, stops: bool) -> None:
    """Two rows, three in a ring, and one whose value a row has that stays; several rows go at once.

    FerretDB refuses the whole command for an update that an index refuses.
    """
    bench, twin.stops = MongoBench("twin", 27017), stops
    table, pipe = prepared(bench, on_error=on_error)
    pipe.deliver((table, [new(n, "abcdefgh"[n], n) for n in range(8)]))
    twin.unique = ("email",)
    given = [(0, "a", "b"), (1, "b", "a"), (2, "c", "d"), (3, "d", "e"), (4, "e", "c")]
    rows = [changed((n, old, n), (n, now, 10 * n)) for n, old, now in given]
    more = [changed((5, "f", 5), (5, "h", 5))] if on_error == "dead_letter" else [gone(5, "f", 5)]
    kept: list[Any] = []
    batch = pipe.given([(table, [*rows, *more, gone(6, "g", 6)])])
    rejected = None if on_error == "stop" else lambda part, name, rejected: kept.extend(rejected)
    pipe.write(batch, rejected=rejected)
    assert [one.row["id"].to_pylist() for one in kept] == ([[5]] if on_error == "dead_letter" else [])
    left = [(5, "f", 5)] if on_error == "dead_letter" else []
    assert pipe.state(table) == Counter([*((n, now, 10 * n) for n, _, now in given), *left, (7, "h", 7)])


@pytest.mark.parametrize("stops", [False, True], ids=["goes on", "stops"])
def test_rows_that_a_validator_refuses_are_left_out_one_by_one(twin: MongoTwin, stops: bool) -> None:
    """Also by a server that carries out nothing after the first one."""
    bench = MongoBench("twin", 27017)
    twin.refuses, twin.stops = lambda document: document.get("email") == "no", stops
    table, pipe = prepared(bench, on_error="dead_letter")
    kept: list[Any] = []
    rows = [new(n, "no" if n in {2, 3, 5} else "a", n) for n in range(8)]
    pipe.write(pipe.given([(table, rows)]), rejected=lambda part, name, rejected: kept.extend(rejected))
    assert [(one.row["id"].to_pylist(), one.where) for one in kept] == [([2], "121"), ([3], "121"), ([5], "121")]
    assert "Document failed validation" in kept[0].reason
    assert {row[0] for row in pipe.state(table)} == {0, 1, 4, 6, 7}
    other = Pipe(bench, name="other")
    with pytest.raises(LoadError, match=r"a row of .* is refused, key 9: the server answers 121"):
        other.write(other.given([(table, [new(9, "no", 1)])]))


def test_values_that_no_document_has_are_left_out_one_by_one(bench: MongoBench) -> None:
    columns = (
        Column("id", ColumnKind.INT, "int", nullable=False),
        Column("d", ColumnKind.DECIMAL, "decimal(38,0)", precision=38),
        Column("j", ColumnKind.JSON, "json"),
    )
    bench.options["types"] = {"decimal": "decimal"}
    table, pipe = prepared(bench, TableSchema(TableId("s", "odd"), columns, ("id",)), on_error="dead_letter")
    kept: list[Any] = []
    rows = [
        new(1, Decimal("1" * 35), None),
        new(2, None, "{"),
        new(3, None, '{"a": {"b": [1, null]}}'),
        new(4, None, '{"a": 1, "a": 2}'),
    ]
    pipe.write(pipe.given([(table, rows)]), rejected=lambda part, name, rejected: kept.extend(rejected))
    assert sorted((one.row["id"].to_pylist()[0], one.where) for one in kept) == [
        (1, "value not storable"), (2, "value not storable"), (4, "value not storable"),
    ]  # fmt: skip
    [document] = bench.documents(table)
    assert (document["_id"], document["j"], document["d"]) == (Int64(3), {"a": {"b": [1, None]}}, None)


def test_ids_are_texts_where_the_options_say_so(bench: MongoBench) -> None:
    """FerretDB has no Decimal128, which an id beyond 2^63-1 is else."""
    columns = (
        Column("id", ColumnKind.BIGINT, "bigint unsigned", nullable=False, unsigned=True),
        Column("n", ColumnKind.INT, "int"),
    )
    bench.options |= {"ids": "text", "types": {"bigint unsigned": "text"}}
    table, pipe = prepared(bench, TableSchema(TableId("s", "large"), columns, ("id",)))
    pipe.deliver((table, [new(2**64 - 1, 1), new(7, 1), new(8, 1)]))
    pipe.deliver((table, [changed((2**64 - 1, 1), (2**64 - 1, 2)), gone(8, 1), changed((7, 1), (2**63, 1))]))
    found = {one["_id"]: one.get("n") for one in bench.documents(table)}
    assert found == {"18446744073709551615": 2, "9223372036854775808": 1}


def test_documents_of_another_program_stop_the_load(bench: MongoBench) -> None:
    table, pipe = prepared(bench)
    pipe.deliver((table, [new(1, "a", 1)]))
    for version in ({"_sluice": Int64(2**62)}, {}):
        theirs = {"q": {"_id": Int64(1)}, "u": {"id": 1, "email": "theirs", "points": 9, **version}}
        assert bench.command(bench.schema, {"update": "people", "updates": [theirs]})["n"] == 1
        with pytest.raises(LoadError, match=r"1 documents of .* have a newer version than this batch, or none"):
            pipe.deliver((table, [changed((1, "a", 1), (1, "b", 2)), new(2, "c", 3)]))
        pipe.batch -= 1
    assert pipe.held == 1


def test_a_pipeline_that_begins_anew_is_newer_than_it_was(bench: MongoBench) -> None:
    a_pipeline_that_begins_anew_is_newer(*prepared(bench))


def test_a_late_write_of_an_older_loader_brings_no_removed_row_back(
    bench: MongoBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still between the check of the checkpoint and its request, while a newer one wrote the row and removed it."""
    table, pipe = prepared(bench)
    batch = pipe.given([(table, [new(9, "old", 9)])])
    pipe.take_over()
    old = pipe.writer(batch)
    [[unit]] = old.plan(1)
    sent = Client.update

    def late(client: Client, doing: str, *args: Any, **more: Any) -> Any:
        monkeypatch.setattr(Client, "update", sent)
        pipe.epoch = 2
        pipe.write(batch)
        pipe.deliver((table, [gone(9, "old", 9)]))
        return sent(client, doing, *args, **more)

    monkeypatch.setattr(Client, "update", late)
    with pytest.raises(Fenced):
        unit.write()
    assert not pipe.state(table)
    assert pipe.held == 2
    [kept] = bench.find(bench.schema, "people")
    assert set(kept) == {"_id", "_sluice", "_sluice_deleted"}
    pipe.deliver((table, [new(9, "again", 1)]))
    assert pipe.state(table) == Counter([(9, "again", 1)])
    assert "_sluice_deleted" not in bench.documents(table)[0]


def test_what_is_kept_of_removed_rows_goes_after_its_time(bench: MongoBench) -> None:
    table, pipe = prepared(bench)
    pipe.deliver((table, [new(n, "a", n) for n in range(5)]))
    pipe.deliver((table, [gone(1, "a", 1), gone(2, "a", 2), changed((3, "a", 3), (30, "a", 3))]))
    kept = bench.find(bench.schema, "people", {"_sluice_deleted": {"$exists": True}})
    assert sorted(one["_id"] for one in kept) == [1, 2, 3]
    long_ago = DatetimeMS(dt.datetime.now(dt.UTC) - dt.timedelta(days=2))
    update = {"q": {"_id": Int64(1)}, "u": {"$set": {"_sluice_deleted": long_ago}}}
    bench.command(bench.schema, {"update": "people", "updates": [update]})
    pipe.deliver((table, [changed((4, "a", 4), (4, "b", 4))]))
    kept = bench.find(bench.schema, "people", {"_sluice_deleted": {"$exists": True}})
    assert sorted(one["_id"] for one in kept) == [2, 3]
    bench.options["keep_deleted"] = "0s"
    pipe.deliver((table, [gone(0, "a", 0)]))
    assert sorted(one["_id"] for one in bench.find(bench.schema, "people")) == [4, 30]


def test_a_part_of_a_row_changes_its_fields_alone(bench: MongoBench) -> None:
    """The other fields are not read and written again: what the users' own programs keep in the document stays."""
    table, pipe = prepared(bench)
    pipe.deliver((table, [new(1, "a", 1), new(2, "b", 2)]))
    own = {"q": {"_id": Int64(1)}, "u": {"$set": {"note": "mine"}}}
    bench.command(bench.schema, {"update": "people", "updates": [own]})
    batch = in_part(pipe, table, (1, None, 7), 0b101)
    pipe.write(batch, times=2)
    [document] = [one for one in bench.documents(table) if one["_id"] == 1]
    assert (document["email"], document["points"], document["note"]) == ("a", 7, "mine")
    absent = in_part(pipe, table, (5, None, 7), 0b101)
    with pytest.raises(LoadError, match=r"the target has no row 5, but the log only contains the changed columns"):
        pipe.write(absent)
    pipe.batch -= 1

    class Copying(NoFacts):
        def being_copied(self) -> frozenset[TableId]:
            return frozenset({table.table})

    pipe.write(in_part(pipe, table, (5, None, 7), 0b101, facts=Copying()))
    assert {row[0] for row in pipe.state(table)} == {1, 2, 5}
    pipe.deliver((table, [gone(2, "b", 2)]))
    with pytest.raises(LoadError, match="the target has no row 2"):
        pipe.write(in_part(pipe, table, (2, None, 7), 0b101))


def test_ids_of_one_column_are_its_value_and_others_are_texts(bench: MongoBench) -> None:
    columns = (
        Column("a", ColumnKind.VARCHAR, "varchar(20)", nullable=False, charset="utf8mb4"),
        Column("n", ColumnKind.INT, "int", nullable=False),
        Column("v", ColumnKind.INT, "int"),
    )
    words, pipe = prepared(bench, TableSchema(TableId("s", "words"), columns, ("a",)))
    pairs, _ = prepared(bench, TableSchema(TableId("s", "pairs"), columns, ("a", "n")))
    pipe.deliver((words, [new("x:%", 1, 1)]), (pairs, [new("x:%", 1, 1), new("x", 2, 2)]))
    assert [one["_id"] for one in bench.documents(words)] == ["x:%"]
    assert sorted(one["_id"] for one in bench.documents(pairs)) == ["x%3A%25:1", "x:2"]
    pipe.deliver((words, [changed(("x:%", 1, 1), ("y", 1, 1))]), (pairs, [gone("x", 2, 2)]))
    assert [one["_id"] for one in bench.documents(words)] == ["y"]
    assert [one["_id"] for one in bench.documents(pairs)] == ["x%3A%25:1"]


def test_listed_keys_and_whole_tables_are_removed(bench: MongoBench) -> None:
    listed_keys_and_whole_tables_are_removed(*prepared(bench))


@pytest.mark.parametrize("point", range(8))
def test_a_rename_goes_on_wherever_it_was_cut(bench: MongoBench, point: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table, pipe = prepared(bench)
    pipe.deliver((table, [new(1, "a", 1)]))
    before, to = _definition(bench.schema, "people"), TableId(bench.schema, "persons")
    sql = f"RENAME TABLE `{bench.schema}`.`people` TO `{bench.schema}`.`persons`"
    change = _schema_change(pipe, 0, sql, (ChangeKind.RENAME_TABLE,), before, replace(before, table=to), to)
    batch = pipe.given([], schema_changes=(change,))
    pipe.take_over()
    calls, sent = 0, Client.command

    def cut(client: Client, *args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        found = sent(client, *args, **more)
        if calls > point:
            raise TargetUnavailable("cut")
        return found

    monkeypatch.setattr(Client, "command", cut)
    with pytest.raises(TargetUnavailable):
        pipe.writer(batch).commit([])
    monkeypatch.setattr(Client, "command", sent)
    pipe.epoch += 1
    pipe.write(batch)
    assert bench.columns(table.table) is None
    assert bench.columns(to) == ["id", "email", "points"]
    assert pipe.state(replace(table, table=to)) == Counter([(1, "a", 1)])
    assert not bench.find(bench.schema, "people")


def test_columns_are_added_renamed_and_dropped_in_place(bench: MongoBench, monkeypatch: pytest.MonkeyPatch) -> None:
    table, pipe = prepared(bench)
    pipe.deliver((table, [new(n, "a", n) for n in range(3)]))
    pipe.deliver((table, [gone(2, "a", 2)]))
    before = _definition(bench.schema, "people")
    columns = (
        before.columns[0],
        replace(before.columns[1], name="mail"),
        replace(before.columns[2], name="extra", default="7"),
    )
    sql = f"ALTER TABLE `{bench.schema}`.`people` RENAME COLUMN email TO mail, DROP COLUMN points, ADD COLUMN extra INT DEFAULT 7"
    kinds = (ChangeKind.RENAME_COLUMN, ChangeKind.DROP_COLUMN, ChangeKind.ADD_COLUMN)
    change = _schema_change(pipe, 0, sql, kinds, before, replace(before, columns=columns))
    batch = pipe.given([], schema_changes=(change,))
    pipe.take_over()
    sent = Client.update

    def cut(client: Client, doing: str, *args: Any, **more: Any) -> Any:
        found = sent(client, doing, *args, **more)
        if doing.startswith("changing rows"):
            raise TargetUnavailable("cut")
        return found

    monkeypatch.setattr(Client, "update", cut)
    with pytest.raises(TargetUnavailable):
        pipe.writer(batch).commit([])
    monkeypatch.setattr(Client, "update", sent)
    pipe.epoch += 1
    pipe.write(batch)
    names = [set(one) - {"_id", "_sluice"} for one in bench.documents(table)]
    assert names == [{"id", "mail", "extra"}] * 2
    assert {one["extra"] for one in bench.documents(table)} == {7}
    assert bench.columns(table.table) == ["id", "mail", "extra"]


def test_names_that_no_field_can_have_are_named(bench: MongoBench) -> None:
    for name in ("a.b", "$a", "_id", "_sluice"):
        columns = (Column("id", ColumnKind.INT, "int", nullable=False), Column(name, ColumnKind.INT, "int"))
        odd = TableSchema(TableId(bench.schema, "odd"), columns, ("id",))
        bench.create_table(odd)
        pipe = Pipe(bench, name=f"c{len(name)}")
        with pytest.raises(MappingError, match="cannot be a field of a document"):
            pipe.deliver((odd, [new(1, 1)]))
        bench.command(bench.options["own_database"], {"drop": "tables"})


def test_what_check_says_of_tables(bench: MongoBench) -> None:
    columns = (
        Column("id", ColumnKind.INT, "int", nullable=False),
        Column("at", ColumnKind.DATETIME, "datetime(6)", fsp=6),
        Column("d", ColumnKind.DECIMAL, "decimal(38,0)", precision=38),
        Column("e", ColumnKind.ENUM, "enum('a')", labels=("a",), charset="utf8mb4"),
    )
    table = TableSchema(TableId(bench.schema, "losses"), columns, ("id",))
    bench.options["types"] = {f"{table.table}.at": "date", "decimal": "decimal", f"{table.table}.ta": "date"}
    bench.create_table(table)
    schema = bench.target().schema()
    assert schema is not None
    found = {(one.severity, one.column): one.why for one in schema.compare([planned_table(table)])}
    assert "microseconds are cut" in found["warning", "at"]
    assert "rows with longer values are refused" in found["warning", "d"]
    assert "numbers of its labels" in found["warning", "e"]
    assert "names the column 'ta', which it does not get" in found["warning", "ta"]
    wide = replace(table, columns=(*table.columns, Column("note", ColumnKind.TEXT, "text")))
    finding = next(one for one in schema.compare([planned_table(wide)]) if one.severity == "error")
    assert (finding.column, finding.absent) == ("note", True)
    schema.apply(finding.statement)
    assert not [one for one in schema.compare([planned_table(wide)]) if one.severity == "error"]
    bench.options["collection"] = "{schema}-{table}"
    bench.options["database"] = bench.schema
    other = bench.target().schema()
    assert other is not None
    assert any(one.absent for one in other.compare([planned_table(table)]))


def test_two_tables_in_one_collection_are_named(bench: MongoBench) -> None:
    bench.options |= {"database": bench.schema, "collection": "{schema}{table}"}
    one, two = people("a", "bc"), people("ab", "c")
    bench.create_table(one)
    schema = bench.target().schema()
    assert schema is not None
    why = [finding.why for finding in schema.compare([planned_table(two)]) if finding.severity == "error"]
    assert why == [f"collection {bench.schema}.abc has the rows of a.bc, and those of ab.c would be among them"]


def test_other_pipelines_at_the_server_are_named(bench: MongoBench) -> None:
    forget = way_to_forget_another_pipeline(*prepared(bench))
    assert forget == f'db.getSiblingDB("{bench.options["own_database"]}").checkpoints.deleteOne({{_id: "other.copy"}})'


def test_a_checkpoint_that_somebody_edited_stops_the_load(bench: MongoBench) -> None:
    table, pipe = prepared(bench)
    pipe.deliver((table, [new(1, "a", 1)]))
    update = {"q": {"_id": "p.copy"}, "u": {"$set": {"batch": 7}}}
    bench.command(bench.options["own_database"], {"update": "checkpoints", "updates": [update]})
    held = pipe.checkpoints.read()
    assert held is not None
    assert held.edited
    with pytest.raises((LoadError, Fenced)):
        pipe.write(pipe.given([(table, [new(2, "b", 1)])]))
    assert pipe.state(table) == Counter([(1, "a", 1)])


def test_a_checkpoint_that_another_process_changes_meanwhile_is_read_again(twin: MongoTwin) -> None:
    bench = MongoBench("twin", 27017)
    pipe = Pipe(bench)
    pipe.take_over()
    struck = []

    def meanwhile(command: Any) -> None:
        if "update" in command and command["update"] == "checkpoints" and not struck:
            struck.append(1)
            pipe.checkpoints.take_over(5)

    twin.before = meanwhile
    with pytest.raises(Fenced):
        pipe.checkpoints.take_over(3)
    held = pipe.checkpoints.read()
    assert held is not None
    assert held.epoch == 5


def test_numbers_beyond_a_long_are_decimals(twin: MongoTwin) -> None:
    """FerretDB closes the connection at one."""
    bench = MongoBench("twin", 27017)
    columns = (
        Column("id", ColumnKind.BIGINT, "bigint unsigned", unsigned=True, nullable=False),
        Column("v", ColumnKind.INT, "int"),
    )
    table, pipe = prepared(bench, TableSchema(TableId("s", "big"), columns, ("id",)))
    pipe.deliver((table, [new(2**64 - 1, 1), new(7, 2)]))
    assert {(type(one["_id"]), type(one["id"])) for one in bench.documents(table)} == {
        (Decimal128, Decimal128),
        (Int64, Int64),
    }
    pipe.deliver((table, [changed((2**64 - 1, 1), (2**64 - 1, 3)), gone(7, 2)]))
    assert pipe.state(table) == Counter([(2**64 - 1, 3)])


def test_a_server_that_is_away_is_named() -> None:
    bench = MongoBench("127.0.0.1", 1, {"timeout": "1s"})
    with pytest.raises(TargetUnavailable, match="reading the checkpoint at MongoDB 'target'"):
        bench.target().checkpoints.take_over(1)  # type: ignore[union-attr]


def test_every_change_is_a_document(twin: MongoTwin) -> None:
    """Its id names the change, so that a repeat writes it once more; the row before it is in it, too."""
    bench = MongoBench("twin", 27017, changes="all")
    table, pipe = prepared(bench)
    pipe.deliver((table, [new(1, "a", 1)]))
    batch = pipe.deliver((table, [changed((1, "a", 1), (1, "b", 2)), gone(1, "b", 2)]))
    pipe.epoch += 1
    pipe.checkpoints.rewind(Checkpoint(pipe.epoch, 1, batch.position))
    pipe.write(batch)
    held = {one["_change"]["op"]: one for one in bench.find(bench.schema, "people")}
    assert len(bench.find(bench.schema, "people")) == 3
    assert held["u"]["_id"] == "p.copy:2.1.0.0"
    assert [(held[op]["email"], (held[op]["_before"] or {}).get("email")) for op in "iud"] == [
        ("a", None), ("b", "a"), ("b", "b"),
    ]  # fmt: skip
    odd = TableSchema(TableId(bench.schema, "odd"), (Column("_change", ColumnKind.INT, "int", nullable=False),))
    with pytest.raises(MappingError, match="the name of a field that Sluice writes"):
        pipe.deliver((odd, [new(1)]))
