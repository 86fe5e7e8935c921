"""Arrow record batches in messages: a consumer that has pyarrow alone rebuilds the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.errors import LoadError
from tests.support.pipelines.kafka_pipelines import pipeline
from tests.support.readers import kafka_reading

TARGET = (
    "    changes: {changes}\n    options: {{format: arrow, partitioning: table, create_topics: {{when: needed, "
    "partitions: 3}}{more}}}\n"
)


def batches(kafka: Any, topic: str) -> list[pa.Table]:
    return [pa.ipc.open_stream(one.value).read_all() for one in kafka_reading.read(kafka, topic)]


@pytest.mark.parametrize("changes", ["all", "latest"])
def test_a_consumer_rebuilds_the_table(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, kafka: Any, fresh_schema: Any, changes: str
) -> None:
    schema = fresh_schema(mysql_source)
    mysql_source.execute(
        f"CREATE TABLE `{schema}`.t (id BIGINT UNSIGNED PRIMARY KEY, at DATETIME(6), d DECIMAL(30,4), j JSON, `_op` "
        "INT)"
    )
    target = TARGET.format(changes=changes, more=", max_message_bytes: 100000")
    values = ", ".join(f"({2**63 + n}, '2024-02-29 12:00:00.{n:06d}', {n}.5, '[{n}]', {n})" for n in range(9000))
    with pipeline(tmp_path, mysql_source, kafka, zookeeper, schema, target) as made:
        made.run_until_head()
        mysql_source.execute(f"INSERT INTO `{schema}`.t VALUES {values}")
        made.run_until_head()
        mysql_source.execute(
            f"UPDATE `{schema}`.t SET d = NULL WHERE id % 3 = 0", f"UPDATE `{schema}`.t SET id = id + 100000 WHERE id "
            "% 7 = 0",
            f"DELETE FROM `{schema}`.t WHERE id % 5 = 0",
        )  # fmt: skip
        made.run_until_head()
    messages = kafka_reading.read(kafka, f"{schema}.t")
    assert len({one.partition for one in messages}) == 1
    assert {one.key for one in messages} == {None}
    assert max(len(one.value or b"") for one in messages) <= 100_000
    assert len(messages) > 4
    found: dict[int, tuple[Any, ...]] = {}
    otherwise = (None,) if changes == "latest" else ()  # merged: a row that came and went in the batch is a delete, too
    for message, table in zip(messages, batches(kafka, f"{schema}.t"), strict=True):
        about = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
        assert (about["sluice.table"], json.loads(about["sluice.key"])) == (f"{schema}.t", ["id"])
        assert message.headers["sluice.rows"] == str(table.num_rows)
        assert message.headers["content-type"] == "application/vnd.apache.arrow.stream"
        assert about["sluice.batch"] == message.headers["sluice.batch"]
        for row in table.to_pylist():
            before = row["_before"]
            if row["_op"] == "u" and changes == "all":
                found.pop(before["id"])
            if row["_op"] == "d":
                found.pop((before or row)["id"], *otherwise)
            else:
                found[row["id"]] = tuple(row[name] for name in ("id", "at", "d", "j", "$_op"))
    wanted = {
        row[0]: row for row in mysql_source.execute(f"SELECT id, at, d, CAST(j AS CHAR), `_op` FROM `{schema}`.t")
    }
    assert found == wanted


def test_a_row_that_is_too_large(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, kafka: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source)
    mysql_source.execute(f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, b LONGTEXT)")
    target = TARGET.format(changes="latest", more=", max_message_bytes: 50000")
    with pipeline(tmp_path, mysql_source, kafka, zookeeper, schema, target) as made:
        made.run_until_head()
        mysql_source.execute(f"INSERT INTO `{schema}`.t VALUES (1, 'a'), (2, REPEAT('x', 60000)), (3, 'c')")
        with pytest.raises(LoadError, match=r"larger than options.max_message_bytes, 50,000: a row of .*\.t"):
            made.run_until_head()
        assert batches(kafka, f"{schema}.t") == []
        made.path.write_text(
            made.path.read_text("utf-8").replace("    options:", "    on_error: dead_letter\n    options:"), "utf-8"
        )
        made.run_until_head()
    [table] = [pa.concat_tables(batches(kafka, f"{schema}.t"))]
    assert table["id"].to_pylist() == [1, 3]
