"""The pipeline file is a contract: the documented example loads, and every mistake names file, line and field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.config.loading import find_pipeline, load_pipeline, parse_model, pipeline_json_schema
from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError

REPOSITORY = Path(__file__).parents[3]

EXAMPLE = """\
version: 1
pipeline: shop_to_reporting
source:
  connection: shop_mysql
  server_id: auto
  start: latest
capture:
  include: ["shop\\\\..*"]
  exclude: ["shop\\\\.tmp_.*"]
  events: [insert, update, delete, ddl]
  batch: {max_changes: 2000000, max_bytes: 512MiB, max_wait: 500ms}
  segments: {uri: "file:///var/lib/sluice", retain: 7d}
  on_lost_position: stop
schedule: continuous
window: 3
spark: {mode: connect, connection: spark_connect_default}
rules: engine.yaml
mapping:
  - from: shop.orders
    to: reporting.orders
    weight: 10
    columns: {exclude: [internal_note], rename: {ts: created_at}}
    column_groups: [[country, province, city]]
targets:
  - name: reporting
    type: mysql
    connection: reporting_mysql
    changes: latest
    consistency: row
    parallelism: 4
    on_error: stop
"""


def test_the_documented_example_loads() -> None:
    pipeline = parse_model(EXAMPLE, "example.yaml", PipelineConfig)
    assert pipeline.capture.batch.max_bytes == 512 * 2**20
    assert pipeline.capture.batch.max_wait.total_seconds() == 0.5
    assert pipeline.capture.segments.retain.days == 7
    assert pipeline.mapping[0].from_ == "shop.orders"


PLACES = """run: {tasks: own}
workers:
  stages:
    drain: {queue: near}
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("window: 3", "windw: 3", 15, "windw: there is no such key; did you mean 'window'?"),
        ("source:\n", "sorce:\n", 3, "1 problem in example.yaml [SLUICE-CONFIG-ERROR]:"),
        ("max_bytes: 512MiB", "max_bytes: 512 lots", 11, "capture.batch.max_bytes: '512 lots' is not a size"),
        ("max_wait: 500ms", "max_wait: soon", 11, "is not a duration"),
        ("    consistency: row", "    consistency: rows", 29, "targets.0.consistency"),
        (
            "    connection: reporting_mysql\n",
            "",
            25,
            "targets.0: connection is missing: the id of the target's connection (or connections, for a group)",
        ),
        (
            "    connection: reporting_mysql",
            "    conection: reporting_mysql",
            27,
            "conection: there is no such key; did you mean 'connection'?",
        ),
        (
            "connection: shop_mysql",
            "conection: shop_mysql",
            4,
            "conection: there is no such key; did you mean 'connection'?",
        ),
        ('["shop\\\\..*"]', '["shop(", "x"]', 8, "is not a regular expression"),
        ("  start: latest", "  start: {file: binlog.000001, gtid: x}", 6, "exactly one of"),
        ("schedule: continuous", "schedule: hourly-ish", 14, "is not a schedule"),
        ("    to: reporting.orders", "    to: orders", 20, "must be schema.table"),
        ("window: 3", "snapshot: {format: delta}", 15, "uri is missing"),
        ("window: 3", "snapshot: {uri: /lake, format: hudi}", 15, "snapshot.format"),
        ("window: 3", "snapshot: {uri: s3://lake/shop, format: iceberg}", 15, "nothing says which catalog"),
        ("window: 3", "snapshot: {format: iceberg}", 15, "nothing says which catalog"),
        (
            "window: 3",
            "snapshot: {uri: /lake, format: iceberg, options: {catalog: {warehouse: /other}}}",
            15,
            "catalog.warehouse is the snapshot's uri",
        ),
        ("    consistency: row", "    start: snapshot", 1, "the pipeline keeps none"),
        (
            "    changes: latest",
            "    changes: all\n    start: snapshot",
            25,
            "start: snapshot goes with changes: latest",
        ),
        ("    consistency: row", "    on_lost_batches: snapshot", 1, "has on_lost_batches: snapshot, and the pipeline"),
        ("window: 3", "snapshot: {uri: /lake, options: {location: /other}}", 15, "location is the snapshot's uri"),
        (
            "window: 3",
            PLACES + "    laod: {queue: far}",
            19,
            "stages.laod: there is no such stage; did you mean 'load'?",
        ),
        ("window: 3", PLACES + "    drain.x: {queue: far}", 19, "there is one drain in a pipeline; write drain"),
        (
            "window: 3",
            PLACES + "    load.reportin: {queue: far}",
            19,
            "no target 'reportin'; did you mean 'reporting'?",
        ),
        (
            "window: 3",
            PLACES + "    load: {quue: far}",
            19,
            "stages.load.quue: there is no such key; did you mean 'queue'?",
        ),
        ("server_id: auto", "primary: shop_primary", 3, "primary is for a PostgreSQL source that is a standby"),
        ("window: 3", PLACES + "    load: {}", 19, "it says no place; write queue, pool or executor"),
        ("window: 3", PLACES.replace("own", "one") + "    load: {queue: far}", 19, "write run: {tasks: own}"),
        ("window: 3", PLACES.replace("own", "one") + "    ack.reporting: {pool: p}", 19, "write run: {tasks: own}"),
        ("window: 3", "workers: {stages: {merge: {pool: p}}}\nrun: {max_batches: 1}", 15, "merges small ones"),
    ],
)
def test_a_mistake_names_file_line_and_field(old: str, new: str, line: int, says: str) -> None:
    assert old in EXAMPLE
    with pytest.raises(ConfigError) as caught:
        parse_model(EXAMPLE.replace(old, new), "example.yaml", PipelineConfig)
    assert f"example.yaml:{line}" in str(caught.value)
    assert says in str(caught.value)


