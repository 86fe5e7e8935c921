"""Lineage of a real server's tables: the columns of the source as of the batch, whatever the target makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sluice.coordination.state import PipelineState
from sluice.operations.lineage import TableLineage, table_lineage
from tests.support.pipelines.case import Case, case


def newest(made: Case) -> TableLineage:
    made.run_until_head()
    runtime = made.runtime()
    with runtime.state() as state:
        number = _last(state)
    [found] = table_lineage(runtime, "copy", [number])
    return found


def _last(state: PipelineState) -> int:
    cursor = state.cursor()
    assert cursor is not None
    return cursor.next_batch - 1


def test_the_source_has_its_own_columns_as_of_the_batch(
    tmp_path: Path, mysql_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source, twin_target)
    mysql_source.execute(f"CREATE TABLE `{schema}`.a (id INT UNSIGNED PRIMARY KEY, v VARCHAR(80), hidden TEXT)")
    twin_target.execute(f"CREATE TABLE `{schema}`.a (id INT UNSIGNED PRIMARY KEY, v VARCHAR(80), more INT)")
    mapping = f"mapping: [{{from: {schema}.a, to: {schema}.a, columns: {{exclude: [hidden]}}}}]"
    with case(tmp_path, mysql_source, twin_target, twin_zookeeper, schema, extra=mapping) as made:
        made.run_until_head()
        mysql_source.execute(f"INSERT INTO `{schema}`.a VALUES (1, 'x', 'secret')")
        before = newest(made)
        assert [column.name for column in before.columns] == ["id", "v"]
        [given] = before.inputs
        assert before.source_columns[given] == (("id", "int unsigned"), ("v", "varchar(80)"), ("hidden", "text"))
        mysql_source.execute(f"ALTER TABLE `{schema}`.a ADD more INT")
        mysql_source.execute(f"INSERT INTO `{schema}`.a VALUES (2, 'y', 'secret', 3)")
        assert newest(made).source_columns[given][3] == ("more", "int")
