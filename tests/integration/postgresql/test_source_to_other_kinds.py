"""PostgreSQL as a source of targets that are no SQL database, of a snapshot and of subscribers: what arrives is what the
source itself prints.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from sluice import __version__
from sluice.errors import LoadError
from sluice.model.findings import Finding
from sluice.operations.check import check
from tests.support.pipelines.dumping import delivering, dumped
from tests.support.pipelines.pg_source import COPY, PgCase, pg_case
from tests.support.pipelines.subscribing import by_http, documents, replayed, replayed_events, serving
from tests.support.readers.debezium_values import python_value
from tests.support.values import postgresql_types as types

pytest.importorskip("deltalake")

from tests.support.readers.lakes import Lake

KINDS: types.Types = {
    "n": ("numeric", ("'" + "7" * 1000 + ".50'", "'1e-500'", "'NaN'", "'-Infinity'")),
    "m": ("numeric(30,10)", ("'-12345678901234567890.0123456789'", "0.1")),
    "tz": ("timestamptz", ("'2024-02-29 12:00:00.000001+02'", "'1901-01-01 00:00:00+05'", "'9999-12-31 23:59:59+00'")),
    "ts": ("timestamp", ("'0001-01-01 00:00:00'", "'1969-12-31 23:59:59.999999'")),
    "d": ("date", ("'1969-12-31'", "'2024-02-29'")),
    "a": ("integer[]", ("'[0:1][5:6]={{1,2},{3,4}}'", "'{}'", "'{1,NULL,-3}'")),
    "at": ("text[]", ("""'{"a,b","c\\"d","NULL",NULL,""}'""",)),
    "b": ("boolean", ("true", "false")),
    "by": ("bytea", (r"'\x00ff5c27'", r"'\x'")),
    "f": ("double precision", ("'-0'", "0.1", "5e-324", "'NaN'", "'Infinity'", "'-Infinity'")),
    "r": ("real", ("'NaN'", "'-Infinity'", "0.1", "1e-45")),
    "jb": ("jsonb", ("""'{"b": [1.50, true], "a": "ä"}'""",)),
    "u": ("uuid", ("'FFFFFFFF-ffff-ffff-ffff-0123456789ab'",)),
    "iv": ("interval", ("'1 mon -1 day 00:00:00.000001'",)),
    "txt": ("text", ("repeat('long ä ', 4000)", "''", r"E'a\tb\nc\\d''\"'")),
}  # fmt: skip
"""Columns of the table ``t``; the log lacks ``txt`` of an update that left its first value unchanged (TOAST)."""

UNCHANGED = "UPDATE t SET b = NOT b WHERE id = 0"


@contextmanager
def rows_of_every_kind(
    folder: Path, source: Any, zookeeper: Any, *, identity: str = "DEFAULT", **options: Any
) -> Iterator[PgCase]:
    """A pipeline from a table with a row for each value and one of NULLs, before its first run."""
    with pg_case(folder, source, zookeeper, **options) as made:
        columns = ", ".join(f"{name} {kind}" for name, (kind, _) in KINDS.items())
        made.write(
            f"CREATE TABLE t (id int PRIMARY KEY, {columns})",
            "ALTER TABLE t ALTER COLUMN txt SET STORAGE EXTERNAL",
            f"ALTER TABLE t REPLICA IDENTITY {identity}",
        )
        types.insert(source, made.schema, "t", KINDS)
        made.prepare()
        yield made


def change(made: PgCase) -> None:
    """An unchanged value out of line, a moved key, a NULL, a delete and new rows, in a batch or two."""
    made.write("DELETE FROM t WHERE id = 1")
    made.run_until_head()
    made.write(
        UNCHANGED,
        "UPDATE t SET id = 100, m = m + 1 WHERE id = 2",
        "UPDATE t SET n = NULL, a = '{7}', txt = repeat('new', 5000) WHERE id = 3",
    )
    types.insert(made.source, made.schema, "t", KINDS, first=200)
    made.run_until_head()


def truth(made: PgCase) -> dict[int, dict[str, Any]]:
    """The source's own texts of all rows, by id."""
    return types.texts(made.source, made.schema, "t", list(KINDS))


