"""Generated columns whose values a session without strict mode cut to fit: the target computes and cuts the same."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.errors import LoadError
from tests.support.pipelines.case import assert_same_rows, case

COLUMNS = (
    "g VARCHAR(5) AS (a) {0}, h TINYINT AS (n) {0}, k INT AS (a + 0) {0}, d DATE AS (a) {0}, e ENUM('x', 'y') AS (a) "
    "{0}, u SMALLINT UNSIGNED AS (n * -1) {0}, `it's` CHAR(2) AS (a) {0}"
)


@pytest.mark.parametrize("bulk", [False, True], ids=["statements", "bulk"])
@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_what_a_lenient_session_cut_is_cut_at_the_target(
    kind: str,
    bulk: bool,
    request: Any,
    tmp_path: Any,
    mysql_target: Any,
    zookeeper: Any,
    fresh_schema: Any,
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr("sluice.targets.mysql.load_data.BULK_ROWS", 1 if bulk else 10_000)
    source = request.getfixturevalue(kind)
    target = mysql_target if kind == "mysql_source" else source
    schema = fresh_schema(source) if target is source else fresh_schema(source, target)
    there = fresh_schema(target) if target is source else schema
    with case(tmp_path, source, target, zookeeper, schema) as made:
        made.path.write_text(made.yaml + f"\nmapping: [{{from: {schema}.*, to: {there}.*}}]\n")
        made.run_until_head()
        lenient = [f"USE `{schema}`", "SET SESSION sql_mode = ''"]
        rows = ", ".join(f"({n}, 'long text {n}', {n * 1000})" for n in range(300))
        for name, stored, key in (("s", "STORED", True), ("v", "VIRTUAL", True), ("heap", "STORED", False)):
            source.execute(
                *lenient,
                f"CREATE TABLE {name} (id INT NOT NULL{' PRIMARY KEY' if key else ''}, a VARCHAR(30), n INT, "
                f"{COLUMNS.format(stored)})",
                f"INSERT INTO {name} (id, a, n) VALUES {rows}",
            )
        made.run_until_head()
        for name in ("s", "v", "heap"):
            source.execute(
                *lenient,
                f"UPDATE {name} SET a = 'other text', n = -n WHERE id % 3 = 1",
                f"UPDATE {name} SET id = id + 1000 WHERE id % 50 = 2",
                f"DELETE FROM {name} WHERE id % 7 = 3",
                "SET SESSION binlog_row_image = 'MINIMAL'",
                *(
                    [
                        f"UPDATE {name} SET n = n - 1 WHERE id % 3 = 0",
                        f"UPDATE {name} SET id = id + 2000 WHERE id % 50 = 4",
                    ]
                    if name != "heap"
                    else []
                ),
            )
        made.run_until_head()
        for name in ("s", "v", "heap"):
            found = [
                sorted(map(repr, s.execute(f"SELECT * FROM `{d}`.{name}")))
                for s, d in ((source, schema), (target, there))
            ]
            assert found[0] == found[1], name


def test_what_only_the_target_computes_is_not_cut(
    tmp_path: Any, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """Neither a plain column beside a computed one, nor a column that the source does not have."""
    schema = fresh_schema(mysql_source, mysql_target)
    mysql_source.execute(
        f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, a VARCHAR(9), b VARCHAR(9), g VARCHAR(2) AS (a))"
    )
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        made.make_missing()
        mysql_target.execute(f"ALTER TABLE {schema}.t MODIFY b VARCHAR(3)")
        made.run_until_head()
        mysql_source.execute(
            "SET SESSION sql_mode = ''", f"INSERT INTO {schema}.t (id, a, b) VALUES (1, 'long', 'long')"
        )
        with pytest.raises(LoadError, match="'b'"):
            made.run_until_head()
        mysql_target.execute(f"ALTER TABLE {schema}.t MODIFY b VARCHAR(9), ADD mine VARCHAR(2) AS (b)")
        with pytest.raises(LoadError, match="'mine'"):
            made.run_until_head()
        mysql_target.execute(f"ALTER TABLE {schema}.t DROP mine")
        made.run_until_head()
        assert_same_rows(made)


def test_what_a_functional_index_cuts_is_no_value_of_the_row(
    tmp_path: Any, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, monkeypatch: Any
) -> None:
    """A lenient session at the source stores rows whose index a strict one refuses (error 3751)."""
    schema = fresh_schema(mysql_source, mysql_target)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        made.run_until_head()
        lenient = [f"USE `{schema}`", "SET SESSION sql_mode = ''"]
        indexed = "KEY n ((CAST(v AS UNSIGNED))), KEY c ((CAST(v AS CHAR(2))))"
        mysql_source.execute(*lenient, f"CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9), {indexed})")
        for bulk in (False, True):
            monkeypatch.setattr("sluice.targets.mysql.load_data.BULK_ROWS", 1 if bulk else 10_000)
            mysql_source.execute(*lenient, "DELETE FROM t", "INSERT INTO t VALUES (1, '1'), (2, 'abc'), (3, '-5')")
            mysql_source.execute(*lenient, "UPDATE t SET v = 'x9' WHERE id = 1")
            made.run_until_head()
            made.assert_equal("t")
