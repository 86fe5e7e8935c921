"""Where chunks are cut: borders that are guessed cut every row into exactly one chunk, whatever the keys."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.model.dumps import Chunk, ChunkId, Marking, TablePlanned, TableRequest
from sluice.model.tables import TableId
from sluice.sources.mysql.snapshot import border_guess, chunk_reader
from tests.support.pipelines.case import case

SIZE = 100
SPARSE = [n * 1_000 for n in range(1_000)]
KEYS = {
    "dense": list(range(1, 2_001)),
    "dense, and a hole": [*range(1_000), *range(5_000_000, 5_001_000)],
    "sparse, then dense": [*SPARSE, *range(1_000_000, 1_003_000)],
    "below zero": [-n for n in SPARSE],
    "unsigned, up to the end": [2**64 - 1 - n * 3 for n in range(1_500)],
}


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_guessed_borders_cut_every_row_into_exactly_one_chunk(
    kind: str, request: Any, monkeypatch: Any, tmp_path: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    source = request.getfixturevalue(kind)
    schema = fresh_schema(source, mysql_target)
    monkeypatch.setattr(border_guess, "FEWEST_ROWS", SIZE)
    plain, selected = chunk_reader.border_sql, []
    monkeypatch.setattr(chunk_reader, "border_sql", lambda *told: selected.append(told) or plain(*told))
    with case(tmp_path, source, mysql_target, zookeeper, schema) as made:
        for number, (name, keys) in enumerate(KEYS.items()):
            unsigned = "UNSIGNED" if "unsigned" in name else ""
            source.execute(
                f"CREATE TABLE {schema}.t{number} (id BIGINT {unsigned} PRIMARY KEY, n INT)",
                f"INSERT INTO {schema}.t{number} VALUES {','.join(f'({key}, 1)' for key in keys)}",
                f"ANALYZE TABLE {schema}.t{number}",
            )
            selected.clear()
            asked = TableRequest(TableId(schema, f"t{number}"))
            found: list[int] = []
            sizes: list[int] = []
            planned, last = TablePlanned(), False
            with made.runtime().source.open_chunks(Marking.TABLE, "w") as chunks:
                while not last:
                    upto, last = chunks.next_border(asked, planned, SIZE)
                    chunk = Chunk(ChunkId("d", 0, planned.chunks + 1), after=planned.upto, upto=upto)
                    rows = [key for piece in chunks.rows(asked, chunk) for key in piece.column(0).to_pylist()]
                    found += rows
                    sizes.append(len(rows))
                    planned = TablePlanned(upto, planned.chunks + 1)
            assert sorted(found) == sorted(keys), name
            assert max(sizes) <= border_guess.LARGEST_ERROR * SIZE, (name, sizes)
            assert len(selected) < len(sizes), (name, sizes)
            if name == "dense":
                assert len(selected) <= 2, "of a chunk that tells how dense the keys are, and none after it"