def texts(made: PgCase, rows: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Values of a target as the source's server prints them, cast to the columns' types."""
    shown = ", ".join(f"format('%%s', %s::text::{kind})" for kind, _ in KINDS.values())
    found: dict[int, dict[str, Any]] = {}
    with made.source.connect(options="-c timezone=UTC -c datestyle=ISO,YMD -c bytea_output=hex") as connection:
        for number, row in rows.items():
            values = [_literal(row[name]) for name in KINDS]
            [printed] = connection.execute(f"SELECT {shown}", values).fetchall()
            found[number] = {
                name: None if row[name] is None else text for name, text in zip(KINDS, printed, strict=True)
            }
    return found


def _literal(value: Any) -> str | None:
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return None if value is None else str(value)


def documented(made: PgCase, rows: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """The texts of values in Debezium's documents."""
    declared = {"m": "decimal(30,10)", "ts": "datetime(6)", "d": "date", "by": "blob"}
    read = {
        number: {name: python_value(declared.get(name, ""), row[name]) for name in KINDS}
        for number, row in rows.items()
    }
    return texts(made, read)


def by_id(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    found = {int(row["id"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def test_a_consumer_of_kafka_rebuilds_the_rows(
    tmp_path: Path, postgresql_source: Any, zookeeper: Any, kafka: Any
) -> None:
    """Each change once, in Debezium's documents; a column that the log lacks is left out, and is not null."""
    from tests.support.readers import kafka_reading

    options = '    changes: all\n    options: {create_topics: {when: needed}, ack_topic: "pg-{pipeline}.{target}"}'
    with rows_of_every_kind(
        tmp_path, postgresql_source, zookeeper, schema="to_kafka", target=kafka, kind="kafka", start="dump",
        target_extra=options,
    ) as made:  # fmt: skip
        made.run_until_head()
        change(made)
        messages = kafka_reading.read(kafka, "to_kafka.t")
        table: dict[int, dict[str, Any]] = {}
        partial, ops = [], []
        for one in messages:
            if one.value is None:
                ops.append("tombstone")
                continue
            document = one.document
            ops.append(document["op"])
            if document["op"] == "d":
                del table[document["before"]["id"]]
                continue
            after = document["after"]
            if document["op"] == "u" and "txt" not in after:
                partial.append(after["id"])
                after = {**table[after["id"]], **after}
            table[after["id"]] = after
        assert partial == [0]
        rows = 1 + max(len(values) for _, values in KINDS.values())
        assert ops == [*"r" * rows, "d", "tombstone", "u", "d", "tombstone", "c", "u", *"c" * rows]
        assert documented(made, table) == truth(made)


def test_a_document_has_the_source_block_of_the_postgresql_connector(
    tmp_path: Path, postgresql_source: Any, zookeeper: Any, kafka: Any
) -> None:
    """Each way to a document has its fields, types and values, with transaction and LSN as the server counts them; with
    schemas, these describe the block.
    """
    from tests.support.readers import kafka_reading

    options = '    changes: all\n    options: {schemas: true, create_topics: {when: needed}, ack_topic: "{pipeline}.{target}"}'
    with pg_case(
        tmp_path, postgresql_source, zookeeper, schema="to_block", target=kafka, kind="kafka", target_extra=options
    ) as made:
        made.write("CREATE TABLE t (id int PRIMARY KEY)")
        made.prepare()
        made.run_until_head()
        with made.source.connect() as connection:
            place = "SELECT pg_current_wal_lsn() - '0/0', current_database()"
            [(before, database)] = connection.execute(place).fetchall()
            with connection.transaction():
                [(transaction,)] = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchall()
                connection.execute("INSERT INTO to_block.t SELECT generate_series(1, 60)")
                connection.execute("UPDATE to_block.t SET id = 100 WHERE id = 1")  # such rows are not made in columns
            [(after, _)] = connection.execute(place).fetchall()
        made.run_until_head()
        messages = [one.document for one in kafka_reading.read(kafka, "to_block.t") if one.value is not None]
        printed = {
            form: made.cli("tail", made.name, "--format", form, "--from-batch", "1", "--no-follow")
            for form in ("debezium-json", "cloudevents-json")
        }
        assert [one.returncode for one in printed.values()] == [0, 0], printed
        lines = {form: [json.loads(line) for line in one.stdout.splitlines()] for form, one in printed.items()}
        with by_http(made) as client:
            served = documents(client.get(f"/pipelines/{made.name}/changes"))

        blocks = [one["payload"]["source"] for one in messages]
        assert len(blocks) == len(lines["debezium-json"]) == len(served) == 62
        assert blocks == [one["source"] for one in lines["debezium-json"]] == [one["source"] for one in served]
        times = {name: blocks[0][name] for name in ("ts_ms", "ts_us", "ts_ns")}
        lsn = blocks[0]["lsn"]
        assert before < lsn < after
        [block] = {json.dumps(one) for one in blocks}
        assert json.loads(block) == {
            "version": __version__, "connector": "postgresql", "name": made.name, "snapshot": "false", "db": database,
            "sequence": f'[null,"{lsn}"]', "schema": "to_block", "table": "t", "txId": transaction, "lsn": lsn,
            "xmin": None, **times,
        }  # fmt: skip
        [schema] = [one for one in messages[0]["schema"]["fields"] if one["field"] == "source"]
        assert schema["name"] == "io.debezium.connector.postgresql.Source"
        assert [one["field"] for one in schema["fields"]] == list(blocks[0])
        assert [(one["field"], one["type"], one["optional"]) for one in schema["fields"][-5:]] == [
            ("schema", "string", False), ("table", "string", False), ("txId", "int64", True), ("lsn", "int64", True),
            ("xmin", "int64", True),
        ]  # fmt: skip
        [event, *_] = lines["cloudevents-json"]
        assert (event["source"], event["type"].split(".")[3]) == (f"/debezium/postgresql/{made.name}", "postgresql")
        assert (event["iodebeziumtxid"], event["iodebeziumlsn"]) == (str(transaction), str(lsn))


def test_a_merged_document_has_the_place_of_its_batch(
    tmp_path: Path, postgresql_source: Any, zookeeper: Any, kafka: Any
) -> None:
    """A merged row has no transaction of its own; its LSN is that of the batch's end."""
    from tests.support.readers import kafka_reading

    options = '    options: {create_topics: {when: needed}, ack_topic: "{pipeline}.{target}"}'
    with pg_case(
        tmp_path, postgresql_source, zookeeper, schema="to_merge", target=kafka, kind="kafka", target_extra=options
    ) as made:
        made.write("CREATE TABLE t (id int PRIMARY KEY)")
        made.prepare()
        made.run_until_head()
        made.write("INSERT INTO t VALUES (1), (2)")
        made.run_until_head()
        runtime = made.runtime()
        with runtime.state() as state:
            ends = {state.batches.require(number).last.row_place[1] for number in runtime.store.batches()}
        for one in kafka_reading.read(kafka, "to_merge.t"):
            block = one.document["source"]
            assert (block["connector"], block["schema"], block["txId"]) == ("postgresql", "to_merge", None)
            assert block["lsn"] in ends
            assert block["sequence"] == f'[null,"{block["lsn"]}"]'


FAR = {
    "0044-03-15 12:00:00.5 BC": "-0043-03-15T12:00:00.500000Z",
    "0001-12-31 23:59:59.999999 BC": "0000-12-31T23:59:59.999999Z",
    "10000-01-01": "+10000-01-01T00:00:00.000000Z",
    "294246-12-30 23:59:59": "+294246-12-30T23:59:59.000000Z",
}
"""Times, and their texts by ISO 8601."""
INFINITE = ("infinity", "-infinity")


def test_documents_have_dates_that_python_lacks(tmp_path: Path, postgresql_source: Any, zookeeper: Any) -> None:
    """Years before Christ and after 9999 and infinite dates are what the server counts and reads, in each format."""
    with pg_case(tmp_path, postgresql_source, zookeeper, schema="far_dates") as made:
        kinds = {"d": "date", "ts": "timestamp", "ms": "timestamp(3)", "tz": "timestamptz"}
        columns = ", ".join(f"{name} {kind} NOT NULL" for name, kind in kinds.items())
        made.write(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
        made.prepare()
        made.run_until_head()
        values = [*FAR, *INFINITE]
        made.write("SET timezone = 'UTC'", *(
            f"INSERT INTO t SELECT {n}, v, v, v, v FROM (SELECT timestamp '{text}' v)" for n, text in enumerate(values)
        ))  # fmt: skip
        made.run_until_head()

        def printed(form: str) -> list[dict[str, Any]]:
            done = made.cli("tail", made.name, "--format", form, "--from-batch", "1", "--no-follow")
            assert done.returncode == 0, done.stderr
            return [json.loads(line) for line in done.stdout.splitlines()]

        *far, future, past = [one["after"] for one in printed("debezium-json")]
        assert [row["tz"] for row in far] == list(FAR.values())
        assert [(row["d"], row["ts"], row["ms"]) for row in far] == made.source.execute(
            "SELECT d - DATE '1970-01-01', (extract(epoch FROM ts) * 1000000)::bigint, "
            f"(extract(epoch FROM ms) * 1000)::bigint FROM far_dates.t WHERE id < {len(FAR)} ORDER BY id"
        )
        for row, day, time, zoned in (
            (future, 2**31 - 1, 9223372036825200000, "+292278994-08-16T23:00:00Z"),
            (past, -(2**31), -9223372036832400000, "-292275055-05-16T23:00:00Z"),
        ):
            assert (row["d"], row["ts"], row["ms"], row["tz"]) == (day, time, time, zoned)
        for rows in (
            [one["data"] for one in printed("maxwell-json")],
            [one["data"][0] for one in printed("canal-json")],
        ):
            texts = [[row[name] for name in kinds] for row in rows]
            with made.source.connect(options="-c timezone=UTC") as connection:
                read = ", ".join(f"%s::{kind} = {name}" for name, kind in kinds.items())
                for number, row in enumerate(texts):
                    query = f"SELECT {read} FROM far_dates.t WHERE id = {number}"
                    assert connection.execute(query, row).fetchall() == [(True,) * len(kinds)], row


def whole_rows_findings(made: Any) -> list[Finding]:
    return [one for one in check(made.runtime()).findings if one.setting == "whole rows"]


def test_a_delta_table_has_the_rows(tmp_path: Path, postgresql_source: Any, zookeeper: Any) -> None:
    """Whole rows are needed: without them the load stops, and what its error says to do ends equal."""
    lake = Lake(tmp_path / "lake")
    with rows_of_every_kind(
        tmp_path, postgresql_source, zookeeper, schema="to_delta", target=lake, kind="delta", start="dump"
    ) as made:
        made.run_until_head()
        assert texts(made, by_id(lake.rows("to_delta", "t").to_pylist())) == truth(made)
        [warned] = whole_rows_findings(made)
        assert (warned.part, warned.value) == ("target copy", "to_delta.t")
        made.write(UNCHANGED, "DELETE FROM t WHERE id = 4")
        with pytest.raises(LoadError, match="needs whole rows") as stopped:
            made.run_until_head()
        assert "ALTER TABLE SCHEMA.TABLE REPLICA IDENTITY FULL" in str(stopped.value)
        made.write(warned.fix)
        assert whole_rows_findings(made) == []
        batch = made.runtime().store.batches()[-1]
        skipped = made.cli("skip", made.name, "copy", str(batch), "--reason", "the log lacks columns", "--yes")
        assert skipped.returncode == 0, skipped.stdout + skipped.stderr
        assert dumped(made, tables=["to_delta.t"]).state == "done"
        with delivering(made):
            assert made.cli("verify", made.name).returncode == 3, "the row that the skipped batch deleted is there"
            assert made.cli("verify", made.name, "--repair", "--yes").returncode == 0
            assert made.cli("verify", made.name).returncode == 0
        change(made)
        assert texts(made, by_id(lake.rows("to_delta", "t").to_pylist())) == truth(made)


def test_redis_has_the_rows(tmp_path: Path, postgresql_source: Any, zookeeper: Any, redis_server: Any) -> None:
    """A column that the log lacks stays as it is at the target."""
    with rows_of_every_kind(
        tmp_path, postgresql_source, zookeeper, schema="to_redis", target=redis_server, kind="redis", start="dump"
    ) as made:
        made.run_until_head()
        assert whole_rows_findings(made) == []
        made.path.write_text(f"{made.yaml}\nrules: engine.yaml\n", encoding="utf-8")
        rule = "{name: keep, builtin: soft_delete, match: {table: t}, params: {column: gone}}"
        (made.folder / "rules" / "engine.yaml").write_text(f"version: 1\nrules: [{rule}]\n", encoding="utf-8")
        assert [(one.part, one.value) for one in whole_rows_findings(made)] == [("rules", "to_redis.t")]
        made.path.write_text(made.yaml, encoding="utf-8")
        change(made)
        with redis_server.client() as client:
            rows = [client.hgetall(key) for key in client.scan_iter("to_redis.t:*")]
        fields = [{name.decode(): value for name, value in row.items()} for row in rows]
        found = {
            int(row["id"]): {
                name: row[name].decode() if name in row and name != "by" else row.get(name) for name in KINDS
            }
            for row in fields
        }
        assert texts(made, found) == truth(made)


@pytest.mark.full
def test_documents_of_elasticsearch_have_values_that_it_cannot_search(
    tmp_path: Path, postgresql_source: Any, zookeeper: Any, elasticsearch: Any
) -> None:
    """NaN, infinite numbers and dates that its types do not have are in the documents all the same."""
    with pg_case(
        tmp_path, postgresql_source, zookeeper, schema="to_search", target=elasticsearch, kind="elasticsearch",
        target_extra="    options: {settings: {number_of_replicas: 0}, refresh: true}",
    ) as made:  # fmt: skip
        made.write("CREATE TABLE t (id int PRIMARY KEY, f double precision, r real, d date, ts timestamp)")
        made.prepare()
        made.run_until_head()
        values = (
            ("NaN", "-Infinity", "infinity", "-infinity"),
            ("-Infinity", "NaN", "0044-03-15 BC", "0044-03-15 12:00:00 BC"),
            ("Infinity", "1.5", "10000-01-01", "10000-01-01 12:00:00"),
        )
        made.write(*(f"INSERT INTO t VALUES ({n}, '{f}', '{r}', '{d}', '{ts}')"
                     for n, (f, r, d, ts) in enumerate(values)))  # fmt: skip
        made.run_until_head()
        for n, row in enumerate(values):
            held = elasticsearch.ask(f"/to_search.t/_doc/{n}")["_source"]
            with made.source.connect() as connection:
                same = "SELECT f = %s::float8, r = %s::float4, d = %s::date, ts = %s::timestamp FROM to_search.t"
                texts = [str(held[name]).replace("T", " ") for name in ("f", "r", "d", "ts")]
                assert connection.execute(f"{same} WHERE id = {n}", texts).fetchall() == [(True,) * 4], (held, row)


def test_a_target_starts_from_the_snapshot(tmp_path: Path, postgresql_source: Any, zookeeper: Any) -> None:
    """The snapshot has the source's rows, and a target that joins has them without a copy of the source."""
    first, kept = Lake(tmp_path / "first"), Lake(tmp_path / "kept")
    with rows_of_every_kind(
        tmp_path, postgresql_source, zookeeper, schema="from_snapshot", target=first, kind="delta", start="dump",
        identity="FULL", extra=f'snapshot: {{uri: "{kept.folder.as_uri()}", retain_log: 7d}}',
    ) as made:  # fmt: skip
        made.run_until_head()
        change(made)
        assert texts(made, by_id(kept.rows("from_snapshot", "t").to_pylist())) == truth(made)
        made.connections["late"] = made.source.connection_json(schema=COPY)
        late = "targets:\n  - {name: late, type: postgresql, connection: late, start: snapshot}\n"
        made.path.write_text(made.path.read_text(encoding="utf-8").replace("targets:\n", late), encoding="utf-8")
        if not made.source.execute(f"SELECT 1 FROM pg_database WHERE datname = '{COPY}'"):
            made.source.execute(f"CREATE DATABASE {COPY}")
        made.source.execute("CREATE SCHEMA from_snapshot", database=COPY)
        made.prepare()
        made.write("UPDATE t SET f = 2.5 WHERE id = 200")
        made.run_until_head()
        made.write("DELETE FROM t WHERE id = 201", UNCHANGED)
        made.run_until_head()
        there = types.texts(made.source, made.schema, "t", list(KINDS), database=COPY)
        assert there == truth(made)
        assert texts(made, by_id(kept.rows("from_snapshot", "t").to_pylist())) == truth(made)
        with made.runtime().state() as state:
            assert len(state.dumps.ids()) == 1, "the first copy, and none for the target"


def test_subscribers_have_the_rows(tmp_path: Path, postgresql_source: Any, zookeeper: Any) -> None:
    """The snapshot and what follows come by Flight, and all changes by HTTP."""
    kept = Lake(tmp_path / "kept")
    with rows_of_every_kind(
        tmp_path, postgresql_source, zookeeper, schema="to_readers", target=Lake(tmp_path / "first"), kind="delta",
        start="dump", identity="FULL", extra=f'snapshot: {{uri: "{kept.folder.as_uri()}", retain_log: 7d}}',
    ) as made:  # fmt: skip
        made.run_until_head()
        first = made.runtime().store.batches()[0]
        change(made)
        expected = truth(made)
        with serving(made) as (_, reader):
            found = reader.read(pipeline=made.name, from_={"batch": first}, tables=["to_readers.t"])
            assert texts(made, replayed(found.rows())) == expected
            begun = reader.read(pipeline=made.name, from_="snapshot", tables=["to_readers.t"])
            assert begun.resets
            assert texts(made, replayed(begun.rows())) == expected
        with by_http(made) as client:
            events = documents(client.get(f"/pipelines/{made.name}/changes"))
        assert documented(made, replayed_events(events)) == expected


def test_readers_get_no_number_in_place_of_nan(tmp_path: Path, postgresql_source: Any, zookeeper: Any) -> None:
    """Arrow's decimals have no NaN: the read ends and says what leads on, and rows that are no more have null."""
    with pg_case(
        tmp_path, postgresql_source, zookeeper, schema="nan_readers",
        tables=("CREATE TABLE t (id int PRIMARY KEY, n numeric(6,2))", "ALTER TABLE t REPLICA IDENTITY FULL"),
    ) as made:  # fmt: skip
        made.prepare()
        made.run_until_head()
        made.write("INSERT INTO t VALUES (1, 1.5), (2, 'NaN')")
        made.run_until_head()
        at = made.runtime().store.batches()[-1]
        made.write(
            "UPDATE t SET n = 2.5 WHERE id = 2", "UPDATE t SET n = 'NaN' WHERE id = 1", "DELETE FROM t WHERE id = 1"
        )
        made.run_until_head()
        with serving(made) as (_, reader):
            asked = {"pipeline": made.name, "tables": ["nan_readers.t"], "from_": {"batch": at}}
            with pytest.raises(flight.FlightError, match=rf"batch {at} has NaN in column 'n'.*leave the column out"):
                reader.read(**asked)
            assert [row["id"] for row in reader.read(**asked, columns=["id"]).rows()] == [1, 2, 2, 1, 1]
            merged = {**asked, "from_": {"batch": at + 1}, "form": "merged"}
            rows = {row["id"]: row for row in reader.read(**merged).rows()}
            assert (rows[2]["n"], rows[2]["_before"]["n"]) == (Decimal("2.50"), None)
            assert (rows[1]["_op"], rows[1]["_before"]["n"]) == ("d", Decimal("1.50"))