def test_a_snapshot_is_one_of_the_targets_under_a_name_that_no_other_has() -> None:
    text = EXAMPLE + "snapshot: {uri: s3://lake/shop, retain_log: 2d}\n"
    pipeline = parse_model(text, "example.yaml", PipelineConfig)
    assert [(target.name, target.type) for target in pipeline.targets] == [
        ("reporting", "mysql"),
        ("snapshot", "delta"),
    ]
    assert pipeline.target("snapshot").options["location"] == "s3://lake/shop"
    assert PipelineConfig.model_validate(pipeline.model_dump(by_alias=True)) == pipeline
    with pytest.raises(ConfigError, match="which the pipeline's snapshot has"):
        parse_model(text.replace("name: reporting", "name: snapshot"), "example.yaml", PipelineConfig)


@pytest.mark.parametrize(
    ("lines", "catalog"),
    [
        ("uri: /lake/shop", {"warehouse": "/lake/shop"}),
        ("uri: file:///lake/shop/", {"warehouse": "file:///lake/shop/"}),
        (
            "uri: s3://lake/shop, options: {catalog: {type: rest, uri: 'https://c'}}",
            {"type": "rest", "uri": "https://c", "warehouse": "s3://lake/shop"},
        ),
        (
            "options: {catalog: {type: rest, uri: 'https://c', warehouse: shop}}",
            {"type": "rest", "uri": "https://c", "warehouse": "shop"},
        ),
        ("uri: s3://lake/shop, connection: lake", {"warehouse": "s3://lake/shop"}),
        ("connection: lake", None),
    ],
)
def test_an_iceberg_snapshot_has_the_catalog_of_its_folder_or_the_one_that_is_named(
    lines: str, catalog: dict[str, str] | None
) -> None:
    text = EXAMPLE + f"snapshot: {{format: iceberg, retain_log: 2d, {lines}}}\n"
    pipeline = parse_model(text, "example.yaml", PipelineConfig)
    target = pipeline.target("snapshot")
    assert target.type == "iceberg"
    assert target.options.get("catalog") == catalog
    assert target.options["maintenance"] == {"keep": "172800s"}
    assert PipelineConfig.model_validate(pipeline.model_dump(by_alias=True)) == pipeline


def test_broken_yaml_names_the_line() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_model("pipeline: x\nsource: [", "broken.yaml", PipelineConfig)
    assert caught.value.where is not None
    assert caught.value.where.startswith("broken.yaml:")


def test_an_unknown_pipeline_lists_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(EXAMPLE)
    with pytest.raises(ConfigError, match="did you mean 'shop_to_reporting'"):
        find_pipeline("shop_to_reportin", tmp_path)
    assert find_pipeline("shop_to_reporting", tmp_path).window == 3


def test_the_exported_json_schema_is_current() -> None:
    path = REPOSITORY / "include/pipelines/schema.json"
    assert path.read_text(encoding="utf-8") == pipeline_json_schema(), "run `sluice schema --write`"
    schema = json.loads(path.read_text(encoding="utf-8"))
    assert "description" in schema["$defs"]["BatchLimits"]["properties"]["max_wait"]


def test_every_pipeline_of_the_repository_loads() -> None:
    for path in (REPOSITORY / "include/pipelines").glob("*.yaml"):
        load_pipeline(path)


def test_an_unknown_target_names_those_there_are(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "version: 1\npipeline: p\nsource: {connection: s}\ntargets: [{name: reporting, type: mysql, connection: t}]\n"
    )
    with pytest.raises(ConfigError, match=r"p has no target 'reportin'; did you mean 'reporting'\?") as caught:
        load_pipeline(path).target("reportin")
    assert caught.value.hint == "its targets are: reporting"
