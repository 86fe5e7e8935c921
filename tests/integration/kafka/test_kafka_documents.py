"""Documents that are made from columns are those that the formats make of single changes: all types, of real servers'
logs.
"""

from __future__ import annotations

import random
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack.kafka import find_connect, java_program
from sluice.flows.load.batch_changes import stored_changes
from sluice.flows.load.units import batch_input
from sluice.formats import columns
from sluice.model.offset import Offset
from sluice.segments.changeset import read_changeset
from sluice.targets.changes_in_order import in_log_order
from sluice.targets.kafka.options import KafkaOptions
from sluice.targets.messages.documents import Messages, MessageWriter
from sluice.targets.messages.form import MessageForm
from sluice.targets.messages.pieces import merged_piece
from sluice.targets.port import ChangePiece
from tests.support.pipelines.kafka_pipelines import ROWS, captured, statements_of_all_types
from tests.support.values import random_values as values


def same(writer: MessageWriter, piece: ChangePiece) -> Messages:
    """Both ways; the quick one must have been taken."""
    assert columns.can(piece.rows)
    quick, slow = writer.messages(piece), writer.one_by_one(piece)
    for name in ("rows", "keys", "values", "routes", "headers"):
        one, other = (getattr(made, name) for made in (quick, slow))
        one, other = (part.tolist() if name != "headers" else part and list(part) for part in (one, other))
        for number, (a, b) in enumerate(zip(one or (), other or (), strict=True)):
            assert a == b, f"{name} {number} of {piece.table}"
    return quick


@pytest.mark.parametrize("server", ["mysql_source", "mariadb"])
def test_documents_of_all_types(
    tmp_path: Path, request: pytest.FixtureRequest, zookeeper: Any, kafka: Any, fresh_schema: Any, server: str
) -> None:
    source = request.getfixturevalue(server)
    schema = fresh_schema(source)
    r = random.Random(11)
    types = values.types_of(source)
    with captured(tmp_path, source, kafka, zookeeper, schema) as made:
        source.execute(values.MODE, f"USE {schema}", *statements_of_all_types(types, r))
        made.run_until_head()
        runtime = made.runtime()
        seen, reads = 0, 0
        lines: list[str] = []
        for number in runtime.store.batches():
            with runtime.state() as state:
                stored = state.batches.require(number)
            manifest = runtime.store.read_manifest(stored.manifest)
            pieces = stored_changes(runtime, "copy", manifest, stored.manifest).change_pieces()
            for options in (
                {},
                {"headers": False, "tombstones": False},
                {"partitioning": "table"},
                {"schemas": True, "tombstones": False},
            ):
                writer = MessageWriter(KafkaOptions.model_validate(options).form, "shop", number)
                for piece in pieces:
                    written = same(writer, piece)
                    seen += len(written)
                    if "schemas" in options:
                        lines += _lines(piece, written)
            assert sum(p.rows.num_rows for some in in_log_order(pieces, 7) for p in some) == sum(
                piece.rows.num_rows for piece in pieces
            )
            merged = MessageWriter(MessageForm(), "shop", number, Offset.at("u", "binlog.000007", 77))
            changeset = read_changeset(runtime.store, stored.changeset)
            given = batch_input(runtime.store, changeset)
            for table in given.tables:
                for rows in given.reader.pieces(table.files):
                    reads += len(same(merged, merged_piece(table.target, table.plan.key, rows)))
        assert seen > ROWS * len(values.groups(types))
        assert reads
    assert len(read_by_connect(tmp_path, lines)) == len(lines) > ROWS


def _lines(piece: ChangePiece, made: Messages) -> Iterator[str]:
    for key, value in zip(made.keys.to_pylist(), made.values.to_pylist(), strict=True):
        yield "\t".join([str(piece.table), *(b64encode(text or b"").decode() for text in (key, value))])


def read_by_connect(folder: Path, lines: list[str]) -> list[list[str]]:
    """Key and row of each message as Kafka Connect's own converter reads them: ``column=type:value|`` for each
    column.
    """
    (folder / "messages.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    program = java_program(
        Path(__file__).parents[2] / "support/readers/ConnectReader.java", [str(folder / "messages.txt")], find_connect()
    )
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-2000:]
    return [line.split("\t") for line in done.stdout.splitlines()]


def test_schemas_say_what_the_server_says(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, kafka: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source)
    with captured(tmp_path, mysql_source, kafka, zookeeper, schema) as made:
        mysql_source.execute(
            f"CREATE TABLE {schema}.t (id BIGINT UNSIGNED PRIMARY KEY, d DECIMAL(40,5) NOT NULL, s SMALLINT UNSIGNED, "
            "m MEDIUMINT UNSIGNED,"
            " i INT UNSIGNED, y YEAR, b BIT(1), e ENUM('x','y'), j JSON, f FLOAT, t TIME(6), z TIMESTAMP(3) NULL, n "
            "VARCHAR(9), k BINARY(2))",
            f"INSERT INTO {schema}.t VALUES (18446744073709551615, -12345678901234567890123456789012345.00001, 65535, "
            "16777215, 4294967295, 2155, b'1', 'y', '{}', 1.5, '-838:59:59', '2024-02-29 12:00:00.125', 'é', x'00ff')",
        )
        made.run_until_head()
        runtime = made.runtime()
        with runtime.state() as state:
            stored = state.batches.require(runtime.store.batches()[-1])
        manifest = runtime.store.read_manifest(stored.manifest)
        [piece] = stored_changes(runtime, "copy", manifest, stored.manifest).change_pieces()
        writer = MessageWriter(MessageForm(schemas=True), "shop", stored.number)
        [[key, row]] = read_by_connect(tmp_path, list(_lines(piece, writer.messages(piece))))
        [[d]] = mysql_source.execute(f"SELECT CAST(d AS CHAR) FROM {schema}.t")
    decimal = "org.apache.kafka.connect.data.Decimal"
    assert key == f"id={decimal}:18446744073709551615|"
    parts = dict(part.split("=", 1) for part in row.rstrip("|").split("|"))
    assert parts.pop("k").startswith("bytes:")
    assert parts == {
        "id": f"{decimal}:18446744073709551615",
        "d": f"{decimal}:{d}",
        "s": "int32:65535",
        "m": "int32:16777215",
        "i": "int64:4294967295",
        "y": "io.debezium.time.Year:2155",
        "b": "boolean:true",
        "e": "io.debezium.data.Enum:y",
        "j": "io.debezium.data.Json:{}",
        "f": "float32:1.5",
        "t": "io.debezium.time.MicroTime:-3020399000000",
        "z": "io.debezium.time.ZonedTimestamp:2024-02-29T12:00:00.125Z",
        "n": "string:é",
    }
