"""Delta tables with features that delta-rs does not have: `sluice check` and the load name the feature and the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.errors import LoadError, MappingError
from sluice.targets.delta.client import Place, errors
from sluice.targets.rows_in_memory import planned_table
from sluice.testing.targets import Pipe, changed, new, people

pytest.importorskip("deltalake")

import deltalake

from tests.support.benches.delta_bench import DeltaBench

TABLE = people("shop")
WRITTEN = {
    "appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors", "generatedColumns",
    "invariants", "timestampNtz", "v2Checkpoint", "variantType", "variantType-preview",
}  # fmt: skip
REFUSED = {
    "allowColumnDefaults", "checkpointProtection", "clustering", "domainMetadata", "icebergCompatV1",
    "icebergCompatV2", "identityColumns", "inCommitTimestamp", "materializePartitionColumns", "rowTracking",
    "typeWidening", "typeWidening-preview", "vacuumProtocolCheck", "variantShredding-preview", "ofTheFuture",
}  # fmt: skip
OF_READERS = {
    "columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint",
    "vacuumProtocolCheck", "variantShredding-preview", "variantType", "variantType-preview",
}  # fmt: skip
"""Features that readers need, too."""


def rewrite(bench: DeltaBench, protocol: dict[str, Any], column: dict[str, str] | None = None) -> None:
    """Give a table a protocol as Spark writes it. ``column``: metadata of ``points``."""
    [log] = Path(bench.uri(TABLE.table), "_delta_log").glob("*.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = protocol
        if "metaData" in action and column:
            schema = json.loads(action["metaData"]["schemaString"])
            next(one for one in schema["fields"] if one["name"] == "points")["metadata"] = column
            action["metaData"]["schemaString"] = json.dumps(schema)
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))


def of_feature(name: str) -> dict[str, Any]:
    readers = [name] if name in OF_READERS else []
    return {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": readers, "writerFeatures": [name]}


@pytest.mark.parametrize("feature", sorted(WRITTEN | REFUSED))
def test_the_client_writes_what_check_allows(tmp_path: Path, feature: str) -> None:
    """The truth is the client: a version of it that has more features makes this fail."""
    bench = DeltaBench(tmp_path)
    bench.create_table(TABLE)
    rewrite(bench, of_feature(feature))
    schema: Any = bench.target().schema()
    [finding] = schema.compare([planned_table(TABLE)])
    refused = finding.severity == "error"
    assert refused == (feature in REFUSED)
    table = bench.table(TABLE.table)
    try:
        deltalake.write_deltalake(
            table, pa.table({"id": pa.array([1], pa.int32())}), mode="append", schema_mode="merge"
        )
    except deltalake.exceptions.DeltaError:
        assert refused
    else:
        assert not refused


@pytest.mark.parametrize("changes", ["latest", "all"])
@pytest.mark.parametrize(
    ("protocol", "named"),
    [
        (of_feature("clustering"), "writer features clustering"),
        (of_feature("rowTracking"), "writer features rowTracking"),
        ({"minReaderVersion": 1, "minWriterVersion": 6}, "writer features identityColumns"),
    ],
    ids=["clustering", "rowTracking", "identity"],
)
def test_the_load_names_the_feature_at_once(
    tmp_path: Path, protocol: dict[str, Any], named: str, changes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = DeltaBench(tmp_path, changes)
    bench.create_table(TABLE)
    rewrite(bench, protocol)
    pipe = Pipe(bench)
    pipe.take_over()
    monkeypatch.setattr("sluice.targets.lake.commit.time.sleep", lambda seconds: pytest.fail("it was tried again"))
    [finding] = bench.target().schema().compare([planned_table(TABLE)])  # type: ignore[attr-defined]
    assert (finding.severity, named in finding.why, str(finding.table)) == ("error", True, "shop.people")
    with pytest.raises((LoadError, MappingError), match=f"shop.people: the table has the {named}"):
        pipe.deliver((TABLE, [new(1, "a", 1)]))


@pytest.mark.parametrize("changes", ["latest", "all"])
def test_a_generated_column_is_named(tmp_path: Path, changes: str) -> None:
    bench = DeltaBench(tmp_path, changes)
    bench.create_table(TABLE)
    expression = {"delta.generationExpression": "id + 1"}
    rewrite(bench, {"minReaderVersion": 1, "minWriterVersion": 4}, expression)
    [finding] = bench.target().schema().compare([planned_table(TABLE)])  # type: ignore[attr-defined]
    assert (finding.severity, finding.why[:43]) == ("error", "the column 'points' is generated (id + 1), ")
    with pytest.raises((LoadError, MappingError), match=r"shop.people: the column 'points' is generated"):
        Pipe(bench).deliver((TABLE, [changed((1, "a", 1), (1, "b", 2))]))


def test_a_feature_that_came_meanwhile_is_no_lost_race(tmp_path: Path) -> None:
    """The client tells both as a failed commit."""
    bench = DeltaBench(tmp_path)
    bench.create_table(TABLE)
    rewrite(bench, of_feature("clustering"))
    with pytest.raises(LoadError, match="ClusteredTable"), errors(Place(str(tmp_path)), "merging", "x"):
        bench.table(TABLE.table).delete()
