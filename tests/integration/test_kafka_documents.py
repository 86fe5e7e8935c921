"""Documents that are made from columns are those that the formats make of single changes: all types, of real servers' logs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.flows.load.batch_changes import stored_changes
from sluice.flows.load.units import batch_input
from sluice.formats import columns
from sluice.model.positions import Position
from sluice.segments.changeset import read_changeset
from sluice.targets.base import ChangePiece
from sluice.targets.changes_in_order import in_log_order
from sluice.targets.kafka.documents import Messages, Writer, merged_piece
from sluice.targets.kafka.options import KafkaOptions
from tests.support import values
from tests.support.pipelines import case

ROWS = 40


def same(writer: Writer, piece: ChangePiece) -> Messages:
    """Both ways; the quick one must have been taken."""
    assert columns.can(piece.rows)
    quick, slow = writer.messages(piece), writer.one_by_one(piece)
    for name in ("rows", "keys", "values", "routes", "headers"):
        one, other = (getattr(made, name) for made in (quick, slow))
        one, other = (part if isinstance(part, list | None) else part.tolist() for part in (one, other))
        for number, (a, b) in enumerate(zip(one or (), other or (), strict=True)):
            assert a == b, f"{name} {number} of {piece.table}"
    return quick


@contextmanager
def captured(folder: Path, source: Any, kafka: Any, zookeeper: Any, schema: str) -> Iterator[Any]:
    with case(folder, source, source, zookeeper, schema) as made:
        made.connections["case_target"] = kafka.connection_json()
        made.path.write_text(
            made.yaml.replace(
                "type: mysql",
                f'type: kafka\n    options: {{create_topics: {{when: needed}}, ack_topic: "{schema}-{{pipeline}}.{{target}}"}}',
            ),
            encoding="utf-8",
        )
        made.run_until_head()
        yield made


@pytest.mark.parametrize("server", ["mysql_source", "mariadb"])
def test_documents_of_all_types(
    tmp_path: Path, request: pytest.FixtureRequest, zookeeper: Any, kafka: Any, fresh_schema: Any, server: str
) -> None:
    source = request.getfixturevalue(server)
    schema = fresh_schema(source)
    r = random.Random(11)
    types = values.types_of(source)
    with captured(tmp_path, source, kafka, zookeeper, schema) as made:
        source.execute(values.MODE, f"USE {schema}", *_statements(types, r))
        made.run_until_head()
        runtime = made.runtime()
        seen, reads = 0, 0
        for number in runtime.store.batches():
            with runtime.state() as state:
                stored = state.require(number)
            manifest = runtime.store.read_manifest(stored.manifest)
            pieces = stored_changes(runtime, "copy", manifest, stored.manifest).change_pieces()
            for options in ({}, {"headers": False, "tombstones": False}, {"partitioning": "table"}):
                writer = Writer(KafkaOptions.model_validate(options), "shop", number)
                for piece in pieces:
                    seen += len(same(writer, piece))
            assert sum(p.rows.num_rows for some in in_log_order(pieces, 7) for p in some) == sum(
                piece.rows.num_rows for piece in pieces
            )
            merged = Writer(KafkaOptions(), "shop", number, Position("u", "binlog.000007", 77))
            changeset = read_changeset(runtime.store, stored.changeset)
            given = batch_input(runtime.store, changeset)
            for table in given.tables:
                for rows in given.reader.pieces(table.files):
                    reads += len(same(merged, merged_piece(table.target, table.plan.key, rows)))
        assert seen > ROWS * len(values.groups(types))
        assert reads


def _statements(types: dict[str, Any], r: random.Random) -> Iterator[str]:
    for number, names in enumerate(values.groups(types)):
        table = f"t{number}"
        yield values.create(table, names, types)
        yield values.insert(table, range(ROWS), names, types, r)
        yield f"UPDATE {table} SET `{names[0]}` = NULL WHERE id % 3 = 0"
        yield f"UPDATE {table} SET id = id + 1000 WHERE id = 4"
        yield f"DELETE FROM {table} WHERE id % 5 = 0"
