"""The first capture of a pipeline reads definitions once, and only those of the schemas that it captures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sluice.errors import LoadError
from sluice.model.tables import TableId
from sluice.operations.status import status
from sluice.sources.table_filter import Selection
from tests.support.pipelines.case import case
from tests.support.readers.lakes import Lake

_ASKED = (
    "SELECT COUNT_STAR, SUM_ROWS_SENT FROM performance_schema.events_statements_summary_by_digest "
    "WHERE DIGEST_TEXT LIKE '%ORDINAL_POSITION%COLUMN_DEFAULT%information_schema%COLUMNS%'"
)


def _asked(source: Any) -> tuple[int, int]:
    """How many statements asked for definitions of columns, and how many rows the server sent."""
    found = source.execute(_ASKED)
    return sum(int(row[0]) for row in found), sum(int(row[1]) for row in found)


@pytest.mark.promise("A12")
def test_only_the_captured_schemas_are_read_and_once(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema, other = fresh_schema(mysql_source, mysql_target), fresh_schema(mysql_source)
    mysql_source.execute(
        f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, v INT)",
        f"CREATE TABLE `{schema}`._t_gho (id INT PRIMARY KEY)",
        *(f"CREATE TABLE `{other}`.t{n} (id INT PRIMARY KEY, v INT)" for n in range(20)),
    )
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        runtime = made.runtime()
        with runtime.source.open() as session:
            history = session.history
            assert history is not None
            at, before = session.resolve_start("latest"), _asked(mysql_source)
            found = history.snapshot(at, Selection.compile(runtime.pipeline.capture))
            sizes = session.table_rows()
            statements, rows = (now - then for now, then in zip(_asked(mysql_source), before, strict=True))
        assert (statements, rows) == (1, 3)
        assert {table.schema for table in sizes} == {schema}
        assert found.find(TableId(schema, "t")) is not None
        assert found.find(TableId(schema, "_t_gho")) is not None
        assert found.find(TableId(other, "t1")) is None


def test_a_pattern_over_several_schemas_reads_all_of_them(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    first, second = fresh_schema(mysql_source), fresh_schema(mysql_source)
    for one in (first, second):
        mysql_source.execute(f"CREATE TABLE `{one}`.t (id INT PRIMARY KEY)")
    with case(tmp_path, mysql_source, mysql_target, zookeeper, first) as made:
        made.path.write_text(made.yaml.replace(f"{first}\\\\..*", f"{first}\\\\.a|{second}\\\\.t"), encoding="utf-8")
        runtime = made.runtime()
        with runtime.source.open() as session:
            history = session.history
            assert history is not None
            found = history.snapshot(session.resolve_start("latest"), Selection.compile(runtime.pipeline.capture))
        assert all(found.find(TableId(one, "t")) is not None for one in (first, second))


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_a_table_that_comes_from_another_schema(
    request: Any, tmp_path: Path, mysql_target: Any, zookeeper: Any, fresh_schema: Any, kind: str
) -> None:
    """Its definition is known; its older rows were never seen, and that is what the load says."""
    source = request.getfixturevalue(kind)
    schema, away = fresh_schema(source, mysql_target), fresh_schema(source)
    columns = "(id INT PRIMARY KEY, v VARCHAR(9) DEFAULT 'x' COLLATE utf8mb4_bin, KEY (v))"
    source.execute(*(f"CREATE TABLE `{away}`.{name} {columns}" for name in ("model", "t")))
    with case(tmp_path, source, mysql_target, zookeeper, schema) as made:
        made.run_until_head()
        source.execute(
            f"CREATE TABLE made LIKE `{away}`.model", "INSERT INTO made (id) VALUES (1)",
            f"RENAME TABLE `{away}`.t TO t", "INSERT INTO t (id) VALUES (3)", database=schema,
        )  # fmt: skip
        with pytest.raises(LoadError, match="its rows were never seen"):
            made.run_until_head()
        mysql_target.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9) DEFAULT 'x')", database=schema)
        made.run_until_head()
        for table in ("made", "t"):
            sides = [s.execute(f"SELECT * FROM `{schema}`.{table}") for s in (source, mysql_target)]
            assert sides[0] == sides[1] != [], table


def test_an_option_for_a_table_that_does_not_exist_is_named_once_definitions_are_known(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """A table that does not exist yet may get rows later: nothing is said of it before anything was captured."""
    schema = fresh_schema(mysql_source)
    extra = f"    options: {{partition_by: {{{schema}.order: [v], {schema}.orders: [v]}}}}"
    with case(
        tmp_path, mysql_source, Lake(tmp_path / "lake"), zookeeper, schema, kind="delta", target_extra=extra
    ) as made:
        assert status(made.runtime()).warnings == []
        made.run_until_head()
        mysql_source.execute(f"CREATE TABLE `{schema}`.orders (id INT PRIMARY KEY, v INT)")
        mysql_source.execute(f"INSERT INTO `{schema}`.orders VALUES (1, 1)")
        with capture_logs() as logs:
            made.run_until_head()
            mysql_source.execute(f"INSERT INTO `{schema}`.orders VALUES (2, 1)")
            made.run_until_head()
        warned = [(one["option"], one["table"]) for one in logs if one["event"] == "option_without_table"]
        assert warned == [("options.partition_by", f"{schema}.order")]
        [warning] = status(made.runtime()).warnings
        assert "target copy: options.partition_by" in warning
        assert f"did you mean '{schema}.orders'?" in warning
