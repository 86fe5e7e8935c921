"""Documents on a real server: refused ones, versions of others, routing, removed keys, definitions, what `sluice check`
says.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devstack.elasticsearch import SearchServer
from sluice.errors import ConfigError, LoadError, MappingError, TargetUnavailable
from sluice.model.column_types import ColumnKind
from sluice.model.definitions import ColumnDefinition, IndexDefinition, TableDefinition
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.port import Input
from sluice.targets.rows_in_memory import planned_table
from sluice.testing.targets import Pipe, _definition, _schema_change, changed, gone, new
from tests.support.benches.by_key import (
    a_pipeline_that_begins_anew_is_newer,
    listed_keys_and_whole_tables_are_removed,
    prepared,
    way_to_forget_another_pipeline,
)
from tests.support.benches.elasticsearch_bench import SETTINGS, ElasticsearchBench


def made(
    server: SearchServer, options: dict[str, Any] | None = None, table: TableSchema | None = None, **config: Any
) -> tuple[ElasticsearchBench, TableSchema, Pipe]:
    bench = ElasticsearchBench(server, options)
    return bench, *prepared(bench, table, **config)


def test_documents_that_the_server_refuses_are_left_out_one_by_one(elasticsearch: SearchServer) -> None:
    """The mapping takes numbers alone, so that the server itself answers 400 for some items of a request."""
    options = {"mappings": {"SCHEMA.people.email": {"type": "long"}}}
    bench, table, pipe = made(elasticsearch, options, on_error="dead_letter")
    pipe.deliver((table, [new(1, "10", 1), new(2, "20", 2)]))
    kept: list[Any] = []
    ops = [
        changed((1, "10", 1), (1, "no number", 5)),
        changed((2, "20", 2), (2, "21", 3)),
        new(3, "x", 4),
        new(4, "40", 4),
    ]
    pipe.write(pipe.given([(table, ops)]), rejected=lambda part, name, rejected: kept.extend(rejected))
    assert sorted(one.row["id"].to_pylist()[0] for one in kept) == [1, 3]
    assert {one.where for one in kept} == {"400"}
    assert all("failed to parse field [email]" in one.reason for one in kept)
    assert pipe.state(table) == Counter([(1, "10", 1), (2, "21", 3), (4, "40", 4)])
    stops = Pipe(bench, name="stops")
    with pytest.raises(LoadError, match=r"a row of .* is refused, key 9: .*failed to parse field \[email\]"):
        stops.write(stops.given([(table, [new(9, "no number", 1)])]))


def test_a_key_that_makes_too_long_an_id_is_refused_alone(elasticsearch: SearchServer) -> None:
    columns = (
        Column("k", ColumnKind.VARCHAR, "varchar(700)", nullable=False, charset="utf8mb4"),
        Column("v", ColumnKind.INT, "int"),
    )
    _, table, pipe = made(
        elasticsearch, {}, TableSchema(TableId("s", "words"), columns, ("k",)), on_error="dead_letter"
    )
    kept: list[Any] = []
    longest = "ä" * 256
    pipe.write(
        pipe.given([(table, [new(longest, 1), new(f"{longest}b", 2)])]),
        rejected=lambda part, name, rejected: kept.extend(rejected),
    )
    assert [one.where for one in kept] == ["key too long"]
    assert pipe.state(table) == Counter([(longest, 1)])


def test_an_empty_key_is_refused_alone(elasticsearch: SearchServer) -> None:
    """It makes no id. The row may leave an empty key, come to it, and go."""
    columns = (
        Column("k", ColumnKind.VARCHAR, "varchar(7)", nullable=False, charset="utf8mb4"),
        Column("v", ColumnKind.INT, "int"),
    )
    _, table, pipe = made(
        elasticsearch, {}, TableSchema(TableId("s", "empty"), columns, ("k",)), on_error="dead_letter"
    )
    kept: list[Any] = []
    pipe.deliver((table, [new("b", 1)]))
    for ops in ([new("", 1), new("a", 2), changed(("b", 1), ("", 1))], [changed(("", 1), ("c", 3))], [gone("", 1)]):
        pipe.write(pipe.given([(table, ops)]), rejected=lambda part, name, rejected: kept.extend(rejected))
    assert [(one.where, one.reason) for one in kept] == [
        ("empty key", "its key is empty, and a document's id is not")
    ] * 2
    assert pipe.state(table) == Counter([("a", 2), ("c", 3)])


@pytest.mark.parametrize("columns", [4, 5])
def test_tables_of_more_fields_than_an_index_has_by_itself(elasticsearch: SearchServer, columns: int) -> None:
    """The index that `sluice check` proposes has room for more than 1,000, and later columns make room."""
    many = {"type": "keyword", "fields": {f"f{n}": {"type": "keyword"} for n in range(240)}}
    names = [f"c{n}" for n in range(columns + 2)]
    texts = [Column(name, ColumnKind.VARCHAR, "varchar(9)", charset="utf8mb4") for name in names]
    options = {"mappings": {f"SCHEMA.many.{name}": many for name in names}}
    key = Column("id", ColumnKind.INT, "int", nullable=False)
    table = TableSchema(TableId("s", "many"), (key, *texts[:columns]), ("id",))
    bench, table, pipe = made(elasticsearch, options, table)
    row: tuple[Any, ...] = (1, *("x" * columns))
    pipe.deliver((table, [new(*row)]))
    wide = replace(table, columns=(*table.columns, texts[-2]))
    sql = f"ALTER TABLE `{bench.schema}`.`many` ADD COLUMN {names[-2]} VARCHAR(9)"
    change = _schema_change(pipe, 0, sql, (ChangeKind.ADD_COLUMN,), _defined(table), _defined(wide))
    pipe.write(pipe.given([], schema_changes=(change,)))
    row += ("y",)
    pipe.deliver((wide, [changed(row, row)]))
    schema = bench.target().schema()
    assert schema is not None
    whole = replace(wide, columns=(*wide.columns, texts[-1]))
    [proposed] = [one.statement for one in schema.compare([planned_table(whole)]) if one.absent]
    for request in proposed.splitlines():
        verb, path, body = request.split(" ", 2)
        bench.ask(verb, path, json.loads(body))
    row += ("z",)
    pipe.deliver((whole, [changed(row, row)]))
    assert pipe.state(whole) == Counter([row])


def _defined(table: TableSchema) -> TableDefinition:
    columns = tuple(ColumnDefinition(c.name, c.sql_type, nullable=c.nullable, charset=c.charset) for c in table.columns)
    return TableDefinition(table.table, columns, (IndexDefinition("PRIMARY", (("id", 0),), True),))


@pytest.mark.parametrize(
    ("kind", "words", "form", "value", "taken"),
    [
        (ColumnKind.DATE, "date", "dd.MM.yyyy", dt.date(2024, 2, 29), False),
        (ColumnKind.DATE, "date", "dd.MM.yyyy||yyyy-MM-dd", dt.date(2024, 2, 29), True),
        (ColumnKind.DATETIME, "datetime", "yyyy-MM-dd HH:mm:ss", dt.datetime(2024, 2, 29, 1, 2, 3), False),
        (ColumnKind.DATETIME, "datetime", "strict_date_optional_time", dt.datetime(2024, 2, 29, 1, 2, 3), True),
    ],
)
def test_a_format_that_refuses_every_row_is_an_error_of_check(
    elasticsearch: SearchServer, kind: ColumnKind, words: str, form: str, value: Any, taken: bool
) -> None:
    options = {"mappings": {"SCHEMA.dated.d": {"type": "date", "format": form}}}
    columns = (Column("id", ColumnKind.INT, "int", nullable=False), Column("d", kind, words))
    table = TableSchema(TableId("s", "dated"), columns, ("id",))
    bench, table, pipe = made(elasticsearch, options, table)
    schema = bench.target().schema()
    assert schema is not None
    errors = [one.why for one in schema.compare([planned_table(table)]) if one.severity == "error"]
    if taken:
        assert errors == []
        pipe.deliver((table, [new(1, value)]))
    else:
        assert len(errors) == 1
        assert f"its format {form} refuses" in errors[0]
        with pytest.raises(LoadError, match="failed to parse"):
            pipe.deliver((table, [new(1, value)]))


def test_documents_with_newer_versions_of_another_program_stop_the_load(elasticsearch: SearchServer) -> None:
    """A conflict is no success unless a newer process of the same pipeline wrote the document."""
    bench, table, pipe = made(elasticsearch)
    pipe.deliver((table, [new(1, "a", 1)]))
    there = f"/{table.table}/_doc/1?version={2**62}&version_type=external"
    assert bench.ask("PUT", there, {"id": 1, "email": "theirs", "points": 9})["result"] == "updated"
    with pytest.raises(LoadError, match=r"1 documents of index .* have a newer version than this batch"):
        pipe.deliver((table, [changed((1, "a", 1), (1, "b", 2)), new(2, "c", 3)]))
    assert pipe.held == 1


def test_a_pipeline_that_begins_anew_is_newer_than_it_was(elasticsearch: SearchServer) -> None:
    a_pipeline_that_begins_anew_is_newer(*made(elasticsearch)[1:])


def test_rows_are_routed_by_a_column_of_their_key(elasticsearch: SearchServer) -> None:
    columns = tuple(Column(name, ColumnKind.INT, "int", nullable=name == "v") for name in ("tenant", "id", "v"))
    options = {"routing": {"SCHEMA.orders": "tenant"}, "settings": {**SETTINGS, "number_of_shards": 4}}
    bench, table, pipe = made(elasticsearch, options, TableSchema(TableId("s", "orders"), columns, ("tenant", "id")))
    pipe.deliver((table, [new(tenant, n, 0) for tenant in range(5) for n in range(3)]))
    pipe.deliver((table, [changed((1, 0, 0), (4, 9, 1)), gone(2, 0, 0), changed((3, 0, 0), (3, 0, 5))]))
    assert {one["_routing"] for one in bench.documents(str(table.table)) if one["_source"]["tenant"] == 4} == {"4"}
    expected = {(tenant, n, 0) for tenant in range(5) for n in range(3)} - {(1, 0, 0), (2, 0, 0), (3, 0, 0)}
    assert pipe.state(table) == Counter(expected | {(4, 9, 1), (3, 0, 5)})
    bench.options["routing"] = {str(table.table): "v"}
    with pytest.raises(MappingError, match=r"routing names the column 'v', which is no part of the key"):
        pipe.deliver((table, [new(7, 7, 7)]))


def test_listed_keys_and_whole_tables_are_removed(elasticsearch: SearchServer) -> None:
    listed_keys_and_whole_tables_are_removed(*made(elasticsearch)[1:])


def test_a_table_whose_types_change_gets_an_index_with_the_new_ones(elasticsearch: SearchServer) -> None:
    """The rows are copied again (`on_conversion: copy`), so that the field can have another mapping."""
    bench, table, pipe = made(elasticsearch)
    pipe.deliver((table, [new(1, "a", 1)]))
    before = _definition(bench.schema, "people")
    columns = (*before.columns[:2], replace(before.columns[2], type="varchar(20)", charset="utf8mb4"))
    sql = f"ALTER TABLE `{bench.schema}`.`people` MODIFY points VARCHAR(20)"
    change = _schema_change(pipe, 0, sql, (ChangeKind.CHANGE_COLUMN,), before, replace(before, columns=columns))
    pipe.write(pipe.given([], schema_changes=(replace(change, copies=frozenset({before.table}), recopies=True),)))
    assert not pipe.state(table)
    mapping = bench.ask("GET", f"/{table.table}/_mapping")[str(table.table)]["mappings"]
    assert (mapping["properties"]["points"]["type"], mapping["dynamic"]) == ("keyword", "strict")
    assert mapping["_meta"]["sluice"]["key"] == ["id"]
    pipe.deliver((table, [new(1, "a", 2)]))
    assert [one["_source"]["points"] for one in bench.documents(str(table.table))] == [2]


def test_what_check_says_of_indexes(elasticsearch: SearchServer) -> None:
    settings = {**SETTINGS, "gc_deletes": "5s", "index.translog.durability": "async"}
    bench, table, pipe = made(elasticsearch, {"settings": settings})
    wide = replace(table, columns=(*table.columns, Column("note", ColumnKind.TEXT, "text")))
    schema = bench.target().schema()
    assert schema is not None
    [finding] = schema.compare([planned_table(wide)])
    assert (finding.severity, finding.column, finding.absent) == ("error", "note", True)
    assert finding.statement.startswith(f"PUT /{table.table}/_mapping {{")
    with pytest.raises(MappingError, match="has no column 'note'"):
        pipe.deliver((wide, [new(1, "a", 1, "n")]))
    pipe.batch -= 1
    schema.apply(finding.statement)
    found = {(one.severity, one.why.split(":")[0]) for one in schema.compare([planned_table(wide)])}
    assert ("error", "index.translog.durability is async") in found
    assert any(why.startswith("index.gc_deletes is 5s, and a request may take 60 s") for _, why in found)
    pipe.deliver((wide, [new(1, "a", 1, "n")]))
    other = replace(table, table=TableId(bench.schema, "People"))
    [taken] = schema.compare([planned_table(other)])
    assert f"has the rows of {table.table}" in taken.why
    with pytest.raises(LoadError, match="no statement of a target of type elasticsearch"):
        schema.apply(f"DELETE /{table.table}")


def test_other_pipelines_at_the_server_are_named(elasticsearch: SearchServer) -> None:
    bench, table, pipe = made(elasticsearch)
    forget = way_to_forget_another_pipeline(table, pipe)
    assert forget == f"DELETE /{bench.options['checkpoint_index']}/_doc/other.copy"


def test_a_server_with_too_much_to_do_is_asked_again(server_folder: Path) -> None:
    """A real node that takes a few KiB of rows at a time answers 429: the load waits, then says so; smaller requests
    pass.
    """
    given = {"indexing_pressure.memory.limit": "4kb"}
    with SearchServer(server_folder / "small-elasticsearch", settings=given) as server:
        bench, table, pipe = made(server, {"retry_for": "1s"})
        batch = pipe.given([(table, [new(n, "a" * 60, n) for n in range(300)])])
        with pytest.raises(TargetUnavailable, match=r"429.*rejected"):
            pipe.write(batch)
        assert pipe.held == 0
        bench.options["bulk_bytes"] = 1_000
        pipe.write(batch)
        assert (pipe.held, len(pipe.state(table))) == (1, 300)


def test_a_server_that_is_away_is_waited_for(elasticsearch: SearchServer) -> None:
    bench = ElasticsearchBench(elasticsearch, {"retry_for": "1s"})
    bench.connection = replace(bench.connection, port=1)
    with pytest.raises(TargetUnavailable, match="does not answer"):
        bench.target().checkpoints.take_over(1)  # type: ignore[union-attr]


def test_connections_are_checked(elasticsearch: SearchServer) -> None:
    bench = ElasticsearchBench(elasticsearch)
    bench.connection = replace(bench.connection, extra={"api_key": "k", "no_such_field": "x"})
    with pytest.raises(ConfigError, match=r"no_such_field.*docs/elasticsearch-target.md" "|no_such_field"):
        bench.target()
    bench.connection = replace(bench.connection, password="p", extra={"api_key": "k"})
    with pytest.raises(ConfigError, match="a request has one login"):
        bench.target()


_BORN = (
    Column("id", ColumnKind.INT, "int", nullable=False),
    Column("born", ColumnKind.DATE, "date"),
    Column("v", ColumnKind.INT, "int"),
)


def test_changes_are_in_the_indexes_of_their_days(elasticsearch: SearchServer) -> None:
    """Those of a column's values, and of the commit where it has none; a new column gets its field with its change."""
    bench = ElasticsearchBench(elasticsearch, {"index": "{schema}.{table}-{month}"}, "all")
    table = TableSchema(TableId(bench.schema, "t"), _BORN, ("id",))
    bench.options["date_columns"] = {str(table.table): "born"}
    bench.create_table(table)
    pipe = Pipe(bench)
    rows = [(1, dt.date(2024, 2, 29), 1), (2, dt.date(2024, 2, 1), 2), (3, dt.date(1999, 12, 31), 3), (4, None, 4)]
    pipe.deliver((table, [new(*row) for row in rows]))
    pipe.deliver((table, [gone(*rows[0]), changed(rows[2], (3, dt.date(2024, 2, 2), 5))]))
    head = f"{table.table}-"
    held = {
        name: {(one["_source"]["id"], one["_source"]["_change"]["op"]) for one in bench.documents(head + name)}
        for name in ("2024.02", "1999.12", "2025.11")
    }
    assert held == {"2024.02": {(1, "i"), (2, "i"), (1, "d"), (3, "u")}, "1999.12": {(3, "i")}, "2025.11": {(4, "i")}}
    [moved] = [one["_source"] for one in bench.documents(f"{head}2024.02") if one["_source"]["_change"]["op"] == "u"]
    assert (moved["v"], moved["_before"]["v"], moved["_before"]["born"]) == (5, 3, "1999-12-31")
    wide = TableSchema(table.table, (*_BORN, Column("more", ColumnKind.INT, "int")), ("id",))
    pipe.deliver((wide, [changed((2, rows[1][1], 2, None), (2, rows[1][1], 2, 7))]))
    found = bench.ask("POST", f"/{head}2024.02/_refresh") and bench.ask("GET", f"/{head}*/_search?q=more:7")
    assert [one["_source"]["id"] for one in found["hits"]["hits"]] == [2]


def test_changes_do_not_go_among_the_rows_of_an_index(elasticsearch: SearchServer) -> None:
    bench, table, pipe = made(elasticsearch)
    pipe.deliver((table, [new(1, "a", 1)]))
    bench.changes = Input.CHANGES
    other = Pipe(bench, name="other")
    with pytest.raises(MappingError, match="has other documents than the changes of"):
        other.deliver((table, [new(2, "b", 2)]))
    with pytest.raises(ConfigError, match="rows by key have one index"):
        bench.target(changes="latest", options={"index": "{schema}.{table}-{day}"})
