"""Tables of engines without transactions, beside others in one batch."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.errors import LoadError
from sluice.operations.check import check
from tests.support.pipelines.case import case


def test_rows_of_an_engine_without_transactions(
    tmp_path: Any, mysql_source: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """A target with enforce_gtid_consistency=ON refuses them; the hint of the error and of `sluice check` is what
    helps.
    """
    schema, there = fresh_schema(mysql_source), fresh_schema(mysql_source)
    create = (
        f"CREATE TABLE {schema}.plain (id INT PRIMARY KEY, v INT) ENGINE=MyISAM",
        f"CREATE TABLE {schema}.early (id INT PRIMARY KEY, v INT)",
    )
    mysql_source.execute(*create)
    with case(tmp_path, mysql_source, mysql_source, zookeeper, schema) as made:  # a server with a log of its own
        made.path.write_text(made.yaml + f"\nmapping: [{{from: {schema}.*, to: {there}.*}}]\n")
        absent = [f for f in check(made.runtime()).findings if "exactly once" in f.why]
        assert ["plain" in f.setting + f.value + f.why for f in absent] == [True]
        made.make_missing()
        made.run_until_head()
        mysql_source.execute(
            f"INSERT INTO {schema}.early VALUES (1, 1)",
            f"INSERT INTO {schema}.plain VALUES (1, 1), (2, 2)",
            f"DELETE FROM {schema}.plain WHERE id = 2",
        )
        with pytest.raises(LoadError, match="1785") as refused:
            made.run_until_head()
        assert "ENGINE = InnoDB" in (refused.value.hint or "")
        found = [f for f in check(made.runtime()).findings if "exactly once" in f.why]
        assert len(found) == 1
        mysql_source.execute(found[0].fix.partition(" at the target")[0])
        made.run_until_head()
        for name in ("plain", "early"):
            rows = [mysql_source.execute(f"SELECT * FROM {where}.{name}") for where in (schema, there)]
            assert rows[0] == rows[1] == [(1, 1)]
